"""Several corpora are one, by names in the ids, and none touches the files of another."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from armwise.arms.base import Query
from armwise.arms.corpus import Chunking, Corpus, CorpusError, CorpusSource, ingest, ingest_all
from armwise.arms.filters import Comparison
from armwise.arms.indexes import IndexMismatchError, PassageVectors, Vectors, prepare_vectors
from armwise.arms.models import Backbone

HASHED = Backbone(model="hashing:8")


def write(folder: Path, name: str, ids: list[str], **metadata: str) -> CorpusSource:
    path = folder / f"{name}.jsonl"
    rows = [{"id": one, "title": "", "text": f"{name} says {one}", "metadata": metadata} for one in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CorpusSource(str(path), folder / "corpora" / name, name)


@pytest.fixture
def sources(tmp_path: Path) -> list[CorpusSource]:
    return [
        write(tmp_path, "tickets", ["b", "a"], year="2026"),
        write(tmp_path, "docs", ["a", "x/y", "https://example.com/z"]),
    ]


@pytest.fixture
def corpus(sources: list[CorpusSource]) -> Corpus:
    return ingest_all(sources)


IDS = ["tickets/b", "tickets/a", "docs/a", "docs/x/y", "docs/https://example.com/z"]


def test_an_id_begins_with_the_name_of_its_corpus(corpus: Corpus) -> None:
    assert corpus.ids() == [passage.id for passage in corpus] == IDS
    assert len(corpus) == 5
    assert [passage.text for passage in corpus.passages([3, 0, np.intp(4)])] == [
        "docs says x/y",
        "tickets says b",
        "docs says https://example.com/z",
    ]
    assert corpus.positions(IDS[::-1]) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_outside_of_all_of_them_is_refused(corpus: Corpus, position: int) -> None:
    with pytest.raises(CorpusError, match=f"position {position} is out of range"):
        corpus.passages([position])


def test_the_order_is_that_of_the_ids(tmp_path: Path) -> None:
    names = ["a-b", "a", "A", "a.b", "ab"]
    corpus = ingest_all([write(tmp_path, name, ["2", "10", "!"]) for name in names])
    ids = corpus.ids()
    assert [ids[position] for position in corpus.order()] == sorted(ids)


def test_a_part_is_a_corpus_whose_ids_have_the_name(corpus: Corpus) -> None:
    part = corpus.part("docs")
    assert part.ids() == IDS[2:]
    assert part.find_positions(["docs/a", "tickets/a", "a"]) == {"docs/a": 0}
    assert [*corpus.parts] == ["tickets/", "docs/"]
    assert corpus.part(None) is corpus
    assert corpus.start("docs/") == 2


def test_the_only_one_of_some_corpora_is_that_of_every_arm(sources: list[CorpusSource]) -> None:
    corpus = ingest_all(sources[1:])
    assert corpus.part(None) is corpus.part("docs"), "so that its indexes stay where another one is added"
    assert corpus.part(None).ids() == corpus.part("docs").ids() == IDS[2:]


def test_one_corpus_without_a_name_is_as_it_was(tmp_path: Path) -> None:
    source = write(tmp_path, "docs", ["a", "b"])
    corpus = ingest_all([CorpusSource(source.source, source.folder)])
    assert corpus.ids() == ["a", "b"]
    assert corpus.part("any") is corpus.part(None) is corpus


def test_without_sources_the_corpus_is_empty() -> None:
    empty = ingest_all(())
    assert (len(empty), [*empty], empty.ids(), empty.order().tolist()) == (0, [], [], [])
    assert empty.find_permitted(Query("x")) is None
    assert not empty.restricted


def test_several_corpora_travel_to_another_process(corpus: Corpus) -> None:
    again = pickle.loads(pickle.dumps(corpus))
    assert again.ids() == IDS
    assert again.digest == corpus.digest
    assert pickle.loads(pickle.dumps(corpus.part("docs"))).ids() == IDS[2:]


def test_a_filter_holds_in_all_of_them(corpus: Corpus) -> None:
    assert corpus.find_permitted(Query("x")) is None
    found = corpus.find_permitted(Query("x", where=Comparison(type="eq", key="year", value="2026")))
    assert found is not None
    assert found.mask.tolist() == [True, True, False, False, False]


def test_permissions_of_one_corpus_are_those_of_all(tmp_path: Path) -> None:
    path = tmp_path / "hr.jsonl"
    path.write_text(json.dumps({"id": "1", "text": "pay", "metadata": {"allowed_groups": ["hr"]}}) + "\n")
    hr = CorpusSource(str(path), tmp_path / "corpora" / "hr", "hr")
    corpus = ingest_all([write(tmp_path, "docs", ["a"]), hr])
    assert corpus.restricted
    found = corpus.find_permitted(Query("x"))
    assert found is not None
    assert found.mask.tolist() == [True, False]
    assert corpus.find_permitted(Query("x", groups=frozenset({"hr"}))) is None, "it may find all of them"


def test_the_digest_is_of_names_and_contents(tmp_path: Path, sources: list[CorpusSource]) -> None:
    before = ingest_all(sources).digest
    assert ingest_all(sources).digest == before
    assert ingest_all(sources[::-1]).digest != before
    assert ingest_all(sources[:1]).digest != before
    write(tmp_path, "docs", ["a", "new"])
    assert ingest_all(sources).digest != before


def test_what_is_wrong_with_one_names_it(tmp_path: Path, sources: list[CorpusSource]) -> None:
    (tmp_path / "docs.jsonl").write_text("")
    with pytest.raises(CorpusError, match=r"corpus 'docs': .* has no passages"):
        ingest_all(sources)
    assert sources[0].open().ids() == IDS[:2], "the other one is there"


def test_a_corpus_of_bad_records_alone_names_the_first(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_bytes(b"text\n\xff\n\xfe\n")
    with pytest.raises(CorpusError, match=r"bad.csv has no passages; bad.csv:2 and 1 more: text has"):
        ingest(tmp_path / "bad.csv", tmp_path / "out", skip_bad=True)


def test_skipped_records_name_their_corpus(tmp_path: Path, sources: list[CorpusSource]) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text("words")
    (folder / "far.txt").symlink_to("/etc/hostname")
    corpus = ingest_all([*sources, CorpusSource(str(folder), tmp_path / "corpora" / "texts", "texts")])
    (line,) = corpus.list_skipped()
    assert line.startswith("texts/")
    assert "far.txt" in line


def files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_a_changed_corpus_leaves_the_indexes_of_others(tmp_path: Path, sources: list[CorpusSource]) -> None:
    indexes = tmp_path / "indexes"
    prepare_vectors(ingest_all(sources), indexes, HASHED)
    before = files(indexes)
    assert len({path.parent for path in before}) == 2
    sources.insert(0, write(tmp_path, "wiki", ["w"]))
    write(tmp_path, "tickets", ["b", "c"])
    changed = ingest_all(sources)
    prepare_vectors(changed, indexes, HASHED)
    after = files(indexes)
    assert before.items() <= after.items(), "nothing of the earlier ones was written again"
    assert len({path.parent for path in after}) == 4, "one each for the new one and the changed one"
    prepare_vectors(ingest_all(sources[2:]), indexes, HASHED)
    assert files(indexes) == after


def test_vectors_are_read_from_the_corpus_of_each_passage(tmp_path: Path, corpus: Corpus) -> None:
    indexes = tmp_path / "indexes"
    prepare_vectors(corpus, indexes, HASHED)
    found = PassageVectors(corpus, indexes, HASHED).look_up(["docs/a", "web/1", "tickets/a"])
    assert found.keys() == {"docs/a", "tickets/a"}
    for name, at in (("tickets", 1), ("docs", 0)):
        part = corpus.part(name)
        own = Vectors.locate(part, indexes, HASHED).read()[at]
        np.testing.assert_array_equal(found[f"{name}/a"], own)


def test_vectors_may_be_there_for_some_corpora_alone(tmp_path: Path, corpus: Corpus) -> None:
    indexes = tmp_path / "indexes"
    with pytest.raises(IndexMismatchError):
        PassageVectors(corpus, indexes, HASHED, some=True)
    prepare_vectors(corpus.part("docs"), indexes, HASHED)
    with pytest.raises(IndexMismatchError):
        PassageVectors(corpus, indexes, HASHED)
    found = PassageVectors(corpus, indexes, HASHED, some=True).look_up(["docs/a", "tickets/a"])
    assert found.keys() == {"docs/a"}


def test_the_chunking_of_a_source_cuts_every_format(tmp_path: Path) -> None:
    words = " ".join(f"w{number}" for number in range(90))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(words)
    (folder / "b.html").write_text(f"<html><body><p>{words}</p></body></html>")
    (folder / "c.csv").write_text(f"id,text\n7,{words}\n")
    source = CorpusSource(str(folder), tmp_path / "corpus", chunking=Chunking(words=40, overlap=10))
    corpus = source.ingest()
    assert corpus.ids() == [
        *("a.txt#0", "a.txt#1", "a.txt#2"),
        *("b.html#0", "b.html#1", "b.html#2"),
        *("c.csv#7", "c.csv#7-2", "c.csv#7-3"),
    ]
    assert [len(passage.text.split()) for passage in corpus] == [40, 40, 30] * 3
    assert replace(source, chunking=Chunking()).ingest().ids() == ["a.txt#0", "b.html#0", "c.csv#7"], (
        "read again"
    )


def gone(path: Path) -> None:
    path.unlink()


def blank(path: Path) -> None:
    path.write_text("\n \n")


def emptied(path: Path) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path) -> None:
    path.write_bytes(b"\x00\xff" * 50)


@pytest.mark.parametrize("lose", [gone, blank, emptied, unreadable])
def test_what_was_read_of_a_source_before_stands_for_it_until_it_is_back(
    sources: list[CorpusSource], lose: Callable[[Path], None]
) -> None:
    tickets, _ = sources
    read_at = ingest_all(sources).part("tickets").manifest.created_at
    assert tickets.find_trouble() is None
    lose(Path(tickets.source))
    assert ingest_all(sources).ids() == IDS
    trouble = tickets.find_trouble()
    assert trouble is not None
    assert (trouble.name, trouble.read_at) == ("tickets", read_at)
    assert trouble.why.startswith("corpus 'tickets': ")
    if Path(tickets.source).is_dir():
        Path(tickets.source).rmdir()
    write(tickets.folder.parents[1], "tickets", ["c"])
    assert ingest_all(sources).part("tickets").ids() == ["tickets/c"]
    assert tickets.find_trouble() is None


def test_what_was_read_before_and_changed_since_stands_for_nothing_where_files_are_compared(
    sources: list[CorpusSource],
) -> None:
    tickets, docs = sources
    ingest_all(sources)
    file = tickets.folder / "passages.db"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    Path(tickets.source).unlink()
    assert len(ingest_all(sources).parts) == 2
    assert [*ingest_all(sources, compare=True, leave_out=True).parts] == [docs.prefix]


def damaged(source: CorpusSource) -> CorpusSource:
    (source.folder / "passages.db").write_bytes(b"no database")
    return source


def of_another_place(source: CorpusSource) -> CorpusSource:
    return replace(source, source=f"{source.source}.gz")


def never_read(source: CorpusSource) -> CorpusSource:
    return replace(source, folder=source.folder.with_name("other"))


@pytest.mark.parametrize("change", [damaged, of_another_place, never_read])
def test_a_source_of_which_nothing_sound_was_read_is_left_out_or_refused(
    sources: list[CorpusSource], change: Callable[[CorpusSource], CorpusSource]
) -> None:
    tickets, docs = sources
    ingest_all(sources)
    Path(tickets.source).unlink()
    tickets = change(tickets)
    assert ingest_all([tickets, docs], leave_out=True).names == ("docs",)
    trouble = tickets.find_trouble()
    assert trouble is not None
    assert trouble.read_at is None
    with pytest.raises(CorpusError, match=f"corpus {tickets.folder.name!r}: no corpus at"):
        ingest_all([tickets, docs])
    with pytest.raises(CorpusError, match=f"corpus {tickets.folder.name!r}: no corpus at"):
        ingest_all([tickets], leave_out=True)


def test_all_sources_that_cannot_be_read_are_named_at_once(tmp_path: Path) -> None:
    sources = [CorpusSource(str(tmp_path / name), tmp_path / "homes" / name, name) for name in ("a", "b")]
    with pytest.raises(CorpusError, match=r"corpus 'a': no corpus at .*/a.*; corpus 'b': .*b"):
        ingest_all(sources, leave_out=True)


def test_a_folder_in_the_beir_layout_keeps_what_was_read_of_it(tmp_path: Path) -> None:
    (tmp_path / "beir").mkdir()
    file = tmp_path / "beir/corpus.jsonl"
    file.write_text('{"_id": "a", "text": "b"}\n')
    source = CorpusSource(str(tmp_path / "beir"), tmp_path / "home", "one")
    source.ingest_or_open()
    file.unlink()
    file.parent.rmdir()
    assert source.ingest_or_open().ids() == ["one/a"]
