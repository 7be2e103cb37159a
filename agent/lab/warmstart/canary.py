"""Automatic canaries: a candidate that the gate holds for lack of evidence gets a share of the traffic.

    a warm start holds it  -->  canary  --(the gate promotes it)-----------------> promoted
                                 | ^  `--(it is worse, or gains next to nothing)--> ended
                                 `-'  the share grows as the largest possible loss shrinks

The share of a canary counts as exploration (`armwise.agent.policies.sampling.count_share`), and begins as
large as the part of the floor that makes way for it. The share s grows with the lower bound of its gain over
the active policy, so that s times the largest possible loss never exceeds its initial value. The served
policy includes the canary, so its gain over the served policy is (1 - s) times that over the active policy.
All bounds are anytime-valid, so that they may be checked repeatedly. If there is more than one candidate they
take turns, decision by decision, and together explore as much as one.

Every step is a row of the promotions, with its evaluation. An operator who sets the share of a canary takes
it over.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from armwise.agent.config import AppConfig
from armwise.agent.evaluation import EvaluationRequest, name_candidate, verdict_on
from armwise.agent.learning import Recipe, digest_configuration
from armwise.agent.policies import Exploration
from armwise.agent.policies.sampling import KEPT_FLOOR
from armwise.feedback.errors import ChangedMeanwhileError, ConflictError, QueueFullError
from armwise.feedback.log import Store
from armwise.feedback.ope import Verdict
from armwise.feedback.registry import (
    ActivePolicy,
    EvaluationRow,
    active_policy,
    arm_sets,
    evaluations,
    promotions,
)
from armwise.feedback.training_log import read_position

logger = logging.getLogger(__name__)

LEAST_SHARE = 0.02
"""Smallest initial share of a canary, where little is explored."""

FUTILE_GAIN = 0.01
"""Gain, as a share of the range of rewards, below which a canary is ended once its upper bound shows it."""

MOST_DECISIONS = 20_000
"""Rewarded decisions of a canary after which it is ended without a verdict."""

LONGEST_WAIT = 100_000
"""Examples of the log, with or without the canary, after which it is ended without a verdict."""

LEAST_GROWTH = 1.25
"""Smallest factor of a change of the share, so that few checks add a row to the promotions."""

FIRST_LOOK, LOOK_FACTOR = 50, 1.2
"""New examples before the first check of a canary, and the factor from one check to the next."""

READ_S = 1.0
"""Seconds between two reads of the log."""


def first_share(explores: Exploration, n_arms: int) -> float:
    """Return the share with which a canary begins: the part of the exploration that it replaces.

    Args:
        explores: What every eligible arm gets of the draws.
        n_arms: Number of live arms.

    >>> round(first_share(Exploration(0.08), 4), 3), first_share(Exploration(0.01), 4)
    (0.06, 0.02)
    """
    replaced = (1.0 - KEPT_FLOOR) * explores.among(n_arms) * n_arms
    return min(promotions.LARGEST_SHARE, max(LEAST_SHARE, replaced))


def grow_share(first: float, low: float, width: float) -> float:
    """Return the share at which the largest possible loss per decision equals the initial one.

    Args:
        first: Initial share, in (0, 0.5].
        low: Lower bound of the gain over the active policy.
        width: Width of the range of rewards, the largest possible loss at first.

    >>> grow_share(0.06, -1.0, 1.0), round(grow_share(0.06, -0.25, 1.0), 3), grow_share(0.06, 0.01, 1.0)
    (0.06, 0.24, 0.5)
    """
    if low >= 0.0:
        return promotions.LARGEST_SHARE
    return min(promotions.LARGEST_SHARE, max(first, first * width / -low))


class CanaryAction(StrEnum):
    """Actions on a canary."""

    PROMOTE = "promote"
    END = "end"
    SHARE = "share"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step of a canary.

    Attributes:
        action: The action.
        share: Share from then on, in [0, 0.5].
        reason: Reason, as a sentence.
    """

    action: CanaryAction
    share: float
    reason: str = ""


