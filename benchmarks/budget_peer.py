"""Which model answers best under a ceiling of dollars: ours beside ParetoBandit, on ParetoBandit's own table.

    pip install --target RIVALS paretobandit
    python benchmarks/budget_peer.py FOLDER/outside/paretobandit.jsonl.gz --rivals RIVALS [--orders 8]

The table has the score and the dollars of four models on each question. Both learn from the one model that
they draw, in random orders. Ours is the policy that `serve_config.yaml` ships, with its features, its
exploration and a budget whose price is published once in five questions. Theirs is its router with its pacer,
each in the three modes of the pacer, on the same embedding. The ceilings lie between what the cheapest model
and the dearest one cost.

    calm       nothing changes
    cut        after half of the questions the dearest model costs a tenth
    newcomer   one model, which is neither the cheapest nor the dearest, is added after half of the questions

Printed are the mean score, its standard error over the orders, and the mean cost over the ceiling.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import typer
from learners_outcomes import SHIPPED, describe_as_shipped, read_settings
from learners_rivals import import_from
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import json_lines

from armwise.agent.policies import (
    Exploration,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
)
from armwise.feedback.budget import Budget, Pacer, mean_costs
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

CEILINGS, WORLDS, MODES = 7, ("calm", "cut", "newcomer"), ("hard", "soft", "adaptive")

KEPT = 0.05
"""Part of a ceiling by which a mean may exceed it that is kept."""

LAG, CHEAPER = 5, 0.1
"""Questions between two prices of our budget, and what a cut leaves of a price."""


@dataclass(frozen=True, eq=False)
class Questions:
    """The table: what is seen of each question, and score and dollars of each model, shape (n, n_arms)."""

    arms: tuple[str, ...]
    contexts: tuple[Context, ...]
    score: Floats
    usd: Floats

    @property
    def ceilings(self) -> Floats:
        """Ceilings in dollars a question, a geometric series between the cheapest and the dearest model."""
        means = self.usd.mean(axis=0)
        return np.geomspace(means.min(), means.max(), CEILINGS + 2)[1:-1]

    @property
    def dearest(self) -> int:
        """Place of the model that costs the most."""
        return int(self.usd.mean(axis=0).argmax())

    @property
    def added(self) -> int:
        """Place of the model that is the newcomer: the second dearest."""
        return int(np.argsort(self.usd.mean(axis=0))[-2])


class Player(Protocol):
    """Draws a model for a question, and learns its score and its dollars."""

    def decide(self, context: Context, arms: Sequence[str], u: float) -> int:
        """Return the place of the model drawn."""
        ...

    def learn(self, context: Context, arms: Sequence[str], drawn: int, score: float, usd: float) -> None:
        """Take what became of it."""
        ...

    def reprice(self, arm: str, paid: Sequence[float]) -> None:
        """Take that a model costs a tenth from now on; `paid` are its dollars so far at the new price."""
        ...


class Ours:
    """The shipped policy under a budget, as a service holds it."""

    def __init__(self, arms: Sequence[str], ceiling: float) -> None:
        settings = read_settings(SHIPPED)
        self._policy = build_policy(PolicySpec.model_validate(settings["policy"]), arms)
        self._explores = Exploration(float(settings["exploration"]))
        self._budget = Budget(usd_per_request=ceiling)
        self._pacer, self._waiting = Pacer(self._budget), list[tuple[str, float]]()
        self._price, self._p = 0.0, np.zeros(0)

    def decide(self, context: Context, arms: Sequence[str], u: float) -> int:
        """Draw from the distribution less the price of each model."""
        costs = self._pacer.costs(arms) if self._price else ()
        penalty = tuple(self._price * cost for cost in costs)
        floor = self._explores.among(len(arms))
        self._p = compute_served_distribution(self._policy, context, arms, floor, penalty)
        return choose(self._p, u)

    def learn(self, context: Context, arms: Sequence[str], drawn: int, score: float, usd: float) -> None:
        """Learn the score, and the dollars with those of the next prices."""
        p = tuple(self._p.tolist())
        self._policy.learn(Decision("d", context, tuple(arms), p, arms[drawn], "adaptive", 1), score)
        self._waiting.append((arms[drawn], usd))
        if len(self._waiting) == LAG:
            for spending in self._waiting:
                self._pacer.note(*spending)
            self._waiting.clear()
            self._price = self._pacer.price

    def reprice(self, arm: str, paid: Sequence[float]) -> None:
        """Count what it cost at the new price, as the learner does where a price is configured anew."""
        self._pacer.arms |= mean_costs(self._budget, [(arm, usd) for usd in paid])


class Theirs:
    """ParetoBandit's router and pacer."""

    def __init__(self, arms: Sequence[str], ceiling: float, mode: str, prices: Mapping[str, float]) -> None:
        from pareto_bandit import BanditRouter, FeatureService
        from pareto_bandit.budget_pacer import BudgetPacer, PacingMode

        self._prices = prices
        self._router = BanditRouter.create(
            {arm: self._priced(prices[arm]) for arm in arms},
            feature_service=FeatureService.for_precomputed(dimension=DIMS),
            priors="none",
            cost_penalty=0.0,
            budget_pacer=BudgetPacer(target_avg_spend_usd=ceiling, mode=PacingMode(mode)),
        )
        self._known = {*arms}

    @staticmethod
    def _priced(usd: float) -> dict[str, float]:
        """Return prices of a million tokens at which a thousand cost so much."""
        return {"input_cost_per_m": 1000.0 * usd, "output_cost_per_m": 1000.0 * usd}

    def decide(self, context: Context, arms: Sequence[str], u: float) -> int:
        """Route; a model that is new is registered."""
        del u
        for arm in arms:
            if arm not in self._known:
                self._known.add(arm)
                self._router.register_model(arm, speed="balanced", **self._priced(self._prices[arm]))
        return arms.index(self._router.route(_numbers(context))[0])

    def learn(self, context: Context, arms: Sequence[str], drawn: int, score: float, usd: float) -> None:
        """Update from the score, and tell the pacer what was paid."""
        self._router.update(arms[drawn], _numbers(context), score)
        self._router.budget_pacer.observe(usd)

    def reprice(self, arm: str, paid: Sequence[float]) -> None:
        """Configure the new price."""
        del paid
        self._router.update_model_pricing(arm, **self._priced(CHEAPER * self._prices[arm]))


