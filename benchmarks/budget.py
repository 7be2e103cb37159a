"""Does a budget hold, and what does it cost in quality, on questions whose every outcome is known?

    python -m benchmarks.budget FOLDER [--questions 2000] [--orders 5]
    python -m benchmarks.budget FOLDER --cut

FOLDER holds `queries.jsonl.gz` and `outcomes.jsonl.gz`: what every arm answered on every question. Policies
learn online, from the one arm that they draw, in random orders; the price of the budget is published once
in `--lag` questions, as a learner does. Steps are rounds of retrieval; dollars are those of $0.15 for a
million tokens read and $0.60 for a million written.

With `--cut`, the arm that answers best costs ten times as much at first, and after half of the questions as
much as it does: `known` is a price that the learner is told, `unknown` one that it finds as it pays.

`off by` is the mean cost of all questions over the ceiling, less 1: the largest of the orders. `F1` is the
mean, beside that of the best draw between two fixed arms that costs as much, which is not known beforehand.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from armwise.agent.policies import (
    FeatureSpec,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
)
from armwise.feedback.budget import Budget, Pacer, mean_costs
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

POLICIES: Mapping[str, PolicySpec] = {
    "vowpal": PolicySpec(kind="vowpal"),
    "linucb": PolicySpec(kind="linucb"),
    "linear_thompson": PolicySpec(kind="linear_thompson"),
    "epsilon_greedy": PolicySpec(kind="epsilon_greedy"),
    "neural": PolicySpec(kind="neural"),
    "fixed": PolicySpec(kind="fixed", params={"arm": "multi"}),
}

CEILINGS: Mapping[str, tuple[float, ...]] = {"steps": (0.25, 0.5, 0.75), "usd": (0.00004, 0.00006)}

AT_A_CUT: Mapping[str, PolicySpec] = {"adaptive": PolicySpec(kind="adaptive"), "linucb": POLICIES["linucb"]}

THROUGH_A_CUT = (0.000035, 0.00004, 0.000045, 0.00005, 0.000055, 0.00006, 0.000065)
"""Ceilings in dollars: above what the floor costs before the cut, below what policies spend without one."""

DEARER = 10.0
"""By how much the best arm is dearer at first."""

USD_READ, USD_WRITTEN = 0.15e-6, 0.60e-6

FLOOR = 0.01


class Cut(Enum):
    """Whether the learner is told the price that the best arm falls to."""

    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class World:
    """Questions with the outcome of every arm.

    Attributes:
        arms: Names of the arms.
        contexts: What a policy sees of each question.
        quality: F1, shape (n_questions, n_arms).
        cost: By unit, shape (n_questions, n_arms).
    """

    arms: tuple[str, ...]
    contexts: tuple[Context, ...]
    quality: Floats
    cost: Mapping[str, Floats]

    def mixture(self, unit: str, ceiling: float) -> float:
        """Return the best F1 of a draw between two fixed arms whose mean cost is at most the ceiling."""
        quality, cost = self.quality.mean(axis=0), self.cost[unit].mean(axis=0)
        best = max((q for q, c in zip(quality, cost, strict=True) if c <= ceiling), default=0.0)
        for first, second in combinations(range(len(self.arms)), 2):
            cheap, dear = sorted((first, second), key=lambda arm: cost[arm])
            if cost[cheap] <= ceiling < cost[dear]:
                share = (ceiling - cost[cheap]) / (cost[dear] - cost[cheap])
                best = max(best, (1.0 - share) * quality[cheap] + share * quality[dear])
        return float(best)


def read(folder: Path) -> World:
    """Read the questions and their outcomes."""
    texts = {row["id"]: row["question"] for row in _lines(folder / "queries.jsonl.gz")}
    rows = list(_lines(folder / "outcomes.jsonl.gz"))
    arms, ids = (
        tuple(dict.fromkeys(row["arm"] for row in rows)),
        list(dict.fromkeys(row["id"] for row in rows)),
    )
    place = {name: i for i, name in enumerate(ids)}
    quality, steps, usd = (np.zeros((len(ids), len(arms))) for _ in range(3))
    for row in rows:
        at = place[row["id"]], arms.index(row["arm"])
        quality[at], steps[at] = row["f1"], row["steps"]
        usd[at] = USD_READ * row["prompt_tokens"] + USD_WRITTEN * row["completion_tokens"]
    contexts = tuple(describe(texts[name], FeatureSpec()) for name in ids)
    return World(arms, contexts, quality, {"steps": steps, "usd": usd})


def _lines(path: Path) -> list[dict[str, object]]:
    with gzip.open(path) as file:
        return [orjson.loads(line) for line in file]


def play(
    world: World,
    spec: PolicySpec,
    budget: Budget | None,
    order: int,
    questions: int,
    lag: int,
    cut: Cut | None = None,
) -> Floats:
    """Return F1, steps and dollars of a policy on questions in a random order, shape (3, questions)."""
    rng = np.random.default_rng(order)
    rows = rng.permutation(len(world.contexts))[:questions]
    policy, pacer = build_policy(spec, world.arms), None if budget is None else Pacer(budget)
    drawn, penalty, waiting = np.zeros(len(rows), dtype=np.intp), (), []
    usd = world.cost["usd"][rows].copy()
    dear, change = int(world.quality.mean(axis=0).argmax()), len(rows) // 2
    if cut is not None:
        usd[:change, dear] *= DEARER
    for turn, row in enumerate(rows.tolist()):
        if cut is Cut.KNOWN and turn == change and pacer is not None and budget is not None:
            paid = usd[:change, dear][drawn[:change] == dear] / DEARER
            pacer.arms |= mean_costs(budget, [(world.arms[dear], usd_paid) for usd_paid in paid.tolist()])
        context = world.contexts[row]
        p = compute_served_distribution(policy, context, world.arms, FLOOR, penalty)
        arm = drawn[turn] = choose(p, rng.random())
        decision = Decision(
            f"{turn}", context, world.arms, tuple(p.tolist()), world.arms[arm], policy.kind, 1
        )
        policy.learn(decision, float(world.quality[row, arm]))
        if pacer is not None and budget is not None:
            spent = usd[turn, arm] if budget.unit == "usd" else world.cost["steps"][row, arm]
            waiting.append((world.arms[arm], float(spent)))
            if (turn + 1) % lag == 0:
                for spending in waiting:
                    pacer.note(*spending)
                waiting.clear()
                penalty = tuple(pacer.price * cost for cost in pacer.costs(world.arms))
    paid = usd[np.arange(len(rows)), drawn]
    return np.stack([world.quality[rows, drawn], world.cost["steps"][rows, drawn], paid])


def through_a_cut(world: World, questions: int, orders: int, lag: int) -> Table:
    """Return a table of ceilings that hold while the price of the best arm falls to a tenth."""
    table = Table(
        "policy", "ceiling", "mean cost", "off by", "F1 after the cut, known", "unknown", "two fixed arms"
    )
    for name, spec in AT_A_CUT.items():
        for ceiling in track(THROUGH_A_CUT, name):
            budget = Budget(usd_per_request=ceiling)
            known_runs, unknown_runs = (
                np.array([play(world, spec, budget, n, questions, lag, how) for n in range(orders)])
                for how in (Cut.KNOWN, Cut.UNKNOWN)
            )
            cost = known_runs[:, 2].mean(axis=1)
            off = max((cost / ceiling - 1.0).tolist(), key=abs)
            after = (f"{runs[:, 0, questions // 2 :].mean():.3f}" for runs in (known_runs, unknown_runs))
            best = f"{world.mixture('usd', ceiling):.3f}"
            table.add_row(name, f"{ceiling:g} usd", f"{cost.mean():.4g}", f"{off:+.2%}", *after, best)
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds queries.jsonl.gz and outcomes.jsonl.gz.")],
    questions: Annotated[int, typer.Option(help="Questions of an order.")] = 2000,
    orders: Annotated[int, typer.Option(help="Random orders.")] = 5,
    lag: Annotated[int, typer.Option(help="Questions between two prices.")] = 5,
    cut: Annotated[bool, typer.Option("--cut", help="Cut the price of the best arm to a tenth.")] = False,
) -> None:
    """Print a row for each policy and ceiling."""
    world = read(folder)
    if cut:
        Console(width=120).print(through_a_cut(world, questions, orders, lag))
        return
    table = Table(
        "policy", "ceiling", "mean cost", "off by", "F1", "two fixed arms", "F1 without", "cost without"
    )
    for name, spec in track(POLICIES.items(), "policies"):
        every = [play(world, spec, None, order, questions, lag) for order in range(orders)]
        free = np.mean(every, axis=(0, 2))
        for unit, ceilings in CEILINGS.items():
            for ceiling in ceilings:
                budget = Budget.model_validate({f"{unit}_per_request": ceiling})
                means = np.array(
                    [play(world, spec, budget, order, questions, lag).mean(axis=1) for order in range(orders)]
                )
                cost = means[:, 1 if unit == "steps" else 2]
                off = max((cost / ceiling - 1.0).tolist(), key=abs)
                table.add_row(
                    name,
                    f"{ceiling:g} {unit}",
                    f"{cost.mean():.4g}",
                    f"{off:+.2%}",
                    f"{means[:, 0].mean():.3f}",
                    f"{world.mixture(unit, ceiling):.3f}",
                    f"{free[0]:.3f}",
                    f"{free[1 if unit == 'steps' else 2]:.4g}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
