"""A corpus is whole or absent, whatever happens while it is made."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import corpus as corpus_module
from armwise.arms.corpus.corpus import Corpus, extend_digest, ingest
from armwise.arms.corpus.readers import CorpusError, JsonLines
from armwise.arms.corpus.records import CorpusRecord


def line(name: str, text: str = "some words", title: str = "") -> str:
    return json.dumps({"id": name, "title": title, "text": text}) + "\n"


def write(path: Path, n_passages: int) -> Path:
    path.write_text("".join(line(f"d{n}", f"words of {n}") for n in range(n_passages)))
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "docs.jsonl", 12)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "BATCH_RECORDS", 5)


def test_a_corpus_gives_back_what_was_ingested_in_order(tmp_path: Path, source: Path) -> None:
    corpus = ingest(source, tmp_path / "corpus")
    expected = [Passage(f"d{n}", "", f"words of {n}") for n in range(12)]
    assert list(corpus) == expected
    assert (len(corpus), corpus.name) == (12, "docs")
    assert corpus.ids() == [passage.id for passage in expected]
    assert corpus.passages([7, 0, 7]) == [expected[7], expected[0], expected[7]]
    assert corpus.passages(np.array([3, 11])) == [expected[3], expected[11]]
    assert corpus.positions(corpus.ids()) == list(range(12))
    assert corpus.positions(["d7", "d0", "d7"]) == [7, 0, 7]
    assert corpus.list_skipped() == []


def test_the_order_of_ids_is_that_of_their_texts(tmp_path: Path) -> None:
    names = ["b", "B", "a", "\U0001f600", "\uffff", "é", "e", "10", "9", "z" * 2000, "a "]
    source = tmp_path / "ids.jsonl"
    source.write_text("".join(f"{json.dumps({'id': one, 'text': 'words'})}\n" for one in names))
    corpus = ingest(source, tmp_path / "corpus")
    assert [corpus.ids()[at] for at in corpus.order()] == sorted(names)


@pytest.mark.parametrize(
    ("look", "named"),
    [
        (lambda corpus: corpus.positions(["d0", "d99", "d98"]), "'d99' in corpus 'docs'"),
        (lambda corpus: corpus.passages([0, -1]), "position -1 .* 'docs' .*12"),
        (lambda corpus: corpus.passages([0, 12]), "position 12 .* 'docs' .*12"),
    ],
)
def test_a_passage_that_is_not_there_is_named(
    tmp_path: Path, source: Path, look: Callable[[Corpus], object], named: str
) -> None:
    with pytest.raises(CorpusError, match=named):
        look(ingest(source, tmp_path / "corpus"))


def test_ids_of_which_some_may_be_unknown_are_looked_up(tmp_path: Path, source: Path) -> None:
    corpus = ingest(source, tmp_path / "corpus")
    assert corpus.find_positions(["d7", "d99", "d0", "d7"]) == {"d7": 7, "d0": 0}
    assert corpus.find_positions([]) == {}


def test_a_second_ingest_of_an_unchanged_source_reads_nothing(tmp_path: Path, source: Path) -> None:
    calls: list[int] = []
    first = ingest(source, tmp_path / "corpus", progress=lambda _what, done, _total: calls.append(done))
    assert calls == [source.stat().st_size]
    again = ingest(source, tmp_path / "corpus", progress=lambda _what, done, _total: calls.append(done))
    assert len(calls) == 1
    assert again.manifest == first.manifest


def test_readers_keep_what_they_opened_of_a_changed_source(tmp_path: Path, source: Path) -> None:
    old = ingest(source, tmp_path / "corpus")
    assert len(list(old)) == 12
    write(source, 13)
    new = ingest(source, tmp_path / "corpus")
    assert (len(new), len(list(old))) == (13, 12)
    assert new.digest != old.digest
    with ThreadPoolExecutor(1) as pool, pytest.raises(CorpusError, match="'docs' was replaced"):
        pool.submit(old.ids).result()


texts = st.text('ab",[\\', max_size=3)


@given(
    st.lists(st.tuples(texts, texts, texts), max_size=3), st.lists(st.tuples(texts, texts, texts), max_size=3)
)
@example([("a", "b", "c")], [("a", "", "bc")])
@example([("a", "b", "c")], [("a", "bc", "")])
@example([("a", "b", "c")], [("ab", "", "c")])
@example([("a", "", ""), ("b", "", "")], [("b", "", ""), ("a", "", "")])
@example([("a", "", "")], [("a", "", ""), ("", "", "")])
@example([("a", "b", "c"), ("d", "", "")], [("a", "b", "c"), ("d", "", "")])
def test_a_digest_is_of_ids_titles_texts_and_their_order(
    left: list[tuple[str, str, str]], right: list[tuple[str, str, str]]
) -> None:
    def digest(rows: list[tuple[str, str, str]]) -> str:
        value = ""
        for row in rows:
            value = extend_digest(value, Passage(*row))
        return value

    assert (digest(left) == digest(right)) == (left == right)


def test_slow_records_are_committed_after_five_seconds(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, records = [0.0], JsonLines.records

    def slow(self: JsonLines, start: int = 0) -> Iterator[CorpusRecord]:
        for record in records(self, start):
            now[0] += 2.5
            yield record

    monkeypatch.setattr(JsonLines, "records", slow)
    monkeypatch.setattr(corpus_module, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0))
    calls: list[int] = []
    ingest(source, tmp_path / "corpus", progress=lambda _what, done, _total: calls.append(done))
    assert len(calls) == 4, "of twelve records, three at a time: five seconds after the first"


def test_a_bad_line_is_listed_or_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(line("a") + "{oops\n" + line("b") + line("a", "again") + line("c"))
    target = tmp_path / "corpus"
    with pytest.raises(CorpusError, match=r"docs\.jsonl:2: not JSON"):
        ingest(path, target, skip_bad=False)
    with pytest.raises(CorpusError, match="run ingest again"):
        Corpus.open(target)
    corpus = ingest(path, target)
    assert corpus.ids() == ["a", "b", "c"]
    assert corpus.passages([0])[0].text == "some words"
    assert [told.partition(": ")[0] for told in corpus.list_skipped()] == ["docs.jsonl:2", "docs.jsonl:4"]
    with pytest.raises(CorpusError, match=r"docs\.jsonl:2: not JSON"):
        ingest(path, target, skip_bad=False)
    assert Corpus.open(target).ids() == ["a", "b", "c"], "what is there stays"


@pytest.mark.parametrize("content", ["", "\n\n", "{oops\n"])
def test_an_empty_corpus_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "docs.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=r"docs\.jsonl has no passages"):
        ingest(tmp_path / "docs.jsonl", tmp_path / "corpus")


def test_a_source_that_changes_meanwhile_is_not_published(tmp_path: Path, source: Path) -> None:
    def meddle(_what: str, _done: int, _total: int | None) -> None:
        write(source, 99)

    with pytest.raises(CorpusError, match=r"docs\.jsonl changed"):
        ingest(source, tmp_path / "corpus", progress=meddle)
    assert len(ingest(source, tmp_path / "corpus")) == 99


KILLED_MIDWAY = """
import os, signal, sys
from pathlib import Path
from armwise.arms.corpus import corpus, readers

