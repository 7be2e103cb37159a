"""Label questions: the answer from each arm's passages, with its scores, steps and tokens.

em, f1, acc           the answer against the right answers, token by token
recall                the passages against the supporting passages
answer_correctness    the claims of the answer against those of the right answers, by the language model
judge                 five scores of the passages, by the language model

Seconds are left out, since outcomes must be the same bytes however often a run is interrupted. So a price of
seconds cannot be learned from them.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.offline.score import (
    JUDGE,
    Needed,
    open_corpus,
    read_arms,
    sample_questions,
    select_questions,
)
from armwise.agent.lab.routers import open_selector
from armwise.arms.base import Progress
from armwise.arms.lab.jobs import LabelJob, LabelReport, Measure, answer_measures, label
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.scoring import scorers
from armwise.arms.llm import catalog, prompts
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmGraph
from armwise.arms.suggestions import did_you_mean, select_names
from armwise.feedback.answer_metrics import METRICS, recall_at_k

CLAIMS, RECALL = "answer_correctness", "recall"

OF_ANSWERS = (*METRICS, CLAIMS)

MEASURES = (*OF_ANSWERS, RECALL, JUDGE)

SHOWN = 10
"""Most arms and measures with missing scores that are printed."""


class Labelling(BaseModel):
    """Settings of a labelling job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Configuration with the corpus, the arms and the language model.")
    queries: Path = Field(description=f"JSON lines, plain or .gz, each {QUESTION_LINE}.")
    output: Path = Field(description="Folder of the outcomes. It must not hold others.")
    form: prompts.Form = Field(default=prompts.Form.SHORT, description="Form of the answers.")
    measures: tuple[str, ...] = Field(
        default=(),
        description="em, f1, acc, recall, answer_correctness or judge. By default em, f1, acc, and recall if "
        "a question has gold_ids.",
    )
    arms: tuple[str, ...] = Field(
        default=("*",), min_length=1, description="Ask only arms that match this pattern; by default all."
    )
    pool: Path | None = Field(
        default=None,
        description="YAML file with `backbones` and `pool`; by default the arms of the configuration.",
    )
    corpus: str | None = Field(
        default=None, description="An ingested corpus; by default that in the configuration."
    )
    limit: int | None = Field(default=None, ge=1, description="Ask this many of the shuffled questions.")
    seed: int = Field(default=0, ge=0, description="Seed that shuffles questions and draws for random arms.")
    block: int = Field(default=16, ge=1, description="Questions that are finished and saved together.")
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Processes; by default one per processor, and one if vLLM runs inside it.",
    )
    at_once: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="Prompts, and searches, that a process runs at once.",
    )

    @model_validator(mode="after")
    def _measurable(self) -> "Labelling":
        for name in self.measures:
            if name not in MEASURES:
                raise ValueError(f"no measure {name!r}{did_you_mean(name, MEASURES)}")
        if CLAIMS in self.measures and not self.config.backbones:
            raise ValueError(
                "measure answer_correctness needs a sentence encoder: declare one in `backbones`"
            )
        return self


def label_questions(settings: Labelling, console: Console, on_progress: Progress) -> Outcomes:
    """Write the outcomes to `settings.output`, print the report, and return them.

    Args:
        settings: Settings of the job.
        console: Where the figures go.
        on_progress: Called with the progress.

    Raises:
        ValueError: Questions, arms, pool, measures or output are invalid; subclasses distinguish these.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: A model cannot be found.
    """
    config, answering = settings.config.resolve_places(), settings.config.answering
    everything, backbones = read_arms(config, settings.pool)
    actions = [name for name, spec in everything.items() if spec.action]
    arms = tuple(select_names(actions, settings.arms, "no arm"))
    specs = ArmGraph(everything).closure(*arms)
    measured = _list_measures(settings)
    questions = _questions(settings, measured, console)
    job = LabelJob(
        questions=questions,
        corpus=open_corpus(config, settings.corpus, on_progress),
        indexes=config.indexes_path,
        specs=specs,
        backbones={**config.backbones, **backbones},
        llm=config.llm,
        seed=settings.seed,
        block=settings.block,
        open_selector=open_selector,
        wait_s=config.limits.search_s,
        arms=arms,
        form=settings.form,
        of_answers=_build_answer_measures(settings, measured),
        of_passages=_build_passage_measures(settings, measured),
        k=answering.passages,
        word_budget=answering.word_budget,
        max_tokens=answering.max_tokens,
        at_once=settings.at_once,
        llms=config.llms,
        templates=config.templates,
    )
    workers = settings.workers or (
        1 if any(isinstance(model, catalog.VllmSpec) for model in config.models.values()) else None
    )
    report = label(job, settings.output, workers=workers, progress=on_progress)
    _print_report(report, job, settings, console)
    return report.outcomes


