"""Selection of a portfolio compared with apricot, a plain scan and the speed of memory.

    python benchmarks/portfolio.py                # synthetic, 360 arms by 100,000 questions
    python benchmarks/portfolio.py --scores FOLDER  # a score matrix

The synthetic arms are unlike, with independent scores, or related, in six families that share
most of what they find, as configurations of one retriever do: there almost every arm must be
evaluated again after the first pick.

All ways rank arms by the same sums, in turn; picks that differ are an error. `one pass` is
numpy's sum over the matrix, the least that any choice needs. The scan sums every arm for
every pick. apricot's facility location with `metric="ignore"` is the same objective for a
matrix that is not square; it gets the float64 copy that it needs, and its compilation is not
timed. Its optimizer is the naive one: the lazy one picks arms without a gain on a real matrix.
`held` is what is allocated beside the matrix. The second table compares the knapsack on 4,000 of
the questions with filling a budget by the largest gain per cost.
"""

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer
from apricot import FacilityLocationSelection
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from armwise.arms.lab.portfolio import coverage, greedy, knapsack, read_matrix

Scores = NDArray[np.float32]
Result = TypeVar("Result")

ARMS, QUESTIONS, FAMILIES = 360, 100_000, 6
PICKS = 5
KNAPSACK_QUESTIONS = 4000
BUDGETS = (2.0, 5.0, 10.0)
"""In units of the mean cost of an arm."""
SEED = 7


def unlike(rng: np.random.Generator) -> Scores:
    """Return scores of independent arms: quarters, around a quality of each arm."""
    quality = rng.uniform(0.2, 0.7, ARMS)
    return np.stack([rng.binomial(4, q, QUESTIONS).astype(np.float32) / 4 for q in quality])


def related(rng: np.random.Generator) -> Scores:
    """Return scores of arms in families: difficulty of the question, effect of the family, noise."""
    scores = np.empty((ARMS, QUESTIONS), dtype=np.float32)
    hard = rng.standard_normal(QUESTIONS)
    families = rng.standard_normal((FAMILIES, QUESTIONS))
    for arm, row in enumerate(scores):
        quality = hard + 0.7 * families[arm * FAMILIES // ARMS] + 0.3 * rng.standard_normal(QUESTIONS)
        row[:] = np.digitize(quality + rng.normal(0.0, 0.2), (-0.3, 0.5, 1.2, 2.0)) / 4
    return scores


def scan(scores: Scores, k: int) -> tuple[int, ...]:
    """Pick k arms by summing all of them for each pick."""
    best, picks = np.zeros(scores.shape[1], dtype=np.float32), []
    for _ in range(k):
        picks.append(int(np.maximum(scores, best).sum(axis=1, dtype=np.float64).argmax()))
        np.maximum(best, scores[picks[-1]], out=best)
    return tuple(picks)


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds of a call, and its result."""
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def held(work: Callable[[], object]) -> float:
    """Return the peak of allocated megabytes."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


class Peer(FacilityLocationSelection):  # type: ignore[misc]
    """apricot's greedy, with the time at which it was compiled."""

    begun_s = 0.0

    def _initialize(self, scores: NDArray[np.float64]) -> None:
        super()._initialize(scores)
        self.begun_s = time.perf_counter()


def apricot(scores: NDArray[np.float64], k: int) -> tuple[float, tuple[int, ...]]:
    """Return the seconds of the peer, and its picks."""
    peer = Peer(k, metric="ignore", optimizer="naive").fit(scores)
    return time.perf_counter() - peer.begun_s, tuple(peer.ranking.tolist())


def compare(label: str, scores: Scores, k: int, rounds: int, table: Table) -> None:
    """Add a row for each way to choose: the least time of `rounds`, taken in turn."""
    wide = scores.astype(np.float64)
    ways: dict[str, Callable[[], tuple[float, object]]] = {
        "one pass": lambda: timed(lambda: scores.sum(axis=1)),
        "ours": lambda: timed(lambda: greedy(scores, k).arms),
        "scan": lambda: timed(lambda: scan(scores, k)),
        "apricot": lambda: apricot(wide, k),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    picks: dict[str, object] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            took, picks[name] = way()
            seconds[name].append(took)
    if not picks["ours"] == picks["scan"] == picks["apricot"]:
        raise AssertionError(f"the picks differ: {[picks[name] for name in ('ours', 'scan', 'apricot')]}")
    bound = min(seconds["one pass"])
    for name, way in ways.items():
        beside = held(way) + (wide.nbytes / 1e6 if name == "apricot" else 0.0)
        least = min(seconds[name])
        table.add_row(label, name, f"{least * 1e3:.1f}", f"{least / bound:.1f}", f"{beside:.1f}")
        label = ""
    table.add_section()


def by_density(scores: Scores, costs: NDArray[np.float64], budget: float) -> tuple[int, ...]:
    """Fill a budget by the largest gain per cost."""
    picks: list[int] = []
    best = coverage.take_best(scores, ())
    while True:
        fits = [arm for arm in np.flatnonzero(costs <= budget - costs[picks].sum()) if arm not in picks]
        if not fits:
            return tuple(picks)
        gains = np.array([np.maximum(scores[arm], best).sum(dtype=np.float64) for arm in fits])
        picks.append(int(fits[((gains - best.sum(dtype=np.float64)) / costs[fits]).argmax()]))
        np.maximum(best, scores[picks[-1]], out=best)


def fill(label: str, scores: Scores, table: Table) -> None:
    """Add a row for each budget."""
    scores = np.ascontiguousarray(scores[:, :KNAPSACK_QUESTIONS])
    costs = np.random.default_rng(SEED).lognormal(0.0, 0.7, len(scores))
    costs /= costs.mean()
    for budget in BUDGETS:
        took, chosen = timed(lambda budget=budget: knapsack(scores, costs, budget))  # type: ignore[misc]
        plain_took, plain = timed(lambda budget=budget: by_density(scores, costs, budget))  # type: ignore[misc]
        table.add_row(
            label, f"{budget:g}", str(len(chosen.arms)), f"{chosen.values[-1]:.4f}", f"{took:.2f}",
            f"{coverage.values(scores, plain)[-1]:.4f}", f"{plain_took:.2f}",
        )  # fmt: skip
        label = ""
    table.add_section()


def main(
    scores: Annotated[
        Path | None, typer.Option(help="Folder of a score matrix, instead of synthetic scores.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Arms to choose.", min=1)] = PICKS,
    rounds: Annotated[int, typer.Option(help="Times that each is measured.", min=1)] = 7,
) -> None:
    """Compare, and print two tables."""
    rng = np.random.default_rng(SEED)
    worlds: dict[str, Callable[[], Scores]] = {"unlike": lambda: unlike(rng), "related": lambda: related(rng)}
    if scores is not None:
        worlds = {scores.name: lambda: read_matrix(scores).scores}
    speed = Table("arms", "", "ms", "passes", "held MB", title=f"The best {k} arms")
    budget = Table(
        *("arms", "budget", "chosen", "value", "s", "value by density", "s"),
        title=f"Within a budget, on {KNAPSACK_QUESTIONS:,} questions",
    )
    for label, make in worlds.items():
        world = make()
        compare(f"{label}, {world.shape[0]:,} x {world.shape[1]:,}", world, k, rounds, speed)
        fill(label, world, budget)
    Console().print(speed, budget)


if __name__ == "__main__":
    typer.run(main)
