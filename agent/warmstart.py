"""Warm up a policy: labels are entered into the log, and are learned from by the one door there is.

    outcomes or scores of arms, questions --> decisions of the policy `labels` --> the log --> the learner

A service that runs learns them at its next look at the log, another one when it starts.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from agent.config import AppConfig
from agent.label_decisions import Labels, WarmStartError, labels_of, reward_of, turns
from agent.live_arms import documents, known
from agent.loop import context_of
from agent.questions import SHAPE, shuffled
from agent.score import questions_of
from agent.utility import of_matrix
from arms.catalog import same
from arms.corpus import Progress
from arms.embedding import build_embedder
from arms.matrix import ARMS, read_matrix
from arms.outcomes import Outcomes, read_outcomes
from feedback.armsets import at_start
from feedback.events import Context
from feedback.past_turns import enter, new_among
from feedback.store import Store

BATCH = 256
"""Labels in one commit, and questions that are embedded together."""


class WarmStart(BaseModel):
    """Which labels are entered, and what they say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Names the arms, the metrics, the features and the log.")
    outcomes: Path = Field(description="Outcomes, or the folder of a job, or that of a score matrix.")
    queries: Path | None = Field(
        default=None,
        description=f"Enter the labels of these questions alone: JSON lines, plain or .gz, each {SHAPE}.",
    )
    metrics: dict[str, str] = Field(min_length=1, description="Declared metric to the score that it gets.")
    limit: int | None = Field(default=None, ge=1, description="Enter so many of the shuffled questions.")
    draws: int | None = Field(default=None, ge=1, description="Arms to draw on a question; null for all.")
    seed: int = Field(default=0, ge=0, description="Of the questions, of the draws, and of the order.")
    dry_run: bool = Field(default=False, description="Say what would be entered, and enter nothing.")


def run(settings: WarmStart, console: Console, tell: Progress) -> int:
    """Enter labels into the log, say what came of it, and return how many are new.

    What is in the log is not entered again: a run that was interrupted is simply run again.

    Args:
        settings: What is entered.
        console: Where the outcome goes.
        tell: Told of the progress.

    Raises:
        ValueError: Outcomes, questions, arms or metrics do not fit; a subclass of it says which.
        ModelNotFoundError: The model of a backbone is not where its name says.
        StoreError: The log cannot be read or written.
    """
    store = Store(settings.config.database_url)
    try:
        # the arms that are live, whatever the configuration names besides
        config = settings.config.with_arms(at_start(store, documents(settings.config.arms)))
        outcomes = _outcomes(settings, config, console)
        labels = labels_of(
            outcomes,
            config.reward,
            settings.metrics,
            list(config.actions),
            draws=settings.draws,
            seed=settings.seed,
        )
        contexts = contexts_of(config, [question.text for question in outcomes.questions], tell)
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        done, new, total = 0, 0, len(labels.cells)
        found = turns(labels, contexts, seen_as=config.features.model_dump_json())
        while batch := list(islice(found, BATCH)):
            new += len(new_among(store, batch)) if settings.dry_run else enter(store, batch)
            done += len(batch)
            for turn in batch:
                rewards[turn.decision.drawn].append(reward_of(turn, config.reward))
            tell("entering labels", done, total)
    finally:
        store.close()
    _tell(labels, list(config.actions), rewards, new, settings.dry_run, console)
    return new


def contexts_of(config: AppConfig, texts: Sequence[str], tell: Progress) -> list[Context]:
    """Return what a policy sees of questions, as a service of this configuration would describe them."""
    arms, seen = known(config.arms), config.features.embedding
    if seen is None:
        return [context_of(text, config.features, {}, arms) for text in texts]
    embedder = build_embedder(config.backbones[seen.backbone])
    contexts: list[Context] = []
    for first in range(0, len(texts), BATCH):
        some = texts[first : first + BATCH]
        for text, vector in zip(some, embedder.encode_queries(some), strict=True):
            contexts.append(context_of(text, config.features, {seen.backbone: vector}, arms))
        tell("embedding questions", len(contexts), len(texts))
    return contexts


def _outcomes(settings: WarmStart, config: AppConfig, console: Console) -> Outcomes:
    """Read the outcomes, those of the questions that are asked for. Raises ValueError."""
    path = settings.outcomes
    asked = [] if settings.queries is None else questions_of(settings.queries, None, "", console)
    if (path / ARMS).is_file():
        matrix = read_matrix(path)
        for arm, spec in matrix.table.specs.items():
            if arm in config.actions and not same(spec, config.arms[arm]):
                raise WarmStartError(f"arm {arm!r} is another in {path} than in the configuration")
        outcomes = of_matrix(matrix, matrix.table.measure)
    else:
        outcomes = read_outcomes(path, asked)
    rows = list(range(len(outcomes.questions)))
    if settings.queries is not None:
        ids = {question.id for question in asked}
        rows = [row for row in rows if outcomes.questions[row].id in ids]
        if not rows:
            raise WarmStartError(f"{path} has no question of {settings.queries}")
        if left_out := len(outcomes.questions) - len(rows):
            console.print(f"{left_out:,} questions are left out: {settings.queries} does not name them")
    return outcomes.only(shuffled(rows, settings.seed)[: settings.limit])


def _tell(
    labels: Labels,
    actions: Sequence[str],
    rewards: dict[str, list[float]],
    new: int,
    dry_run: bool,
    console: Console,
) -> None:
    total, questions = len(labels.cells), len(np.unique(labels.cells[:, 0]))
    told = [
        f"{total:,} labels of {len(rewards):,} arms on {questions:,} questions: "
        f"{new:,} {'would be ' if dry_run else ''}new, {total - new:,} in the log before"
    ]
    told += [f"left out: {n:,} labels {reason}" for reason, n in labels.left_out.items()]
    told += [
        f"left out: arm {arm!r}, which is no action" for arm in labels.outcomes.arms if arm not in actions
    ]
    if silent := [arm for arm in actions if arm not in rewards]:
        told.append(f"without any label: {', '.join(silent)}")
    for line in told:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    table = Table("arm", "labels", "mean reward")
    for column in table.columns[1:]:
        column.justify = "right"
    for arm in labels.arms:
        if found := rewards.get(arm):
            table.add_row(arm, f"{len(found):,}", f"{np.mean(found):+.4f}")
    console.print(table)


__all__ = ["WarmStart", "contexts_of", "run"]
