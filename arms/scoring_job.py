"""What a scoring job is, and how a block of its questions is scored: plain Python, in one process."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Self

import numpy as np
import orjson
from numpy.typing import NDArray

from arms.kinds import Write
from arms.pool_job import PoolJob, PoolWorker
from arms.scorers import Scorer
from arms.sweep import FAILED, Stopwatch

TIMED_QUESTIONS = 32
"""Questions that arms are timed on in turn."""


@dataclass(frozen=True, kw_only=True)
class Job(PoolJob):
    """What is scored, on what, and how.

    Attributes:
        scorer: Makes the scorer from a function that asks the language model.
        timed: Searches by which each arm is timed; 0 for none, and no cost in seconds.
    """

    scorer: Callable[[Write], Scorer]
    timed: int = 4

    def identity(self, scorer: Scorer) -> dict[str, str]:
        """Return all that the scores by this scorer follow from. Raises ModelNotFoundError."""
        told = {fact: str(value) for fact, value in scorer.identity.items()}
        return {**self.facts(), "measure": scorer.measure, **told}


@dataclass(frozen=True, slots=True)
class Block:
    """The scores of all arms on some questions, and what they took.

    Attributes:
        scores: In [0, 1], NaN where unknown, shape (n_questions, n_arms), float32.
        answered: Questions that each arm did not fail on, shape (n_arms,).
        steps: Rounds of retrieval over those questions, summed, shape (n_arms,).
        tokens: Tokens that the arm spent over those questions, summed, shape (n_arms,).
        problems: The first reason why a score of an arm is unknown, by its column.
    """

    scores: NDArray[np.float32]
    answered: NDArray[np.float64]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    problems: Mapping[int, str]

    @property
    def problem(self) -> str:
        """Why not one score is known; empty when one is."""
        return next(iter(self.problems.values())) if np.isnan(self.scores).all() else ""

    def pack(self) -> bytes:
        """Return all of it as bytes, for `unpack`."""
        file = BytesIO()
        told = np.frombuffer(orjson.dumps(self.problems, option=orjson.OPT_NON_STR_KEYS), dtype=np.uint8)
        np.savez(
            file,
            scores=self.scores,
            answered=self.answered,
            steps=self.steps,
            tokens=self.tokens,
            problems=told,
        )
        return file.getvalue()

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """Return what was packed."""
        with np.load(BytesIO(content)) as file:
            told = orjson.loads(file["problems"].tobytes())
            problems = {int(column): problem for column, problem in told.items()}
            return cls(file["scores"], file["answered"], file["steps"], file["tokens"], problems)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a job.

    Attributes:
        measure: What the scores are of.
        n_questions: How many were scored, in this run or before it.
        resumed: How many of them were scored before it.
        unknown: On how many questions an arm has no score, by arm.
        problems: The first reason why an arm has no score, by arm; empty when the matrix was there already.
    """

    measure: str
    n_questions: int
    resumed: int
    unknown: Mapping[str, int]
    problems: Mapping[str, str]


class Worker(PoolWorker):
    """Scores blocks of a job."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._job = job
        self._scorer = job.scorer(self.write)
        self._stopwatch: Stopwatch | None = None

    def block(self, number: int) -> Block:
        """Ask every arm each question of a block, and score what they found."""
        questions = self._job.questions_of(number)
        n_arms = len(self._job.specs)
        scores = np.empty((len(questions), n_arms), dtype=np.float32)
        answered, steps, tokens = np.zeros((3, n_arms))
        problems: dict[int, str] = {}
        for row, (question, query) in enumerate(zip(questions, self.queries(questions), strict=True)):
            found = self.sweep.search(query, self._scorer.k)
            marks = self._scorer.score(question, found.rankings)
            values = np.array([*(mark.value for mark in marks), math.nan])
            scores[row] = values[found.which]  # FAILED points at the last one
            answered += found.which != FAILED
            steps += found.steps
            tokens += found.tokens
            for column in np.flatnonzero(np.isnan(scores[row])).tolist():
                told = found.problems.get(column) or marks[found.which[column]].problem
                problems.setdefault(column, f"question {question.id!r}: {told}")
        return Block(scores, answered, steps, tokens, problems)

    def seconds(self, names: Sequence[str]) -> dict[str, float]:
        """Return how long a search of each of these arms takes."""
        if self._stopwatch is None:
            queries = self.queries(self._job.questions[:TIMED_QUESTIONS])
            self._stopwatch = Stopwatch(self.resources, queries, self._scorer.k, self._job.timed)
        return {name: self._stopwatch.seconds(name) for name in names}


__all__ = ["TIMED_QUESTIONS", "Block", "Job", "Report", "Worker"]
