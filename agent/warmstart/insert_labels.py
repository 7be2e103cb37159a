"""Insert labels into the log as decisions, so that every learner reads them the same way.

    outcomes or scores of arms, questions --> decisions of the policy `labels` --> the log --> the learner

A running service learns them with its next step, another one when it starts. Labels also close an open drift
alarm. Those that a run of the warm start inserts are learned by its candidate alone, see
`agent.warmstart.run`.

Labels reach a policy in two ways; either is enough.

    as decisions   this module: the policy learns from them as from traffic. For policies without a router,
                   for few labels or few arms per question, for new arms.
    as a router    `armwise train`, and a policy with `prior_feature: router`, which starts from its scores
                   and learns the rest. Better from the first question on where every arm was labelled on
                   hundreds of questions.

With a router in the configuration, the contexts of labels have its scores, so that a policy learns how
reliable that feature is. Questions that the router was trained on have out-of-fold scores, which
`armwise train --folds` keeps.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from agent.config import AppConfig
from agent.offline import labelled_data, score
from agent.routers import Stage, saved, validation
from agent.serving import arms as serving_arms
from agent.serving import context_of, probe
from agent.simulation import SHAPE, shuffled
from agent.warmstart.label_decisions import (
    LabelDecisions,
    WarmStartError,
    label_digest,
    labels_of,
    reward_of,
    turns,
)
from agent.warmstart.router_features import RouterScores, score_labelled
from arms.base import Progress
from arms.models import build_embedder, digest_backbone
from arms.portfolio import Outcomes
from feedback.drift import record_warm_start
from feedback.events import Context
from feedback.log import Store
from feedback.registry import arm_sets
from feedback.training_log import imported_turns, traffic

BATCH = 64
"""Labels in one commit, the longest that a service on the same log waits for."""

EMBEDDING_BATCH = 256
"""Questions that are embedded together."""


class Beside(BaseModel):
    """Labels that are learned beside those that are inserted, and are not inserted again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: tuple[int, ...] = Field(default=(), description="Warm starts that have inserted them.")
    others: bool = Field(default=True, description="Whether labels of no warm start count.")


class InsertSettings(BaseModel):
    """Which labels are inserted, and with which metrics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Names the arms, the metrics, the features and the log.")
    outcomes: Path = Field(description="Outcomes, or the folder of a job, or that of a score matrix.")
    queries: Path | None = Field(
        default=None,
        description=f"Insert the labels of these questions alone: JSON lines, plain or .gz, each {SHAPE}.",
    )
    metrics: dict[str, str] = Field(min_length=1, description="Declared metric to the score that it gets.")
    limit: int | None = Field(default=None, ge=1, description="Insert so many of the shuffled questions.")
    draws: int | None = Field(default=None, ge=1, description="Arms to draw on a question; null for all.")
    seed: int = Field(default=0, ge=0, description="Seed that samples and shuffles questions and draws arms.")
    dry_run: bool = Field(default=False, description="Report what would be inserted, and insert nothing.")
    run: int | None = Field(
        default=None,
        ge=1,
        description="The warm start that inserts them; null for labels that every recipe learns.",
    )
    beside: Beside | None = Field(
        default=None, description="Labels that the same recipe learns already; null for none."
    )


def run(settings: InsertSettings, console: Console, on_progress: Progress) -> int:
    """Insert labels into the log, print a summary, and return how many are new.

    Labels in the log are not inserted again: an interrupted run is simply repeated.

    Args:
        settings: What is inserted.
        console: Prints the summary.
        on_progress: Called with the progress.

    Raises:
        ValueError: Outcomes, questions, arms, metrics or router do not fit; a subclass of it says which.
        CorpusError: The corpus of a router that reads passages cannot be read.
        ModelNotFoundError: The model of a backbone is not where its name says.
        StoreError: The log cannot be read or written.
    """
    store = Store(settings.config.database_url, redact=settings.config.privacy.redactor())
    try:
        # the live arms, which may differ from those of the configuration
        config = settings.config.with_arms(arm_sets.at_start(store, settings.config.arm_documents))
        outcomes = _outcomes(settings, config, console)
        scored = None if config.router is None else score_labelled(outcomes, config.settled(), on_progress)
        if scored is not None:
            outcomes = scored.outcomes
        labels = labels_of(
            outcomes,
            config.reward,
            settings.metrics,
            list(config.actions),
            draws=settings.draws,
            seed=settings.seed,
        )
        contexts = contexts_of(
            config, [question.text for question in outcomes.questions], on_progress, scored
        )
        source = seen_as(config) + ("" if scored is None else scored.source)
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        done, new, total = 0, 0, len(labels.cells)
        known = _known(store, settings.beside)
        found = turns(labels, contexts, seen_as=source, run=settings.run)
        while batch := list(islice(found, BATCH)):
            unknown = [turn for turn in batch if label_digest(turn.decision.id) not in known]
            new += (
                len(imported_turns.missing_from_log(store, unknown))
                if settings.dry_run
                else imported_turns.insert(store, unknown)
            )
            done += len(batch)
            for turn in batch:
                rewards[turn.decision.drawn].append(reward_of(turn, config.reward))
            on_progress("inserting labels", done, total)
        if new and settings.run is None and not settings.dry_run:  # a run reports it with its promotion
            record_warm_start(store, new, time.time())
    finally:
        store.close()
    _print_summary(labels, list(config.actions), rewards, new, settings.dry_run, console)
    if scored is not None:
        console.print(scored.summary(), markup=False, highlight=False, soft_wrap=True)
        stage = Stage.RETRIEVED if saved.looked_at(config.router) else Stage.QUESTION
        if config.reward.cost_weight > 0.0 and (
            free := validation.uncharged(outcomes, config.reward.cost, stage)
        ):
            console.print(free, markup=False, highlight=False, soft_wrap=True)
    return new


def _known(store: Store, beside: Beside | None) -> set[str]:
    """Return the digests of labels that are not inserted again."""
    if beside is None:
        return set()
    return {label_digest(one) for one in traffic.label_ids(store, beside.runs, others=beside.others)}


def seen_as(config: AppConfig) -> str:
    """Return what a context depends on besides the question: features, the encoder, features of arms.

    Raises:
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    encoder = None
    if seen := config.features.embedding:
        backbone = config.backbones[seen.backbone]
        encoder = digest_backbone(backbone), backbone.query_prefix
    arms = {name: info.features for name, info in serving_arms.arm_infos(config).items()}
    return orjson.dumps([config.features.model_dump(mode="json"), encoder, arms]).decode()


