"""Label every question with the answer from every arm's passages.

questions x arms -> worker pool -> <output>.blocks -> <output>/outcomes.jsonl
                                   a file a block              manifest.json   their identity
"""

from functools import partial
from pathlib import Path
from typing import Any

import orjson

from arms.base import Progress
from arms.indexes import build_once
from arms.jobs.answer_measures import Measure
from arms.jobs.checkpoint import BlockFolder, open_blocks, refuse_other_output
from arms.jobs.label_worker import LabelJob, LabelReport, LabelWorker, Missing
from arms.jobs.worker_pool import unfinished, worker_pool
from arms.portfolio import outcomes, read_outcomes
from arms.scoring import scorers

BLOCKS_AT_ONCE = 2
"""Blocks per worker: those of the next keep the model busy while the last answers of one are written."""


def label(
    job: LabelJob, output: Path, *, workers: int | None = None, progress: Progress | None = None
) -> LabelReport:
    """Label all questions with the outcomes of all arms, unless the output holds them already.

    Args:
        job: The job.
        output: The folder of the outcomes; `<output>.blocks` holds finished blocks until all are.
        workers: Processes, see `arms.jobs.worker_pool.worker_pool`.
        progress: Progress callback.

    Raises:
        ScoringError: The questions do not fit, or a measure leaves [0, 1].
        JobError: The output holds other outcomes, no processor is free, many questions in a row
            failed, or workers failed; finished blocks are kept.
        ArmSpecError: An arm is described wrongly.
        ModelNotFoundError: A model cannot be found.
    """
    on_progress = progress or (lambda *_: None)
    scorers.check_questions(job.questions, job, job.corpus)
    job = job.validated()
    identity = job.identity()
    if output.exists():
        refuse_other_output(output, identity)
        return _report(job, output, len(job.questions))
    with open_blocks(output, identity) as blocks:
        resumed = sum(len(job.questions_of(number)) for number in blocks.finished())
        job.prepare(on_progress)
        if unfinished(job, blocks):
            with worker_pool(LabelWorker, job, workers, BLOCKS_AT_ONCE) as pool:
                pool.finish(blocks, on_progress, "asking questions")
        build_once.publish(output, identity, partial(_write, job, blocks))
        blocks.delete()
    return _report(job, output, resumed)


def _write(job: LabelJob, blocks: BlockFolder, folder: Path) -> None:
    with (folder / outcomes.FILE).open("wb") as file:
        file.writelines(blocks.read(number) for number in range(job.n_blocks))


def _report(job: LabelJob, output: Path, resumed: int) -> LabelReport:
    """Count what is missing, by arm and by measure."""
    asked = {question.id: question for question in job.questions}
    due: list[tuple[Measure[Any], str]] = [
        *((measure, "answer") for measure in job.of_answers),
        *((measure, "passages") for measure in job.of_passages),
    ]
    failed = {arm: Missing() for arm in job.arms}
    unscored = {measure.name: Missing() for measure, _ in due}
    for line in map(orjson.loads, (output / outcomes.FILE).read_bytes().splitlines()):
        if "answer" not in line:
            failed[line["arm"]].note(line)
        for measure, of in due:
            if of in line and measure.applies(asked[line["id"]]) and measure.scores[0] not in line:
                unscored[measure.name].note(line)
    return LabelReport(read_outcomes(output, job.questions), resumed, failed, unscored)
