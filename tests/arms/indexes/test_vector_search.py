"""A vector index under a filter: the nearest of the permitted passages, and as many as there are."""

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus, Permitted
from armwise.arms.indexes import IndexMismatchError, IndexParams, VectorIndex, Vectors
from armwise.arms.indexes import vectors as vector_search
from armwise.arms.indexes.vectors import LEAST_COMPRESSED, cell_count
from armwise.arms.models import Backbone
from tests.arms.conftest import keep
from tests.arms.retrievers.test_first_stage import unit

VECTORS, MANY = unit(800, 16, seed=3), unit(LEAST_COMPRESSED, 16, seed=4)

K = 10


@cache
def index_of(kind: str) -> VectorIndex:
    params = IndexParams.model_validate({"backbone": "b", "index": kind, "neighbors": 8, "search_width": 64})
    return VectorIndex(vector_search._build(VECTORS, params, None), params)  # noqa: SLF001


@cache
def trained(code_bytes: int) -> Any:
    params = IndexParams(backbone="b", index="ivf_pq", cells=32, code_bytes=code_bytes)
    return vector_search._build(MANY, params, None)  # noqa: SLF001


def compressed(code_bytes: int, **params: int) -> VectorIndex:
    own = IndexParams.model_validate({"backbone": "b", "index": "ivf_pq", **params})
    return VectorIndex(trained(code_bytes), own, vectors=MANY)


def recall(index: VectorIndex, permitted: Permitted | None = None) -> float:
    mask = np.ones(len(MANY), dtype=bool) if permitted is None else permitted.mask
    met = []
    for vector in unit(50, 16, seed=9):
        scores, places = index.nearest(vector, K, permitted)
        expected = np.argsort(np.where(mask, -(MANY @ vector), np.inf), kind="stable")[:K]
        np.testing.assert_allclose(scores, MANY[places] @ vector, atol=1e-6)
        assert mask[places].all()
        met.append(len({*expected.tolist()} & {*places[:K].tolist()}) / K)
    return float(np.mean(met))


@pytest.mark.slow
def test_compressed_vectors_of_every_cell_find_what_a_flat_index_does() -> None:
    assert recall(compressed(8, probes=32)) == 1.0


@pytest.mark.slow
def test_recall_grows_with_cells_that_are_read_and_with_passages_that_are_compared_exactly() -> None:
    few, more = (recall(compressed(8, probes=n)) for n in (1, 16))
    assert few < more
    assert more >= 0.95
    coarse, rescored = (recall(compressed(2, probes=32, rescored=n)) for n in (10, 200))
    assert coarse < rescored
    assert rescored >= 0.85


def test_as_many_passages_come_as_are_asked_for_where_the_cells_that_are_read_have_fewer() -> None:
    vector, k = unit(1, 16, seed=9)[0], LEAST_COMPRESSED // 2
    assert len(compressed(8, probes=1).nearest(vector, k)[1]) == k


@pytest.mark.parametrize("share", [0.5, 0.01, 0.0])
def test_compressed_vectors_honour_a_filter(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1000)
    mask = np.random.default_rng(5).random(LEAST_COMPRESSED) < share
    assert recall(compressed(8, probes=32), Permitted.of(mask)) >= 0.95 * (share > 0)


def test_compressed_vectors_are_not_asked_where_a_filter_leaves_less_than_a_tenth_or_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, few = (np.random.default_rng(5).random(LEAST_COMPRESSED) < share for share in (0.5, 0.09))
    assert recall(compressed(8, probes=1), Permitted.of(half)) == 1.0, "fewer than 10,000"
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
    assert recall(compressed(8, probes=1), Permitted.of(half)) < 1.0
    assert recall(compressed(8, probes=1), Permitted.of(few)) == 1.0


def test_a_graph_is_not_walked_where_a_filter_leaves_less_than_a_tenth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
    half, few = (np.arange(len(VECTORS)) % n == 0 for n in (2, 11))
    params = IndexParams(backbone="b", index="hnsw", neighbors=2, search_width=1)
    narrow = VectorIndex(vector_search._build(VECTORS, params, None), params)  # noqa: SLF001

    def is_exact(mask: NDArray[np.bool_]) -> bool:
        found = ((one, narrow.nearest(one, K, Permitted.of(mask.copy()))[1]) for one in unit(20, 16, seed=9))
        return all(places[:K].tolist() == plain(vector, mask) for vector, places in found)

    assert (is_exact(half), is_exact(few)) == (False, True)


