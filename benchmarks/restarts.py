"""How many rewards lie between two false restarts, and how many until a true one?

    python benchmarks/restarts.py [--rewards 6000] [--alone 100000] [--runs 6] [--seed 0] [--only calm]
        [--world "daily rhythm"]

Nothing changes in the worlds of the first table, so every restart there is false. `adaptive` draws with the
floor of the service, 0.01 an arm, and learns `--rewards` rewards in each world. The detector alone, on arms
that are drawn alike, sees `--alone`. A figure is the mean number of rewards between two; without any, it is
over their number.

    rate .01, ...   two arms that are right as often
    costs           two arms that are right as often, less a cost of .1 on average, exponentially distributed
    heavy tails     rewards with Student's t of 2 degrees, .1 wide
    arms            so many, right between .1 and .9 of the time
    learning        five arms that answer eight kinds of questions, told by three marks together
    daily rhythm    right more and less often within so many rewards, by .3 standard deviations
    delays          as rate .5 and .3; a reward is learned 100 questions later

In the other table two arms exchange their rates after 600 rewards: rewards until the restart, and until the
better one has had half of the draws of 40 questions, median and 9 in 10 of `--runs`; `kept` is what the
restarts kept, on average. `none` is none within 1,500: a policy that follows by itself needs no restart.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from armwise.agent.policies import (
    Policy,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    list_restarts,
)
from armwise.agent.policies.change_detector import ChangeDetector
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98)
SWAPS = ((0.8, 0.4), (0.5, 0.2), (0.3, 0.1), (0.1, 0.02), (0.98, 0.8))
"""Rates of two arms before they are exchanged."""

FLOOR = 0.01
BEFORE, PATIENCE = 600, 1500
"""Rewards before two arms are exchanged, and after which a change that was not found counts as missed."""

DRAWN = 20
"""Questions for which the policy of a version decides."""

POLICY = PolicySpec(kind="adaptive", params={"dims": 4})


@dataclass(frozen=True, eq=False)
class World:
    """What questions there are, and what each arm earns.

    Attributes:
        worth: How often each arm is right on each kind of questions, shape (n_kinds, n_arms).
        cost: Mean cost of an answer.
        width: Width of Student's t that is added.
        day: Rewards of a day; 0 for none.
        delay: Questions until a reward is learned.
        change: Question from which on the first two arms are exchanged.
    """

    worth: Floats
    cost: float = 0.0
    width: float = 0.0
    day: int = 0
    delay: int = 0
    change: float = math.inf
    contexts: tuple[Context, ...] = field(init=False)

    def __post_init__(self) -> None:
        about = {arm: {f"arm={arm}": 1.0} for arm in self.arms}
        marks = [{f"{bit}={kind >> bit & 1}": 1.0 for bit in range(3)} for kind in range(len(self.worth))]
        object.__setattr__(self, "contexts", tuple(Context("?", names, (), about) for names in marks))

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return tuple(f"a{i}" for i in range(self.worth.shape[1]))

    def reward(self, rng: np.random.Generator, t: int, kind: int, arm: int) -> float:
        """Return the reward of an arm at a question, from -1 to 1."""
        at = 1 - arm if t >= self.change and arm < 2 else arm
        rate = self.worth[kind, at]
        if self.day:
            rate += 0.3 * math.sqrt(rate * (1.0 - rate)) * math.sin(2.0 * math.pi * t / self.day)
        reward = float(rng.random() < rate)
        if self.cost:
            reward -= self.cost * rng.exponential()
        if self.width:
            reward = rate + self.width * rng.standard_t(2)
        return min(max(reward, -1.0), 1.0)


def calm(seed: int) -> dict[str, World]:
    """Return the worlds in which nothing changes."""
    rng = np.random.default_rng([seed, 1])
    kinds = (rng.uniform(0.3, 0.7, 5) + rng.normal(0.0, 0.2, (8, 5))).clip(0.02, 0.98)
    found = {f"rate {rate}": World(np.array([[rate, rate]])) for rate in RATES}
    even = World(np.array([[0.5, 0.3]]))
    found["costs"] = World(np.array([[0.6, 0.6]]), cost=0.1)
    found["heavy tails"] = World(np.array([[0.3, 0.3]]), width=0.1)
    for n_arms in (2, 10, 50):
        found[f"{n_arms} arms"] = World(rng.uniform(0.1, 0.9, (1, n_arms)))
    found["learning"] = World(kinds)
    for rate, day in product((0.1, 0.5, 0.9), (2000, 10_000)):
        found[f"daily rhythm, {rate}, {day:,}"] = World(np.array([[rate, rate]]), day=day)
    return found | {"delays": replace(even, delay=100)}


def learned(world: World, n: int, rng: np.random.Generator) -> Iterator[tuple[Policy, float]]:
    """Let a policy learn n rewards; yield it and the share of the second arm, after each."""
    arms = world.arms
    policy = build_policy(POLICY, arms)
    due: deque[tuple[Decision, float]] = deque()
    served: list[Floats] = []
    for t in range(n + world.delay):
        if t % DRAWN == 0:
            served = [compute_served_distribution(policy, context, arms, FLOOR) for context in world.contexts]
        kind = int(rng.integers(len(world.contexts)))
        drawn = choose(served[kind], rng.random())
        decision = Decision(
            "d", world.contexts[kind], arms, tuple(served[kind].tolist()), arms[drawn], "x", 1
        )
        due.append((decision, world.reward(rng, t, kind, drawn)))
        if len(due) > world.delay:
            past, reward = due.popleft()
            policy.learn(past, reward)
            yield policy, float(served[kind][1])


def alone(world: World, n: int, rng: np.random.Generator) -> int:
    """Return the false changes of the detector alone, on arms that are drawn alike."""
    detector, changes = ChangeDetector(), 0
    kinds, arms = rng.integers(len(world.worth), size=n), rng.integers(world.worth.shape[1], size=n)
    for t, (kind, arm) in enumerate(zip(kinds.tolist(), arms.tolist(), strict=True)):
        changes += detector.see(str(arm), world.reward(rng, t, kind, arm)) is not None
    return changes


def between(n: int, false: int) -> str:
    """Return the mean number of rewards between two.

    >>> between(1000, 0), between(1000, 4)
    ('over 1,000', '250')
    """
    return f"{n / false:,.0f}" if false else f"over {n:,}"


def false_restarts(n: int, n_alone: int, seed: int, named: str, step: Callable[[], None]) -> Table:
    """Count restarts where nothing changes, in the worlds whose names begin as given."""
    table = _table("rewards between two false restarts", "world", "adaptive", "detector alone")
    total = np.zeros(2, dtype=int)
    n_worlds = 0
    for place, (name, world) in enumerate(calm(seed).items()):
        if not name.startswith(named):
            continue
        n_worlds += 1
        restarts = 0
        for policy, _ in learned(world, n, np.random.default_rng([seed, 2, place, 0])):
            restarts = len(list_restarts(policy))
        step()
        counts = [restarts, alone(world, n_alone, np.random.default_rng([seed, 3, place]))]
        step()
        table.add_row(name, *(between(m, k) for m, k in zip([n, n_alone], counts, strict=True)))
        total += counts
    every = np.array([n, n_alone]) * n_worlds
    table.add_row("all together", *(between(int(m), int(k)) for m, k in zip(every, total, strict=True)))
    return table


def true_restarts(runs: int, seed: int, step: Callable[[], None]) -> Table:
    """Measure how long an exchange of two arms goes unnoticed, and when the better arm is drawn."""
    title = "rewards after an exchange, median / 9 in 10"
    table = _table(title, "rates", "until the restart", "until half of the draws", "kept")
    swaps = [(f"{one} and {other}", World(np.array([[one, other]]), change=BEFORE)) for one, other in SWAPS]
    swaps.append(("0.5 and 0.2, 100 later", replace(swaps[1][1], delay=100)))
    swaps.append(("0.6 and 0.3, costs", World(np.array([[0.6, 0.3]]), cost=0.1, change=BEFORE)))
    for place, (name, world) in enumerate(swaps):
        found = [_exchange(world, np.random.default_rng([seed, 4, place, 0, run])) for run in range(runs)]
        kept = [n for one in found for n in one.kept]
        step()
        table.add_row(
            name,
            _delays([one.restart for one in found]),
            _delays([one.share for one in found]),
            f"{np.mean(kept):.0f}" if kept else "-",
        )
    return table


@dataclass
class Exchange:
    """Rewards after an exchange until it was found.

    Attributes:
        restart: Until the policy restarted; infinity where it did not.
        share: Until the better arm had half of the draws, likewise.
        kept: What the restart kept.
    """

    restart: float = math.inf
    share: float = math.inf
    kept: tuple[int, ...] = ()


def _exchange(world: World, rng: np.random.Generator) -> Exchange:
    found, latest = Exchange(), deque[float](maxlen=40)
    for past, (policy, better) in enumerate(learned(world, BEFORE + PATIENCE, rng), 1 - BEFORE):
        if past <= 0:
            continue
        latest.append(better)
        restarts = list_restarts(policy)
        if found.restart == math.inf and restarts and restarts[-1].reward > BEFORE:
            found.restart, found.kept = past, (restarts[-1].kept,)
        found.share = min(found.share, past if len(latest) == 40 and np.mean(latest) > 0.5 else math.inf)
        if max(found.restart, found.share) < math.inf or (found.share < math.inf and past > PATIENCE // 3):
            break
    return found


def _delays(late: list[float]) -> str:
    some = sorted(late)
    places = [some[int(q * (len(some) - 1))] for q in (0.5, 0.9)]
    return " / ".join(f"{place:,.0f}" if place < math.inf else "none" for place in places)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=MARKDOWN)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def main(
    rewards: Annotated[int, typer.Option(help="Rewards of a policy in a world.", min=1)] = 6_000,
    alone_rewards: Annotated[
        int, typer.Option("--alone", help="Rewards of the detector alone.", min=1)
    ] = 100_000,
    runs: Annotated[int, typer.Option(help="Runs of an exchange.", min=1)] = 6,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 0,
    only: Annotated[str, typer.Option(help="`calm` or `exchanges`; both if not given.")] = "",
    world: Annotated[str, typer.Option(help="Calm worlds whose names begin so; all if not given.")] = "",
) -> None:
    """Measure, and print tables."""
    console = Console(width=160)
    columns = (*Progress.get_default_columns()[:1], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        n_calm = sum(name.startswith(world) for name in calm(seed))
        if not n_calm:
            raise typer.BadParameter(
                f"{world!r} begins none of {', '.join(calm(seed))}", param_hint="--world"
            )
        total = (only != "exchanges") * n_calm * 2 + (only != "calm") * (len(SWAPS) + 2)
        task = progress.add_task("worlds", total=total)

        def step() -> None:
            progress.advance(task)

        if only != "calm":
            console.print(true_restarts(runs, seed, step))
        if only != "exchanges":
            console.print(false_restarts(rewards, alone_rewards, seed, world, step))


if __name__ == "__main__":
    typer.run(main)