read = readers.JsonLines.records

def records(self, start=0):
    for number, record in enumerate(read(self, start)):
        if number == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        yield record

readers.JsonLines.records = records
corpus.BATCH_RECORDS = 5
corpus.ingest(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.usefixtures("small_batches")
@pytest.mark.slow
def test_a_killed_ingest_is_taken_up_at_its_last_commit(tmp_path: Path) -> None:
    source, target = write(tmp_path / "docs.jsonl", 40), tmp_path / "corpus"
    killed = subprocess.run([sys.executable, "-c", KILLED_MIDWAY, str(source), str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(CorpusError, match="unfinished: run ingest again"):
        Corpus.open(target)
    calls: list[int] = []
    corpus = ingest(source, target, progress=lambda _what, done, _total: calls.append(done))
    assert len(calls) == (40 - 10) // 5, "the ten records committed before the kill are not read again"
    assert corpus.manifest == ingest(source, target).manifest
    assert corpus.digest == ingest(source, tmp_path / "undisturbed").digest
    assert not (target / corpus_module.UNFINISHED).exists()


def with_bad_lines(folder: Path) -> Path:
    """Write lines of which some are skipped."""
    source = folder / "docs.jsonl"
    source.write_text("".join("{oops\n" if n % 3 == 0 else line(f"d{n}") for n in range(18)))
    return source


def with_long_files(folder: Path) -> Path:
    """Write files of several passages each."""
    source = folder / "docs"
    source.mkdir()
    for n in range(18):
        (source / f"{n:02}.txt").write_text(f"word{n} " * 450)
    return source


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("make", [with_bad_lines, with_long_files])
def test_an_interrupted_ingest_resumes_at_the_next_record(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    def interrupt(_what: str, _done: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    source, target = make(tmp_path), tmp_path / "corpus"
    for _ in range(2):  # once at its beginning, once where the first run ended
        with pytest.raises(KeyboardInterrupt):
            ingest(source, target, progress=interrupt)
    resumed, whole = (ingest(source, folder) for folder in (target, tmp_path / "whole"))
    assert resumed.ids() == whole.ids()
    assert len(set(resumed.ids())) != 18
    assert resumed.list_skipped() == whole.list_skipped()
    assert resumed.digest == whole.digest
    assert (resumed.manifest.records, resumed.manifest.done) == (whole.manifest.records, whole.manifest.done)


@pytest.mark.usefixtures("small_batches")
def test_a_changed_source_is_read_from_its_beginning(tmp_path: Path) -> None:
    source, target = tmp_path / "docs.jsonl", tmp_path / "corpus"
    source.write_text("".join(line(f"old{n}") for n in range(7)) + "{oops\n")
    with pytest.raises(CorpusError, match="not JSON"):
        ingest(source, target, skip_bad=False)
    source.write_text(line("new"))
    assert ingest(source, target).ids() == ["new"]


def test_an_unfinished_file_that_cannot_be_read_is_thrown_away(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "corpus"
    target.mkdir()
    (target / corpus_module.UNFINISHED).write_bytes(
        b"no database at all, but long enough to be looked at" * 99
    )
    assert len(ingest(source, target)) == 12


@pytest.mark.usefixtures("small_batches")
def test_an_unfinished_file_with_a_damaged_page_is_thrown_away(tmp_path: Path) -> None:
    def interrupt(_what: str, _done: int, _total: int | None) -> None:
        raise KeyboardInterrupt

    source, target = tmp_path / "docs.jsonl", tmp_path / "corpus"
    source.write_text("".join(line(f"d{n}", f"words of {n} " * 1_000) for n in range(12)))
    with pytest.raises(KeyboardInterrupt):
        ingest(source, target, progress=interrupt)
    unfinished = target / corpus_module.UNFINISHED
    content = unfinished.read_bytes()
    place = content.index(b"words of 3 " * 50) // 4096 * 4096
    unfinished.write_bytes(content[:place] + bytes(4096) + content[place + 4096 :])
    whole = ingest(source, tmp_path / "whole")
    assert list(ingest(source, target)) == list(whole)


def test_the_folder_is_synced_after_the_file_has_its_name(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "corpus", list[tuple[str, bool]]()

    def sync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (target / "passages.db").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    ingest(source, target)
    assert synced == [(str(target), True)]


def _ingest_and_report(source: Path, target: Path, log: Path, started: threading.Barrier) -> None:
    def note(_what: str, _done: int, _total: int | None) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")

    corpus_module.BATCH_RECORDS = 500
    started.wait()
    ingest(source, target, progress=note)


@pytest.mark.slow
def test_of_two_ingesting_processes_one_reads(tmp_path: Path) -> None:
    source, target, log = write(tmp_path / "docs.jsonl", 1_200), tmp_path / "corpus", tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    together = (source, target, log, spawn.Barrier(2))
    workers = [spawn.Process(target=_ingest_and_report, args=together) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    writers = log.read_text().split()
    assert len(writers) == 3
    assert len(set(writers)) == 1
    assert len(Corpus.open(target)) == 1_200


def test_opening_where_there_is_no_corpus_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no corpus in .*: run ingest first"):
        Corpus.open(tmp_path)
    (tmp_path / corpus_module.PUBLISHED).write_text("not a database, though it has the name of one")
    with pytest.raises(CorpusError, match=r"is not a corpus .*`armwise serve --prepare-only`"):
        Corpus.open(tmp_path)


def test_reading_leaves_the_folder_as_it_was(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "corpus"
    ingest(source, target)

    def seen() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in target.iterdir()}

    before = seen()
    corpus = Corpus.open(target)
    assert len(corpus.passages(range(12))) == len(corpus.ids()) == 12
    assert set(before) == {corpus_module.PUBLISHED, corpus_module.LOCK, "manifest.json"}
    assert seen() == before


def test_a_pickled_corpus_opens_the_same_file(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(ingest(source, Path("corpus")))
    monkeypatch.chdir("/")
    copy = pickle.loads(data)
    assert isinstance(copy, Corpus)
    assert len(data) < 500
    assert copy.ids()[:2] == ["d0", "d1"]


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    corpus = ingest(write(tmp_path / "docs.jsonl", 500), tmp_path / "corpus")
    together = threading.Barrier(8)

    def look(seed: int) -> bool:
        together.wait()
        positions = np.random.default_rng(seed).integers(0, 500, 200).tolist()
        return [passage.id for passage in corpus.passages(positions)] == [f"d{n}" for n in positions]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(look, range(8)))


@pytest.mark.slow
def test_a_connection_is_closed_once_its_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    connection = corpus_module._ThreadConnection  # noqa: SLF001
    close = connection.close
    monkeypatch.setattr(connection, "close", lambda self: (closed.append(self is not None), close(self)))
    corpus = ingest(write(tmp_path / "docs.jsonl", 3), tmp_path / "corpus")
    assert corpus.passages([0])[0].id == "d0"
    gc.collect()
    closed.clear()
    thread = threading.Thread(target=corpus.passages, args=([1],))
    thread.start()
    thread.join()
    gc.collect()
    assert closed == [True]
    assert corpus.passages([2])[0].id == "d2", "that of this thread is still open"


def test_all_that_is_left_out_is_in_a_file_of_the_corpus(tmp_path: Path) -> None:
    docs, target = tmp_path / "docs", tmp_path / "corpus"
    docs.mkdir()
    (docs / "plan.md").write_text("The plan.")
    (docs / "latin.txt").write_bytes(b"caf\xe9")
    (docs / "song.mp3").write_bytes(b"ID3")
    corpus = ingest(docs, target)
    file = corpus.find_list()
    assert file is not None
    assert file.read_text().splitlines() == [*corpus.remarks(), *corpus.list_skipped()]
    for name in ("latin.txt", "song.mp3"):
        (docs / name).unlink()
    assert ingest(docs, target).find_list() is None, "nothing is left out any longer"
