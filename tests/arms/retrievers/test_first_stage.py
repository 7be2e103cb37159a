"""The first stage: the same candidates whoever asked before, in the order of ids where they tie."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.corpus import Permitted
from armwise.arms.indexes import VectorIndex
from armwise.arms.models import Backbone
from armwise.arms.retrievers.dense import CACHED_QUERIES, DenseParams, FirstStage, first_stage, prepare_index
from armwise.arms.retrievers.kind import Resources
from tests.arms.conftest import keep
from tests.arms.contract import DIM, ask


def unit(n: int, dim: int, seed: int) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).normal(size=(n, dim))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class Counted(VectorIndex):
    """Counts its searches."""

    searches = 0

    def nearest(
        self, vector: NDArray[np.float32], k: int, permitted: Permitted | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.intp]]:
        self.searches += 1
        return super().nearest(vector, k, permitted)


def stage(kind: str, vectors: NDArray[np.float32]) -> tuple[FirstStage, Counted]:
    index = faiss.IndexFlatIP(vectors.shape[1])
    if kind == "ivf_pq":  # reads 64 cells of 200
        index = faiss.IndexIVFFlat(index, vectors.shape[1], 200, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
    index.add(vectors)
    counted = Counted(index, vectors=vectors)
    return FirstStage("b", counted, vectors), counted


@pytest.mark.parametrize("kind", ["flat", "ivf_pq"])
def test_what_was_asked_before_changes_no_answer(kind: str) -> None:
    vectors, questions = unit(2000, 16, seed=0), unit(40, 16, seed=1)
    fresh, used = stage(kind, vectors)[0], stage(kind, vectors)[0]
    used.candidates(Query("?", {"b": questions[0]}), 500, arm="deep")
    for question in questions:
        query = Query("?", {"b": question})
        expected, found = (one.candidates(query, 10, arm="shallow") for one in (fresh, used))
        assert found.positions.tolist() == expected.positions.tolist()


def test_arms_of_any_depth_share_one_search_of_an_exact_index() -> None:
    found, index = stage("flat", unit(500, 16, seed=2))
    first, second = (Query("?", {"b": vector}) for vector in unit(2, 16, seed=3))
    for depth in (100, 4, 50):
        assert len(found.candidates(first, depth, arm="a").positions) == depth
    for depth in (4, 100):
        found.candidates(second, depth, arm="a")
    assert index.searches == 2
    found.forget()
    found.candidates(first, 4, arm="a")
    assert index.searches == 3


def test_only_the_last_questions_are_kept() -> None:
    found, index = stage("flat", unit(100, 16, seed=4))
    queries = [Query("?", {"b": vector}) for vector in unit(CACHED_QUERIES + 1, 16, seed=5)]
    for query in (*queries, *queries):
        found.candidates(query, 4, arm="a")
    assert index.searches == 2 * (CACHED_QUERIES + 1)


def test_passages_that_tie_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    corpus = keep(tmp_path, tuple(Passage(name, "", "the same words") for name in ("d", "b", "c", "a")))
    backbone = Backbone(model=f"hashing:{DIM}")
    have = Resources(corpus, tmp_path / "indexes", {"hashed": backbone}, {})
    params = DenseParams(backbone="hashed", index="flat")
    prepare_index(params, have)
    query = ask("the same words", frozenset({"hashed"}))
    near = first_stage(params, have).candidates(query, 3, arm="near")
    assert [corpus.passages([at])[0].id for at in near.positions.tolist()] == ["a", "b", "c"]


def test_a_vector_that_is_not_finite_is_an_error_and_no_answer() -> None:
    found, _ = stage("flat", unit(10, 16, seed=6))
    broken = np.full(16, np.nan, dtype=np.float32)
    with pytest.raises(ArmError, match="'b' embedding has a number that is not finite"):
        found.candidates(Query("?", {"b": broken}), 4, arm="near")
