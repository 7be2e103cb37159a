"""Does a budget hold, and what does it cost in quality, on questions whose every outcome is known?

    python -m benchmarks.budget FOLDER [--questions 2000] [--orders 5]

FOLDER holds `queries.jsonl.gz` and `outcomes.jsonl.gz`: what every arm answered on every question. Policies
learn online, from the one arm that they draw, in random orders; the price of the budget is published once
in `--lag` questions, as a learner does. Steps are rounds of retrieval; dollars are those of $0.15 for a
million tokens read and $0.60 for a million written.

`off by` is the mean cost of all questions over the ceiling, less 1: the largest of the orders. `F1` is the
mean, beside that of the best draw between two fixed arms that costs as much, which is not known beforehand.
"""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
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

from agent.policies import FeatureSpec, PolicySpec, build_policy, choose, describe, served_distribution
from feedback.budget import Budget, Pacer
from feedback.events import Context, Decision

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

USD_READ, USD_WRITTEN = 0.15e-6, 0.60e-6

FLOOR = 0.01


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
        for one, other in combinations(range(len(self.arms)), 2):
            cheap, dear = sorted((one, other), key=lambda arm: cost[arm])
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
    world: World, spec: PolicySpec, budget: Budget | None, order: int, questions: int, lag: int
) -> Floats:
    """Return the mean F1, steps and dollars of a policy on questions in a random order, shape (3,)."""
    rng = np.random.default_rng(order)
    asked = rng.permutation(len(world.contexts))[:questions]
    policy, pacer = build_policy(spec, world.arms), None if budget is None else Pacer(budget)
    drawn, penalty, waiting = np.zeros(len(asked), dtype=np.intp), (), []
    for turn, row in enumerate(asked.tolist()):
        context = world.contexts[row]
        p = served_distribution(policy, context, world.arms, FLOOR, penalty)
        arm = drawn[turn] = choose(p, rng.random())
        decision = Decision(
            f"{turn}", context, world.arms, tuple(p.tolist()), world.arms[arm], policy.kind, 1
        )
        policy.learn(decision, float(world.quality[row, arm]))
        if pacer is not None and budget is not None:
            waiting.append((world.arms[arm], float(world.cost[budget.unit][row, arm])))
            if (turn + 1) % lag == 0:
                for one in waiting:
                    pacer.note(*one)
                waiting.clear()
                penalty = tuple(pacer.price * cost for cost in pacer.costs(world.arms))
    return np.array(
        [of[asked, drawn].mean() for of in (world.quality, world.cost["steps"], world.cost["usd"])]
    )


def main(
    folder: Annotated[Path, typer.Argument(help="Holds queries.jsonl.gz and outcomes.jsonl.gz.")],
    questions: Annotated[int, typer.Option(help="Questions of an order.")] = 2000,
    orders: Annotated[int, typer.Option(help="Random orders.")] = 5,
    lag: Annotated[int, typer.Option(help="Questions between two prices.")] = 5,
) -> None:
    """Print a row for each policy and ceiling."""
    world = read(folder)
    table = Table(
        "policy", "ceiling", "mean cost", "off by", "F1", "two fixed arms", "F1 without", "cost without"
    )
    for name, spec in track(POLICIES.items(), "policies"):
        free = np.mean([play(world, spec, None, order, questions, lag) for order in range(orders)], axis=0)
        for unit, ceilings in CEILINGS.items():
            for ceiling in ceilings:
                budget = Budget.model_validate({f"{unit}_per_request": ceiling})
                found = np.array(
                    [play(world, spec, budget, order, questions, lag) for order in range(orders)]
                )
                cost = found[:, 1 if unit == "steps" else 2]
                off = max((cost / ceiling - 1.0).tolist(), key=abs)
                table.add_row(
                    name,
                    f"{ceiling:g} {unit}",
                    f"{cost.mean():.4g}",
                    f"{off:+.2%}",
                    f"{found[:, 0].mean():.3f}",
                    f"{world.mixture(unit, ceiling):.3f}",
                    f"{free[0]:.3f}",
                    f"{free[1 if unit == 'steps' else 2]:.4g}",
                )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
