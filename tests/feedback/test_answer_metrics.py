"""Scores of answers and of passages: known values, and laws that hold for any text."""

import re
import string
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from armwise.arms.tokenizer import normalise
from armwise.feedback.answer_metrics import METRICS, accuracy, exact_match, recall_at_k, token_f1, words

TEXTS = st.text(max_size=30)
GOLDS = st.lists(TEXTS, min_size=1, max_size=4)
ASCII_WORDS = st.lists(
    st.sampled_from(["the", "A", "an", "Cat", "dog,", "(U.S.)", "42", "it's", "-"]), max_size=8
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The   Beatles\n", ["beatles"]),
        ("U.S.A.", ["usa"]),
        ("“Guten Tag” \u2014 sagte sie…", ["guten", "tag", "sagte", "sie"]),
        ("¿Qué?", ["qué"]),
        ("1939\u20131945", ["19391945"]),
        ("theatre another", ["theatre", "another"]),
        ("The", ["the"]),
        ("?!", []),
        ("", []),
    ],
)
def test_words_drops_case_punctuation_articles_and_spaces(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "contained"),
    [
        ("\u7b54\u6848\u662f\u5317\u4eac\u3002", "\u5317\u4eac", 4 / 7, 1.0),
        ("\u5317\u4eac", "\u5317\u4eac\u5e02", 4 / 5, 0.0),
        ("\u30cf\u309a\u30f3", "\u30d1\u30f3", 1.0, 1.0),
        ("\u0e01\u0e33\u0e25\u0e31\u0e07\u0e01\u0e34\u0e19", "\u0e01\u0e34\u0e19", 4 / 8, 1.0),
        ("\ud55c\uad6d\uc758", "\ud55c\uad6d", 0.0, 0.0),
    ],
)
def test_characters_of_scripts_without_blanks_are_words(
    answer: str, gold: str, f1: float, contained: float
) -> None:
    assert token_f1(answer, [gold]) == pytest.approx(f1)
    assert accuracy(answer, [gold]) == contained


@given(st.text(st.sampled_from("x \u5317\u4eac\u30ac\u3042\u30fc\u0e01\u0e33\u1019\ud55c\u0928\u3002")))
def test_retrievers_and_metrics_split_answers_alike(answer: str) -> None:
    assert " ".join(words(answer)) == normalise(answer)


def test_composed_and_decomposed_accents_are_the_same_letter() -> None:
    assert exact_match("Beyonce\u0301", ["Beyonc\u00e9"]) == 1.0


@pytest.mark.parametrize(
    ("answer", "golds", "em", "f1", "acc"),
    [
        ("The Eiffel Tower", ["eiffel tower!"], 1.0, 1.0, 1.0),
        ("in Paris, France", ["Paris"], 0.0, 0.5, 1.0),
        ("Paris", ["Paris, France"], 0.0, 2 / 3, 0.0),
        ("London", ["Paris", "London"], 1.0, 1.0, 1.0),
        ("blue blue", ["blue"], 0.0, 2 / 3, 1.0),
        ("yes", ["Yes."], 1.0, 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0, 1.0),
        ("yes", ["yes it is"], 0.0, 0.0, 0.0),
        ("I know", ["no"], 0.0, 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0, 0.0),
        ("Paris", ["..."], 0.0, 0.0, 0.0),
        ("", [""], 1.0, 1.0, 1.0),
        ("the", ["a"], 0.0, 0.0, 0.0),
        ("New York", ["York New"], 0.0, 1.0, 0.0),
    ],
)
def test_answers_score_as_worked_out_by_hand(
    answer: str, golds: list[str], em: float, f1: float, acc: float
) -> None:
    assert exact_match(answer, golds) == em
    assert token_f1(answer, golds) == pytest.approx(f1)
    assert accuracy(answer, golds) == acc


@given(answer=ASCII_WORDS, gold=ASCII_WORDS)
def test_ascii_answers_score_as_in_the_squad_definition(answer: list[str], gold: list[str]) -> None:
    """The definition, step by step; texts of articles alone are ours to decide."""

    def tokens(text: str) -> list[str]:
        bare = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", bare).split()

    said, right = tokens(" ".join(answer)), tokens(" ".join(gold))
    assume(said and right)
    shared = sum((Counter(said) & Counter(right)).values())
    expected = 0.0
    if shared:
        precision, recall = shared / len(said), shared / len(right)
        expected = 2 * precision * recall / (precision + recall)
    assert token_f1(" ".join(answer), [" ".join(gold)]) == pytest.approx(expected)
    assert exact_match(" ".join(answer), [" ".join(gold)]) == float(said == right)


@given(answer=TEXTS, golds=GOLDS)
def test_scores_are_in_range_and_in_order_of_strictness(answer: str, golds: list[str]) -> None:
    em, f1, acc = (METRICS[name](answer, golds) for name in ("em", "f1", "acc"))
    assert em in (0.0, 1.0)
    assert acc in (0.0, 1.0)
    assert em <= f1 <= 1.0
    assert em <= acc
    assert all(score(answer, golds) == score(answer, golds[::-1]) for score in METRICS.values())


@given(answer=TEXTS, golds=GOLDS)
def test_a_right_answer_scores_one_and_one_more_never_lowers_a_score(answer: str, golds: list[str]) -> None:
    for score in METRICS.values():
        assert score(answer, [*golds, answer]) == 1.0
        assert score(answer, golds[:1]) <= score(answer, golds)


@given(one=TEXTS, other=TEXTS)
def test_f1_is_symmetric(one: str, other: str) -> None:
    assert token_f1(one, [other]) == token_f1(other, [one])


@pytest.mark.parametrize("score", METRICS.values(), ids=METRICS.keys())
def test_a_score_needs_a_list_of_right_answers(score: object) -> None:
    assert callable(score)
    with pytest.raises(ValueError, match="golds is empty"):
        score("Paris", [])
    with pytest.raises(TypeError, match=r"golds must be a list .*'Paris'"):
        score("Paris", "Paris")


def test_recall_counts_the_supporting_passages_among_the_first_k() -> None:
    found = ["p9", "p1", "p2", "p1"]
    assert recall_at_k(found, ["p1", "p2"], k=1) == 0.0
    assert recall_at_k(found, ["p1", "p2"], k=2) == 0.5
    assert recall_at_k(found, ["p1", "p2", "p2"], k=99) == 1.0
    assert recall_at_k([], ["p1"], k=3) == 0.0


@given(found=st.lists(st.integers(0, 9).map(str)), gold=st.sets(st.integers(0, 9).map(str), min_size=1))
def test_recall_never_falls_with_k(found: list[str], gold: set[str]) -> None:
    curve = [recall_at_k(found, gold, k) for k in range(1, 12)]
    assert curve == sorted(curve)
    assert all(0.0 <= recall <= 1.0 for recall in curve)


def test_recall_is_not_defined_without_support_or_below_one_passage() -> None:
    with pytest.raises(ValueError, match="gold is empty"):
        recall_at_k(["p1"], [], k=1)
    with pytest.raises(ValueError, match=r"k is 0\b.* at least 1"):
        recall_at_k(["p1"], ["p1"], k=0)
