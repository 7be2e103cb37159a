"""How soon does an automatic canary promote what is better, and end what is worse or no better?

    python benchmarks/canary.py [--runs 2000] [--power-runs 400] [--length 20000]

Four arms with a floor of 2 %; the served policy draws the first, the candidate another one on a fifth of
the questions. The gate looks when the service does (after 50 rewards, then a fifth later each time), and
the canary does what `armwise.agent.lab.warmstart.canary.next_step` says: its share, and with it every
distribution, changes as it goes. `cost` is what the candidate's share cost until then, in rewards: the sum
over decisions of its share times what it loses to what is served.

Worlds without a gain are run so often that a promotion in 5 % of the runs would be seen:

    twin            the arm of the candidate earns the same
    drift           it loses and gains in turn, and so much first that its mean gain so far is never above 0
    late news       as twin; of the served arm bad rewards come late, of the candidate's arm good ones
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import typer
from gate import LIFT, draws, greedy
from rich.progress import track

from armwise.agent.lab.warmstart.canary import (
    FIRST_LOOK,
    LOOK_FACTOR,
    MOST_DECISIONS,
    CanaryAction,
    first_share,
    next_step,
)
from armwise.agent.policies import Exploration
from armwise.agent.policies.sampling import count_share
from armwise.feedback.arrays import Floats, Integers, take_drawn
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import Verdict, judge

ARMS, FLOOR, MOVED = ("a", "b", "c", "d"), 0.02, 0.2

SPEC = GateSpec(level=0.975)
"""Half of the error of the default, as a candidate has two judgements."""

GAINS = (0.02, 0.05, 0.1)

SOON, LATE = 5, 400
"""Decisions after which there is news of one, and of one whose news come late."""

Quality = Callable[[Integers, Floats], Floats]
"""Position of decisions, and whether the candidate chooses otherwise, both (n,) -> chance of a reward of each
arm, shape (n, 4)."""


@dataclass(frozen=True, slots=True)
class World:
    """Where a candidate decides.

    Attributes:
        quality: Chance that each arm is right.
        moved: Share of the questions on which the candidate chooses the second arm.
        late: Whether news of one kind come late. The wait time is as long.
    """

    quality: Quality
    moved: float = MOVED
    late: bool = False


def lifted(lift: float, season: float = 0.0) -> Quality:
    """Let the second arm be right more often by `lift` where the candidate chooses it, all with a season."""

    def quality(at: Integers, moved: Floats) -> Floats:
        base = 0.5 + season * np.sin(at / 400.0)
        return base[:, np.newaxis] + lift * moved[:, np.newaxis] * (np.arange(4) == 1)

    return quality


def in_turn(at: Integers, moved: Floats) -> Floats:
    """Let the second arm be worse for 1,000 decisions, better for as many, and so on."""
    swing = -0.3 * np.sin(np.pi * at / 1_000.0)
    chance: Floats = 0.5 + (swing * moved)[:, np.newaxis] * (np.arange(4) == 1)
    return chance


@dataclass(slots=True)
class Course:
    """A canary on its way, and the log so far.

    Attributes:
        world: Where it decides.
        rng: Source of questions, draws and rewards.
        n: Decisions so far.
        cost: Reward that its share has cost so far.
    """

    world: World
    rng: np.random.Generator
    n: int = 0
    cost: float = 0.0
    p_log: list[Floats] = field(default_factory=list)
    p_target: list[Floats] = field(default_factory=list)
    drawn: list[Integers] = field(default_factory=list)
    reward: list[Floats] = field(default_factory=list)
    heard: list[Floats] = field(default_factory=list)

    def decide(self, rows: int, share: float) -> None:
        """Make decisions in a row, under one share."""
        moved = self.rng.random(rows) < self.world.moved
        floor = count_share(FLOOR, 4, share)
        live, candidate = greedy(np.zeros(rows, np.int64), 4, floor), greedy(moved.astype(np.int64), 4, floor)
        p_log = (1.0 - share) * live + share * candidate
        drawn = draws(p_log, self.rng)
        at = self.n + np.arange(rows)
        quality = self.world.quality(at, moved.astype(np.float64))
        reward = (self.rng.random(rows) < take_drawn(quality, drawn)).astype(np.float64)
        late = (reward > 0.5) == (drawn == 1) if self.world.late else np.zeros(rows, np.bool_)
        self.cost += share * float(((live - candidate) * quality).sum())
        for column, values in (
            (self.p_log, p_log),
            (self.p_target, candidate),
            (self.drawn, drawn),
            (self.reward, reward),
            (self.heard, at + np.where(late, LATE, SOON)),
        ):
            column.append(values)
        self.n += rows

    def verdict(self) -> dict[str, object]:
        """Return what the gate says now, of the decisions whose wait time has passed."""
        p_log, p_target = np.concatenate(self.p_log), np.concatenate(self.p_target)
        drawn, reward, heard = (np.concatenate(column) for column in (self.drawn, self.reward, self.heard))
        n, at = max(0, self.n - (LATE if self.world.late else SOON)), np.arange(self.n)
        if not n:
            return Verdict(False, ("No decision is settled yet.",), None, (), undecided=True).document()
        seq = np.argsort(np.argsort(heard, kind="stable")) + 1  # the training log is in the order of the news
        log = LoggedDraws.from_arrays(ARMS, drawn[:n], reward[:n], p_log=p_log[:n])
        log = replace(log, seq=seq[:n], at=at[:n].astype(np.float64))
        return judge(
            SPEC,
            log,
            p_target[:n],
            reward_range=(0.0, 1.0),
            known=np.searchsorted(np.sort(heard), at[:n], side="left"),
            checked=SPEC.least_checked,
        ).document()


def run(
    world: World, rng: np.random.Generator, length: int, *, automatic: bool = True
) -> tuple[str, int, float]:
    """Return how a canary ends (`promote`, `end` or `wait`), after how many decisions, and at which cost."""
    course = Course(world, rng)
    first = first_share(Exploration(FLOOR * len(ARMS)), len(ARMS))
    share, look = first if automatic else 0.0, FIRST_LOOK
    while course.n < length:
        course.decide(look - course.n, share)
        step = next_step(course.verdict(), share or first, first, 1.0)
        if step.action in (CanaryAction.PROMOTE, CanaryAction.END):
            return step.action.value, course.n, course.cost
        if automatic:
            share = step.share
        look += max(FIRST_LOOK, round((LOOK_FACTOR - 1.0) * look))
    return CanaryAction.WAIT.value, course.n, course.cost


def row(name: str, world: World, runs: int, length: int, seed: int, *, automatic: bool = True) -> str:
    """Run a world often, and return a row of the table."""
    ends = [
        run(world, rng, length, automatic=automatic)
        for rng in track(np.random.default_rng([seed, len(name)]).spawn(runs), description=name)
    ]
    promoted = sum(end == CanaryAction.PROMOTE.value for end, _, _ in ends) / runs
    ended = sum(end == CanaryAction.END.value for end, _, _ in ends) / runs
    made = np.array([n if end != CanaryAction.WAIT.value else np.inf for end, n, _ in ends])
    quantiles = np.quantile(made, (0.5, 0.9), method="higher")
    median, most = (f"{at:,.0f}" if np.isfinite(at) else "-" for at in quantiles)
    cost = np.mean([spent for *_, spent in ends])
    return f"| {name} | {100 * promoted:.1f} % | {100 * ended:.1f} % | {median} | {most} | {cost:+.1f} |"


def table(runs: int, power_runs: int, length: int, seed: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| world | promoted | ended | median decisions | 90 % | cost |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for gain in GAINS:
        moved = gain / LIFT / (1.0 - 4 * FLOOR)
        for season in (0.0, 0.1):
            drifts = ", world drifts" if season else ""
            better, worse = World(lifted(LIFT, season), moved), World(lifted(-LIFT, season), moved)
            if not season:
                alone = f"gain {gain}, floor alone"
                yield row(alone, better, power_runs, length, seed, automatic=False)
            yield row(f"gain {gain}{drifts}", better, power_runs, length, seed)
            yield row(f"loss {gain}{drifts}", worse, power_runs, length, seed)
    yield row("twin", World(lifted(0.0)), runs, length, seed)
    yield row("drift", World(in_turn), runs, length, seed)
    yield row("late news", World(lifted(0.0), late=True), runs, length, seed)


def main(
    runs: Annotated[int, typer.Option(help="Runs of each world without a gain.", min=1)] = 2_000,
    power_runs: Annotated[int, typer.Option(help="Runs of each gain and each loss.", min=1)] = 400,
    length: Annotated[int, typer.Option(help="Decisions of a run at most.", min=1)] = MOST_DECISIONS,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 0,
) -> None:
    """Measure, and print a table."""
    lines = list(table(runs, power_runs, length, seed))
    print("", *lines, sep="\n")


if __name__ == "__main__":
    typer.run(main)
