"""Explain the drawn arm: the contribution of each feature to its score, minus that to the runner-up's.

linear policies  exact: the expected reward is a sum over features; this includes most of Vowpal Wabbit's
other policies   approximate: the distribution is recomputed with one feature left out at a time
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from armwise.agent.api.decisions import with_policies
from armwise.agent.api.errors import ApiError
from armwise.agent.policies import Policy, PolicyError, compute_served_distribution
from armwise.agent.serving import Replica
from armwise.feedback.events import LABELS, OBSERVED, Context, Decision, Mode
from armwise.feedback.registry import versions

SHOWN = 12
"""Number of contributions that are shown; the rest is summed."""

MOST = 64
"""Most features that are left out in turn, largest first: each costs a computed distribution."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the drawn arm was preferred to the runner-up.

    Attributes:
        arm: The drawn arm.
        runner_up: The most probable other arm.
        exact: Whether the contributions sum to the difference of the two arms' scores.
        unit: Unit of the contributions.
        contributions: Names and amounts, largest first.
        rest: Sum of the contributions that are not shown; None: they are not additive.
        total: Difference of the scores, or of the probabilities.
    """

    arm: str
    runner_up: str
    exact: bool
    unit: str
    contributions: tuple[tuple[str, float], ...]
    rest: float | None
    total: float


async def explain(replica: Replica, decision: Decision) -> Explanation:
    """Explain a decision by the version of the policy that made it. Raises ApiError."""
    made_elsewhere = decision.policy in (LABELS, OBSERVED)
    if made_elsewhere or decision.mode in (Mode.FORCED, Mode.CONTINUED) or len(decision.arms) < 2:
        message = (
            f"no policy chose among arms for {decision.id!r}: it is a label, forced, continues a draw, had "
            "one arm, or was made by another system"
        )
        raise ApiError("not_drawn", message, "decision_id")
    version = versions.find(replica.store, decision.version)
    if version is None:
        message = f"there is no version {decision.version}, which decision {decision.id!r} names"
        raise ApiError("version_unavailable", message, "decision_id")
    return await with_policies(replica, [version], lambda policy: explain_by(policy, decision), "decision_id")


def explain_by(policy: Policy, decision: Decision) -> Explanation:
    """Explain a decision by a policy: its drawn arm against the most probable other arm."""
    drawn = decision.arms.index(decision.drawn)
    others = np.array(decision.probabilities)
    others[drawn] = -1.0
    other = int(others.argmax())
    context = decision.context
    parts = None
    if (contributions := getattr(policy, "contributions", None)) is not None:
        with suppress(PolicyError):
            parts = contributions(context, decision.arms)
    exact = parts is not None
    if parts is not None:
        amounts = {name: float(value[drawn] - value[other]) for name, value in parts.items()}
        total, unit = sum(amounts.values()), "expected reward"
    else:
        floor = decision.floor or 0.0

        def margin(variant: Context) -> float:
            p = compute_served_distribution(policy, variant, decision.arms, floor)
            return float(p[drawn] - p[other])

        total, unit = margin(context), "probability"
        amounts = {name: total - margin(without) for name, without in _omit_features(context).items()}
    ranked = sorted(amounts.items(), key=lambda pair: -abs(pair[1]))
    rest = sum(amount for _, amount in ranked[SHOWN:]) if exact else None
    shown = tuple((name, amount) for name, amount in ranked[:SHOWN] if amount)
    return Explanation(decision.drawn, decision.arms[other], exact, unit, shown, rest, total)


def _omit_features(context: Context) -> Mapping[str, Context]:
    """Return the context without each of its features, by the name of the feature."""
    ranked = sorted(context.features, key=lambda name: -abs(context.features[name]))[:MOST]
    contexts = {
        name: replace(
            context, features={key: value for key, value in context.features.items() if key != name}
        )
        for name in ranked
    }
    if context.embedding:
        contexts["embedding of the question"] = replace(context, embedding=(0.0,) * len(context.embedding))
    return contexts