def next_step(
    verdict: Mapping[str, Any], share: float, first: float, width: float, waited: int = 0
) -> NextStep:
    """Return the next step of a canary.

    Args:
        verdict: Verdict of the gate, as `armwise.feedback.ope.gate.Verdict.document`.
        share: Current share of the canary, in (0, 0.5].
        first: Initial share of a canary.
        width: Width of the range of rewards.
        waited: Examples of the log since it began.

    >>> figures = {"n": 400, "gain": 0.01, "low": -0.25, "high": 0.3, "margin": 0.0, "level": 0.975}
    >>> held = {"promote": False, "undecided": True, "reasons": ["too little"], "figures": figures}
    >>> step = next_step(held, share=0.06, first=0.06, width=1.0)
    >>> step.action.value, round(step.share, 2)
    ('share', 0.23)
    >>> next_step(held | {"figures": figures | {"high": -0.01}}, 0.06, 0.06, 1.0).action.value
    'end'
    """
    figures = verdict["figures"]
    if waited >= LONGEST_WAIT or (figures is None and not verdict.get("undecided")):
        reasons = " ".join(verdict["reasons"]) or "nothing speaks for or against it."
        return NextStep(CanaryAction.END, 0.0, f"no verdict after {waited:,} examples: {reasons}")
    if figures is None:
        return NextStep(CanaryAction.WAIT, share)
    # bounds of the gain over the served policy, converted to the gain over the active policy
    beside = 1.0 - max(share, verdict.get("canary_share", 0.0))
    n = figures["n"]
    low, high = (max(-width, min(width, figures[name] / beside)) for name in ("low", "high"))
    level, margin = f"{100 * figures['level']:g} %", figures["margin"]
    if verdict["promote"]:
        served = figures["low"], figures["gain"]
        gain = f"it gains {served[0]:+.4f} a decision at least (at {level}), {served[1]:+.4f} as estimated"
        return NextStep(CanaryAction.PROMOTE, share, f"{gain}, by {n:,} decisions")
    shown = f"it gains {high:+.4f} a decision at most (at {level}), by {n:,} decisions"
    if high < 0.0:
        return NextStep(CanaryAction.END, 0.0, f"it is worse: {shown}")
    if high <= margin + FUTILE_GAIN * width:
        return NextStep(CanaryAction.END, 0.0, f"it is hardly better, if at all: {shown}")
    if not verdict.get("undecided"):
        return NextStep(CanaryAction.END, 0.0, f"the gate cannot judge it: {' '.join(verdict['reasons'])}")
    if n >= MOST_DECISIONS:
        return NextStep(
            CanaryAction.END,
            0.0,
            f"{n:,} decisions did not settle it: it gains {low:+.4f} to {high:+.4f} at {level}",
        )
    next_share = grow_share(first, low, width)
    changes = (
        next_share != share
        if next_share == promotions.LARGEST_SHARE
        else max(next_share / share, share / next_share) >= LEAST_GROWTH
    )
    if not changes:
        return NextStep(CanaryAction.WAIT, share)
    return NextStep(
        CanaryAction.SHARE,
        next_share,
        f"it loses {max(-low, 0.0):.4f} a decision at most (at {level}), by {n:,} decisions",
    )


