"""The reference of the language is a corpus of prose that every machine has."""

import sys
from pathlib import Path

import pytest

from armwise.arms.corpus import language
from armwise.arms.corpus.corpus import Corpus, ingest
from armwise.arms.corpus.language import Topic, topics
from armwise.arms.corpus.readers import open_source
from armwise.arms.corpus.records import CorpusError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return ingest("language", tmp_path_factory.mktemp("language"))


def test_there_are_hundreds_of_passages(corpus: Corpus) -> None:
    passages = list(corpus)
    assert len(passages) >= 300
    assert all(len(passage.text.split()) <= 240 for passage in passages)
    assert len({passage.id.partition("#")[0] for passage in passages}) >= 70


def test_a_short_topic_is_one_passage_with_its_heading_as_title(corpus: Corpus) -> None:
    assert [one for one in corpus.ids() if one.partition("#")[0] == "lambda"] == ["lambda"]
    (passage,) = corpus.passages(corpus.positions(["lambda"]))
    assert passage.title == "Lambdas"
    assert passage.text.startswith("Lambdas\n\nlambda_expr ::=")
    assert "anonymous functions" in " ".join(passage.text.split())


def test_a_section_is_written_in_the_shortest_topic() -> None:
    texts = {
        "whole": "Whole\n*****\n\nOpening.\n\n\nPart\n====\n\nThe part.\n\n\nRest\n====\n\nThe rest.\n",
        "part": "Part\n****\n\nThe part.\n",
        "frame": "Frame\n*****\n\n\nPart\n====\n\nThe part.\n",
    }
    assert list(topics(texts)) == [
        Topic("part", "Part", "Part\n\nThe part."),
        Topic("whole", "Whole", "Whole\n\nOpening.\n\nRest\n\nThe rest."),
    ]


def test_a_text_without_a_heading_is_a_topic_by_its_name() -> None:
    assert list(topics({"plain": "Some words.\n"})) == [Topic("plain", "plain", "Some words.")]


def test_another_interpreter_is_another_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {open_source("language").fingerprint(), open_source("stdlib").fingerprint()}
    monkeypatch.setattr(sys, "version", "3.11.999 of another build")
    found.add(open_source("language").fingerprint())
    assert len(found) == 3


def test_a_folder_of_that_name_is_read_by_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "language").mkdir()
    (tmp_path / "language" / "notes.md").write_text("# Notes\n\nOurs.\n")
    monkeypatch.chdir(tmp_path)
    assert ingest("./language", tmp_path / "corpus").ids() == ["notes.md#0"]
    assert len(ingest("language", tmp_path / "built-in")) > 1


def test_an_interpreter_without_it_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text("import pydoc_data_that_is_not_there\n")
    monkeypatch.setattr(language, "__file__", str(failing))
    with pytest.raises(CorpusError, match=r"the language reference could not be read: .*No module named"):
        list(open_source("language").records())
