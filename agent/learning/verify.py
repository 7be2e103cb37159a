"""Verify a decision: recompute its distribution and its draw from the log.

A version is frozen, and a decision stores the entire input of the policy, so both can be recomputed at any
time; a difference means that the row or the policy was changed. Columns that neither depends on, such as the
text of the question, are left unchecked. A decision whose texts were erased is recomputed from its features.

Of a decision of another system, only the shadow is recomputed: what the policy would have drawn from. A
decision drawn from a mixture with the caller's own decider is recomputed completely, from the logged
distribution of that decider.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import Policy, choose, sampling
from armwise.agent.replies import DecisionVerification, Draw, Recomputed, construct
from armwise.agent.turn import StepRecord, TurnStep, compute_distribution, load_built_in
from armwise.feedback.events import INCUMBENT, OBSERVED, Decision, Mode

TOLERANCE = 1e-9
"""Largest difference of two probabilities that count as equal; with the same kernel of BLAS it is 0."""

Array = NDArray[np.float64]

Floats = tuple[float, ...]


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
    policies: Mapping[int, Policy],
    salt: str,
    propensity: float | None = None,
    draw: Decision | None = None,
    steps: Sequence[TurnStep | type[TurnStep]] = (),
) -> Verification:
    """Recompute a decision, and compare it with the log.

    A drawn arm is drawn again with the secret of the log. A
    greedy decision takes the most probable arm again. A forced arm must be the only one, with probability 1.
    A turn that continues a draw must have the arm of that draw, with probability 1. Of a decision that
    another system has made, only the policy's part is recomputed.

    Args:
        decision: The row of the log, other than a label, which has no policy.
        policies: Policies of the versions that took part, by number; none of a forced or a kept arm.
        salt: Enters the hash of the draw.
        propensity: The column `propensity` of the row.
        draw: The draw that the decision continues, if it is in the log.
        steps: The service's own steps, besides the built-in ones.
    """
    is_elsewhere, why = decision.policy == OBSERVED, list[str]()
    records = {name: dict(record) for name, record in decision.steps.items()}
    p = np.zeros(0)
    try:
        p = _distribute(decision, records, policies, draw, [*load_built_in(), *steps])
    except (ArithmeticError, LookupError, ValueError) as error:  # it no longer fits this policy
        why.append(f"the policy has no distribution: {error}")
        records.get(INCUMBENT, {}).pop("shadow", None)
    shadow = ComparedDistribution(decision.shadow, replace(decision, steps=records).shadow)
    distribution = ComparedDistribution(decision.probabilities, tuple(p.tolist()))
    u, arm = None, decision.drawn if is_elsewhere else None
    if is_elsewhere:
        distribution = ComparedDistribution((), ())
    else:
        if decision.mode is Mode.EXPLORE:
            u = sampling.uniform_from(decision.id, salt, decision.arms)
        if p.size:
            arm = decision.arms[int(p.argmax()) if u is None else choose(p, u)]
        policy = policies.get(decision.version)
        if policy is not None and decision.policy not in (policy.kind, INCUMBENT):
            why.append(f"version {decision.version} is of policy {policy.kind!r}, not {decision.policy!r}")
    if not distribution.same:
        why.append(
            f"a probability differs by {distribution.max_difference:.3g}: what the policy saw, the arms, "
            "the versions, what the steps recorded or the probabilities were changed"
        )
    on_record = dict(zip(decision.arms, decision.probabilities, strict=False)).get(decision.drawn)
    if propensity is not None and not is_elsewhere and propensity != on_record:
        why.append(f"the propensity on record is {propensity!r}, and among the probabilities {on_record!r}")
    if not shadow.same:
        why.append(
            f"a probability of the policy in the shadow differs by {shadow.max_difference:.3g}: what the "
            "policy saw, the arms, the version or what the steps recorded were changed"
        )
    if arm != decision.drawn:
        salted = ", or the log had another secret when it was drawn" if u is not None else ""
        why.append(f"arm {decision.drawn!r} is on record, {arm!r} comes out: it was changed{salted}")
    return Verification(decision, distribution, shadow, u, arm, tuple(why))


def _distribute(
    decision: Decision,
    records: dict[str, StepRecord],
    policies: Mapping[int, Policy],
    draw: Decision | None,
    steps: Sequence[TurnStep | type[TurnStep]],
) -> Array:
    """Return the distribution of a decision, shape (n_arms,). Raises LookupError, ValueError."""
    if unknown := records.keys() - {step.name for step in steps}:
        raise ValueError(f"this service lacks the steps that took part: {', '.join(sorted(unknown))}")
    certain = None
    if decision.mode is Mode.FORCED:
        if decision.arms != (decision.drawn,):
            raise ValueError("the arm that its caller named is not the only one")
        certain = decision.drawn
    if decision.mode is Mode.CONTINUED:
        if draw is None or draw.mode is not Mode.EXPLORE or draw.episode_id != decision.episode_id:
            raise ValueError(f"the log lacks the draw {decision.draw_id!r} of its episode")
        certain = draw.drawn
    if decision.erased and any(getattr(policy, "reads_question", False) for policy in policies.values()):
        raise ValueError("its policy reads the text of the question, which was erased")

    def find_policy(version: int) -> Policy:
        if version not in policies:
            raise LookupError(f"version {version} took part, and is not available")
        return policies[version]

    return compute_distribution(
        *(records, steps, decision.context, decision.arms, decision.version),
        *(find_policy, certain),
    )
