"""Answer correctness: its numbers by hand, its laws, and what is refused of a model's text."""

import json
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from armwise.arms.lab.scoring.correctness import (
    CLAIMS_FORM,
    CLASSES_FORM,
    AnswerCorrectness,
    CorrectnessError,
    claims_f1,
    cosines,
    parse_claims,
)
from armwise.arms.llm import Chunk, Prompt, structured_output
from armwise.arms.models.embedding import HashingEmbedder
from tests.arms.scripted import shown, writing

QUESTION = "What powers the sun?"
ANSWER = "The sun is powered by fission. It gives light."
REFERENCE = "The sun is powered by fusion, and gives light and heat."
OURS = json.dumps(["The sun is powered by fission.", "The sun gives light."])
THEIRS = json.dumps(["The sun is powered by fusion.", "The sun gives light.", "The sun gives heat."])
CLASSES = '{"TP": ["A2"], "FP": ["A1"], "FN": ["R1", "R3"]}'

COUNTS = st.integers(0, 20)


def alike(cosine: float) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """Return an embedder of texts whose first has this cosine with every other."""

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [[2.0, 0.0], *([cosine, math.sqrt(1 - cosine**2)] for _ in texts[1:])]
        return np.array(rows, dtype=np.float32)

    return embed


def test_the_value_is_three_quarters_claims() -> None:
    compare = AnswerCorrectness(writing(OURS, THEIRS, CLASSES), alike(0.6))
    found = compare(QUESTION, ANSWER, [REFERENCE])
    assert (found.tp, found.fp, found.fn, found.malformed) == (1, 1, 2, 0)
    assert found.claims_f1 == pytest.approx(1 / (1 + 3 / 2))
    assert found.similarity == pytest.approx(0.6)
    assert found.value == pytest.approx(0.75 * 0.4 + 0.25 * 0.6)


@pytest.mark.parametrize(("weights", "value"), [((1.0, 0.0), 0.4), ((0.0, 1.0), 0.6), ((4.0, 4.0), 0.5)])
def test_the_ratio_of_the_weights_counts(weights: tuple[float, float], value: float) -> None:
    compare = AnswerCorrectness(writing(OURS, THEIRS, CLASSES), alike(0.6), weights=weights)
    assert compare(QUESTION, ANSWER, [REFERENCE]).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("similarity", "answer", "expected"),
    [(1.0, ANSWER, 0.25), (-0.5, ANSWER, 0.0), (1.0, " \n", 0.0)],
)
def test_an_answer_without_a_claim_has_only_its_similarity(
    similarity: float, answer: str, expected: float
) -> None:
    texts = ["[]", THEIRS] if answer.strip() else [THEIRS]
    found = AnswerCorrectness(writing(*texts), alike(similarity))(QUESTION, answer, [REFERENCE])
    assert (found.tp, found.fp, found.fn) == (0, 0, 3)
    assert found.value == expected


def test_a_reference_without_a_claim_is_one_itself() -> None:
    prompts: list[Prompt] = []
    write = writing('["It is fusion."]', "[]", '{"TP": ["A1"], "FP": [], "FN": []}', prompts=prompts)
    assert AnswerCorrectness(write, alike(1.0))(QUESTION, "It is fusion.", ["fusion"]).value == 1.0
    assert prompts[-1].messages[-1]["content"].endswith(f"R1: fusion\n\n{CLASSES_FORM}")


def test_the_best_reference_counts_and_all_are_paid_for() -> None:
    prompts: list[Prompt] = []
    right = '{"TP": ["A1", "A2"], "FP": [], "FN": []}'
    texts = (OURS, THEIRS, CLASSES, OURS, right, THEIRS, CLASSES)
    compare = AnswerCorrectness(writing(*texts, prompts=prompts), HashingEmbedder(64).encode_passages)
    found = compare(QUESTION, ANSWER, [REFERENCE, ANSWER, "Fusion."])
    assert found.value == pytest.approx(1.0)
    assert (found.tp, found.fp, found.fn) == (2, 0, 0)
    words = sum(len(shown(prompt).split()) for prompt in prompts)
    assert found.tokens == words + sum(len(text.split()) for text in texts)


