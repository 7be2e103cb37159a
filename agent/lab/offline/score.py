"""Score arms on questions into a matrix: by known answers, by a judge, or by the log.

R@4, nDCG@4, RR@4     the passages, against the supporting passages
contains              whether the passages contain a right answer
judge                 the passages, graded by the language model
a metric, or reward   the feedback on the decisions in the log
a score of labels     a measure of `armwise lab label`
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.offline.labelled_data import OF_LOG, read_labelled, read_questions, write_scores
from armwise.agent.lab.routers import open_selector
from armwise.agent.lab.simulation import shuffle
from armwise.arms.base import Progress
from armwise.arms.corpus import Corpus, ingest_all
from armwise.arms.lab.jobs import ScoreJob, ScoreReport, score
from armwise.arms.lab.portfolio import MatrixArms, load_pool, read_matrix, write_matrix
from armwise.arms.lab.portfolio import pool as portfolio_pool
from armwise.arms.lab.scoring import ContainsScorer, JudgeScorer, RetrievalScorer, Scorer, ScoringError
from armwise.arms.llm import Write
from armwise.arms.models import Backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmGraph, ArmSpec
from armwise.feedback.answer_metrics import METRICS, accuracy
from armwise.feedback.log import Store
from armwise.feedback.training_log import logged_labels, read_examples
from armwise.feedback.training_log.passages import read_rated_passages

Needed = Literal["answers", "gold_ids"]
"""Field of a question that a measure needs."""

JUDGE = "judge"

CONTAINS = ContainsScorer.measure

NOT_READ = ("block", "corpus", "k", "limit", "pool", "seed", "timed", "workers")
"""Settings for queries alone: a log and labels are read completely, with the arms that they name."""

SHOWN = 10
"""Most arms with unknown scores that are named; the others are counted."""


class Scoring(BaseModel):
    """Settings of a scoring job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(
        description="Configuration with the corpus, the arms, the language model and the log."
    )
    measure: str = Field(
        default="R@4",
        description="A measure of ir-measures, contains or judge. For a log: a metric, or reward. For "
        "labels: one of their scores, such as em.",
    )
    queries: Path | None = Field(default=None, description=f"JSON lines, plain or .gz, each {QUESTION_LINE}.")
    from_log: bool = Field(default=False, description="Take questions and scores from the log instead.")
    from_labels: Path | None = Field(
        default=None,
        description="Take them from a folder of `armwise lab label`, or from a file of outcomes. If "
        "that has only ids of questions, `queries` adds their texts.",
    )
    corpus: str | None = Field(
        default=None, description="An ingested corpus; by default that in the configuration."
    )
    pool: Path | None = Field(
        default=None,
        description="YAML file with `backbones` and `pool`; by default the arms of the configuration.",
    )
    k: int = Field(default=4, ge=1, description="Number of passages, if the measure has no cut-off.")
    limit: int | None = Field(default=None, ge=1, description="Score this many of the shuffled questions.")
    seed: int = Field(default=0, ge=0, description="Seed that shuffles questions and draws for random arms.")
    block: int = Field(default=32, ge=1, description="Questions that are finished and saved together.")
    workers: int | None = Field(default=None, ge=1, description="Processes; by default one per processor.")
    timed: int = Field(default=4, ge=0, description="Searches to time each arm with; 0 skips the timing.")
    output: Path = Field(description="Folder of the matrix. It must not hold another one.")

    @model_validator(mode="after")
    def _one_source(self) -> "Scoring":
        asked = self.queries is not None and self.from_labels is None  # to labels they add texts
        if [asked, self.from_log, self.from_labels is not None].count(True) != 1:
            raise ValueError(
                "one of queries, from_log and from_labels was expected: where the questions come from"
            )
        given = [
            name for name in NOT_READ if getattr(self, name) is not None and name in self.model_fields_set
        ]
        if not asked and given:
            raise ValueError(
                f"log and labels are read whole, with the arms that they name: leave out {', '.join(given)}"
            )
        return self


