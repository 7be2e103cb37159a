"""Enter labels into the log: decisions that whoever learns meets by the one door there is.

    outcomes or scores of arms, questions --> decisions of the policy `labels` --> the log --> the learner

A service that runs learns them at its next look at the log, another one when it starts. Labels also close
what an alarm of drift has opened. Those that a run of the warm start enters are learned by its candidate
alone, see `agent.warmstart.run`.

Labels reach a policy in two ways; either is enough.

    as decisions   this module: the policy finds out by itself what they say, as from traffic. For policies
                   without a router, for a few labels or a few arms a question, for arms that are new.
    as a router    `armwise train`, and a policy with `prior_feature: router`, which starts from its scores
                   and learns the rest. Where every arm was labelled on hundreds of questions: it is worth
                   more from the first question on.

With a router in the configuration, labels tell its scores, too: a policy that looks at them as at any
feature of an arm learns how far to trust them. Of the questions that the router was trained on these are
scores of routers that were not, which `armwise train --folds` keeps.
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
    labels_of,
    reward_of,
    told_by,
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
"""Labels in one commit: a service on the same log waits for no more than these."""

EMBEDDED = 256
"""Questions that are embedded together."""


class Beside(BaseModel):
    """Labels that are learned beside those that are entered, and are not entered again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: tuple[int, ...] = Field(default=(), description="Warm starts that have entered them.")
    others: bool = Field(default=True, description="Whether those count that no warm start has entered.")


class Entering(BaseModel):
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
    run: int | None = Field(
        default=None,
        ge=1,
        description="The warm start that enters them; null lets everybody learn them.",
    )
    beside: Beside | None = Field(
        default=None, description="Labels that whoever learns these learns anyway; null for none."
    )


def run(settings: Entering, console: Console, tell: Progress) -> int:
    """Enter labels into the log, say what came of it, and return how many are new.

    What is in the log is not entered again: a run that was interrupted is simply run again.

    Args:
        settings: What is entered.
        console: Where the outcome goes.
        tell: Told of the progress.

    Raises:
        ValueError: Outcomes, questions, arms, metrics or router do not fit; a subclass of it says which.
        CorpusError: The corpus of a router that looks at what was retrieved cannot be read.
        ModelNotFoundError: The model of a backbone is not where its name says.
        StoreError: The log cannot be read or written.
    """
    store = Store(settings.config.database_url)
    try:
        # the arms that are live, whatever the configuration names besides
        config = settings.config.with_arms(
            arm_sets.at_start(store, serving_arms.documents(settings.config.arms))
        )
        outcomes = _outcomes(settings, config, console)
        advice = None if config.router is None else score_labelled(outcomes, config.settled(), tell)
        if advice is not None:
            outcomes = advice.outcomes
        labels = labels_of(
            outcomes,
            config.reward,
            settings.metrics,
            list(config.actions),
            draws=settings.draws,
            seed=settings.seed,
        )
        contexts = contexts_of(config, [question.text for question in outcomes.questions], tell, advice)
        source = seen_as(config) + ("" if advice is None else advice.source)
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        done, new, total = 0, 0, len(labels.cells)
        known = _known(store, settings.beside)
        found = turns(labels, contexts, seen_as=source, run=settings.run)
        while batch := list(islice(found, BATCH)):
            unheard = [turn for turn in batch if told_by(turn.decision.id) not in known]
            new += (
                len(imported_turns.missing_from_log(store, unheard))
                if settings.dry_run
                else imported_turns.insert(store, unheard)
            )
            done += len(batch)
            for turn in batch:
                rewards[turn.decision.drawn].append(reward_of(turn, config.reward))
            tell("entering labels", done, total)
        if new and settings.run is None and not settings.dry_run:  # a run says so once it is served
            record_warm_start(store, new, time.time())
    finally:
        store.close()
    _tell(labels, list(config.actions), rewards, new, settings.dry_run, console)
    if advice is not None:
        console.print(advice.told(), markup=False, highlight=False, soft_wrap=True)
        stage = Stage.RETRIEVED if saved.looked_at(config.router) else Stage.QUESTION
        if config.reward.cost_weight > 0.0 and (
            free := validation.uncharged(outcomes, config.reward.cost, stage)
        ):
            console.print(free, markup=False, highlight=False, soft_wrap=True)
    return new


def _known(store: Store, beside: Beside | None) -> set[str]:
    """Return what is told by labels that are not entered again."""
    if beside is None:
        return set()
    return {told_by(one) for one in traffic.label_ids(store, beside.runs, others=beside.others)}


def seen_as(config: AppConfig) -> str:
    """Return what a context follows from beside the question: features, the encoder, what is known of arms.

    Raises:
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    encoder = None
    if seen := config.features.embedding:
        backbone = config.backbones[seen.backbone]
        encoder = digest_backbone(backbone), backbone.query_prefix
    arms = {name: info.features for name, info in serving_arms.arm_infos(config.arms).items()}
    return orjson.dumps([config.features.model_dump(mode="json"), encoder, arms]).decode()


def contexts_of(
    config: AppConfig, texts: Sequence[str], tell: Progress, advice: RouterScores | None = None
) -> list[Context]:
    """Return what a policy sees of questions, as a service of this configuration would describe them.

    Args:
        config: Names the features and the arms.
        texts: The questions.
        tell: Told of the progress.
        advice: What the configured router tells of these questions; None leaves it out.
    """
    arms, seen = serving_arms.arm_infos(config.arms), config.features.embedding
    vectors = [{}] * len(texts) if seen is None else _embedded(config, seen.backbone, texts, tell, advice)
    contexts = [
        context_of(text, config.features, embedding, arms)
        for text, embedding in zip(texts, vectors, strict=True)
    ]
    if advice is None:
        return contexts
    return [probe.with_scores(context, told) for context, told in zip(contexts, advice.scores, strict=True)]


def _embedded(
    config: AppConfig, backbone: str, texts: Sequence[str], tell: Progress, advice: RouterScores | None
) -> list[probe.Embeddings]:
    """Return the embedding of each question, the router's where it has one by the same backbone."""
    if advice is not None and advice.backbone == backbone:
        return [{backbone: vector} for vector in advice.embedding]
    embedder = build_embedder(config.backbones[backbone])
    found: list[probe.Embeddings] = []
    for first in range(0, len(texts), EMBEDDED):
        some = texts[first : first + EMBEDDED]
        found += [{backbone: vector} for vector in embedder.encode_queries(some)]
        tell("embedding questions", len(found), len(texts))
    return found


def _outcomes(settings: Entering, config: AppConfig, console: Console) -> Outcomes:
    """Read the outcomes, those of the questions that are asked for. Raises ValueError."""
    path = settings.outcomes
    asked = [] if settings.queries is None else score.read_questions(settings.queries)
    outcomes = labelled_data.read_place(path, asked, {arm: config.arms[arm] for arm in config.actions})
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
    labels: LabelDecisions,
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