def test_ten_claims_and_more_are_classed_in_any_order() -> None:
    names = [f"A{number}" for number in range(1, 12)]
    classes = json.dumps({"TP": names[:0:-1], "FP": names[:1], "FN": ["R1"]})
    ours = json.dumps([f"Fact {number}." for number in range(1, 12)])
    found = AnswerCorrectness(writing(ours, THEIRS, classes), alike(0.6))(QUESTION, ANSWER, [REFERENCE])
    assert (found.tp, found.fp, found.fn, found.malformed) == (10, 1, 1, 0)


def test_the_claims_of_a_reference_are_asked_for_once() -> None:
    prompts: list[Prompt] = []
    compare = AnswerCorrectness(writing(OURS, THEIRS, CLASSES, OURS, CLASSES, prompts=prompts), alike(0.6))
    first, second = (compare(QUESTION, ANSWER, [REFERENCE]) for _ in range(2))
    assert len(prompts) == 5
    assert first.value == second.value
    assert first.tokens > second.tokens


def test_claims_are_those_of_a_reference_and_its_question() -> None:
    prompts: list[Prompt] = []
    texts = (OURS, THEIRS, CLASSES) * 3
    compare = AnswerCorrectness(writing(*texts, prompts=prompts), alike(0.6))
    for question, reference in ((QUESTION, REFERENCE), ("Another?", REFERENCE), (QUESTION, "Another.")):
        assert compare(question, ANSWER, [reference]).malformed == 0
    assert len(prompts) == 9


def test_no_more_references_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.arms.lab.scoring.correctness.CACHED_REFERENCES", 2)
    asked: list[str] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        asked.append("\n".join(message["content"] for message in prompt.messages))
        return ('["a fact"]' if CLAIMS_FORM in asked[-1] else '{"TP": ["A1"], "FP": [], "FN": []}'), Chunk()

    compare = AnswerCorrectness(write, alike(0.0))
    for reference in ("r1", "r2", "r1", "r3", "r1", "r3", "r2"):
        compare("q", "a", [reference])
    times = [sum(f"<answer>\n{name}\n" in f"{text}\n" for text in asked) for name in ("r1", "r2", "r3")]
    assert times == [1, 2, 1], "r2, which was used least recently, was forgotten for r3"


def test_claims_are_asked_for_once_by_answers_at_once() -> None:
    together = threading.Barrier(4)
    asked: list[str] = []

    def reply(prompt: Prompt) -> str:
        case = prompt.messages[-1]["content"]
        asked.append(case)
        if case.endswith(CLASSES_FORM):
            return CLASSES
        if f"<answer>\n{REFERENCE}" in case:
            return THEIRS
        together.wait(timeout=10)  # all have the claims of their answer, and want the reference's next
        return OURS

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        return reply(prompt), Chunk(prompt_tokens=1)

    compare = AnswerCorrectness(write, alike(0.6))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: compare(QUESTION, f"{ANSWER} {n}", [REFERENCE]), range(4)))
    assert len({each.value for each in found}) == 1
    assert sum(f"<answer>\n{REFERENCE}" in case for case in asked) == 1
    assert sum(each.tokens for each in found) == len(asked) == 4 + 1 + 4


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("All are right.", "no complete JSON object"),
        ('{"TP": ["A2"], "FP": ["A1"]}', "FN: Field required"),
        ('{"TP": [2], "FP": ["A1"], "FN": []}', "TP.0: Input should be a valid string"),
        ('{"TP": ["A2"], "FP": [], "FN": []}', "must have each of A1, A2 once, in TP or in FP"),
        ('{"TP": ["A1", "A2"], "FP": ["A1"], "FN": []}', "must have each of A1, A2 once, in TP or in FP"),
        ('{"TP": ["A1", "A2", "A3"], "FP": [], "FN": []}', "must have each of A1, A2 once, in TP or in FP"),
        ('{"TP": ["A2"], "FP": ["A1"], "FN": ["R4"]}', "may have each of R1, R2, R3 once in FN"),
        ('{"TP": ["A2"], "FP": ["A1"], "FN": ["R1", "R1"]}', "may have each of R1, R2, R3 once in FN"),
    ],
)
def test_classes_that_do_not_fit_are_asked_for_again(text: str, wrong: str) -> None:
    prompts: list[Prompt] = []
    write = writing(OURS, THEIRS, text, f"Sorry: {CLASSES}", prompts=prompts)
    found = AnswerCorrectness(write, alike(0.6))(QUESTION, ANSWER, [REFERENCE])
    assert (found.tp, found.fp, found.fn, found.malformed) == (1, 1, 2, 1)
    assert wrong in prompts[-1].messages[-1]["content"]