def score_arms(settings: Scoring, console: Console, on_progress: Progress) -> ScoreReport:
    """Write the matrix to `settings.output`, print the report, and return it.

    Args:
        settings: Settings of the job.
        console: Where the report goes.
        on_progress: Called with the progress.

    Raises:
        ValueError: Questions, pool, measure or output are invalid; subclasses distinguish these.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of a backbone cannot be found.
        StoreError: The log cannot be read.
    """
    if settings.from_labels is not None:
        report = _from_labels(settings, settings.from_labels)
    elif settings.queries is not None:
        report = _score(settings, settings.queries, console, on_progress)
    else:
        report = _from_log(settings, console, on_progress)
    _print_report(report, settings, console)
    return report


def _score(settings: Scoring, queries: Path, console: Console, on_progress: Progress) -> ScoreReport:
    config = settings.config.resolve_places()
    scorer = choose_scorer(settings)
    specs, backbones = read_arms(config, settings.pool)
    needed: Needed = "answers" if settings.measure == CONTAINS else "gold_ids"
    everything = select_questions(
        queries, None if settings.measure == JUDGE else needed, settings.measure, console
    )
    job = ScoreJob(
        questions=sample_questions(everything, settings.limit, settings.seed),
        corpus=open_corpus(config, settings.corpus, on_progress),
        indexes=config.indexes_path,
        specs=specs,
        backbones=backbones,
        scorer=scorer,
        llm=config.llm,
        seed=settings.seed,
        block=settings.block,
        timed=settings.timed,
        open_selector=open_selector,
        wait_s=config.limits.search_s,
    )
    return score(job, settings.output, workers=settings.workers, progress=on_progress)


def read_arms(config: AppConfig, pool: Path | None) -> tuple[dict[str, ArmSpec], dict[str, Backbone]]:
    """Return the arms and the backbones of a pool, or of the configuration. Raises PoolError."""
    if pool is None:
        return config.arms, config.backbones
    file = load_pool(pool)
    return portfolio_pool.expand(file.pool), file.backbones


def open_corpus(config: AppConfig, name: str | None, on_progress: Progress) -> Corpus:
    """Open an ingested corpus, or ingest those of the configuration. Raises CorpusError."""
    if name is None:
        return ingest_all(config.corpus_sources, progress=on_progress)
    prefix = f"{name}/" if name in config.corpora else ""
    return Corpus.open(config.home_path / "corpora" / name, prefix)


def select_questions(queries: Path, needed: Needed | None, measure: str, console: Console) -> list[Question]:
    """Return the questions with the field `needed`; print how many lack it. Raises ValueError."""
    everything = read_questions(queries)
    questions = [question for question in everything if needed is None or getattr(question, needed)]
    if not questions:
        raise ValueError(f"{queries}: no question has {needed}, which {measure} needs")
    if left_out := len(everything) - len(questions):
        console.print(f"{left_out:,} questions without {needed} are left out", highlight=False)
    return questions


def sample_questions(questions: list[Question], limit: int | None, seed: int) -> tuple[Question, ...]:
    """Return the first `limit` shuffled questions; None: all questions in their order."""
    return tuple(questions if limit is None else shuffle(questions, seed)[:limit])


def choose_scorer(settings: Scoring) -> Callable[[Write], Scorer]:
    """Return the factory of the scorer of a measure, which takes a language model. Raises ScoringError."""
    name, k, word_budget = settings.measure, settings.k, settings.config.answering.word_budget
    if name in METRICS:
        raise ScoringError(
            f"measure {name!r} compares answers: let `armwise lab label` write them, and score its folder "
            "with --from-labels"
        )
    if name == CONTAINS:
        return lambda _: ContainsScorer(accuracy, k=k)
    if name == JUDGE:
        return lambda write: JudgeScorer(write, k=k, word_budget=word_budget)
    retrieval = RetrievalScorer(name, k)  # here, so that a wrong name is refused at once
    return lambda _: retrieval