def _list_measures(settings: Labelling) -> tuple[str, ...]:
    """Return the names of the measures."""
    return tuple(dict.fromkeys(settings.measures or (*METRICS, RECALL)))


def _questions(settings: Labelling, measured: tuple[str, ...], console: Console) -> tuple[Question, ...]:
    """Return the questions to ask: those that the measures apply to. Raises ValueError."""
    needed: Needed | None = None
    if of_answers := [name for name in measured if name in OF_ANSWERS]:
        needed = "answers"
    elif measured == (RECALL,):
        needed = "gold_ids"
    everything = select_questions(settings.queries, needed, ", ".join(of_answers or measured), console)
    if RECALL in settings.measures and not any(question.gold_ids for question in everything):
        raise ValueError(f"{settings.queries}: no question has gold_ids, which recall needs")
    return sample_questions(everything, settings.limit, settings.seed)


def _build_answer_measures(settings: Labelling, measured: tuple[str, ...]) -> tuple[Measure[str], ...]:
    """Return the measures of answers. Raises ModelNotFoundError."""
    measures = [
        answer_measures.by_words(name, metric) for name, metric in METRICS.items() if name in measured
    ]
    if CLAIMS in measured:
        measures.append(answer_measures.by_claims(next(iter(settings.config.backbones))))
    return tuple(measures)


def _build_passage_measures(
    settings: Labelling, measured: tuple[str, ...]
) -> tuple[Measure[scorers.Ranking], ...]:
    """Return the measures of passages."""
    measures = []
    if RECALL in measured:
        measures.append(answer_measures.by_passages(recall_at_k, settings.config.answering.passages))
    if JUDGE in measured:
        measures.append(answer_measures.by_judge(settings.config.answering.word_budget))
    return tuple(measures)


def _print_report(report: LabelReport, job: LabelJob, settings: Labelling, console: Console) -> None:
    before = f" ({report.resumed:,} of them before)" if report.resumed else ""
    console.print(
        f"{len(job.arms):,} arms on {len(job.questions):,} questions{before}; written to {settings.output}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(_figures(report, [measure.scores[0] for measure in job.measures]))
    gaps = [*report.failed.items(), *report.unscored.items()]
    worst = sorted((gap for gap in gaps if gap[1].count), key=lambda gap: -gap[1].count)
    if not worst:
        return
    table = Table("arm or measure", "missing", "first reason", title="what is not known")
    for name, missing in worst[:SHOWN]:
        table.add_row(name, f"{missing.count:,}", escape(missing.first))
    if len(worst) > SHOWN:
        table.add_row(f"and {len(worst) - SHOWN:,} more", "", "")
    console.print(table)
    console.print(
        f"missing scores are kept as missing: to retry, delete {settings.output} and label again",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _figures(report: LabelReport, scores: list[str]) -> Table:
    """Return a table with the mean of each arm's known scores and costs."""
    outcomes, n = report.outcomes, len(report.outcomes.questions)
    spent = [outcomes.costs.get(name) for name in ("prompt_tokens", "completion_tokens")]
    columns = [
        *((name.replace("_", " "), outcomes.scores.get(name), 3) for name in scores),
        ("steps", outcomes.costs.get("steps"), 2),
        ("tokens", None if spent[0] is None or spent[1] is None else spent[0] + spent[1], 0),
    ]
    table = Table("arm", "answered", *(name for name, *_ in columns), "failures", padding=0)
    for column in table.columns[1:]:
        column.justify = "right"
    for at, arm in enumerate(outcomes.arms):
        means = [_mean(values[:, at], digits) if values is not None else "" for _, values, digits in columns]
        failures = report.failed[arm].count
        table.add_row(arm, f"{n - failures:,}", *means, f"{failures:,}")
    return table


def _mean(values: NDArray[np.float64], digits: int) -> str:
    """Return the mean of the known values as text; empty if all are unknown."""
    present = values[~np.isnan(values)]
    return f"{present.mean():,.{digits}f}" if len(present) else ""
