"""Verify a decision: compute its distribution and its draw again, from what the log holds.

The policy of a version never changes, and a decision keeps all that the policy saw. So what was
logged can be computed again at any time; where it comes out otherwise, the row was changed, or
what made it was. What neither a distribution nor a draw depends on is not checked: the text of
the question, say, or which arm a caller named.
"""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from agent.policies import Policy, choose, sampling, served_distribution
from feedback.events import Decision, Mode

TOLERANCE = 1e-12
"""Largest difference of two probabilities that count as the same; on one machine there is none."""

Floats = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """A distribution as it was logged, and as it is computed now; both in the order of the arms."""

    logged: Floats
    recomputed: Floats

    @property
    def max_difference(self) -> float:
        """Largest difference between the two; where one is shorter, the rest of it counts as 0.

        >>> Compared((0.25, 0.75), (0.5, 0.5)).max_difference
        0.25
        """
        pairs = zip_longest(self.logged, self.recomputed, fillvalue=0.0)
        return max((abs(logged - recomputed) for logged, recomputed in pairs), default=0.0)

    @property
    def same(self) -> bool:
        """Whether both are the same distribution, or both are none."""
        return len(self.logged) == len(self.recomputed) and self.max_difference <= TOLERANCE


@dataclass(frozen=True, slots=True)
class Verification:
    """What came out when a decision was computed again.

    Attributes:
        decision: As it stands in the log.
        distribution: What its arm was drawn from.
        shadow: What the policy in the shadow would have drawn from; both empty where there is none.
        u: The number that the arm was drawn with, in [0, 1); None where none was drawn.
        arm: The arm that is chosen now; None where none can be.
        why: What is wrong, or may be; one sentence for each thing, none where all is as logged.
    """

    decision: Decision
    distribution: Compared
    shadow: Compared
    u: float | None
    arm: str | None
    why: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether all that can be computed again is as it was logged."""
        return not self.why

    def document(self) -> dict[str, Any]:
        """Return it as a client reads it."""
        arms, shadow = self.decision.arms, self.shadow
        return {
            "decision_id": self.decision.id,
            "policy_version": self.decision.version,
            "candidate": self.decision.candidate or None,
            "share": self.decision.share,
            "mode": self.decision.mode.value,
            "verified": self.verified,
            "tolerance": TOLERANCE,
            **_told(arms, self.distribution),
            "draw": {"u": self.u, "arm": self.arm, "agrees": self.arm == self.decision.drawn},
            "shadow": _told(arms, shadow) if shadow.logged or shadow.recomputed else None,
            "why": list(self.why),
        }


def verify(
    decision: Decision,
    policy: Policy | None,
    salt: str,
    propensity: float | None = None,
    candidate: Policy | None = None,
) -> Verification:
    """Compute a decision again, and compare.

    An arm that was drawn is drawn again, with the salt of today: if that was another one when the
    decision was made, the draw falls elsewhere although nothing was changed. Where the caller
    asked for the most probable arm, that is taken again. Where the caller named the arm, it must
    stand alone, with probability 1.

    Args:
        decision: As it stands in the log; no label, which has no policy.
        policy: Of the version that the decision names; None where the caller named the arm, for
            which no policy is asked.
        salt: Enters the hash of the draw.
        propensity: Of the arm, as it stands in the log beside the probabilities; None where it does not.
        candidate: Of the version that took a share of the decision; None where none did.
    """
    why = []
    try:
        p, shadow = _distributions(decision, policy, candidate)
    except (ArithmeticError, LookupError, ValueError) as error:  # what is no context of this policy any more
        p, shadow = np.zeros(0), np.zeros(0)
        why.append(f"the policy cannot be asked: {error}")
    distribution = Compared(decision.probabilities, tuple(p.tolist()))
    in_shadow = Compared(decision.shadow, tuple(shadow.tolist()))
    u = sampling.uniform_from(decision.id, salt, decision.arms) if decision.mode is Mode.EXPLORE else None
    arm = None
    if p.size:
        arm = decision.arms[int(p.argmax()) if u is None else choose(p, u)]
    if policy is not None and decision.policy != policy.kind:
        why.append(f"version {decision.version} is of policy {policy.kind!r}, not {decision.policy!r}")
    if not distribution.same:
        why.append(
            f"a probability differs by {distribution.max_difference:.3g}: what the policy saw, the arms, "
            "the floor, the versions, the share or the probabilities were changed"
        )
    on_record = dict(zip(decision.arms, decision.probabilities, strict=False)).get(decision.drawn)
    if propensity is not None and propensity != on_record:
        why.append(f"the propensity on record is {propensity!r}, and among the probabilities {on_record!r}")
    if not in_shadow.same:
        why.append(f"a probability of the policy in the shadow differs by {in_shadow.max_difference:.3g}")
    if arm != decision.drawn:
        salted = ", or the salt was another one when it was drawn" if u is not None else ""
        why.append(f"arm {decision.drawn!r} is on record, {arm!r} comes out: it was changed{salted}")
    return Verification(decision, distribution, in_shadow, u, arm, tuple(why))


def _distributions(
    decision: Decision, policy: Policy | None, candidate: Policy | None
) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """Return the distribution and the one in the shadow, which is empty where there is none."""
    if decision.mode is Mode.FORCED or policy is None:
        return np.ones(1), np.zeros(0)
    if decision.floor is None:
        raise ValueError("its floor is not on record")
    seen = decision.context, decision.arms, decision.floor
    p = served_distribution(policy, *seen)
    if decision.share:
        if candidate is None:
            raise ValueError(
                f"{decision.share:g} of it is of version {decision.candidate}, which is not here"
            )
        p = sampling.mixed(p, served_distribution(candidate, *seen), decision.share)
    return p, sampling.shadow_distribution(policy, *seen)


def _told(arms: tuple[str, ...], compared: Compared) -> dict[str, Any]:
    return {
        "max_difference": compared.max_difference,
        "logged": dict(zip(arms, compared.logged, strict=False)),
        "recomputed": dict(zip(arms, compared.recomputed, strict=False)),
    }
