"""A real log with rewards and costs of known expectation, by a policy that changes as it goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

from armwise.feedback.decisions import Decisions, concatenate
from armwise.feedback.events import (
    NOT_SERVED,
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.log import Store
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.training_log import Joiner, take_epoch
from armwise.feedback.training_log.settled import TOGETHER
from tests.agent.fakes import CONFIG

RULE = RewardRule(
    correction_time="PT0S",
    metrics={"right": Metric()},
    cost_weight=0.0,
    cost=Prices(steps=0.0, usd=1.0),
    clip=(0.0, 1.0),
)

FLOOR = 0.05

BEGIN = 1_700_000_000.0


def quietly(*_: object) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class World:
    """What each arm earns and costs on average.

    Attributes:
        right: Probability that the answer of an arm is right, by arm.
        usd: Expected dollars of an answer, by arm.
        wide: Most that the dollars of an answer differ from the expected ones, as a share of these.
        seconds: Expected seconds of an answer, by arm.
        greedy: How much of the probability above the floor the policy ends up giving the best arm.
        every_s: Seconds between two decisions.
        rated: Share of the decisions with feedback.
        forced: Share of the decisions whose arm the caller names, the first one.
        masked: Share of the decisions for which the last arm cannot be drawn.
        answers: What arms answer, by arm; by default "yes".
    """

    right: Mapping[str, float]
    usd: Mapping[str, float] | None = None
    wide: float = 1.0
    seconds: Mapping[str, float] | None = None
    greedy: float = 0.8
    every_s: float = 0.5
    rated: float = 1.0
    forced: float = 0.0
    masked: float = 0.0
    answers: Mapping[str, str] = field(default_factory=dict)

    def pmf(self, share: float, arms: Sequence[str]) -> np.ndarray:
        """Return the distribution after a share of the log: from a uniform one towards the best arm."""
        p = np.full(len(arms), 1.0 / len(arms))
        best = int(np.argmax([self.right[arm] for arm in arms]))
        top = np.where(np.arange(len(arms)) == best, 1.0, 0.0)
        mixed = (1.0 - self.greedy * share) * p + self.greedy * share * top
        floored: np.ndarray = FLOOR + (1.0 - FLOOR * len(arms)) * mixed
        return floored


def fill(
    store: Store,
    world: World,
    n: int,
    seed: int,
    first: int = 0,
    prefix: str = "d",
    *,
    settled: bool | None = None,
) -> list[Decision]:
    """Write decisions, executions and feedback, join them and add them up; return the decisions.

    Args:
        store: The log.
        world: What arms earn.
        n: Decisions.
        seed: Of all draws.
        first: Number of the first one, which decides its time.
        prefix: Of their ids.
        settled: Whether time passes until none of them can get feedback; None where some wait for it.
    """
    rng = np.random.default_rng(seed)
    facts: list[Decision | Execution | Feedback | Tick] = []
    made = []
    for i in range(n):
        arms = tuple(world.right)
        if rng.random() < world.masked:
            arms = arms[:-1]
        p = world.pmf(i / n, arms)
        drawn, mode = int(rng.choice(len(arms), p=p)), Mode.EXPLORE
        if rng.random() < world.forced:
            drawn, mode = 0, Mode.FORCED
        arm, at, name = arms[drawn], BEGIN + (first + i) * world.every_s, f"{prefix}{first + i}"
        kind = ("fact", "how", "why")[i % 3]
        context = Context("?", {f"ask={kind}": 1.0, "w=word": 1.0})
        decision = Decision(
            *(name, context, arms, tuple(p.tolist()), arm, "linucb", 1, mode, at, at + 1800.0),
            steps={"floor": {"least": FLOOR}},
        )
        usd = 0.0 if world.usd is None else world.usd[arm] * (1.0 + world.wide * (2.0 * rng.random() - 1.0))
        seconds = 0.0 if world.seconds is None else world.seconds[arm] * 2.0 * rng.random()
        cost = Cost(1, 100, 10, seconds / 4, 3 * seconds / 4, usd)
        facts += [
            decision,
            Execution(name, arm, Status.OK, cost, ("p",), world.answers.get(arm, "yes"), "", at + 0.1),
        ]
        right, rated = float(rng.random() < world.right[arm]), rng.random() < world.rated
        if rated:
            facts.append(Feedback(f"f{name}", name, "right", right, at + 0.2))
        made.append(decision)
    if settled is None:
        settled = world.rated < 1.0 or n < 2 * TOGETHER
    if made and settled:
        facts.append(Tick(made[-1].decided_at + RULE.wait_s + 60.0))
    for begin in range(0, len(facts), 1000):
        store.append(facts[begin : begin + 1000])
    add_up(store)
    return made


def add_up(store: Store, rule: RewardRule = RULE) -> None:
    """Do what a learner does for a log beside learning: join it."""
    joiner = Joiner(store, rule, take_epoch(store, "test", 0.0))
    while joiner.advance(BEGIN) and joiner.left:
        pass


def read_served(store: Store, rule: RewardRule, since: float, until: float) -> Decisions:
    """Return the decisions of a period, of this service alone."""
    return concatenate([*read_decisions(store, rule, since, until, without=NOT_SERVED)])


def expected(decisions: Sequence[Decision], of: Mapping[str, float]) -> float:
    """Return the expectation of what was served over explored decisions, given their distributions."""
    return float(
        np.mean(
            [
                sum(p * of[arm] for p, arm in zip(one.probabilities, one.arms, strict=True))
                for one in decisions
                if one.mode is Mode.EXPLORE
            ]
        )
    )


def configured(folder: Path, world: World) -> Path:
    """Write the configuration of a service whose log is of a world; return the file.

    Args:
        folder: Where it is, and the home of the service.
        world: Its arms.
    """
    reward = {
        "metrics": {"right": {}},
        "correction_time": "PT0S",
        "cost_weight": 0.0,
        "cost": {"steps": 0.0, "usd": 1.0},
        "clip": [0, 1],
    }
    arms = {name: {"kind": "none"} for name in world.right}
    args = {**CONFIG, "home": str(folder / "home"), "floor": FLOOR, "reward": reward, "arms": arms}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path