DIMS = 33
"""Numbers of a question for the rival: its embedding, and a one."""


def _numbers(context: Context) -> Floats:
    embedding = np.array(context.embedding)
    return np.append(embedding / np.linalg.norm(embedding), 1.0)


def read_table(path: Path) -> Questions:
    """Read the table, and embed its questions as the shipped configuration says."""
    rows = [*json_lines(path)]
    arms = tuple(sorted(rows[0]["rewards"]))
    contexts = describe_as_shipped([row["question"] for row in rows])
    score, usd = (
        np.array([[row[key][arm] for arm in arms] for row in rows], dtype=np.float64)
        for key in ("rewards", "usd")
    )
    return Questions(arms, contexts, score, usd)


def play(item: tuple[str, str, int, int], questions: Questions, paths: Sequence[Path]) -> tuple[float, float]:
    """Return the mean score and the mean dollars of a player in a world, under a ceiling, in one order."""
    import_from(paths)
    name, world, number, order = item
    rng, ceiling = np.random.default_rng(order), float(questions.ceilings[number])
    rows = rng.permutation(len(questions.contexts))
    half, uniform, index = len(rows) // 2, rng.random(len(rows)), questions.arms.index
    early = [arm for at, arm in enumerate(questions.arms) if world != "newcomer" or at != questions.added]
    prices = dict(zip(questions.arms, questions.usd.mean(axis=0).tolist(), strict=True))
    player: Player = Ours(early, ceiling) if name == "ours" else Theirs(early, ceiling, name, prices)
    usd, drawn, dear = questions.usd[rows].copy(), np.zeros(len(rows), dtype=np.intp), questions.dearest
    if world == "cut":
        usd[half:, dear] *= CHEAPER
    for turn, row in enumerate(rows.tolist()):
        arms, context = early if turn < half else questions.arms, questions.contexts[row]
        if world == "cut" and turn == half:
            paid = CHEAPER * usd[:half, dear][drawn[:half] == dear]
            player.reprice(questions.arms[dear], paid.tolist())
        at = player.decide(context, arms, float(uniform[turn]))
        drawn[turn] = index(arms[at])
        player.learn(
            context, arms, at, float(questions.score[row, drawn[turn]]), float(usd[turn, drawn[turn]])
        )
    every = np.arange(len(rows))
    return float(questions.score[rows, drawn].mean()), float(usd[every, drawn].mean()) / ceiling


def tables(found: Mapping[tuple[str, str, int], Floats], questions: Questions) -> Iterator[Table]:
    """Yield a table of each world: a row a ceiling, a column a player."""
    for world in WORLDS:
        table = Table("ceiling, usd", "ours", *(f"ParetoBandit, {mode}" for mode in MODES), title=world)
        for number, ceiling in enumerate(questions.ceilings.tolist()):
            cells = []
            for name in ("ours", *MODES):
                score, cost = found[name, world, number].T
                error = score.std(ddof=1) / np.sqrt(len(score)) if len(score) > 1 else np.nan
                cells.append(f"{score.mean():.4f} ({error:.4f}), {cost.mean() - 1.0:+.1%}")
            table.add_row(f"{ceiling:.2g}", *cells)
        yield table


def main(
    path: Annotated[Path, typer.Argument(help="The table, JSON lines.")],
    rivals: Annotated[list[Path] | None, typer.Option(help="Folder of other packages.")] = None,
    orders: Annotated[int, typer.Option(help="Random orders.", min=1)] = 8,
) -> None:
    """Play every world under every ceiling, and print a table of each."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    questions = read_table(path)
    items = [*product(("ours", *MODES), WORLDS, range(CEILINGS), range(orders))]
    work: Any = partial(play, questions=questions, paths=rivals or [])
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        for item, one in zip(items, track(pool.map(work, items), "runs", len(items)), strict=True):
            found.setdefault(item[:3], []).append(one)
    means = {key: np.array(runs) for key, runs in found.items()}
    for table in tables(means, questions):
        Console(width=130).print(table)
    for world in WORLDS:
        at = [number for number in range(CEILINGS) if _is_best(means, world, number)]
        Console().print(f"{world}: best of those that keep the ceiling at {len(at)} of {CEILINGS}")


def _is_best(means: Mapping[tuple[str, str, int], Floats], world: str, number: int) -> bool:
    """Return whether ours keeps a ceiling, and has the best score of those that do."""
    found = {name: means[name, world, number].mean(axis=0) for name in ("ours", *MODES)}
    keep = {name: float(score) for name, (score, cost) in found.items() if cost <= 1.0 + KEPT}
    return "ours" in keep and keep["ours"] == max(keep.values())


if __name__ == "__main__":
    typer.run(main)
