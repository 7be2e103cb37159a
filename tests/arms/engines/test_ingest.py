"""What `ingest` does with any collection: in which order, what it writes again, where it goes on."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from armwise.arms.base import ArmError, Passage
from armwise.arms.engines import ingest as ingesting
from armwise.arms.engines.ingest import Embedded, IngestReport, compute_version, digest_passage, ingest
from tests.arms.engines.passages import CollectionInMemory, InMemory


def numbered(n: int) -> list[Passage]:
    return [Passage(f"p{place}", "", f"word {place}") for place in range(n)]


def test_a_batch_has_500_passages() -> None:
    collection, reported = CollectionInMemory(), list[tuple[str, int, int | None]]()
    ingest(InMemory(numbered(1001)), collection, None, lambda *progress: reported.append(progress))
    assert collection.calls == [
        ("create", 0),
        ("keep", 0),
        *[("write", 500), ("keep", 500), ("write", 500), ("keep", 1000), ("write", 1), ("keep", 1001)],
        ("finish", 1001),
        ("keep", 1001),
    ]
    assert reported == [("filling the engine", done, 1001) for done in (500, 1000, 1001)]
    collection.calls.clear()
    assert ingest(InMemory(numbered(1001)), collection, None).written == 0
    assert collection.calls == [], "a collection that is complete is not touched"


def test_surplus_passages_are_deleted_by_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingesting, "PAGE", 3)
    collection = CollectionInMemory()
    ingest(InMemory(numbered(10)), collection, None)
    collection.calls.clear()
    report = ingest(InMemory(numbered(10)[8:9]), collection, None)
    assert (report.written, report.deleted) == (0, 9)
    assert list(collection.rows) == ["p8"]
    assert collection.calls[-5:] == [("delete", 3), ("delete", 3), ("delete", 3), ("finish", 1), ("keep", 1)]


@pytest.mark.parametrize(
    "interrupted", [("write", 2), ("keep", 4), ("write", 1), ("delete", 3), ("finish", 5), ("keep", 5)]
)
def test_an_interrupted_run_is_completed_by_the_next(
    interrupted: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingesting, "BATCH", 2)
    collection, before = CollectionInMemory(), [replace(one, id=f"old {one.id}") for one in numbered(3)]
    ingest(InMemory(before), collection, None)
    corpus = InMemory(numbered(5))
    collection.failing = interrupted
    with pytest.raises(KeyboardInterrupt):
        ingest(corpus, collection, None)
    assert collection.kept is not None
    old, new = compute_version(InMemory(before), ""), compute_version(corpus, "")
    assert collection.kept.shown == f"{old}..{new}"
    again = ingest(corpus, collection, None)
    assert again.version == new
    assert collection.kept.shown == new
    assert sorted(collection.rows) == [f"p{n}" for n in range(5)]


@pytest.mark.parametrize("was_complete", [False, True])
def test_of_parts_of_two_corpora_the_version_is_unknown(
    was_complete: bool,
) -> None:
    collection = CollectionInMemory()
    if was_complete:
        ingest(InMemory(numbered(1)), collection, None)
        collection.failing = ("write", 1)
        with pytest.raises(KeyboardInterrupt):
            ingest(InMemory(numbered(2)), collection, None)
    for corpus in (InMemory(numbered(4)[2:]), InMemory(numbered(7)[4:])):
        collection.failing = ("write", len(corpus))
        with pytest.raises(KeyboardInterrupt):
            ingest(corpus, collection, None)
        assert collection.kept is not None
        assert collection.kept.shown == f"..{compute_version(corpus, '')}"


def test_the_corpus_before_an_interruption_is_written_again() -> None:
    before, after = numbered(3), [replace(one, text="changed") for one in numbered(3)]
    collection = CollectionInMemory()
    ingest(InMemory(before), collection, None)
    collection.failing = ("finish", 3)
    with pytest.raises(KeyboardInterrupt):
        ingest(InMemory(after), collection, None)
    assert [row.passage for row in collection.rows.values()] == after
    assert ingest(InMemory(before), collection, None).written == 3
    assert [row.passage for row in collection.rows.values()] == before
    assert collection.kept is not None
    assert collection.kept.shown == compute_version(InMemory(before), "")


WHOLE = Passage("p", "title", "text", 0.0, {"year": 2024})


@pytest.mark.parametrize(
    "changed",
    [
        {"title": "another title"},
        {"text": "another text"},
        {"metadata": {"year": 2025}},
        {"metadata": {"page": 2024}},
        {"title": "titlet", "text": "ext"},
    ],
)
def test_a_passage_that_differs_in_anything_is_written_again(changed: dict[str, Any]) -> None:
    collection = CollectionInMemory()
    assert ingest(InMemory([WHOLE]), collection, None).written == 1
    assert ingest(InMemory([replace(WHOLE, **changed)]), collection, None).written == 1
    assert collection.rows["p"].passage == replace(WHOLE, **changed)


def test_a_digest_is_of_the_id_and_the_model_too() -> None:
    named = replace(WHOLE, metadata={"a": 1, "b": 2})
    assert digest_passage(named, "m") == digest_passage(replace(named, metadata={"b": 2, "a": 1}), "m")
    others = [
        digest_passage(replace(named, id="q"), "m"),
        digest_passage(named, "n"),
        digest_passage(named, ""),
    ]
    assert len({digest_passage(named, "m"), *others}) == 4


def test_a_version_is_of_the_texts_the_metadata_and_the_model() -> None:
    corpora = [InMemory([one]) for one in (WHOLE, replace(WHOLE, text="x"), replace(WHOLE, metadata={}))]
    versions = [compute_version(corpus, model) for corpus in corpora for model in ("", "m", "n")]
    assert len(set(versions)) == 9


def test_a_collection_keeps_the_vectors_that_it_has_or_has_not() -> None:
    corpus, vectors = InMemory(numbered(2)), np.eye(2, dtype=np.float32)
    models = [None, Embedded("a" * 64, vectors), Embedded("b" * 64, vectors)]
    names = ["missing", "of model aaaaaaaa", "of model bbbbbbbb"]
    for (one, had), (other, wanted) in itertools.permutations(zip(models, names, strict=True), 2):
        collection = CollectionInMemory()
        ingest(corpus, collection, one)
        with pytest.raises(ArmError, match=f"are {had}, and this arm would write {wanted}: name another"):
            ingest(corpus, collection, other)


def test_the_version_of_a_corpus_and_a_model_stays_what_it_is() -> None:
    """Another one would fill every collection again."""
    corpus: Any = SimpleNamespace(digest="d", manifest=SimpleNamespace(metadata="m"))
    assert compute_version(corpus, "model") == "4d475b7f2fff-fd4e5222-1"
    assert compute_version(corpus, "") == "4d475b7f2fff-words-1"


def test_each_passage_is_written_with_its_own_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "BATCH", 2)
    vectors = np.eye(5, dtype=np.float32)
    collection = CollectionInMemory()
    ingest(InMemory(numbered(4)), collection, Embedded("m", vectors[:4]))
    changed = [*numbered(3), replace(numbered(4)[3], text="changed"), Passage("p4", "", "new")]
    assert ingest(InMemory(changed), collection, Embedded("m", vectors)) == IngestReport(
        compute_version(InMemory(changed), "m"), written=2, deleted=0
    )
    assert collection.calls[0] == ("create", 5)
    for place, row in enumerate(collection.rows[f"p{n}"] for n in range(5)):
        assert row.vector is not None
        assert row.vector.tolist() == vectors[place].tolist()
