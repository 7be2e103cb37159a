"""Scorers of rankings.

    RetrievalScorer  a measure of ir-measures against the supporting passages: `R@4`, `nDCG@4`, `RR@4`
    ContainsScorer   whether the passages contain a right answer; needs no language model
    JudgeScorer      the language model gives the passages five scores; needs no labels

A scorer runs once per question on its distinct rankings: of hundreds of arms most give the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from armwise.arms.base import ArmError, Passage
from armwise.arms.corpus import Corpus, CorpusError
from armwise.arms.llm import GeneratorError, Write, judge
from armwise.arms.questions import Question

Ranking = tuple[Passage, ...]
"""Passages, best first."""

Metric = Callable[[str, Sequence[str]], float]
"""An answer and the right answers -> a number in [0, 1]."""


class ScoringError(ValueError):
    """Questions cannot be scored."""


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a ranking.

    Attributes:
        value: In [0, 1]; NaN if unknown.
        problem: Why it is unknown.
    """

    value: float
    problem: str = ""


class Checks(Protocol):
    """Checks questions before they are scored."""

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Refuse questions that cannot be scored. Raises ScoringError."""
        ...


class Scorer(Checks, Protocol):
    """Scores rankings; not thread-safe.

    Attributes:
        measure: Name of the measure, such as `R@4`.
        k: Passages of a ranking that are scored.
        identity: Further settings that the scores depend on.
    """

    measure: str
    k: int
    identity: Mapping[str, str | int]

    def score(self, question: Question, rankings: Sequence[Ranking]) -> list[Score]:
        """Return the score of each ranking; the rankings are distinct."""
        ...


class RetrievalScorer(Scorer):
    """Scores by the ranks of the supporting passages.

    Args:
        measure: The measure, in the notation of ir-measures.
        k: Cutoff for a measure whose name has none.

    Raises:
        ScoringError: The measure is unknown, or can leave [0, 1].

    >>> fox, bee = Passage("fox", "", "Red."), Passage("bee", "", "Busy.")
    >>> RetrievalScorer("R@1").score(Question("q", "Who?", gold_ids=("bee",)), [(fox, bee), (bee,)])
    [Score(value=0.0, problem=''), Score(value=1.0, problem='')]
    """

    def __init__(self, measure: str, k: int = 4) -> None:
        import ir_measures  # here: what only evaluates has no need of it

        try:
            self._measure = ir_measures.parse_measure(measure)
            self.k = int(self._measure.params.get("cutoff", k))
            # A parsed measure may still fail, and a cutoff of 0 would crash the process.
            probed = self._values(["a", "b"], [["a", "b"], ["c"], []]) if self.k > 0 else [math.nan] * 3
        except (NameError, ValueError, AssertionError, ArithmeticError, LookupError) as error:
            raise ScoringError(
                f"measure {measure!r} does not take any ranking ({type(error).__name__}: {error}); "
                "R@4, nDCG@4 and RR@4 do, and others of ir-measures"
            ) from None
        self.measure = str(self._measure)
        self.identity = {"k": self.k}
        for value, ranking in zip(probed, ("two right passages", "a wrong one", "none"), strict=True):
            if not 0.0 <= value <= 1.0:
                raise ScoringError(
                    f"measure {measure!r} returned {value:g} for {ranking}; it must accept one or more "
                    "passages and return a number in [0, 1], as R@4, nDCG@4 and RR@4 do"
                )

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Refuse questions without supporting passages in the corpus."""
        for question in questions:
            if not question.gold_ids:
                raise ScoringError(
                    f"question {question.id!r} has no gold_ids; {self.measure} needs one or more"
                )
            check_gold(question, corpus)

    def score(self, question: Question, rankings: Sequence[Ranking]) -> list[Score]:
        """Return the measure of each ranking."""
        ids = [[passage.id for passage in ranking] for ranking in rankings]
        return [Score(value) for value in self._values(question.gold_ids, ids)]

    def _values(self, gold: Sequence[str], rankings: Sequence[Sequence[str]]) -> list[float]:
        """Measure each ranking, as a separate query of a run."""
        import ir_measures

        numbers = [str(number) for number in range(len(rankings))]
        judged = dict.fromkeys(numbers, dict.fromkeys(gold, 1))
        runs = {
            number: {name: float(-rank) for rank, name in enumerate(ids)}
            for number, ids in zip(numbers, rankings, strict=True)
        }
        metrics = ir_measures.evaluator([self._measure], judged).iter_calc(runs)
        values = {metric.query_id: float(metric.value) for metric in metrics}
        return [values[number] for number in numbers]


