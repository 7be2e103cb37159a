"""Score every arm of a pool on every question.

questions x pool -> worker pool -> <output>.blocks -> <output>
                                   a file a block     a score matrix
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Self

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.base import Progress
from armwise.arms.lab.jobs.checkpoint import BlockFolder, open_blocks, refuse_other_output
from armwise.arms.lab.jobs.job import FAILED, PoolJob, PoolWorker, Stopwatch
from armwise.arms.lab.jobs.worker_pool import WorkerPool, list_unfinished, worker_pool
from armwise.arms.lab.portfolio import MatrixArms, read_matrix, write_matrix
from armwise.arms.lab.scoring import Scorer, scorers
from armwise.arms.llm import LateWriter, Write
from armwise.arms.retrievers import ArmGraph, catalog

TIMED_QUESTIONS = 32
"""Number of questions on which arms are timed, in rotation."""


@dataclass(frozen=True, kw_only=True)
class ScoreJob(PoolJob):
    """Arms, questions and a scorer.

    Attributes:
        scorer: Makes the scorer from a function that prompts the language model.
        timed: Timed searches per arm; 0: costs are without seconds.
    """

    scorer: Callable[[Write], Scorer]
    timed: int = 4

    def identity(self, scorer: Scorer) -> dict[str, str]:
        """Return the identity of the scores. Raises ModelNotFoundError."""
        facts = {fact: str(value) for fact, value in scorer.identity.items()}
        return {**self.facts(), "measure": scorer.measure, **facts}


@dataclass(frozen=True, slots=True)
class ScoreBlock:
    """The scores and costs of all arms on a block of questions.

    Attributes:
        scores: In [0, 1], NaN where unknown, shape (n_questions, n_arms), float32.
        answered: Questions on which each arm did not fail, shape (n_arms,).
        steps: Sum of the rounds of retrieval, shape (n_arms,).
        tokens: Sum of the tokens that the arm spent, shape (n_arms,).
        usd: Sum of the dollars of searches with a price, shape (n_arms,).
        problems: The first reason of an unknown score, by the arm's column.
    """

    scores: NDArray[np.float32]
    answered: NDArray[np.float64]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    usd: NDArray[np.float64]
    problems: Mapping[int, str]

    @property
    def problem(self) -> str:
        """Why all scores are unknown; empty: at least one is known."""
        return next(iter(self.problems.values())) if np.isnan(self.scores).all() else ""

    def pack(self) -> bytes:
        """Serialize the block."""
        file = BytesIO()
        problems = orjson.dumps(self.problems, option=orjson.OPT_NON_STR_KEYS)
        np.savez(
            file,
            scores=self.scores,
            answered=self.answered,
            steps=self.steps,
            tokens=self.tokens,
            usd=self.usd,
            problems=np.frombuffer(problems, dtype=np.uint8),
        )
        return file.getvalue()

    @classmethod
    def unpack(cls, content: bytes) -> Self:
        """Deserialize a block."""
        with np.load(BytesIO(content)) as file:
            by_column = orjson.loads(file["problems"].tobytes())
            problems = {int(column): problem for column, problem in by_column.items()}
            steps, tokens, usd = (file[name] for name in ("steps", "tokens", "usd"))
            return cls(file["scores"], file["answered"], steps, tokens, usd, problems)


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """The result of a scoring job.

    Attributes:
        measure: Measure of the scores.
        n_questions: Number of questions.
        resumed: Questions that were scored before this run.
        unknown: Questions without a score, by arm.
        problems: The first reason of a missing score, by arm; empty if the matrix existed before.
    """

    measure: str
    n_questions: int
    resumed: int
    unknown: Mapping[str, int]
    problems: Mapping[str, str]


class ScoreWorker(PoolWorker):
    """Scores blocks of a job."""

    def __init__(self, job: ScoreJob) -> None:
        super().__init__(job)
        self._job = job
        self._scorer = job.scorer(self.write)
        self._stopwatch: Stopwatch | None = None

    def block(self, number: int) -> ScoreBlock:
        """Search with every arm for each question of a block, and score the rankings."""
        questions = self._job.list_questions(number)
        n_arms = len(self._job.specs)
        scores = np.empty((len(questions), n_arms), dtype=np.float32)
        answered, steps, tokens, usd = np.zeros((4, n_arms))
        problems: dict[int, str] = {}
        for row, (question, query) in enumerate(zip(questions, self.queries(questions), strict=True)):
            retrieved = self.sweep.search(query, self._scorer.k)
            marks = self._scorer.score(question, retrieved.rankings)
            values = np.array([*(mark.value for mark in marks), math.nan])
            scores[row] = values[retrieved.which]  # FAILED points at the last one
            answered += retrieved.which != FAILED
            steps += retrieved.steps
            tokens += retrieved.tokens
            usd += retrieved.usd
            for column in np.flatnonzero(np.isnan(scores[row])).tolist():
                problem = retrieved.problems.get(column) or marks[retrieved.which[column]].problem
                problems.setdefault(column, f"question {question.id!r}: {problem}")
        return ScoreBlock(scores, answered, steps, tokens, usd, problems)

    def seconds(self, names: Sequence[str]) -> dict[str, float]:
        """Return the mean seconds of a search, by arm."""
        if self._stopwatch is None:
            queries = self.queries(self._job.questions[:TIMED_QUESTIONS])
            self._stopwatch = Stopwatch(self.resources, queries, self._scorer.k, self._job.timed)
        return {name: self._stopwatch.seconds(name) for name in names}


TIMED_AT_ONCE = 10
"""Arms that are timed between two progress reports."""


def score(
    job: ScoreJob, output: Path, *, workers: int | None = None, progress: Progress | None = None
) -> ScoreReport:
    """Score all arms on all questions into a matrix; a finished output is read instead.

    Args:
        job: The job.
        output: The folder of the matrix; until all blocks are finished they are in `<output>.blocks`.
        workers: Processes, see `armwise.arms.lab.jobs.worker_pool.worker_pool`.
        progress: Progress callback.

    Raises:
        ScoringError: A question lacks what the scorer needs.
        JobError: The output holds other scores, no processor is free, many questions in a row
            failed, or workers failed; finished blocks are kept.
        ArmSpecError: The spec of an arm is invalid.
        MatrixError: There are no arms, or one has a reserved name.
        ModelNotFoundError: The model of a backbone cannot be found.
    """
    on_progress = progress or (lambda *_: None)
    scorer = job.scorer(LateWriter(None))
    scorers.check_questions(job.questions, scorer, job.corpus)
    job = job.validate()
    identity = job.identity(scorer)
    table = MatrixArms(job.specs, job.backbones, {}, scorer.measure, identity)
    if output.exists():
        return _read_report(output, identity)
    with open_blocks(output, identity) as blocks:
        resumed = sum(len(job.list_questions(number)) for number in blocks.list_finished())
        job.prepare(on_progress)
        untimed = job.timed > 0 and blocks.read_notes() is None
        if untimed or list_unfinished(job, blocks):
            with worker_pool(ScoreWorker, job, workers) as pool:
                pool.finish(blocks, on_progress, "scoring questions")
                if untimed:
                    blocks.write_notes(_time_arms(list(job.specs), pool, on_progress))
        costs, unknown, problems = _sum_blocks(job, blocks)
        scores = (
            (job.list_questions(n), ScoreBlock.unpack(blocks.read(n)).scores) for n in range(job.n_blocks)
        )
        write_matrix(output, replace(table, costs=costs), scores)
        blocks.delete()
    return ScoreReport(scorer.measure, len(job.questions), resumed, unknown, problems)


def _time_arms(names: list[str], pool: WorkerPool, on_progress: Progress) -> dict[str, float]:
    """Return the mean seconds of a search, by arm. Raises JobError."""
    seconds: dict[str, float] = {}
    while names:
        some, names = names[:TIMED_AT_ONCE], names[TIMED_AT_ONCE:]
        seconds |= pool.call("seconds", some)
        on_progress("timing arms", len(seconds), len(seconds) + len(names))
    return seconds


def _sum_blocks(
    job: ScoreJob, blocks: BlockFolder
) -> tuple[dict[str, dict[str, float]], dict[str, int], dict[str, str]]:
    """Return the mean costs, the numbers of unknown scores and their first reasons, by arm."""
    names = list(job.specs)
    answered, steps, tokens, usd, unknown = np.zeros((5, len(names)))
    problems: dict[str, str] = {}
    for number in range(job.n_blocks):
        block = ScoreBlock.unpack(blocks.read(number))
        answered += block.answered
        steps += block.steps
        tokens += block.tokens
        usd += block.usd
        unknown += np.isnan(block.scores).sum(axis=0)
        for column, problem in block.problems.items():
            problems.setdefault(names[column], problem)
    # an arm that never answered has the expected cost of its kind
    expected = np.array([catalog.arm_features(name, spec)["steps"] for name, spec in job.specs.items()])
    prices = np.array([*map(ArmGraph(job.specs).estimate_usd, names)])
    some = np.maximum(answered, 1.0)
    means = {"steps": np.where(answered > 0, steps / some, expected), "tokens": tokens / some}
    if prices.any():
        means["usd"] = np.where(answered > 0, usd / some, prices)
    costs = {cost: dict(zip(names, values.tolist(), strict=True)) for cost, values in means.items()}
    seconds = blocks.read_notes()
    return (
        costs if seconds is None else {**costs, "seconds": seconds},
        dict(zip(names, unknown.astype(int).tolist(), strict=True)),
        problems,
    )


def _read_report(output: Path, identity: Mapping[str, str]) -> ScoreReport:
    """Report on a matrix that exists. Raises JobError if its identity differs."""
    refuse_other_output(output, identity)
    matrix = read_matrix(output)
    unknown = dict(zip(matrix.arms, np.isnan(matrix.scores).sum(axis=1).tolist(), strict=True))
    n = len(matrix.questions)
    return ScoreReport(matrix.table.measure, n, n, unknown, {})
