"""Verify a decision: recompute its distribution and its draw from the log.

The policy of a version never changes, and a decision keeps everything that the policy saw. So both
can be recomputed at any time; where they differ, the row or the policy was changed. Columns that neither
depends on are not checked, such as the text of the question or which arm a caller named. A decision whose
texts were erased is recomputed from its features.

A decision of another system was drawn elsewhere, so only what would have been drawn from here is recomputed.
One that was drawn here from a mixture with the caller's own decider is recomputed whole: what that decider
would have drawn from is on record.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import Policy, choose, sampling, served_distribution
from armwise.agent.replies import DecisionVerification, Draw, Recomputed, construct
from armwise.feedback.events import INCUMBENT, OBSERVED, Decision, Mode

TOLERANCE = 1e-9
"""Largest difference of two probabilities that count as equal; by one kernel of BLAS they differ by 0."""

NEAR_TIE = 1e-11
"""Difference of two scores that another kernel of BLAS may make, and thousand times what it usually makes."""

Floats = tuple[float, ...]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ComparedDistribution:
    """A distribution as logged and as recomputed, in the order of the arms."""

    logged: Floats
    recomputed: Floats

    @property
    def max_difference(self) -> float:
        """Largest difference between the two; where one is shorter, the rest of it counts as 0.

        >>> ComparedDistribution((0.25, 0.75), (0.5, 0.5)).max_difference
        0.25
        """
        pairs = zip_longest(self.logged, self.recomputed, fillvalue=0.0)
        return max((abs(logged - recomputed) for logged, recomputed in pairs), default=0.0)

    @property
    def same(self) -> bool:
        """Whether both are the same distribution, or both are empty."""
        return len(self.logged) == len(self.recomputed) and self.max_difference <= TOLERANCE

    def reply(self, arms: tuple[str, ...]) -> Recomputed:
        """Return both distributions by arm, as they are sent."""
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
        distribution: What its arm was drawn from.
        shadow: Distribution of the shadow policy; both empty where there is none.
        u: The uniform number of the draw, in [0, 1); None where nothing was drawn.
        arm: The recomputed arm; None where it cannot be recomputed.
        why: What differs, one sentence each; empty where all is as logged.
    """

    decision: Decision
    distribution: ComparedDistribution
    shadow: ComparedDistribution
    u: float | None
    arm: str | None
    why: tuple[str, ...]

    @property
    def verified(self) -> bool:
        """Whether everything that is recomputed is as logged."""
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

    A drawn arm is drawn again with the current salt: after a change of the salt the draw differs although
    the row is intact. A greedy decision takes the most probable arm again. A forced arm must be the only
    one, with probability 1. A turn that continues a draw must have the arm of that draw, with probability 1.

    Args:
        decision: The row of the log; not a label, which has no policy.
        policy: Policy of the version that decided; None for a forced arm.
        salt: Enters the hash of the draw.
        propensity: The column of that name; None where the row has none.
        candidate: Policy of the canary that had a share of the decision; None where there was none.
        draw: The draw that the decision continues; None where it continues none, or that is not in the log.
    """
    why = []
    if decision.policy == OBSERVED:
        return _verify_shadow(decision, policy)
    try:
        p, shadow = _distributions(decision, policy, candidate, draw)
        p = _with_ties_of_the_log(decision, p, lambda tied: _distributions(tied, policy, candidate, draw)[0])
    except (ArithmeticError, LookupError, ValueError) as error:  # it does not fit this policy any more
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
        salted = ", or the salt was another one when it was drawn" if u is not None else ""
        why.append(f"arm {decision.drawn!r} is on record, {arm!r} comes out: it was changed{salted}")
    return Verification(decision, distribution, in_shadow, u, arm, tuple(why))


def _with_ties_of_the_log(decision: Decision, p: Array, distribution: Callable[[Decision], Array]) -> Array:
    """Return a recomputed distribution; where two scores nearly tie, as they tied when it was logged.

    Another kernel of BLAS may find two scores equal, up to `sampling.TIE`, that differ by a little more here,
    or the other way round. So the arms that come out too high get scores that are less by `NEAR_TIE`: if that
    is the distribution on record, it is returned.
    """
    logged = decision.probabilities
    if (
        ComparedDistribution(logged, tuple(p.tolist())).same
        or len(logged) != len(p)
        or decision.mode is not Mode.EXPLORE
    ):
        return p
    lowered = (decision.penalty or (0.0,) * len(p)) + NEAR_TIE * np.sign(p - np.array(logged))
    tied = distribution(replace(decision, costs=tuple(lowered.tolist()), price=1.0))
    return tied if ComparedDistribution(logged, tuple(tied.tolist())).same else p


def _verify_shadow(decision: Decision, policy: Policy | None) -> Verification:
    """Recompute what would have been drawn from for a decision of another system; its draw was made there."""
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
    """Return the distribution of the policy of the version. Raises ValueError where it cannot be computed."""
    if policy is None or decision.floor is None:
        raise ValueError("its policy or its floor is not on record")
    _refuse_erased(decision, policy)
    return served_distribution(policy, decision.context, decision.arms, decision.floor, decision.penalty)


def _refuse_erased(decision: Decision, *policies: Policy | None) -> None:
    """Raise ValueError where a policy reads the text of a question that was erased."""
    if decision.erased and any(getattr(policy, "reads_question", False) for policy in policies):
        raise ValueError("it reads the text of the question, which was erased")


def _distributions(
    decision: Decision, policy: Policy | None, candidate: Policy | None, draw: Decision | None
) -> tuple[Array, Array]:
    """Return the distribution and that of the shadow policy, which is empty where there is none."""
    if decision.mode is Mode.CONTINUED:
        if draw is None or draw.mode is not Mode.EXPLORE or draw.episode_id != decision.episode_id:
            raise ValueError(f"no draw {decision.draw_id!r} of its episode is in the log")
        return np.array([float(arm == draw.drawn) for arm in decision.arms]), np.zeros(0)
    if decision.mode is Mode.FORCED or policy is None:
        return np.ones(1), np.zeros(0)
    if decision.floor is None:
        raise ValueError("its floor is not on record")
    _refuse_erased(decision, policy, candidate)
    arguments = decision.context, decision.arms, decision.floor
    p = served_distribution(policy, *arguments, decision.penalty)
    if decision.policy == INCUMBENT:
        if len(decision.incumbent) != len(p):
            raise ValueError("what the caller's own decider would have drawn from is not on record")
        return sampling.mixed(p, np.array(decision.incumbent), decision.incumbent_share), p
    if decision.share:
        if candidate is None:
            raise ValueError(
                f"{decision.share:g} of it is of version {decision.candidate}, which is not here"
            )
        theirs = decision.candidate_context, decision.arms, decision.floor
        p = sampling.mixed(p, served_distribution(candidate, *theirs, decision.penalty), decision.share)
    return p, sampling.shadow_distribution(policy, *arguments, decision.penalty)
