"""Honest logs of every kind that a service writes: its own policies, draws and steps, without a fault.

A world is a seed: it picks a policy, and which steps take part. Arms are drawn by the decider of a turn, and
the policy learns from every few rewards, as versions do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from armwise.agent.policies import Exploration, PolicySpec, build_policy
from armwise.agent.proof.audit import LogAudit
from armwise.agent.turn import ArmInfo, Ask, Canary, Serving
from armwise.agent.turn.steps.base import TurnStep
from armwise.agent.turn.steps.budget import BudgetStep
from armwise.agent.turn.steps.guard import GuardStep
from armwise.feedback.budget import Price
from armwise.feedback.decisions import tabulate
from armwise.feedback.events import Context, Cost, Decision, Example, Mode
from armwise.feedback.guard import Fall, GuardSpec, Returned, make_key
from armwise.feedback.reward import RewardRule
from tests.agent.turns import draw, make_decider

KINDS = ("adaptive", "epsilon_greedy", "linucb", "linear_thompson", "vowpal", "routed", "uniform")

STEPS = ("plain", "canary", "budget", "masked", "sticky", "all")

ARMS = ("none", "words", "vectors", "both")

INFO = {name: ArmInfo(features={"steps": float(name != "none")}) for name in ARMS}

BEGIN = 1_700_000_000.0


@dataclass(frozen=True)
class World:
    """One honest log.

    Attributes:
        seed: Of everything that is drawn.
        kind: Kind of policy that decides.
        steps: Which steps take part.
        floor: Share of the draws that all arms have alike.
        exported: Whether it is a file of the rated decisions, of which some arms have more.
    """

    seed: int
    kind: str
    steps: str
    floor: float
    exported: bool

    @classmethod
    def of(cls, seed: int) -> "World":
        rng = np.random.default_rng(seed)
        floor = float(rng.choice([0.04, 0.1, 0.4]))
        return cls(seed, KINDS[seed % len(KINDS)], STEPS[seed % len(STEPS)], floor, bool(rng.random() < 0.4))

    def has(self, step: str) -> bool:
        return self.steps in (step, "all")

    def examples(self, n: int) -> Iterator[Example]:
        """Yield the decisions with their feedback, in order."""
        rng = np.random.default_rng((self.seed, 1))
        now, price, effect = BEGIN, 0.0, rng.normal(0.0, 1.0, (2, len(ARMS)))
        costs = {arm: (1, 0.01 * 4.0**at) for at, arm in enumerate(ARMS)}

        def read_price() -> Price:
            return Price("month", 0, price, 0.0, costs, 1, now)

        policy, candidate = (build_policy(PolicySpec(kind=kind), ARMS) for kind in (self.kind, "linucb"))
        budget: list[TurnStep] = [BudgetStep(read_price)] if self.has("budget") else []
        back = Returned((Fall(make_key("free"), "free", "both", 70.0, 80.0, 900, 0),))
        guard = GuardStep(
            GuardSpec(reference="both", by="tier"), lambda: back if now > BEGIN + 15.0 * n else Returned()
        )
        spread = Exploration(self.floor, self.floor / len(ARMS))
        decider = make_decider(
            Serving(policy, 1), spread, f"salt-{self.seed}", steps=budget, clock=lambda: now
        )
        if self.has("guard"):
            decider.steps = (*decider.steps, guard)
        rates = rng.uniform(0.3, 1.0, len(ARMS)) if self.exported else np.full(len(ARMS), 0.6)
        kept: Decision | None = None
        waits = list[tuple[Decision, float]]()
        for seq in range(1, n + 1):
            now, price = now + 30.0, 0.2 * (1.0 + np.sin(seq / 90.0))
            features = {"tier=free": float(rng.random() < 0.4), "length": float(rng.integers(3, 60))}
            scores = {
                arm: {"score": float(effect[0, at] * features["tier=free"])} for at, arm in enumerate(ARMS)
            }
            context = Context(f"question {rng.integers(200)} of a kind", features, (), scores)
            arms = {
                name: info
                for name, info in INFO.items()
                if name == "words" or not self.has("masked") or rng.random() < 0.8
            }
            if self.has("sticky") and kept is not None and rng.random() < 0.6:
                decision = replace(
                    kept, id=f"d{seq}", context=context, mode=Mode.CONTINUED, probabilities=(1.0,)
                )
                decision = replace(decision, arms=(kept.drawn,), decided_at=now)
            else:
                ask = Ask(f"d{seq}", context.question, episode_id=f"e{seq}")
                kept = decision = draw(decider, ask, context, arms)
            at = ARMS.index(decision.drawn)
            right = float(
                rng.random() < 1.0 / (1.0 + np.exp(-effect[0, at] * features["tier=free"] - effect[1, at]))
            )
            rated = rng.random() < rates[at]
            if rated:
                waits.append((decision, right))
            if len(waits) >= 25:  # a version
                for one, reward in waits:
                    policy.learn(one, reward)
                    candidate.learn(one, reward)
                waits.clear()
                version = decider.serving.version + 1
                share = float(rng.choice([0.0, 0.1, 0.5])) if self.has("canary") else 0.0
                canaries = (Canary(candidate, version + 1, share),) if share else ()
                decider.serving = Serving(policy, version, canaries)
            if rated or not self.exported:
                yield Example(
                    seq, decision, Cost(usd=costs[decision.drawn][1]), {"right": right} if rated else {}
                )


RULE = RewardRule.model_validate({"metrics": {"right": {}}})


def audit_service(world: World, n: int) -> LogAudit:
    """Audit the log of n decisions, or the export of it, as a command does."""
    audit = LogAudit(RULE, partial=world.exported)
    for part in tabulate(world.examples(n), RULE):
        audit.add(part)
    return audit