def _from_log(settings: Scoring, console: Console, on_progress: Progress) -> ScoreReport:
    config = settings.config.resolve_places()
    value = logged_labels.make_scale(config.reward, settings.measure)
    store = Store(config.database_url, config.reward.join, create=False)
    try:
        total = store.counts()["examples"]
        on_progress("reading the log", 0, total)
        examples = read_examples(store, config.reward.join, upto=total)
        rated = [*read_rated_passages(store, config.reward)]
        labels = logged_labels.labels(chain(examples, rated), value, config.arms)
        excluded = Counter(store.count_unlearned()) + Counter(labels.excluded)
        excluded["no reward"] -= len(rated)
    finally:
        store.close()
    on_progress("reading the log", total, total)
    specs = {**{arm: config.arms[arm] for arm in labels.arms}, **ArmGraph(config.arms).closure(*labels.arms)}
    silent = len(specs) - len(labels.arms)  # parts that were never drawn themselves come last
    scores = np.pad(labels.scores, ((0, 0), (0, silent)), constant_values=np.nan)
    chances = None if labels.chances is None else np.pad(labels.chances, ((0, 0), (0, silent)))
    table = MatrixArms(
        specs,
        config.backbones,
        {
            name: dict(zip(specs, [*values.tolist(), *[0.0] * silent], strict=True))
            for name, values in labels.costs.items()
        },
        f"{settings.measure}{OF_LOG}",
        {"source": "log", "examples": str(total), "measure": settings.measure},
    )
    questions = [Question(_id(text), text) for text in labels.questions]
    write_matrix(settings.output, table, [(questions, scores)], chances)
    left_out = ", ".join(f"{n:,} {reason}" for reason, n in (+excluded).most_common()) or "none"
    console.print(f"{labels.used:,} decisions used; left out: {left_out}", markup=False, highlight=False)
    unknown = np.isnan(scores).sum(axis=0).tolist()
    return ScoreReport(table.measure, len(questions), 0, dict(zip(specs, unknown, strict=True)), {})


def _from_labels(settings: Scoring, labels: Path) -> ScoreReport:
    config = settings.config
    questions = [] if settings.queries is None else read_questions(settings.queries)
    outcomes = read_labelled([labels], questions)
    table = write_scores(outcomes, settings.measure, config.arms, config.backbones, settings.output, "labels")
    matrix = read_matrix(settings.output)
    unknown = np.isnan(matrix.scores).sum(axis=1).tolist()
    return ScoreReport(
        table.measure, len(matrix.questions), 0, dict(zip(table.specs, unknown, strict=True)), {}
    )


def _id(question: str) -> str:
    """Return an id for a question from its text."""
    return hashlib.blake2b(question.encode(), digest_size=8).hexdigest()


def _print_report(report: ScoreReport, settings: Scoring, console: Console) -> None:
    n, unknown = report.n_questions, {arm: n for arm, n in report.unknown.items() if n}
    before = f" ({report.resumed:,} of them before)" if report.resumed else ""
    console.print(
        f"{len(report.unknown):,} arms on {n:,} questions{before} by {report.measure}, "
        f"{sum(unknown.values()):,} of {n * len(report.unknown):,} scores unknown; "
        f"written to {settings.output}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if not unknown or settings.from_log or settings.from_labels is not None:
        return  # a log has one score per decision, so gaps are normal
    if silent := [arm for arm, missing in unknown.items() if missing == n]:
        console.print(f"NO SCORE AT ALL: {', '.join(silent)}", style="bold red", markup=False, soft_wrap=True)
    table = Table("arm", "unknown", "first reason", title="scores that are unknown")
    worst = sorted(unknown, key=lambda arm: -unknown[arm])
    for arm in worst[:SHOWN]:
        table.add_row(arm, f"{unknown[arm]:,}", escape(report.problems.get(arm, "")))
    if len(worst) > SHOWN:
        table.add_row(f"and {len(worst) - SHOWN:,} more", "", "")
    console.print(table)
