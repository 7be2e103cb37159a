"""BM25: what is found, in which order, and how its index is kept."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from armwise.arms.base import Passage, Query
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import IndexMismatchError
from armwise.arms.retrievers import NoRetrieval, Resources
from armwise.arms.retrievers.bm25 import BM25Arm, BM25Params, WordWeights
from armwise.arms.top_k import best
from tests.arms.conftest import keep


def build(corpus: Corpus, indexes: Path, **params: object) -> BM25Arm:
    told = BM25Params.model_validate(params)
    have = Resources(corpus, indexes, {}, {})
    BM25Arm.prepare(told, have, None)
    return BM25Arm.build("bm25", told, have, NoRetrieval)


def found(arm: BM25Arm, text: str, k: int = 4) -> list[str]:
    return [passage.id for passage in arm.search(Query(text), k).passages]


def test_the_passage_with_the_rare_word_comes_first(corpus: Corpus, tmp_path: Path) -> None:
    assert found(build(corpus, tmp_path), "Who composed an opera in Vienna?")[0] == "mozart"


def test_ids_decide_ties_and_not_positions(tmp_path: Path) -> None:
    twins = tuple(Passage(name, "", "same words") for name in ("c", "a", "b"))
    others = tuple(Passage(f"x{n}", "", f"other text {n}") for n in range(9))
    assert found(build(keep(tmp_path, twins + others), tmp_path), "same", k=2) == ["a", "b"]


@pytest.mark.parametrize("text", ["", "?!", "the of and", "zyzzyva"])
def test_a_query_without_a_known_word_finds_nothing(corpus: Corpus, tmp_path: Path, text: str) -> None:
    assert found(build(corpus, tmp_path), text) == []


def test_stop_words_count_when_none_are_left_out(corpus: Corpus, tmp_path: Path) -> None:
    assert found(build(corpus, tmp_path, stop_words="none"), "the") != []


@pytest.mark.parametrize(("stop_words", "equal"), [("english", True), ("none", False)])
def test_a_title_of_stop_words_makes_a_passage_no_longer(
    tmp_path: Path, stop_words: str, equal: bool
) -> None:
    twins = (Passage("a", "The of and", "a river"), Passage("b", "", "a river"), Passage("c", "", "lakes"))
    arm = build(keep(tmp_path, twins), tmp_path, stop_words=stop_words)
    first, second = arm.search(Query("river"), 4).passages
    assert (first.score == second.score) is equal


def test_titles_are_searched_as_often_as_they_weigh(corpus: Corpus, tmp_path: Path) -> None:
    assert found(build(corpus, tmp_path), "Wolfgang") == ["mozart"]
    assert found(build(corpus, tmp_path, title_weight=0), "Wolfgang") == []
    once, thrice = (build(corpus, tmp_path, title_weight=n).search(Query("Wolfgang"), 1) for n in (1, 3))
    assert thrice.passages[0].score > once.passages[0].score


def test_preparing_again_writes_nothing(corpus: Corpus, tmp_path: Path) -> None:
    build(corpus, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    build(corpus, tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}


def test_columns_are_mapped_into_memory_and_not_read(corpus: Corpus, tmp_path: Path) -> None:
    build(corpus, tmp_path)
    columns = WordWeights.load(next(tmp_path.glob("bm25-*")))
    assert isinstance(columns._weights, np.memmap)  # noqa: SLF001 - sharing between processes rests on it


def test_a_corpus_without_any_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no passage has a word to index"):
        build(keep(tmp_path, (Passage("1", "", "the of"), Passage("2", "", "..."))), tmp_path)


@given(
    arrays.arrays(np.float64, st.integers(0, 30), elements=st.integers(-3, 3).map(float)), st.integers(1, 40)
)
def test_the_best_are_those_of_a_full_sort(scores: np.ndarray, k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:k]
    assert best(scores, k).tolist() == expected


NOTES = {
    "camel": "openSessionByToken starts a session for a browser.",
    "snake": "wait_before_retry holds the pause between two calls.",
    "biometric": "showPinDialog comes up again after hardLock.",
    "part-4411": "KVX-4411 The rotor stops when it is wet.",
    "part-2077": "KVX-2077 The lamp flickers. KVX KVX KVX",
    "advisory": "ADV-2021-7788 A guest reads the files of others.",
    "cpp": "C++ modules shorten the time of a build.",
    "csharp": "C# records compare by their values.",
    "c": "C has pointers; a union shares its bytes.",
    "dotnet": ".NET runtimes collect garbage in generations.",
    "node": "Node.js runs scripts outside of a browser.",
    "plural": "Receipts go out on the last Friday.",
    "verb": "The crawler encrypts each archive before the upload.",
    "dotted": "Set queue.consumer.limit to the number of workers.",
    "scripts": "Java runs on many machines.",
}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open session by token", "camel"),
        ("OPENSESSIONBYTOKEN", "camel"),
        ("open_session_by_token", "camel"),
        ("token", "camel"),
        ("wait retry", "snake"),
        ("waitBeforeRetry", "snake"),
        ("hard lock", "biometric"),
        ("4411", "part-4411"),
        ("KVX-4411", "part-4411"),
        ("ADV-2021-7788", "advisory"),
        ("C#", "csharp"),
        ("C++", "cpp"),
        ("C", "c"),
        (".NET", "dotnet"),
        ("node.js", "node"),
        ("receipt", "plural"),
        ("encrypting archives", "verb"),
        ("queue.consumer.limit", "dotted"),
        ("consumer limits", "dotted"),
    ],
)
def test_a_name_is_found_whole_and_by_its_parts(tmp_path: Path, query: str, first: str) -> None:
    notes = keep(tmp_path, tuple(Passage(name, "", text) for name, text in NOTES.items()))
    assert found(build(notes, tmp_path), query)[:1] == [first]


GERMAN = ("Die Rechnungen sind am Freitag bezahlt.", "Der Hund ist nicht im Haus.", "Das ist die Katze.")


@pytest.mark.parametrize(
    ("language", "query", "expected"),
    [
        ("auto", "Rechnung", ["0"]),
        ("german", "Rechnung", ["0"]),
        ("english", "Rechnung", []),
        ("none", "Rechnung", []),
        ("none", "Rechnungen", ["0"]),
    ],
)
def test_words_have_the_stems_of_the_language_of_their_corpus(
    tmp_path: Path, language: str, query: str, expected: list[str]
) -> None:
    notes = keep(tmp_path, tuple(Passage(str(n), "", text) for n, text in enumerate(GERMAN)))
    assert found(build(notes, tmp_path, language=language), query) == expected


def test_an_index_of_another_version_is_built_again(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.arms.retrievers.bm25.find_index_version", lambda: "1")
    build(corpus, tmp_path)
    monkeypatch.undo()
    with pytest.raises(IndexMismatchError, match=r"no index in .*: prepare the arms first"):
        BM25Arm.build("bm25", BM25Params(), Resources(corpus, tmp_path, {}, {}), NoRetrieval)
    assert found(build(corpus, tmp_path), "red fox", k=1) == ["fox"]