def test_where_a_walk_meets_no_permitted_passage_all_of_them_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
    params = IndexParams(backbone="b", index="hnsw", neighbors=8, search_width=1)
    far = np.arange(800) % 8 == 0
    vectors = 0.3 * unit(800, 16, seed=7)
    vectors[:, 0] += np.where(far, -1.0, 1.0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = VectorIndex(vector_search._build(vectors, params, None), params)  # noqa: SLF001
    ahead = np.eye(16, dtype=np.float32)[0]
    _, places = index.nearest(ahead, K, Permitted.of(far))
    expected = np.argsort(np.where(far, -(vectors @ ahead), np.inf), kind="stable")[:K]
    assert places[:K].tolist() == expected.tolist()


def test_a_walk_considers_more_candidates_for_more_passages_and_under_a_filter_and_at_most_all() -> None:
    effort = index_of("hnsw")._effort  # noqa: SLF001
    considered = [effort(k, share).efSearch for k, share in ((10, 1.0), (100, 1.0), (10, 0.25), (10, 0.01))]
    assert considered == [64, 100, 256, 800]
    assert effort(10).efSearch == 64


def test_a_graph_is_built_with_the_links_and_the_width_that_are_named() -> None:
    params = IndexParams(backbone="b", index="hnsw", neighbors=5, build_width=77)
    index = vector_search._build(VECTORS, params, None)  # noqa: SLF001
    assert (index.hnsw.nb_neighbors(1), index.hnsw.efConstruction) == (5, 77)


def test_a_corpus_that_is_too_small_to_be_compressed_is_compared_exactly() -> None:
    vector = unit(1, 16, seed=9)[0]
    found = index_of("ivf_pq").nearest(vector, K)[1]
    assert found[:K].tolist() == plain(vector, np.ones(len(VECTORS), dtype=bool))


@pytest.mark.parametrize(
    ("one", "changed", "same"),
    [
        ({"index": "flat"}, {"index": "hnsw"}, False),
        ({"index": "hnsw"}, {"neighbors": 33}, False),
        ({"index": "hnsw"}, {"build_width": 201}, False),
        ({"index": "ivf_pq"}, {"cells": 7}, False),
        ({"index": "ivf_pq", "cells": 7}, {"cells": 8}, False),
        ({"index": "ivf_pq"}, {"code_bytes": 32}, False),
        ({"index": "hnsw"}, {"search_width": 129}, True),
        ({"index": "ivf_pq"}, {"probes": 65}, True),
        ({"index": "ivf_pq"}, {"rescored": 201}, True),
        ({"index": "flat"}, {"neighbors": 33, "code_bytes": 32}, True),
    ],
    ids=str,
)
def test_an_index_is_shared_by_arms_that_would_build_the_same(
    one: dict[str, Any], changed: dict[str, Any], same: bool, corpus: Corpus, tmp_path: Path
) -> None:
    backbone = Backbone(model="hashing:8")
    first, second = (IndexParams(backbone="b", **params) for params in (one, {**one, **changed}))
    VectorIndex.prepare(corpus, tmp_path, first, backbone)
    with nullcontext() if same else pytest.raises(IndexMismatchError, match="prepare the arms first"):
        VectorIndex.open(corpus, tmp_path, second, backbone)


def test_an_index_is_of_one_corpus_and_one_model(corpus: Corpus, tmp_path: Path) -> None:
    other = keep(tmp_path, (Passage("p", "", "another corpus"),))
    one, longer = Backbone(model="hashing:8"), Backbone(model="hashing:16")
    params = IndexParams(backbone="b")
    VectorIndex.prepare(corpus, tmp_path, params, one)
    for of, by in ((other, one), (corpus, longer)):
        with pytest.raises(IndexMismatchError, match="prepare the arms first"):
            VectorIndex.open(of, tmp_path, params, by)


def test_a_compressed_index_that_was_opened_compares_with_the_vectors_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COMPRESSED", 0)
    words = np.random.default_rng(6).integers(0, 50, (400, 3)).tolist()
    texts = [f"a{i} b{j} c{k}" for i, j, k in words]
    corpus = keep(tmp_path, tuple(Passage(str(n), "", text) for n, text in enumerate(texts)))
    backbone = Backbone(model="hashing:16")
    params = IndexParams(backbone="b", index="ivf_pq", cells=2, probes=2, code_bytes=1, rescored=400)
    VectorIndex.prepare(corpus, tmp_path, params, backbone)
    vectors = Vectors.of(corpus, tmp_path, backbone).read()
    scores, places = VectorIndex.open(corpus, tmp_path, params, backbone).nearest(vectors[7], K)
    np.testing.assert_allclose(scores, vectors[places] @ vectors[7], atol=1e-6)
    np.testing.assert_allclose(scores[:K], np.sort(vectors @ vectors[7])[: -K - 1 : -1], atol=1e-6)


def test_vectors_are_of_one_corpus_and_one_model(corpus: Corpus, tmp_path: Path) -> None:
    other = keep(tmp_path, (Passage("p", "", "another corpus"),))
    one, longer = Backbone(model="hashing:8"), Backbone(model="hashing:16")
    places = {Vectors.of(of, tmp_path, by).target for of in (corpus, other) for by in (one, longer)}
    assert len(places) == 4


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_pq"])
def test_vectors_are_added_and_compared_part_by_part(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "ADD_AT_ONCE", 300)
    monkeypatch.setattr(vector_search, "LEAST_COMPRESSED", 0)
    reported: list[tuple[int, int | None]] = []
    params = IndexParams.model_validate(
        {"backbone": "b", "index": kind, "cells": 2, "probes": 2, "code_bytes": 1, "rescored": 800}
    )
    built = vector_search._build(VECTORS, params, lambda _, done, total: reported.append((done, total)))  # noqa: SLF001
    assert reported == [(300, 800), (600, 800), (800, 800)]
    index = VectorIndex(built, params, vectors=VECTORS)
    for vector in VECTORS[[0, 299, 300, 599, 600, 799]]:
        expected = plain(vector, np.ones(len(VECTORS), dtype=bool))
        assert index.nearest(vector, K)[1][:K].tolist() == expected


def plain(vector: NDArray[np.float32], mask: NDArray[np.bool_]) -> list[int]:
    scores = np.where(mask, VECTORS @ vector, -np.inf)
    return [int(place) for place in np.argsort(-scores, kind="stable")[:K] if mask[place]]


def masks() -> dict[str, NDArray[np.bool_]]:
    rng = np.random.default_rng(5)
    drawn = {f"{share:.0%}": rng.random(len(VECTORS)) < share for share in (0.9, 0.3, 0.02)}
    # the worst for a walk: only what is opposite to the first axis
    return {
        **drawn,
        "far": VECTORS[:, 0] < -0.5,
        "one": np.arange(len(VECTORS)) == 7,
        "none": VECTORS[:, 0] > 2,
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf_pq", "walked"])
def test_the_nearest_permitted_passages_are_found(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "walked":  # whatever the share
        monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
        monkeypatch.setattr(vector_search, "LEAST_SHARE", 0.0)
    index, mask = index_of("hnsw" if kind == "walked" else kind), masks()[name]
    questions: list[Any] = [*unit(20, 16, seed=9), np.eye(16, dtype=np.float32)[0]]
    met, wanted = 0, 0
    for vector in questions:
        scores, places = index.nearest(vector, K, Permitted.of(mask.copy()))
        expected = plain(vector, mask)
        assert mask[places].all()
        assert min(K, mask.sum()) <= len(places) <= K + 1, "one more shows that no other is as near"
        np.testing.assert_allclose(scores, VECTORS[places] @ vector, atol=1e-6)
        met, wanted = met + len({*expected} & {*places[:K].tolist()}), wanted + len(expected)
        if kind != "walked":
            assert places[:K].tolist() == expected
    assert met >= 0.95 * wanted


def test_a_cell_has_39_passages_or_more_whatever_is_asked_for() -> None:
    asked = [(10_000, None), (10_000, 100), (10_000, 1_000), (1_000_000, None), (39_000, 1_000)]
    assert [cell_count(total, cells) for total, cells in asked] == [256, 100, 256, 4_000, 1_000]
