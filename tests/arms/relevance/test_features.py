"""Features of passages: exact on small examples, and free of names, order and scores."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.relevance import candidates
from armwise.arms.relevance.features import FALLING, NAMES, RISING

QUESTION = "Who is the mother of the director of the film Polish-Russian War?"
FILM = Passage("film", "Polish-Russian War (film)", "A 2009 film directed by Xawery Żuławski.")
DIRECTOR = Passage("director", "Xawery Żuławski", "A director, born in 1971, son of Małgorzata Braunek.")
OTHER = Passage("other", "", "The war between two planets is a film.")
EVERY = (FILM, DIRECTOR, OTHER)

TEXTS = st.text(st.sampled_from("ab AB1. \n()éß"), max_size=30)
FOUND = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(
        st.builds(Passage, st.sampled_from("pqrstu"), TEXTS, TEXTS),
        max_size=5,
        unique_by=lambda passage: passage.id,
    ),
    max_size=3,
)


def features(question: str, found: Mapping[str, Sequence[Passage]]) -> dict[str, dict[str, float]]:
    """Return the features of each passage, by id and by name."""
    seen = candidates(question, found)
    rows = [dict(zip(NAMES, row, strict=True)) for row in seen.table.tolist()]
    return dict(zip((passage.id for passage in seen.passages), rows, strict=True))


def test_every_column_is_as_computed_by_hand() -> None:
    danube, rhine, untitled, vienna = (
        Passage("a", "Danube (river, lake)", "The Danube is older than Vienna, 2850 km long."),
        Passage("b", "Rhine (lake)", "The river Rhine of 1871 and 1900; the Danube and Vienna are far."),
        Passage("c", "", "In Vienna the old river is old."),
        Passage("d", "Vienna", "No."),
    )
    question = "Was the Danube older than the river Rhine, at Ulm in 1871?"
    found = {"x": [rhine, danube, untitled], "y": [rhine, vienna], "z": [untitled, rhine], "none": []}
    expected = {
        "best_rank": [2.0, 1.0, 1.0, 2.0],
        "second_rank": [100.0, 1.0, 3.0, 100.0],
        "reciprocal_ranks": [0.5, 2.5, 1.3333, 0.5],
        "mean_reciprocal_rank": [0.1667, 0.8333, 0.4444, 0.1667],
        "votes": [1.0, 3.0, 2.0, 1.0],
        "vote_share": [0.3333, 1.0, 0.6667, 0.3333],
        "first_places": [0.0, 2.0, 1.0, 0.0],
        "fused_place": [3.0, 1.0, 2.0, 3.0],
        "arms": [3.0, 3.0, 3.0, 3.0],
        "candidates": [4.0, 4.0, 4.0, 4.0],
        "coverage": [0.5, 0.6667, 0.1667, 0.0],
        "rare_coverage": [0.3236, 0.4965, 0.0512, 0.0],
        "rare_above_mean": [0.1058, 0.2787, -0.1666, -0.2178],
        "rare_place": [2.0, 1.0, 3.0, 4.0],
        "only_here": [0.1729, 0.3458, 0.0, 0.0],
        "rarest_missed": [2.3026, 2.3026, 2.3026, 2.3026],
        "bm25": [2.2448, 3.1649, 0.3923, 0.0],
        "bm25_share": [0.7093, 1.0, 0.124, 0.0],
        "bm25_place": [2.0, 1.0, 3.0, 4.0],
        "beyond_best": [0.5, 0.0, 0.0, 0.0],
        "pairs": [0.1818, 0.2727, 0.0, 0.0],
        "content_pairs": [0.0, 0.2, 0.0, 0.0],
        "names": [0.3333, 0.6667, 0.0, 0.0],
        "titled_by_name": [1.0, 1.0, 0.0, 0.0],
        "years_found": [0.0, 1.0, 0.0, 0.0],
        "years_missed": [1.0, 0.0, 1.0, 1.0],
        "title_in_question": [1.0, 1.0, 0.0, 0.0],
        "title_words": [0.6667, 0.5, 0.0, 0.0],
        "rare_title_words": [0.7765, 0.6346, 0.0, 0.0],
        "question_in_title": [0.3333, 0.1667, 0.0, 0.0],
        "same_title": [1.0, 1.0, 1.0, 1.0],
        "linked_by": [1.0, 0.0, 0.0, 3.0],
        "linked_by_named": [1.0, 0.0, 0.0, 2.0],
        "linked_by_rare": [0.4965, 0.0, 0.0, 0.4965],
        "links": [1.0, 2.0, 1.0, 0.0],
        "links_named": [0.0, 1.0, 0.0, 0.0],
        "links_rare": [0.0, 0.3236, 0.0, 0.0],
        "alike": [0.2029, 0.2029, 0.2285, 0.2423],
        "alike_best": [0.2585, 1.0, 0.1647, 0.1854],
        "length": [9.0, 13.0, 7.0, 1.0],
        "years": [0.0, 2.0, 0.0, 0.0],
        "numbers": [1.0, 2.0, 0.0, 0.0],
        "capitals": [0.3333, 0.3077, 0.2857, 1.0],
        "question_words": [12.0, 12.0, 12.0, 12.0],
        "question_names": [3.0, 3.0, 3.0, 3.0],
    }
    table = features(question, found)
    for column, values in expected.items():
        assert [table[name][column] for name in "abcd"] == pytest.approx(values, abs=5e-5), column


def test_a_title_in_brackets_as_a_whole_is_read() -> None:
    titles = {"whole": "(Nautilus)", "part": "Nautilus (submarine)"}
    passages = [Passage(name, title, "It sank.") for name, title in titles.items()]
    found = features("Who built the Nautilus?", {"a": passages})
    assert [found[name]["title_in_question"] for name in titles] == [1.0, 1.0]


def test_a_name_that_the_question_repeats_counts_once() -> None:
    novel = Passage("novel", "Emma", "A novel by Jane Austen.")
    found = features("Is Emma by Jane Austen older than Emma by Fay Weldon?", {"a": [novel, OTHER]})
    assert found["novel"]["question_names"] == 3.0  # Emma, Jane Austen, Fay Weldon
    assert found["novel"]["names"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        *((f"How {word} is it?", "asks_number") for word in ("many", "much", "long", "old", "far")),
        *((f"{word} is it?", "asks_who") for word in ("Who", "Whom", "Whose")),
        ("When is it?", "asks_when"),
        *((f"Which {word} was it?", "asks_when") for word in ("year", "date")),
        ("Where is it?", "asks_where"),
        ("Will it be?", "asks_verdict"),
        *((f"Which is {word}?", "compares") for word in ("older", "earlier", "first", "the same")),
    ],
)
def test_what_a_question_asks_for_is_read_from_its_words(question: str, asked: str) -> None:
    found = features(question, {"a": [OTHER]})["other"]
    names = ("asks_who", "asks_when", "asks_where", "asks_number", "asks_verdict", "compares")
    assert {name for name in names if found[name]} == {asked}


def test_a_word_that_the_question_repeats_counts_once() -> None:
    found = features("Which planets wage war, war, war?", {"a": EVERY})
    assert found["other"]["coverage"] == pytest.approx(2 / 3)


def test_the_capital_of_the_first_word_tells_nothing() -> None:
    city, name = Passage("city", "The Hague", "A city."), Passage("name", "Hague", "A name.")
    found = features("The Oslo tram or that of The Hague?", {"a": [city, name]})
    assert (found["city"]["titled_by_name"], found["name"]["titled_by_name"]) == (1.0, 0.0)


@given(TEXTS, FOUND)
def test_any_text_has_finite_features(question: str, found: dict[str, list[Passage]]) -> None:
    seen = candidates(question, found)
    assert np.isfinite(seen.table).all()
    assert [passage.id for passage in seen.passages] == sorted(
        {passage.id for ranking in found.values() for passage in ranking}
    )


@given(TEXTS, FOUND)
def test_names_of_arms_and_scores_change_nothing(question: str, found: dict[str, list[Passage]]) -> None:
    unique = {passage.id: passage for ranking in found.values() for passage in ranking}
    same = {arm: [unique[passage.id] for passage in ranking] for arm, ranking in found.items()}
    other = {
        f"other {arm}": [passage.replace_score(7.0) for passage in ranking]
        for arm, ranking in reversed(same.items())
    }
    np.testing.assert_allclose(
        candidates(question, same).table, candidates(question, other).table, rtol=0.0, atol=1e-12
    )


def test_columns_that_are_constrained_exist() -> None:
    assert set(NAMES) > RISING | FALLING
    assert not RISING & FALLING
    assert len(set(NAMES)) == len(NAMES)