@pytest.mark.parametrize(
    ("texts", "malformed"),
    [
        (["no list", "no list"], 2),
        (["no list", OURS, THEIRS, "no classes", "no classes"], 3),
        ([OURS, '["cut sho', '["cut sho'], 2),
    ],
)
def test_a_model_that_stays_malformed_says_what_it_cost(texts: list[str], malformed: int) -> None:
    prompts: list[Prompt] = []
    compare = AnswerCorrectness(writing(*texts, prompts=prompts), alike(0.6))
    with pytest.raises(CorrectnessError, match="in 2 attempts") as failed:
        compare(QUESTION, ANSWER, [REFERENCE])
    assert failed.value.malformed == malformed
    words = sum(len(shown(prompt).split()) for prompt in prompts)
    assert failed.value.tokens == words + sum(len(text.split()) for text in texts)
    assert isinstance(failed.value, structured_output.UnreadableAnswerError)


@pytest.mark.parametrize("references", [[], [""], ["fusion", " "]])
def test_a_reference_is_needed(references: list[str]) -> None:
    with pytest.raises(ValueError, match="must be one or more texts"):
        AnswerCorrectness(writing(), alike(1.0))(QUESTION, ANSWER, references)


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-0.5, 1.5), (math.nan, 1.0), (math.inf, 1.0)])
def test_weights_that_weigh_nothing_are_refused(weights: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"weights \(.*\) must not be negative"):
        AnswerCorrectness(writing(), alike(1.0), weights=weights)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("[]", ()),
        ('["a", " b ", "a", ""]', ("a", "b")),
        ('{"claims": ["a", "b"]}', ("a", "b")),
        ('As [1] says:\n```json\n[\n  "a",\n  "b [2]",\n]\n```', ("a", "b [2]")),
        ('["two\nlines"]', ("two\nlines",)),
    ],
)
def test_claims_are_the_first_list_of_texts(text: str, claims: tuple[str, ...]) -> None:
    assert parse_claims(text) == claims


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        '["a", 2]',
        '["a", "b"',
        '[{"claim": "a"}]',
        '[["a"], ["b", "c"]]',
        '["a", ["b"]]',
    ],
)
def test_what_is_no_list_of_texts_is_refused_with_its_words(text: str) -> None:
    with pytest.raises(ValueError, match="has no JSON list of strings") as refused:
        parse_claims(text)
    assert repr(text) in str(refused.value)


@given(COUNTS, COUNTS, COUNTS)
def test_the_f1_of_claims_is_that_of_precision_and_recall(tp: int, fp: int, fn: int) -> None:
    value = claims_f1(tp, fp, fn)
    assert 0.0 <= value <= 1.0
    if tp:
        precision, recall = tp / (tp + fp), tp / (tp + fn)
        assert value == pytest.approx(2 * precision * recall / (precision + recall))
    else:
        assert value == 0.0


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.floats(-1, 1))
@pytest.mark.slow
def test_whatever_the_classes_the_value_stays_in_range(
    data: st.DataObject, n_ours: int, n_theirs: int, cosine: float
) -> None:
    ours = [f"A{number}" for number in range(1, n_ours + 1)]
    theirs = [f"R{number}" for number in range(1, n_theirs + 1)]
    right = data.draw(st.sets(st.sampled_from(ours)))
    missing = data.draw(st.sets(st.sampled_from(theirs)))
    classes = {"TP": sorted(right), "FP": sorted({*ours} - right), "FN": sorted(missing)}
    write = writing(json.dumps(ours), json.dumps(theirs), json.dumps(classes))
    found = AnswerCorrectness(write, alike(cosine))(QUESTION, ANSWER, [REFERENCE])
    assert (found.tp, found.fp, found.fn) == (len(right), n_ours - len(right), len(missing))
    assert min(found.value, found.similarity, found.claims_f1) >= 0.0
    assert max(found.value, found.similarity, found.claims_f1) <= 1.0


def test_a_vector_of_zeros_is_like_no_other() -> None:
    assert cosines(np.array([[0, 0], [1, 0]], dtype=np.float32)) == [0.0]