class AutomaticCanaries:
    """Checks the canaries of warm starts: grows, ends or promotes them. Implements `Task`.

    The task `armwise.agent.evaluation.Evaluations` runs its evaluations, in a separate process.

    Args:
        store: The log.
        config: Configuration with defaults resolved, with a warm start.
        clock: Seconds since the epoch.
        changed: Whether the log is worth a look.
    """

    def __init__(
        self,
        store: Store,
        config: AppConfig,
        clock: Callable[[], float] = time.time,
        changed: Callable[[], bool] = lambda: True,
    ) -> None:
        assert config.warm_start is not None
        self._store, self._config, self._spec, self._clock = store, config, config.warm_start, clock
        self._configured = Recipe.from_config(config).digest
        self._next_read, self._changed = 0.0, changed
        self._looks: dict[int, tuple[int, int]] = {}  # by version: examples at the first look and the next
        self._due: int | None = None

    def due(self, now: float) -> bool:
        """Read the canaries and the length of the training log, at most once a second."""
        if now < self._next_read or not self._changed():
            return False
        self._next_read = now + READ_S
        self._due = None
        active = active_policy(self._store, self._configured)
        automatic = [canary.version for canary in active.canaries if canary.automatic]
        self._looks = {version: self._looks[version] for version in automatic if version in self._looks}
        if not automatic:
            return False
        examples = self._examples()
        for version in automatic:
            self._looks.setdefault(version, (examples, examples + FIRST_LOOK))
        following, version = min((self._looks[version][1], version) for version in automatic)
        if examples >= following:
            self._due = version
        return self._due is not None

    def run(self, stop: threading.Event) -> None:
        """Have the gate judge the due canary, and take the next step."""
        version, self._due = self._due, None
        active = active_policy(self._store, self._configured)
        canary = None if version is None else active.canary(version)
        if canary is None or not canary.automatic:
            return
        verdict = self._judge(canary.version, active, stop)
        if verdict is None:
            return
        examples = self._examples()
        begun, _ = self._looks.get(canary.version, (examples, 0))
        waited = examples - begun
        self._looks[canary.version] = begun, examples + max(FIRST_LOOK, round((LOOK_FACTOR - 1.0) * waited))
        arms = arm_sets.at_start(self._store, self._config.arm_documents)
        first = first_share(self._config.explores, len(arms))
        low, high = self._config.reward.reward_range
        step = next_step(verdict, canary.share, first, high - low, waited)
        self._act(canary, step, active, verdict["evaluation"])

    def _examples(self) -> int:
        """Return the length of the training log."""
        with self._store.reading() as connection:
            return read_position(connection, self._config.reward.join).examples_seq

    def _judge(self, version: int, active: ActivePolicy, stop: threading.Event) -> Mapping[str, Any] | None:
        """Return the verdict on a canary; None: the queue is full, or the service stops.

        A failed evaluation gives an undecided verdict: the canary may not have a judged decision yet.
        """
        name = name_candidate(version, active)
        request = EvaluationRequest(candidates=(name,), gate=True, estimators=("snips",), name="canary")
        document = request.model_dump(mode="json")
        try:
            evaluation: EvaluationRow | None = evaluations.submit(
                self._store, digest_configuration(self._config), document, self._clock()
            )
        except QueueFullError as error:
            logger.info("canary %d is looked at later: %s", version, error)
            return None
        while evaluation is not None and not evaluation.status.ended:
            if stop.wait(READ_S):
                return None
            evaluation = evaluations.find(self._store, evaluation.seq)
        if evaluation is None or evaluation.status is evaluations.EvaluationStatus.FAILED:
            why = "" if evaluation is None else evaluation.error or ""
            logger.warning("canary %d could not be judged: %s", version, why)
            undecided = Verdict(False, (why,), None, (), undecided=True)
            return {**undecided.document(), "evaluation": None if evaluation is None else evaluation.seq}
        report = evaluations.read_result(self._store, evaluation.seq)
        assert report is not None  # it is done
        return {**verdict_on(report, name), "evaluation": evaluation.seq}

    def _act(
        self, canary: promotions.Promotion, step: NextStep, active: ActivePolicy, evaluation: int | None
    ) -> None:
        """Record a step; if the active policy changed meanwhile, leave it to the next check."""
        if step.action is CanaryAction.WAIT or (
            step.action is CanaryAction.PROMOTE and self._spec.promote == "never"
        ):
            return
        promotes = step.action is CanaryAction.PROMOTE
        promotion = promotions.Promotion(
            0,
            canary.version,
            promotions.Action.PROMOTE if promotes else promotions.Action.CANARY,
            f"canary: {step.reason}",
            self._clock(),
            share=0.0 if promotes else step.share,
            evaluation=evaluation,
            automatic=True,
        )
        try:
            promotions.record(self._store, self._configured, promotion, after=active.seq)
        except (ChangedMeanwhileError, ConflictError) as error:
            logger.info("canary %d is left as it is: %s", canary.version, error)
        else:
            logger.info("canary %d: %s; %s", canary.version, step.action, step.reason)