class ContainsScorer(Scorer):
    """Scores 1 if the passages contain a right answer, else 0; supporting passages need not be known.

    Args:
        contains: Compares the text of the passages with the right answers.
        k: Passages of a ranking that are read.
    """

    measure = "contains"

    def __init__(self, contains: Metric, *, k: int = 4) -> None:
        self.k = k
        self.identity = {"k": k}
        self._contains = contains

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Refuse questions without a right answer."""
        del corpus
        for question in questions:
            if not question.answers:
                raise ScoringError(f"question {question.id!r} has no answers; contains needs one or more")

    def score(self, question: Question, rankings: Sequence[Ranking]) -> list[Score]:
        """Look for the answers in each ranking."""
        texts = [" ".join(f"{passage.title} {passage.text}" for passage in ranking) for ranking in rankings]
        return [Score(self._contains(text, question.answers) if text else 0.0) for text in texts]


class JudgeScorer(Scorer):
    """Scores by the mean of a judge's five scores of the passages (`judge.FIVE_SCORES`), in [0, 1].

    Args:
        write: Prompts the language model.
        k: Passages that the judge reads.
        word_budget: Most words of these passages.
        at_once: Rankings that are judged concurrently.
    """

    measure = "judge"

    def __init__(self, write: Write, *, k: int = 4, word_budget: int = 600, at_once: int = 4) -> None:
        self.k = k
        self.identity = {"k": k, "word budget": word_budget}
        self._write = write
        self._word_budget = word_budget
        self._at_once = at_once

    def check(self, questions: Sequence[Question], corpus: Corpus) -> None:
        """Accept any question."""

    def score(self, question: Question, rankings: Sequence[Ranking]) -> list[Score]:
        """Judge each ranking; a score is unknown if the judge does not write its five scores."""

        def score(ranking: Ranking) -> Score:
            try:
                grade = judge.grade(
                    self._write, judge.FIVE_SCORES, question.text, ranking, word_budget=self._word_budget
                ).grade
            except (GeneratorError, ArmError) as error:
                return Score(math.nan, str(error))
            return Score(grade.mean)

        with ThreadPoolExecutor(self._at_once, thread_name_prefix="score") as pool:
            return list(pool.map(score, rankings))


def check_gold(question: Question, corpus: Corpus) -> None:
    """Refuse a question with supporting passages outside the corpus. Raises ScoringError."""
    try:
        corpus.positions(question.gold_ids)
    except CorpusError as error:
        raise ScoringError(f"gold_ids of question {question.id!r}: {error}") from None


def check_questions(questions: Sequence[Question], scorer: Checks, corpus: Corpus) -> None:
    """Check questions before a job starts.

    Raises:
        ScoringError: The corpus or the questions are empty, an id occurs twice, or the scorer refuses a
            question.
    """
    if not len(corpus):
        raise ScoringError(f"corpus {corpus.name!r} has no passages")
    if not questions:
        raise ScoringError("there are no questions to score")
    ids: set[str] = set()
    for question in questions:
        if question.id in ids:
            raise ScoringError(f"question id {question.id!r} occurs twice")
        ids.add(question.id)
    scorer.check(questions, corpus)
