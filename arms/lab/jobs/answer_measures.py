"""Measures that score the answer of an outcome, or its passages.

    by_words            em, f1, acc         a function compares the answer with the right ones
    by_claims           answer_correctness  the language model compares the claims of both
    by_passages         recall              a function compares the passages with the supporting ones
    by_judge            judge, judge_...    the language model gives the passages five scores

A measure of answers runs once per distinct answer to a question, one of passages once per
distinct ranking.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from armwise.arms.base import ArmError
from armwise.arms.lab.jobs.job import PoolWorker, digest_of_document
from armwise.arms.lab.scoring import AnswerCorrectness, scorers
from armwise.arms.lab.scoring import correctness as scoring_correctness
from armwise.arms.llm import judge
from armwise.arms.questions import Question

T = TypeVar("T")

Grade = Callable[[Question, T], Mapping[str, float]]
"""A question, and an answer or a ranking -> scores in [0, 1] by name. Raises ArmError, GeneratorError."""

Recall = Callable[[Sequence[str], Sequence[str], int], float]
"""Ids of passages, ids of the supporting ones, and k -> a number in [0, 1]."""


@dataclass(frozen=True)
class Measure(Generic[T]):
    """A measure of answers or of rankings.

    Attributes:
        name: Name of the measure.
        scores: Names of its scores, from `armwise.arms.lab.portfolio.outcomes.SCORES`.
        make: Makes the grading function, once per worker; it must be thread-safe.
        needs: Field that a question must have to be graded.
        backbone: Name of the sentence encoder that it uses; empty: none.
        facts: Part of the identity of the scores that this measure adds.
    """

    name: str
    scores: tuple[str, ...]
    make: Callable[[PoolWorker], Grade[T]]
    needs: Literal["answers", "gold_ids"] | None = None
    backbone: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def applies(self, question: Question) -> bool:
        """Return whether the question has the field that is needed."""
        return self.needs is None or bool(getattr(question, self.needs))


def by_words(name: str, metric: scorers.Metric) -> Measure[str]:
    """Compare an answer with the right ones by a metric.

    >>> measure = by_words("em", lambda answer, right: float(answer in right))
    >>> measure.applies(Question("q", "Who?"))
    False
    """

    def grade(question: Question, answer: str) -> dict[str, float]:
        return {name: metric(answer, question.answers)}

    return Measure(name, (name,), lambda _: grade, "answers")


def by_claims(backbone: str) -> Measure[str]:
    """Compare the claims of an answer with those of the right ones: answer correctness.

    Args:
        backbone: Name of the sentence encoder for the similarity of the texts.
    """

    def make(worker: PoolWorker) -> Grade[str]:
        correctness = AnswerCorrectness(worker.write, worker.embedders[backbone].encode_queries)

        def grade(question: Question, answer: str) -> dict[str, float]:
            right = [reference for reference in question.answers if reference.strip()]
            if not right:
                raise ArmError("none of the right answers contains a word")
            return {"answer_correctness": correctness(question.text, answer, right).value}

        return grade

    words = (
        scoring_correctness.CLAIMS_SYSTEM,
        scoring_correctness.CLAIMS_FORM,
        scoring_correctness.CLASSES_SYSTEM,
        scoring_correctness.CLASSES_FORM,
    )
    facts = {"similarity": backbone, "words of claims": digest_of_document(words)}
    return Measure("answer_correctness", ("answer_correctness",), make, "answers", backbone, facts)


def by_passages(metric: Recall, k: int) -> Measure[scorers.Ranking]:
    """Measure the recall of the supporting passages among the first `k`."""

    def grade(question: Question, ranking: scorers.Ranking) -> dict[str, float]:
        return {"recall": metric([passage.id for passage in ranking], question.gold_ids, k)}

    return Measure("recall", ("recall",), lambda _: grade, "gold_ids")


def by_judge(word_budget: int) -> Measure[scorers.Ranking]:
    """Have the language model give the passages five scores; `judge` is the mean.

    Args:
        word_budget: Most words of passages that it reads.
    """

    def make(worker: PoolWorker) -> Grade[scorers.Ranking]:
        def grade(question: Question, ranking: scorers.Ranking) -> dict[str, float]:
            scores = judge.grade(
                worker.write, judge.FIVE_SCORES, question.text, ranking, word_budget=word_budget
            ).grade
            return {"judge": scores.mean, **{f"judge_{name}": v for name, v in scores.fractions().items()}}

        return grade

    facts = {"words of judge": digest_of_document([judge.FIVE_SCORES.system, judge.FIVE_SCORES.form])}
    return Measure("judge", ("judge", *judge.SCORE_NAMES), make, facts=facts)
