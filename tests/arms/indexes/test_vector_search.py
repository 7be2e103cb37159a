"""A vector index under a filter: the nearest of the permitted passages, and as many as there are."""

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
from armwise.arms.indexes.vectors import LEAST_COMPRESSED
from armwise.arms.models import Backbone
from tests.arms.conftest import keep
from tests.arms.retrievers.test_first_stage import unit

VECTORS, MANY = unit(800, 16, seed=3), unit(LEAST_COMPRESSED, 16, seed=4)

K = 10


FLAT, COMPRESSED = IndexParams(backbone="b"), IndexParams(backbone="b", index="ivf_pq")


@cache
def index_of(kind: str) -> VectorIndex:
    params = IndexParams.model_validate({"backbone": "b", "index": kind})
    return VectorIndex(vector_search._build(VECTORS, params, None))  # noqa: SLF001


@cache
def compressed() -> VectorIndex:
    """Return an index of 256 cells."""
    return VectorIndex(vector_search._build(MANY, COMPRESSED, None), vectors=MANY)  # noqa: SLF001


def read(probes: int, monkeypatch: pytest.MonkeyPatch) -> VectorIndex:
    monkeypatch.setattr(vector_search, "PROBES", probes)
    return compressed()


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
def test_compressed_vectors_of_every_cell_are_as_flat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert recall(read(256, monkeypatch)) == 1.0


@pytest.mark.slow
def test_recall_grows_with_cells_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = (recall(read(n, monkeypatch)) for n in (1, 64))
    assert few < more
    assert more >= 0.95


def test_k_passages_come_where_cells_have_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vector, k = unit(1, 16, seed=9)[0], LEAST_COMPRESSED // 2
    assert len(read(1, monkeypatch).nearest(vector, k)[1]) == k


@pytest.mark.parametrize("share", [0.5, 0.01, 0.0])
def test_compressed_vectors_honour_a_filter(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1000)
    mask = np.random.default_rng(5).random(LEAST_COMPRESSED) < share
    assert recall(read(256, monkeypatch), Permitted.from_mask(mask)) >= 0.95 * (share > 0)


def test_compressed_vectors_are_not_asked_for_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half, few = (np.random.default_rng(5).random(LEAST_COMPRESSED) < share for share in (0.5, 0.09))
    assert recall(read(1, monkeypatch), Permitted.from_mask(half)) == 1.0, "fewer than 10,000"
    monkeypatch.setattr(vector_search, "LEAST_COUNT", 1)
    assert recall(read(1, monkeypatch), Permitted.from_mask(half)) < 1.0
    assert recall(read(1, monkeypatch), Permitted.from_mask(few)) == 1.0


def test_a_small_corpus_is_compared_exactly() -> None:
    vector = unit(1, 16, seed=9)[0]
    found = index_of("ivf_pq").nearest(vector, K)[1]
    assert found[:K].tolist() == plain(vector, np.ones(len(VECTORS), dtype=bool))


def test_an_index_is_of_one_corpus_and_one_model(corpus: Corpus, tmp_path: Path) -> None:
    other = keep(tmp_path, (Passage("p", "", "another corpus"),))
    one, longer = Backbone(model="hashing:8"), Backbone(model="hashing:16")
    params = FLAT
    VectorIndex.prepare(corpus, tmp_path, params, one)
    for of, by, want in ((other, one, params), (corpus, longer, params), (corpus, one, COMPRESSED)):
        with pytest.raises(IndexMismatchError, match="prepare the arms first"):
            VectorIndex.open(of, tmp_path, want, by)


def test_an_opened_index_compares_with_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "LEAST_COMPRESSED", 0)
    monkeypatch.setattr(vector_search, "RESCORED", 400)
    monkeypatch.setattr(vector_search, "TRAINED_BY", 1)
    words = np.random.default_rng(6).integers(0, 50, (400, 3)).tolist()
    texts = [f"a{i} b{j} c{k}" for i, j, k in words]
    corpus = keep(tmp_path, tuple(Passage(str(n), "", text) for n, text in enumerate(texts)))
    backbone = Backbone(model="hashing:16")
    params = COMPRESSED
    VectorIndex.prepare(corpus, tmp_path, params, backbone)
    vectors = Vectors.locate(corpus, tmp_path, backbone).read()
    scores, places = VectorIndex.open(corpus, tmp_path, params, backbone).nearest(vectors[7], K)
    np.testing.assert_allclose(scores, vectors[places] @ vectors[7], atol=1e-6)
    np.testing.assert_allclose(scores[:K], np.sort(vectors @ vectors[7])[: -K - 1 : -1], atol=1e-6)


def test_vectors_are_of_one_corpus_and_one_model(corpus: Corpus, tmp_path: Path) -> None:
    other = keep(tmp_path, (Passage("p", "", "another corpus"),))
    one, longer = Backbone(model="hashing:8"), Backbone(model="hashing:16")
    places = {Vectors.locate(of, tmp_path, by).target for of in (corpus, other) for by in (one, longer)}
    assert len(places) == 4


@pytest.mark.parametrize("kind", ["flat", "ivf_pq"])
def test_vectors_are_added_and_compared_part_by_part(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "ADD_AT_ONCE", 300)
    monkeypatch.setattr(vector_search, "LEAST_COMPRESSED", 0)
    monkeypatch.setattr(vector_search, "RESCORED", 800)
    reported: list[tuple[int, int | None]] = []
    params = IndexParams.model_validate({"backbone": "b", "index": kind})
    built = vector_search._build(VECTORS, params, lambda _, done, total: reported.append((done, total)))  # noqa: SLF001
    assert reported == [(300, 800), (600, 800), (800, 800)]
    index = VectorIndex(built, vectors=VECTORS)
    for vector in VECTORS[[0, 299, 300, 599, 600, 799]]:
        expected = plain(vector, np.ones(len(VECTORS), dtype=bool))
        assert index.nearest(vector, K)[1][:K].tolist() == expected


def plain(vector: NDArray[np.float32], mask: NDArray[np.bool_]) -> list[int]:
    scores = np.where(mask, VECTORS @ vector, -np.inf)
    return [int(place) for place in np.argsort(-scores, kind="stable")[:K] if mask[place]]


def masks() -> dict[str, NDArray[np.bool_]]:
    rng = np.random.default_rng(5)
    drawn = {f"{share:.0%}": rng.random(len(VECTORS)) < share for share in (0.9, 0.3, 0.02)}
    return {
        **drawn,
        "far": VECTORS[:, 0] < -0.5,
        "one": np.arange(len(VECTORS)) == 7,
        "none": VECTORS[:, 0] > 2,
    }


@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("kind", ["flat", "ivf_pq"])
def test_the_nearest_permitted_passages_are_found(kind: str, name: str) -> None:
    index, mask = index_of(kind), masks()[name]
    questions: list[Any] = [*unit(20, 16, seed=9), np.eye(16, dtype=np.float32)[0]]
    for vector in questions:
        scores, places = index.nearest(vector, K, Permitted.from_mask(mask.copy()))
        expected = plain(vector, mask)
        assert mask[places].all()
        assert min(K, mask.sum()) <= len(places) <= K + 1, "one more shows that no other is as near"
        np.testing.assert_allclose(scores, VECTORS[places] @ vector, atol=1e-6)
        assert places[:K].tolist() == expected
