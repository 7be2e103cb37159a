"""Verify a decision: recompute its distribution and its draw from the log.

A version is frozen, and a decision stores the entire input of the policy, so both can be recomputed at any
time; a difference means that the row or the policy was changed. Columns that neither depends on, such as the
text of the question, are left unchecked. A decision whose texts were erased is recomputed from its features.

Of a decision of another system, only the shadow is recomputed: what the policy would have drawn from. A
decision drawn from a mixture with the caller's own decider is recomputed completely, from the logged
distribution of that decider.
"""

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import Policy, choose, sampling, served_distribution
from armwise.agent.replies import DecisionVerification, Draw, Recomputed, construct
from armwise.feedback.events import INCUMBENT, OBSERVED, Decision, Mode

TOLERANCE = 1e-9
"""Largest difference of two probabilities that count as equal; with the same kernel of BLAS it is 0."""

Floats = tuple[float, ...]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ComparedDistribution:
    """A distribution as logged and as recomputed, in the order of the arms."""

    logged: Floats
    recomputed: Floats

    @property
    def max_difference(self) -> float:
        """Largest difference between the two; the shorter one is padded with 0.

        >>> ComparedDistribution((0.25, 0.75), (0.5, 0.5)).max_difference
        0.25
        """
        pairs = zip_longest(self.logged, self.recomputed, fillvalue=0.0)
        return max((abs(logged - recomputed) for logged, recomputed in pairs), default=0.0)

    @property
    def same(self) -> bool:
        """Whether both are equal, up to `TOLERANCE`, or both empty."""
        return len(self.logged) == len(self.recomputed) and self.max_difference <= TOLERANCE

    def reply(self, arms: tuple[str, ...]) -> Recomputed:
        """Return both distributions by arm, for the reply."""
        return construct(
            Recomputed,
            max_difference=self.max_difference,
            logged=dict(zip(arms, self.logged, strict=False)),
            recomputed=dict(zip(arms, self.recomputed, strict=False)),
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """Result of recomputing a decision.

    Attributes:
        decision: The row of the log.
        distribution: The distribution that its arm was drawn from.
        shadow: What the policy would have drawn from, if another system decided or took part; else both
            empty.
        u: The uniform number of the draw, in [0, 1), if there was a draw.
        arm: The recomputed arm; None: it cannot be recomputed.
        why: The differences, one sentence each.
    """

    decision: Decision
    distribution: ComparedDistribution
    shadow: ComparedDistribution
    u: float | None
    arm: str | None
    why: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether everything recomputed equals the log."""
        return not self.why

    def reply(self, decision_id: str) -> DecisionVerification:
        """Return the reply to send; `decision_id` is the id as the caller knows it."""
        decision, shadow = self.decision, self.shadow
        return construct(
            DecisionVerification,
            decision_id=decision_id,
            policy_version=decision.version,
            candidate=decision.candidate or None,
            share=decision.share,
            mode=decision.mode.value,
            verified=self.verified,
            elsewhere=decision.policy == OBSERVED,
            erased=decision.erased,
            tolerance=TOLERANCE,
            **vars(self.distribution.reply(decision.arms)),
            draw=construct(Draw, u=self.u, arm=self.arm, agrees=self.arm == decision.drawn),
            shadow=shadow.reply(decision.arms) if shadow.logged or shadow.recomputed else None,
            why=list(self.why),
        )


def verify(
    decision: Decision,
    policy: Policy | None,
    salt: str,
    propensity: float | None = None,
    candidate: Policy | None = None,
    draw: Decision | None = None,
) -> Verification:
    """Recompute a decision, and compare it with the log.

    A drawn arm is drawn again with the secret of the log. A
    greedy decision takes the most probable arm again. A forced arm must be the only one, with probability 1.
    A turn that continues a draw must have the arm of that draw, with probability 1.

    Args:
        decision: The row of the log, other than a label, which has no policy.
        policy: Policy of the version that decided; None for a forced arm.
        salt: Enters the hash of the draw.
        propensity: The column `propensity` of the row.
        candidate: Policy of the canary that had a share of the decision.
        draw: The draw that the decision continues, if it is in the log.
    """
    why = []
    if decision.policy == OBSERVED:
        return _verify_shadow(decision, policy)
    try:
        p, shadow = _distributions(decision, policy, candidate, draw)
    except (ArithmeticError, LookupError, ValueError) as error:  # it no longer fits this policy
        p, shadow = np.zeros(0), np.zeros(0)
        why.append(f"the policy has no distribution: {error}")
    distribution = ComparedDistribution(decision.probabilities, tuple(p.tolist()))
    in_shadow = ComparedDistribution(decision.shadow, tuple(shadow.tolist()))
    u = sampling.uniform_from(decision.id, salt, decision.arms) if decision.mode is Mode.EXPLORE else None
    arm = None
    if p.size:
        arm = decision.arms[int(p.argmax()) if u is None else choose(p, u)]
    if policy is not None and decision.policy not in (policy.kind, INCUMBENT):
        why.append(f"version {decision.version} is of policy {policy.kind!r}, not {decision.policy!r}")
    if not distribution.same:
        why.append(
            f"a probability differs by {distribution.max_difference:.3g}: what the policy saw, the arms, "
            "the floor, the versions, the share, the price or the probabilities were changed"
        )
    on_record = dict(zip(decision.arms, decision.probabilities, strict=False)).get(decision.drawn)
    if propensity is not None and propensity != on_record:
        why.append(f"the propensity on record is {propensity!r}, and among the probabilities {on_record!r}")
    if not in_shadow.same:
        why.append(f"a probability of the policy in the shadow differs by {in_shadow.max_difference:.3g}")
    if arm != decision.drawn:
        salted = ", or the log had another secret when it was drawn" if u is not None else ""
        why.append(f"arm {decision.drawn!r} is on record, {arm!r} comes out: it was changed{salted}")
    return Verification(decision, distribution, in_shadow, u, arm, tuple(why))


def _verify_shadow(decision: Decision, policy: Policy | None) -> Verification:
    """Recompute the shadow distribution of a decision of another system, whose draw was made there."""
    why, shadow = [], np.zeros(0)
    try:
        shadow = _would_have_served(decision, policy)
    except (ArithmeticError, LookupError, ValueError) as error:
        why.append(f"the policy has no distribution: {error}")
    compared = ComparedDistribution(decision.shadow, tuple(shadow.tolist()))
    if not compared.same:
        why.append(
            f"a probability of the policy in the shadow differs by {compared.max_difference:.3g}: what the "
            "policy saw, the arms, the floor, the version or the shadow were changed"
        )
    return Verification(decision, ComparedDistribution((), ()), compared, None, decision.drawn, tuple(why))


def _would_have_served(decision: Decision, policy: Policy | None) -> Array:
    """Return the distribution of the version's policy. Raises ValueError if it cannot be computed."""
    if policy is None or decision.floor is None:
        raise ValueError("the log lacks its policy or its floor")
    _refuse_erased(decision, policy)
    return served_distribution(policy, decision.context, decision.arms, decision.floor, decision.penalty)


def _refuse_erased(decision: Decision, *policies: Policy | None) -> None:
    """Raise ValueError if a policy reads the text of a question that was erased."""
    if decision.erased and any(getattr(policy, "reads_question", False) for policy in policies):
        raise ValueError("its policy reads the text of the question, which was erased")


def _distributions(
    decision: Decision, policy: Policy | None, candidate: Policy | None, draw: Decision | None
) -> tuple[Array, Array]:
    """Return the distribution, and that of the policy beside an incumbent, empty without one."""
    if decision.mode is Mode.CONTINUED:
        if draw is None or draw.mode is not Mode.EXPLORE or draw.episode_id != decision.episode_id:
            raise ValueError(f"the log lacks the draw {decision.draw_id!r} of its episode")
        return np.array([float(arm == draw.drawn) for arm in decision.arms]), np.zeros(0)
    if decision.mode is Mode.FORCED or policy is None:
        return np.ones(1), np.zeros(0)
    if decision.floor is None:
        raise ValueError("the log lacks its floor")
    _refuse_erased(decision, policy, candidate)
    p = served_distribution(policy, decision.context, decision.arms, decision.floor, decision.penalty)
    if decision.policy == INCUMBENT:
        if len(decision.incumbent) != len(p):
            raise ValueError("the log lacks the distribution of the caller's own decider")
        return sampling.mixed(p, np.array(decision.incumbent), decision.incumbent_share), p
    if decision.share:
        if candidate is None:
            raise ValueError(
                f"a share of {decision.share:g} comes from version {decision.candidate}, which is not "
                "available"
            )
        theirs = decision.candidate_context, decision.arms, decision.floor
        p = sampling.mixed(p, served_distribution(candidate, *theirs, decision.penalty), decision.share)
    return p, np.zeros(0)
