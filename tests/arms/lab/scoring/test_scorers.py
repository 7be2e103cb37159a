"""Scorers: the measures against their definitions, answers and judges against scripted models."""

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus
from armwise.arms.lab.scoring.scorers import (
    ContainsScorer,
    JudgeScorer,
    Ranking,
    RetrievalScorer,
    Scorer,
    ScoringError,
    check_questions,
)
from armwise.arms.llm import Chunk, GeneratorError, Prompt
from armwise.arms.questions import Question
from tests.arms.scripted import shown

IDS = "abcdefgh"
RANKINGS = st.lists(st.lists(st.sampled_from(IDS), unique=True, max_size=6), max_size=5)
GOLD = st.lists(st.sampled_from(IDS), unique=True, min_size=1, max_size=4)


def ranking(ids: Sequence[str]) -> Ranking:
    return tuple(Passage(name, "", f"Text of {name}.") for name in ids)


def values(scorer: Scorer, question: Question, rankings: Sequence[Sequence[str]]) -> list[float]:
    return [score.value for score in scorer.score(question, [ranking(ids) for ids in rankings])]


def recall(ids: Sequence[str], gold: Sequence[str], k: int) -> float:
    return len(set(ids[:k]) & set(gold)) / len(gold)


def reciprocal_rank(ids: Sequence[str], gold: Sequence[str], k: int) -> float:
    return next((1 / rank for rank, name in enumerate(ids[:k], start=1) if name in gold), 0.0)


def ndcg(ids: Sequence[str], gold: Sequence[str], k: int) -> float:
    gain = sum(1 / math.log2(rank + 1) for rank, name in enumerate(ids[:k], start=1) if name in gold)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, min(len(gold), k) + 1))


@pytest.mark.parametrize(
    ("measure", "formula"), [("R@3", recall), ("RR@3", reciprocal_rank), ("nDCG@3", ndcg)]
)
@given(RANKINGS, GOLD)
def test_measures_are_what_their_formulas_say(measure, formula, rankings, gold) -> None:  # type: ignore[no-untyped-def]
    found = values(RetrievalScorer(measure), Question("q", "?", gold_ids=tuple(gold)), rankings)
    assert found == pytest.approx([formula(ids, gold, 3) for ids in rankings])


def test_k_is_the_cut_of_the_measure_or_what_was_asked_for() -> None:
    assert RetrievalScorer("R@7", 3).k == 7
    assert (RetrievalScorer("RR").k, RetrievalScorer("RR", 3).k, RetrievalScorer("R@1").k) == (4, 3, 1)
    assert RetrievalScorer("Recall@7").measure == "R@7"


def test_what_shapes_the_scores_beside_the_measure_is_told() -> None:
    assert RetrievalScorer("RR", 3).measure == RetrievalScorer("RR", 4).measure
    assert RetrievalScorer("RR", 3).identity == {"k": 3}
    assert RetrievalScorer("R@7", 3).identity == {"k": 7}
    assert ContainsScorer(exact, k=3).identity == {"k": 3}
    assert JudgeScorer(Model("")).identity == {"k": 4, "word budget": 600}
    assert JudgeScorer(Model(""), k=2, word_budget=99).identity == {"k": 2, "word budget": 99}


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        ("recall", "measure 'recall' .*; R@4"),
        ("R", "measure 'R' does not"),
        ("R@", "measure 'R@' does not"),
        ("R@0", "'R@0' returned nan.*one or more"),
        ("NumRet", "'NumRet' returned 2 for two right passages"),
        ("Accuracy", "'Accuracy' .*ZeroDivisionError.*; R@4, nDCG@4 and RR@4"),
        ("Judged@4", "'Judged@4' .*ZeroDivisionError.*; R@4, nDCG@4 and RR@4"),
    ],
)
def test_what_is_no_measure_of_a_ranking_is_refused(measure: str, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        RetrievalScorer(measure)


def question(name: str = "q", gold: tuple[str, ...] = ("danube",)) -> Question:
    return Question(name, "Which river flows through Vienna?", gold_ids=gold, answers=("the Danube",))


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "there are no questions"),
        ([question("q1"), question("q2"), question("q1")], "question id 'q1' occurs twice"),
        ([question("q1"), question("q2", ())], "question 'q2' has no gold_ids"),
        ([question("q1", ("danube", "rhine"))], "gold_ids of question 'q1': no passage 'rhine' in corpus"),
    ],
)
def test_questions_that_cannot_be_scored_are_refused(
    corpus: Corpus, questions: list[Question], message: str
) -> None:
    with pytest.raises(ScoringError, match=message):
        check_questions(questions, RetrievalScorer("R@4"), corpus)


def test_a_judge_needs_no_answers(corpus: Corpus) -> None:
    check_questions([Question("q", "Which river?")], JudgeScorer(Model("")), corpus)


def exact(answer: str, golds: Sequence[str]) -> float:
    return float(answer in golds)


class Model:
    """Writes the same to every prompt, or what stands under a text that the prompt holds.

    Attributes:
        prompts: What it was asked, as texts.
    """

    def __init__(self, default: str, replies: dict[str, str | GeneratorError] | None = None) -> None:
        self.prompts: list[str] = []
        self._default = default
        self._replies = replies or {}

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        text = "\n".join(message["content"] for message in prompt.messages)
        self.prompts.append(text)
        for part, reply in self._replies.items():
            if part in text:
                if isinstance(reply, GeneratorError):
                    raise reply
                return reply, Chunk(finish_reason="stop")
        return self._default, Chunk(finish_reason="stop")


def test_an_answer_is_looked_for_in_the_text_of_each_ranking(corpus: Corpus) -> None:
    question = Question("q", "?", answers=("Text of b",))
    scorer = ContainsScorer(lambda text, answers: float(any(f" {one}" in f" {text}" for one in answers)))
    assert values(scorer, question, ["ab", "ac", ""]) == [1.0, 0.0, 0.0]
    with pytest.raises(ScoringError, match="question 'q' has no answers; contains needs one or more"):
        scorer.check([Question("q", "?")], corpus)


def test_the_judges_score_is_the_mean_of_its_five() -> None:
    names = ("relevance", "coverage", "accuracy", "ranking", "redundancy")
    mixed, best = (json.dumps(dict(zip(names, scores, strict=True))) for scores in ((1, 2, 3, 1, 5), [5] * 5))
    model = Model(mixed, {"Text of a": best})
    assert values(JudgeScorer(model), question(), [["a"], ["b"]]) == [1.0, 0.35]


def test_the_judge_reads_passages_within_its_budgets() -> None:
    asked: list[Prompt] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        asked.append(prompt)
        return '{"score": 2}', Chunk()

    judge = JudgeScorer(write, k=2, word_budget=4)
    assert (judge.k, judge.measure) == (2, "judge")
    judge.score(question(), [ranking("abc")])
    assert "Text of a." in shown(asked[0])
    assert "Text of b." not in shown(asked[0]), "two passages of three words are more than four"


def test_a_model_that_fails_leaves_a_ranking_unknown() -> None:
    names = ("relevance", "coverage", "accuracy", "ranking", "redundancy")
    model = Model(
        "Well.", {"Text of a": GeneratorError("no room"), "Text of b": json.dumps(dict.fromkeys(names, 5))}
    )
    failed, right, ungraded = JudgeScorer(model).score(question(), [ranking("a"), ranking("b"), ranking("c")])
    assert math.isnan(failed.value)
    assert failed.problem == "no room"
    assert (right.value, right.problem) == (1.0, "")
    assert math.isnan(ungraded.value)
    assert "Well." in ungraded.problem
