"""What is learned and estimated where feedback is late, and silence is a reward.

    python benchmarks/late_feedback.py learning [--decisions 9000] [--seeds 2]
    python benchmarks/late_feedback.py looks [--seeds 200]
    python benchmarks/late_feedback.py rounds TABLES [--orders 6]

`learning`: two arms earn .30 and .25, one decision in 10 s, clicks after a minute in the mean, and nothing
changes. Decisions are learned in the order of a training log: each with a value at once, which nobody has; or
under a rule by which silence is 0 after 30 minutes. The figures are restarts, the share of the better arm in
the second half, and the mean reward.

`looks`: two arms earn .30 and .35, one decision a minute for a day, drawn with .7 and .3, in a real log. At
each look the settled part is evaluated as a replay does (ips, 95 % intervals), for always the first arm and
always the second. A cell is the share of the intervals that hold the truth, and the mean estimate of the
first arm. `by value`: half of the failures are never reported, and no rule makes them known: it cannot cover.

`rounds`: three tables of `outcome_tables.py`, 3,000 questions each. Ratings come at once, 1,000 questions
late or for 500 questions together. The figures are 1,000 times the lead over the best fixed arm, how much of
it is lost before the first rating comes, when all arms are alike, and the largest share of an arm in 500
questions.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import learners
import numpy as np
import typer
from learners_outcomes import Outcomes, read_outcomes
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table

from armwise.agent.policies import Policy, PolicySpec, build_policy
from armwise.agent.policies.sampling import mix_floor
from armwise.feedback.events import Context, Cost, Decision, Execution, Feedback, FeedbackKind, Status, Tick
from armwise.feedback.log import Store
from armwise.feedback.log.counting import find_closing
from armwise.feedback.logged_draws import EmptyLogError, LoggedDraws
from armwise.feedback.ope import evaluate
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import Joiner, take_epoch

CLICKS = RewardRule(
    correction_time="PT0S", metrics={"click": Metric(type="boolean")}, cost_weight=0.0, clip=(0.0, 1.0)
)
SILENT = RewardRule(
    correction_time="PT0S", metrics=CLICKS.metrics, cost_weight=0.0, clip=(0.0, 1.0), default=0.0
)

ARMS = ("a", "b")
POLICIES = {"adaptive": PolicySpec(kind="adaptive"), "vowpal": PolicySpec(kind="vowpal")}
FLOOR = 0.02
TRUTH = np.array([0.30, 0.25])

app = typer.Typer(help=__doc__, rich_markup_mode=None)
console = Console(width=110)


# -- learning ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """What came of one run."""

    restarts: int
    share: float
    reward: float


def learn(policy: Policy, n: int, seed: int, *, silent: bool) -> Learned:
    """Serve and learn at each deadline, as a learner does; a click is known after a minute in the mean."""
    rng = np.random.default_rng(seed)
    clicks, delays = rng.random((n, 2)) < TRUTH, rng.exponential(60.0, n)
    waiting = deque[tuple[float, Decision, float]]()
    drawn = np.zeros(n, dtype=np.int64)
    for i in range(n):
        at, name = 10.0 * i, f"d{i}"
        while waiting and waiting[0][0] < at:
            _, before, reward = waiting.popleft()
            policy.learn(before, reward)
        context = Context("", {})
        p = mix_floor(policy.probabilities(context, ARMS), FLOOR)
        drawn[i] = arm = int(rng.random() >= p[0])
        fact = Decision(name, context, ARMS, tuple(p.tolist()), ARMS[arm], policy.kind, 1, decided_at=at)
        clicked = bool(clicks[i, arm])
        if silent:
            in_time = clicked and delays[i] <= SILENT.wait_s
            waiting.append((find_closing(at + SILENT.wait_s, at), fact, float(in_time)))
        else:
            policy.learn(fact, float(clicked))
    second = drawn[n // 2 :]
    return Learned(
        len(getattr(policy, "restarts", ())),
        float((second == 0).mean()),
        float(clicks[np.arange(n), drawn].mean()),
    )


@app.command()
def learning(
    decisions: Annotated[int, typer.Option(min=100)] = 9000, seeds: Annotated[int, typer.Option(min=1)] = 2
) -> None:
    """Learn from clicks and silence."""
    table = Table("policy", "feedback", "restarts", "better arm, second half", "mean reward", box=MARKDOWN)
    runs = [(name, silent) for name in POLICIES for silent in (False, True)]
    for name, silent in track(runs, "learning", console=Console(stderr=True)):
        found = [
            learn(build_policy(POLICIES[name], ARMS), decisions, seed, silent=silent) for seed in range(seeds)
        ]
        table.add_row(
            name,
            "silence is 0 after 30 minutes" if silent else "all known at once",
            ", ".join(f"{one.restarts}" for one in found),
            ", ".join(f"{one.share:.2f}" for one in found),
            ", ".join(f"{one.reward:.3f}" for one in found),
        )
    console.print(table)


# -- looks -------------------------------------------------------------------------------------------


DAY_S, LOOKS_H = 24 * 3600.0, (1 / 6, 1.0, 2.0, 6.0, 24.0)
SERVED = np.array([0.7, 0.3])
RIGHT = np.array([0.30, 0.35])

Delays = Callable[[np.random.Generator, bool], float | None]
"""Draws after how many seconds an outcome is reported; None for never."""


def _early(rng: np.random.Generator, right: bool) -> float:
    return float(rng.exponential(30.0) if right else rng.uniform(600.0, 1700.0))


def _late(rng: np.random.Generator, right: bool) -> float:
    return _early(rng, not right)


def _random(rng: np.random.Generator, right: bool) -> float:
    del right
    return float(rng.uniform(0.0, 1700.0))


def _silent(rng: np.random.Generator, right: bool) -> float | None:
    return float(rng.exponential(60.0)) if right else None


def _by_value(rng: np.random.Generator, right: bool) -> float | None:
    return None if not right and rng.random() < 0.5 else float(rng.exponential(60.0))


@dataclass(frozen=True)
class World:
    """How outcomes are reported.

    Attributes:
        rule: The reward rule.
        delay: When.
        changes: Whether a third of the values is the other one at first, and corrected or taken back later.
        episodes: Whether one value counts for the three decisions of an episode.
    """

    rule: RewardRule
    delay: Delays
    changes: bool = False
    episodes: bool = False


WORLDS = {
    "successes come first": World(CLICKS, _early),
    "failures come first": World(CLICKS, _late),
    "random delays": World(CLICKS, _random),
    "silence is 0": World(SILENT, _silent),
    "silence is 0, values are corrected": World(SILENT, _silent, changes=True),
    "episodes of three, successes first": World(CLICKS, _early, episodes=True),
    "failures missing by value": World(CLICKS, _by_value),
}


def facts_of(world: World, rng: np.random.Generator) -> Iterator[tuple[float, list[Any]]]:
    """Yield what is written to the log in a day, with its time."""
    episode_right = np.zeros(2, dtype=bool)
    for i in range(int(DAY_S / 60)):
        at, name, arm = 60.0 * i, f"d{i}", int(rng.random() >= SERVED[0])
        right = bool(rng.random() < RIGHT[arm])
        episode = None
        if world.episodes:
            episode = f"e{i // 3}"
            if i % 3 == 0:  # all decisions of an episode have its outcome, by the arm
                episode_right = rng.random(2) < RIGHT
            right = bool(episode_right[arm])
        decision = Decision(
            *(name, Context(f"q{i}"), ARMS, tuple(SERVED.tolist()), ARMS[arm], "fixed", 1),
            decided_at=at,
            deadline=at + world.rule.wait_s,
            episode_id=episode,
        )
        yield at, [decision, Execution(name, ARMS[arm], Status.OK, Cost(), finished_at=at)]
        delay = world.delay(rng, right)
        if world.changes and rng.random() < 1 / 3:
            first = 5.0 if delay is None else delay / 2
            wrong = Feedback(f"w{i}", name, "click", 1.0 - float(right), at + first)
            yield at + first, [wrong]
            if not right:
                taken_back = Feedback(
                    f"w{i}", name, "click", None, at + first + 60.0, kind=FeedbackKind.RETRACTION
                )
                yield at + first + 60.0, [taken_back]
        if delay is not None:
            yield at + delay, [Feedback(f"f{i}", name, "click", float(right), at + delay)]


Figures = dict[str, tuple[float, float, float]]
"""Estimate and interval by arm; without those that cannot be estimated."""


def looked(world: World, seed: int) -> list[Figures]:
    """Return what is estimated at each look; empty where nothing is settled."""
    rng = np.random.default_rng(seed)
    events = sorted(facts_of(world, rng), key=lambda each: each[0])
    found: list[Figures] = []
    with closing(Store("sqlite://")) as store:
        joiner, begin = Joiner(store, world.rule, take_epoch(store, "benchmark", 0.0)), 0
        for look in LOOKS_H:
            until = 3600.0 * look
            end = next((i for i, (at, _) in enumerate(events) if at > until), len(events))
            facts = [fact for _, some in events[begin:end] for fact in some]
            store.append([*facts, Tick(until)])
            begin = end
            while joiner.advance(until) and joiner.left:
                pass
            found.append(_estimates(store, world.rule, seed))
    return found


def _estimates(store: Store, rule: RewardRule, seed: int) -> Figures:
    source = LogSource(store, rule)
    try:
        blocks = (decisions for decisions, _ in source.blocks(rule))
        log = LoggedDraws.from_decisions(blocks, settled=source.settled.before, group="episode")
    except EmptyLogError:
        return {}
    known = [arm for arm in ARMS if arm in log.arms]
    targets = {arm: np.tile(np.eye(2)[log.arms.index(arm)], (len(log), 1)) for arm in known}
    found = evaluate(
        log,
        targets,
        np.random.default_rng(seed),
        estimators=("ips",),
        reward_range=(0.0, 1.0),
        reward_model="means",
    )
    values = {arm: found[arm].estimates[0].value for arm in known}
    return {arm: (value.value, value.low, value.high) for arm, value in values.items() if value is not None}


def _beside_truth(figures: Figures) -> Iterator[tuple[tuple[float, float, float], float]]:
    for arm, truth in zip(ARMS, RIGHT.tolist(), strict=True):
        if arm in figures:
            yield figures[arm], truth


@app.command()
def looks(seeds: Annotated[int, typer.Option(min=1)] = 200) -> None:
    """Look at a log after 10 minutes, 1, 2, 6 and 24 hours."""
    heads = [f"{60 * hours:.0f} min" if hours < 1 else f"{hours:.0f} h" for hours in LOOKS_H]
    table = Table("feedback", *heads, box=MARKDOWN)
    for name, world in WORLDS.items():
        runs = [looked(world, seed) for seed in track(range(seeds), name, console=Console(stderr=True))]
        cells = []
        for at in range(len(LOOKS_H)):
            found = [(figure, truth) for run in runs for figure, truth in _beside_truth(run[at])]
            holds = [low <= truth <= high for (_, low, high), truth in found]
            first = [run[at][ARMS[0]][0] for run in runs if ARMS[0] in run[at]]
            cells.append(f"{np.mean(holds):.1%}, {np.mean(first):.3f}" if first else "nothing is settled")
        table.add_row(name, *cells)
    console.print(table)


# -- rounds ------------------------------------------------------------------------------------------


TABLES, ROUND = ("mba", "routerbench", "qa"), 500

LATE: dict[str, Callable[[int], int]] = {
    "at once": lambda turn: turn + 1,
    "1,000 questions late": lambda turn: turn + 1000,
    "500 together": lambda turn: (turn // ROUND + 1) * ROUND,
}
"""The question before which the rating of another one is learned."""


def play_rounds(
    name: str, known: Callable[[int], int], table: Outcomes, seed: int
) -> tuple[float, float, float]:
    """Return the lead of a policy, the part of it that is lost blindly, and the largest share of an arm."""
    player, world = learners.enter_outcomes(name, table, seed, 3000)
    waiting, n = deque[tuple[int, Any, int]](), len(world.contexts)
    uniform, shares = np.random.default_rng([seed, 0]).random(n), np.empty(world.reward.shape)
    for turn in range(n):
        while waiting and known(waiting[0][0]) <= turn:
            past, fact, arm = waiting.popleft()
            player.learn(past, fact, world.arms[arm], float(world.told[past, arm]))
        shares[turn], drawn, fact = player.decide(turn, world.arms, float(uniform[turn]))
        waiting.append((turn, fact, drawn))
    blind = min(known(0), n)
    lost = world.reward.mean(axis=1) - world.best
    parts = [shares[at : at + ROUND].mean(axis=0).max() for at in range(0, n, ROUND)]
    lead = (shares * world.reward).sum(axis=1) - world.best
    return float(lead.mean()), float(lost[:blind].sum() / n), float(np.mean(parts))


@app.command()
def rounds(
    tables: Annotated[Path, typer.Argument()], orders: Annotated[int, typer.Option(min=2)] = 6
) -> None:
    """Learn from ratings that come late, or many together."""
    shown = Table("policy", "ratings", "lead", "lost before the first one", "largest share", box=MARKDOWN)
    outcomes = [read_outcomes(tables / f"{name}.csv") for name in TABLES]
    runs = [*product(("template", "linucb"), LATE)]
    for name, late in track(runs, "rounds", console=Console(stderr=True)):
        found = [
            play_rounds(name, LATE[late], table, seed) for table, seed in product(outcomes, range(orders))
        ]
        lead, lost, share = zip(*found, strict=True)
        cells = learners.write_mean(lead), learners.write_mean(lost), f"{np.mean(share):.2f}"
        shown.add_row(name, late, *cells)
    console.print(shown)


if __name__ == "__main__":
    app()
