"""Score every arm of a pool on every question, into a matrix: a job for a crew, then one folder.

questions x pool -> crew -> <output>.blocks -> <output>
                            a file a block     a score matrix
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from arms.blocking import LateWriter
from arms.blocks import BlockFolder, open_blocks, refuse_other
from arms.catalog import features
from arms.corpus import Progress
from arms.crew import Crew, hired, unfinished
from arms.indexes import MANIFEST
from arms.matrix import ArmTable, read_matrix, write_matrix
from arms.scorers import check_questions
from arms.scoring_job import Block, Job, Report, Worker

TIMED_AT_ONCE = 10
"""Arms that are timed between two words of progress."""


def score(job: Job, output: Path, *, workers: int | None = None, progress: Progress | None = None) -> Report:
    """Score all arms on all questions into a matrix, or return at once when that has been done.

    Args:
        job: What is scored.
        output: The folder of the matrix; `<output>.blocks` holds what is finished until all of it is.
        workers: Processes, see `arms.crew.hired`.
        progress: Told what is being done, and how much of it is done.

    Raises:
        ScoringError: The questions cannot be scored.
        JobError: The output holds other scores, no processor is free, no score is known of
            many questions in a row, or workers failed; what is finished is kept.
        ArmSpecError: An arm is described wrongly.
        MatrixError: There is no arm, or one has a name that no column can have.
        ModelNotFoundError: The model of a backbone is not where its name says.
    """
    tell = progress or (lambda *_: None)
    scorer = job.scorer(LateWriter(None))
    check_questions(job.questions, scorer, job.corpus)
    job = job.sound()
    identity = job.identity(scorer)
    table = ArmTable(job.specs, job.backbones, {}, scorer.measure, identity)
    if output.exists():
        return _report_of(output, identity)
    with open_blocks(output, identity) as blocks:
        resumed = sum(len(job.questions_of(number)) for number in blocks.finished())
        job.prepare(tell)
        untimed = job.timed > 0 and blocks.read_notes() is None
        if untimed or unfinished(job, blocks):
            with hired(Worker, job, workers) as crew:
                crew.finish(blocks, tell, "scoring questions")
                if untimed:
                    blocks.write_notes(_timed(list(job.specs), crew, tell))
        costs, unknown, problems = _summed(job, blocks)
        scores = ((job.questions_of(n), Block.unpack(blocks.read(n)).scores) for n in range(job.n_blocks))
        write_matrix(output, replace(table, costs=costs), scores)
        blocks.delete()
    return Report(scorer.measure, len(job.questions), resumed, unknown, problems)


def _timed(names: list[str], crew: Crew, tell: Progress) -> dict[str, float]:
    """Return how long a search of each arm takes, some arms at a time. Raises JobError."""
    seconds: dict[str, float] = {}
    while names:
        some, names = names[:TIMED_AT_ONCE], names[TIMED_AT_ONCE:]
        seconds |= crew.ask("seconds", some)
        tell("timing arms", len(seconds), len(seconds) + len(names))
    return seconds


def _summed(
    job: Job, blocks: BlockFolder
) -> tuple[dict[str, dict[str, float]], dict[str, int], dict[str, str]]:
    """Return the costs of the arms, on how many questions each has no score, and why."""
    names = list(job.specs)
    answered, steps, tokens, unknown = np.zeros((4, len(names)))
    problems: dict[str, str] = {}
    for number in range(job.n_blocks):
        block = Block.unpack(blocks.read(number))
        answered += block.answered
        steps += block.steps
        tokens += block.tokens
        unknown += np.isnan(block.scores).sum(axis=0)
        for column, problem in block.problems.items():
            problems.setdefault(names[column], problem)
    # one that never answered costs what its kind is expected to
    expected = np.array([features(name, spec)["steps"] for name, spec in job.specs.items()])
    some = np.maximum(answered, 1.0)
    means = {"steps": np.where(answered > 0, steps / some, expected), "tokens": tokens / some}
    costs = {cost: dict(zip(names, values.tolist(), strict=True)) for cost, values in means.items()}
    seconds = blocks.read_notes()
    return (
        costs if seconds is None else {**costs, "seconds": seconds},
        dict(zip(names, unknown.astype(int).tolist(), strict=True)),
        problems,
    )


def _report_of(output: Path, identity: Mapping[str, str]) -> Report:
    """Tell of a matrix that is there. Raises JobError when it follows from something else."""
    refuse_other(output / MANIFEST, identity)
    matrix = read_matrix(output)
    unknown = dict(zip(matrix.arms, np.isnan(matrix.scores).sum(axis=1).tolist(), strict=True))
    n = len(matrix.questions)
    return Report(matrix.table.measure, n, n, unknown, {})


__all__ = ["score"]
