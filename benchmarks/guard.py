"""How soon does a guard send a class back that fell, and how often one that did not?

    python benchmarks/guard.py [--runs 200] [--weeks 1000] [--decisions 20000]

A small model serves, and the large one, the reference, has the share of the guard. Both are right in 94 % of
the answers, until the small one falls to 79 % in one class: at once, or after a calm week. The classes are
equally frequent, and users rate at random.

In calm weeks the small model loses nothing; or both are right in 95, 75, 90, 65, 85, 55 and 80 % on the seven
days; or the small one loses 5 points, which is what is accepted, in all classes; or nothing falls, and users
rate answers of the large one twice as often.
"""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from armwise.feedback.guard import Guard, GuardSpec

RIGHT, FELL, ACCEPTED = 0.94, 0.79, 0.89

DAYS = (0.95, 0.75, 0.9, 0.65, 0.85, 0.55, 0.8)

MOST = 100_000
"""Rated answers of a class after which a run is given up."""


def fall(rng: np.random.Generator, share: float, calm: int) -> float:
    """Return after how many of its rated answers a class that fell goes back."""
    guard = Guard(GuardSpec(reference="large", share=share))
    drawn, chance = rng.random(calm + MOST) < share, rng.random(calm + MOST)
    for row in range(calm + MOST):
        right = RIGHT if drawn[row] or row < calm else FELL
        found = guard.see("contracts", share, drawn=bool(drawn[row]), quality=float(chance[row] < right))
        if found is not None:
            return row + 1.0 - calm if row >= calm else np.nan
    return np.inf


def is_quiet(rng: np.random.Generator, rated: int, classes: int, world: str) -> bool:
    """Return whether no class goes back in a week without a fall."""
    guard, share = Guard(GuardSpec(reference="large")), 0.1
    rated_share = 2.0 * share / (1.0 + share) if world == "unequal" else share
    drawn, chance = rng.random(rated) < rated_share, rng.random(rated)
    which = rng.integers(classes, size=rated)
    for row in range(rated):
        right = DAYS[7 * row // rated] if world == "days" else RIGHT
        if world == "accepted" and not drawn[row]:
            right = ACCEPTED
        quality = float(chance[row] < right)
        if guard.see(f"class {which[row]}", share, drawn=bool(drawn[row]), quality=quality) is not None:
            return False
    return True


def table(runs: int, weeks: int, decisions: int, seed: int) -> Iterator[str]:
    """Yield the lines of both tables."""
    yield "| | | rated answers of the class | | decisions, median, by classes and rated share | | | |"
    yield "| reference has | calm before | median | 90 % | 3, all | 3, 30 % | 10, 30 % | 10, 10 % |"
    for share in (0.05, 0.1, 0.2):
        for calm in (0, 2000):
            rngs = np.random.default_rng([seed, calm, round(100 * share)]).spawn(runs)
            rows = np.array([fall(rng, share, calm) for rng in track(rngs, description=f"{share} {calm}")])
            early, rows = int(np.isnan(rows).sum()), rows[~np.isnan(rows)]
            if not len(rows):
                continue
            median, most = np.quantile(rows, (0.5, 0.9), method="higher")
            whole = [median * n / rate for n, rate in ((3, 1.0), (3, 0.3), (10, 0.3), (10, 0.1))]
            shown = " | ".join(f"{n:,.0f}" for n in (median, most, *whole))
            yield f"| {100 * share:.0f} % | {calm:,} | {shown} |{f' {early} too early' if early else ''}"
    yield ""
    yield f"| weeks of {decisions:,} decisions, 30 % rated, 10 classes | with a class that goes back |"
    for world in ("calm", "days", "accepted", "unequal"):
        rngs = np.random.default_rng([seed, len(world)]).spawn(weeks)
        false = sum(
            not is_quiet(rng, round(0.3 * decisions), 10, world) for rng in track(rngs, description=world)
        )
        yield f"| {world} | {false} of {weeks:,} |"


def main(
    runs: Annotated[int, typer.Option(help="Runs of each row of the first table.", min=1)] = 200,
    weeks: Annotated[int, typer.Option(help="Weeks of each row of the second table.", min=1)] = 1_000,
    decisions: Annotated[int, typer.Option(help="Decisions of a week.", min=10)] = 20_000,
    seed: Annotated[int, typer.Option(help="Draws everything.", min=0)] = 0,
) -> None:
    """Measure, and print two tables."""
    lines = list(table(runs, weeks, decisions, seed))
    print("", *lines, sep="\n")


if __name__ == "__main__":
    typer.run(main)
