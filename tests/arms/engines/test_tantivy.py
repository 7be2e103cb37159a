"""What is Tantivy's own: the words that it indexes, and the files of its folder."""

from pathlib import Path

import pytest

from armwise.arms.base import ArmError, Passage, Query
from armwise.arms.engines.tantivy import TantivyIndex, TantivyParams
from armwise.arms.filters import Comparison
from armwise.arms.retrievers.collection import EngineArm
from armwise.arms.retrievers.ingest import ingest
from tests.arms.engines.passages import InMemory

pytest.importorskip("tantivy")

RIVERS = InMemory([Passage("p", "", "The Danube and other rivers.")])


def opened(folder: Path, language: str = "english") -> TantivyIndex:
    return TantivyIndex(TantivyParams(path=str(folder), collection="c", language=language))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an index that is filled."""
    ingest(RIVERS, opened(tmp_path), None)
    return tmp_path / "c"


def found(index: TantivyIndex, text: str) -> list[str]:
    return [passage.id for passage in index.lexical(Query(text), 3)]


def test_words_are_reduced_as_the_language_does_and_compared_without_case(tmp_path: Path) -> None:
    texts = {"english": "Running water", "german": "Die Häuser"}
    for language, text in texts.items():
        index = opened(tmp_path / language, language)
        ingest(InMemory([Passage("p", "", text)]), index, None)
        words = ("WATER", "run", "Haus")
        expected = {"english": ["WATER", "run"], "german": ["Haus"]}
        assert [word for word in words if found(index, word)] == expected[language]


def test_a_filter_takes_passages_away_and_adds_none_without_the_words(tmp_path: Path) -> None:
    index = opened(tmp_path)
    rows = [("a", "The Danube", 2020), ("b", "The Danube", 2021), ("c", "The Alps", 2021)]
    passages = [Passage(name, "", text, metadata={"year": year}) for name, text, year in rows]
    ingest(InMemory(passages), index, None)
    where = Comparison(key="year", type="eq", value=2021)
    assert [one.id for one in index.lexical(Query("danube", where=where), 3)] == ["b"]


def test_the_files_by_which_tantivy_locks_a_folder_are_not_in_its_manifest(folder: Path) -> None:
    locks = [path for path in folder.iterdir() if path.name.endswith(".lock")]
    assert locks
    for path in locks:
        path.unlink()
    assert opened(folder.parent).problems(contents=True) == []


def test_a_file_that_was_cut_off_is_named_by_a_search_and_by_the_state_of_a_folder(folder: Path) -> None:
    path = next(folder.glob("*.store"))
    path.write_bytes(path.read_bytes()[:-1])
    for read in (lambda: opened(folder.parent).lexical(Query("Danube"), 3), opened(folder.parent).state):
        with pytest.raises(ArmError, match=rf"the index in .*{path.name} is damaged.*fills it again"):
            read()


def test_a_changed_byte_is_found_where_contents_are_compared(folder: Path) -> None:
    path = next(folder.glob("*.store"))
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    assert opened(folder.parent).problems(contents=False) == []
    (problem,) = opened(folder.parent).problems(contents=True)
    assert problem.startswith(f"{path.name} is damaged")


def test_a_folder_that_was_removed_is_filled_and_searched_by_the_same_index(folder: Path) -> None:
    index = opened(folder.parent)
    assert found(index, "river") == ["p"]
    index.discard()
    assert (index.state(), index.count()) == (None, 0)
    other = InMemory([Passage("q", "", "The Rhine.")])
    ingest(other, index, None)
    assert (found(index, "river"), found(index, "Rhine")) == ([], ["q"])


def test_what_another_index_has_written_is_seen_by_its_ids(folder: Path) -> None:
    index = opened(folder.parent)
    assert list(index.ids()) == ["p"]
    ingest(InMemory([Passage("q", "", "The Rhine.")]), opened(folder.parent), None)
    assert (list(index.ids()), index.count()) == (["q"], 1)


def test_words_of_scripts_without_blanks_are_found_and_parts_of_a_name_in_code(tmp_path: Path) -> None:
    texts = {
        "zh": "\u957f\u6c5f\u662f\u4e9a\u6d32\u6700\u957f\u7684\u6cb3\u6d41",
        "hi": "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
        "py": "open_file(name)",
    }
    index = opened(tmp_path)
    ingest(InMemory([Passage(name, "", text) for name, text in texts.items()]), index, None)
    queries = ("\u4e9a\u6d32", "\u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f", "file")
    assert [found(index, query) for query in queries] == [["zh"], ["hi"], ["py"]]
    assert found(index, "\u0915") == []


def test_an_index_with_the_words_of_another_version_is_refused_until_it_is_filled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TantivyIndex, "row_format", 1)
    ingest(RIVERS, opened(tmp_path), None)
    monkeypatch.undo()
    arm = EngineArm("words", TantivyParams(path=str(tmp_path), collection="c"), opened(tmp_path))
    with pytest.raises(
        ArmError, match=r"arm 'words': .* words of another version, \S+-words-1: `armwise ingest"
    ):
        arm.search(Query("rivers"), 3)
    assert ingest(RIVERS, opened(tmp_path), None).written == 1
    again = EngineArm("words", TantivyParams(path=str(tmp_path), collection="c"), opened(tmp_path))
    assert [passage.id for passage in again.search(Query("rivers"), 3).passages] == ["p"]
