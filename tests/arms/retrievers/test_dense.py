"""Dense search: exact where it says so, built once, resumed after a kill, refused when it is another's."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.arms.base import MissingEmbeddingError, Passage, Query
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import IndexMismatchError, PassageVectors, VectorIndex, Vectors
from armwise.arms.indexes import vectors as indexe_vectors
from armwise.arms.indexes import vectors as vectors_room
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.retrievers.dense import DenseArm, DenseParams
from tests.arms.conftest import keep
from tests.arms.contract import DIM, ask

BACKBONE = Backbone(model=f"hashing:{DIM}")
WORDS = frozenset({"words"})


def build(corpus: Corpus, indexes: Path, **params: object) -> DenseArm:
    told = DenseParams.model_validate({"backbone": "words", **params})
    VectorIndex.prepare(corpus, indexes, told, BACKBONE)
    return DenseArm("near", corpus, told, VectorIndex.open(corpus, indexes, told, BACKBONE))


class KilledError(Exception):
    """What a test raises in place of a kill."""


class DyingEmbedder(HashingEmbedder):
    """Dies after some passages, and counts those that it embeds."""

    def __init__(self, lives: int) -> None:
        super().__init__(DIM)
        self.lives = lives
        self.embedded = 0

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.embedded + len(texts) > self.lives:
            raise KilledError
        self.embedded += len(texts)
        return super().encode_passages(texts)


@pytest.mark.parametrize("index", ["flat", "ivf_pq"])
def test_search_equals_the_sort_of_all_inner_products(corpus: Corpus, tmp_path: Path, index: str) -> None:
    arm = build(corpus, tmp_path, index=index)
    passages = list(corpus)
    vectors = HashingEmbedder(DIM).encode_passages([indexe_vectors.compose_text(p) for p in passages])
    query = ask("Where does the river flow in Vienna?", WORDS)
    scores = vectors @ query.embeddings["words"]
    expected = sorted(zip(-scores, [p.id for p in passages], strict=True))[:6]

    found = arm.search(query, 6).passages

    assert [p.id for p in found] == [name for _, name in expected]
    assert [p.score for p in found] == pytest.approx([-score for score, _ in expected], abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.permutations(["a", "b", "c", "d", "e", "f"]), st.integers(1, 6))
def test_equal_vectors_are_ordered_by_id_wherever_they_lie(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], k: int
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    arm = build(keep(folder, tuple(Passage(name, "", "the same text") for name in names)), folder)
    found = arm.search(ask("same", WORDS), k).passages
    assert [p.id for p in found] == ["a", "b", "c", "d", "e", "f"][:k]


def test_a_query_without_the_embedding_is_an_error(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(MissingEmbeddingError, match="arm 'near' needs a 'words' embedding"):
        build(corpus, tmp_path).search(Query("river"), 3)


@settings(max_examples=15, deadline=None)
@given(step=st.integers(1, 5), lives=st.integers(0, 12))
def test_embedding_goes_on_where_a_killed_run_stopped(
    corpus: Corpus, tmp_path_factory: pytest.TempPathFactory, step: int, lives: int
) -> None:
    unfinished = tmp_path_factory.mktemp("unfinished")
    killed, survivor = DyingEmbedder(lives), DyingEmbedder(lives=len(corpus))
    with pytest.raises(KilledError):
        indexe_vectors.embed(corpus, killed, unfinished, step)

    indexe_vectors.embed(corpus, survivor, unfinished, step)

    assert killed.embedded + survivor.embedded == len(corpus), "no passage is embedded twice"
    expected = HashingEmbedder(DIM).encode_passages([indexe_vectors.compose_text(p) for p in corpus])
    np.testing.assert_array_equal(np.load(unfinished / "vectors.npy"), expected)


@pytest.mark.parametrize("damage", ["cut off", "of another shape", "x", "14", "0", "-4"])
def test_vectors_that_a_kill_has_damaged_are_embedded_anew(
    corpus: Corpus, tmp_path: Path, damage: str
) -> None:
    vectors, cursor, n = tmp_path / "vectors.npy", tmp_path / "done.txt", len(corpus)
    with pytest.raises(KilledError):
        indexe_vectors.embed(corpus, DyingEmbedder(lives=8), tmp_path, 4)
    assert (cursor.read_text(), n) == ("8", 13)
    if damage == "cut off":
        vectors.write_bytes(vectors.read_bytes()[:-DIM])
    elif damage == "of another shape":
        np.save(vectors, np.ones((n + 1, DIM), dtype=np.float32))
    else:
        cursor.write_text(damage)
    survivor = DyingEmbedder(lives=n)
    indexe_vectors.embed(corpus, survivor, tmp_path, 4)
    assert survivor.embedded == n
    expected = HashingEmbedder(DIM).encode_passages([indexe_vectors.compose_text(p) for p in corpus])
    np.testing.assert_array_equal(np.load(vectors), expected)


def test_embedded_vectors_are_not_embedded_again_after_a_kill(corpus: Corpus, tmp_path: Path) -> None:
    for lives in (len(corpus), 0):
        embedder = DyingEmbedder(lives)
        indexe_vectors.embed(corpus, embedder, tmp_path, 4)
        assert embedder.embedded == lives


def test_a_killed_build_publishes_nothing_and_is_finished(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_room, "STEP", 4)
    with monkeypatch.context() as patched:
        patched.setattr(vectors_room, "build_embedder", lambda _: DyingEmbedder(lives=9))
        with pytest.raises(KilledError):
            build(corpus, tmp_path)
    with pytest.raises(IndexMismatchError, match="no index in"):
        Vectors.locate(corpus, tmp_path, BACKBONE).read()
    told: list[tuple[str, int, int | None]] = []
    VectorIndex.prepare(
        corpus, tmp_path, DenseParams(backbone="words"), BACKBONE, lambda *step: told.append(step)
    )
    assert told == [
        ("embedding passages", 12, 13),
        ("embedding passages", 13, 13),
        ("indexing vectors", 13, 13),
    ]


def test_preparing_again_and_other_indexes_do_not_embed_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(corpus, tmp_path, index="flat")
    monkeypatch.setattr(vectors_room, "build_embedder", lambda _: DyingEmbedder(lives=0))
    build(corpus, tmp_path, index="flat")
    build(corpus, tmp_path, index="ivf_pq")
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["dense", "dense", "vectors"]


def test_the_vectors_of_passages_are_told_by_their_ids(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(IndexMismatchError, match="prepare the arms first"):
        PassageVectors(corpus, tmp_path, BACKBONE)
    Vectors.locate(corpus, tmp_path, BACKBONE).prepare(corpus, BACKBONE)
    vectors = PassageVectors(corpus, tmp_path, BACKBONE)
    first, *_, last = corpus
    found = vectors.look_up([last.id, "of another corpus", first.id, last.id])
    assert list(found) == [last.id, first.id]
    expected = HashingEmbedder(DIM).encode_passages(
        [indexe_vectors.compose_text(last), indexe_vectors.compose_text(first)]
    )
    np.testing.assert_array_equal(np.stack(list(found.values())), expected)
    assert vectors.look_up(["of another corpus"]) == {}


def test_a_passage_without_a_title_is_embedded_as_its_text() -> None:
    assert indexe_vectors.compose_text(Passage("1", "", "only text")) == "only text"