def contexts_of(
    config: AppConfig, texts: Sequence[str], on_progress: Progress, scored: RouterScores | None = None
) -> list[Context]:
    """Return the contexts of questions, as a service with this configuration would make them.

    Args:
        config: Names the features and the arms.
        texts: The questions.
        on_progress: Called with the progress.
        scored: Scores of the configured router; None for none.
    """
    arms, seen = serving_arms.arm_infos(config), config.features.embedding
    vectors = (
        [{}] * len(texts) if seen is None else _embedded(config, seen.backbone, texts, on_progress, scored)
    )
    contexts = [
        context_of(text, config.features, embedding, arms, cost_weight=config.reward.cost_weight)
        for text, embedding in zip(texts, vectors, strict=True)
    ]
    if scored is None:
        return contexts
    return [context.with_scores(scores) for context, scores in zip(contexts, scored.scores, strict=True)]


def _embedded(
    config: AppConfig, backbone: str, texts: Sequence[str], on_progress: Progress, scored: RouterScores | None
) -> list[probe.Embeddings]:
    """Return the embedding of each question, reused from the router where the backbone is the same."""
    if scored is not None and scored.backbone == backbone:
        return [{backbone: vector} for vector in scored.embedding]
    embedder = build_embedder(config.backbones[backbone])
    found: list[probe.Embeddings] = []
    for first in range(0, len(texts), EMBEDDING_BATCH):
        some = texts[first : first + EMBEDDING_BATCH]
        found += [{backbone: vector} for vector in embedder.encode_queries(some)]
        on_progress("embedding questions", len(found), len(texts))
    return found


def _outcomes(settings: InsertSettings, config: AppConfig, console: Console) -> Outcomes:
    """Read the outcomes of the requested questions. Raises ValueError."""
    path = settings.outcomes
    requested = [] if settings.queries is None else score.read_questions(settings.queries)
    outcomes = labelled_data.read_place(path, requested, {arm: config.arms[arm] for arm in config.actions})
    rows = list(range(len(outcomes.questions)))
    if settings.queries is not None:
        ids = {question.id for question in requested}
        rows = [row for row in rows if outcomes.questions[row].id in ids]
        if not rows:
            raise WarmStartError(f"{path} has no question of {settings.queries}")
        if left_out := len(outcomes.questions) - len(rows):
            console.print(f"{left_out:,} questions are left out: {settings.queries} does not name them")
    return outcomes.only(shuffled(rows, settings.seed)[: settings.limit])


def _print_summary(
    labels: LabelDecisions,
    actions: Sequence[str],
    rewards: dict[str, list[float]],
    new: int,
    dry_run: bool,
    console: Console,
) -> None:
    total, questions = len(labels.cells), len(np.unique(labels.cells[:, 0]))
    lines = [
        f"{total:,} labels of {len(rewards):,} arms on {questions:,} questions: "
        f"{new:,} {'would be ' if dry_run else ''}new, {total - new:,} in the log before"
    ]
    lines += [f"left out: {n:,} labels {reason}" for reason, n in labels.left_out.items()]
    lines += [
        f"left out: arm {arm!r}, which is not an action" for arm in labels.outcomes.arms if arm not in actions
    ]
    if unlabelled := [arm for arm in actions if arm not in rewards]:
        lines.append(f"without any label: {', '.join(unlabelled)}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table("arm", "labels", "mean reward")
    for column in table.columns[1:]:
        column.justify = "right"
    for arm in labels.arms:
        if found := rewards.get(arm):
            table.add_row(arm, f"{len(found):,}", f"{np.mean(found):+.4f}")
    console.print(table)
