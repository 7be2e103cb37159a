"""What is asked of a policy that learns, in one table: ours beside those of other packages.

    python benchmarks/goals.py FOLDER TABLES [--rivals PATH] [--seeds 2] [--turns 3000]

FOLDER and `--rivals` are those of `learners.py`, TABLES holds tables of `outcome_tables.py`.

    calm         1,000 times the lead over the best fixed arm on the tables
    one rating   the largest mean change of 40 other questions' probabilities by one of the ratings 15 to 30
    swap         questions until it has recovered, after the best and the worst arm exchanged their rewards
    rise         questions until an arm that has become the best has half of the traffic
    after it     1,000 times the lead over the best arm in the last third
    two models   questions until nine of ten go to the right one of two models (`two_models.py`), by the extra
                 cost of the large one, and 1,000 times the lead over always using that
    few ratings  that lead at an extra cost of .1, where 5 % are rated and a tenth of these wrongly
    false        restarts in 100,000 rewards with a daily rhythm of .3 standard deviations, of the detector

Means have their standard error over tables and orders; delays are the median and the 90 % quantile.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated

import learners
import learners_outcomes
import learners_rivals
import numpy as np
import restarts
import two_models
import typer
from learners_worlds import worlds
from rich.console import Console

OTHERS, FIRST, LAST = 40, 15, 30
"""Other questions, and the first and the last rating whose effect on them is measured."""

ON_TABLES = {"adaptive": "shipped"}
"""Names of policies in `learners_outcomes.py` that differ from those in `learners.py`."""

BASELINE = "adaptive, baseline: large"

BY_FORM = {"adaptive": "template", BASELINE: "baseline"}
"""Names of policies in `two_models.py`: as `armwise init` writes them."""

NAMES = {"adaptive": "adaptive", "LinUCB": "linucb", "Vowpal Wabbit": "vowpal"}
"""Our policies in `learners.py`, and elsewhere unless named above."""

REWARDS = 100_000
"""Rewards of the detector with a daily rhythm."""

RIVALS = ("MABWiser LinUCB", "ParetoBandit", "river UCB")

Found = dict[str, list[float]]

read_outcomes = cache(learners_outcomes.read_outcomes)
"""A process encodes the questions of a table once: that takes longer than to answer them."""


def play(
    item: tuple[str, str, int], tables: Sequence[Path], folder: Path, paths: Sequence[Path], turns: int
) -> Found:
    """Let one policy play one part in one order; return its figures by name."""
    learners_rivals.import_from(paths)
    part, name, seed = item
    if part == "two models":
        return play_two_models(BY_FORM.get(name, NAMES.get(name, name)), seed)
    if part == "rhythm":
        days = [world for title, world in restarts.calm(seed).items() if "rhythm" in title]
        random = np.random.default_rng(seed)
        return {"false": [float(restarts.alone(world, REWARDS, random)) for world in days]}
    if part == "changes":
        of_order = worlds(folder, seed)
        swap, rise = (
            learners.figures(learners.play(learners.enter(name, world, seed), world, (seed, 0)), world)
            for world in (of_order["swap"], of_order["rise"])
        )
        return {"swap": [swap.recovery], "rise": [rise.half], "after it": [float(rise.leads[1])]}
    path = next(path for path in tables if path.stem == part)
    on_table, outcomes = ON_TABLES.get(name, NAMES.get(name, name)), read_outcomes(path)
    calm = learners.play_outcomes((seed, on_table), outcomes, turns, paths)["all"] / 1000.0
    return {"calm": [calm], "one rating": [measure_jump(on_table, outcomes, seed)]}


def play_two_models(name: str, seed: int) -> Found:
    """Let a policy choose between two models in one order, at each extra cost."""
    found: Found = {}
    for gap in two_models.GAPS:
        *_, lead, first = two_models.simulate(name, gap, seed, 1.0, 0.0)
        found |= {f"{gap}: found": [first], f"{gap}: lead": [lead]}
    return found | {"few ratings": [two_models.simulate(name, 0.1, seed, 0.05, 0.1)[2]]}


def measure_jump(name: str, outcomes: learners_outcomes.Outcomes, seed: int) -> float:
    """Return the largest mean change of other questions' probabilities by one early rating."""
    player, world = learners.enter_outcomes(name, outcomes, seed, LAST + OTHERS)
    uniform, largest = np.random.default_rng([seed, 3]).random(LAST + OTHERS), 0.0

    def look() -> learners.Floats:
        """Return the probabilities of the other questions; asking a rival may change it."""
        asked = player if isinstance(player, learners.Ours) else copy.deepcopy(player)
        turns = range(LAST, LAST + OTHERS)
        return np.array([asked.decide(turn, world.arms, float(uniform[turn]))[0] for turn in turns])

    for turn in range(LAST):
        _, drawn, fact = player.decide(turn, world.arms, float(uniform[turn]))
        before = look() if turn >= FIRST else None
        player.learn(turn, fact, world.arms[drawn], float(world.told[turn, drawn]))  # type: ignore[arg-type]
        if before is not None:
            largest = max(largest, float(np.abs(look() - before).sum(axis=1).mean() / 2.0))
    return largest


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    tables: Annotated[Path, typer.Argument(help="Holds tables of outcomes, CSV files.")],
    rivals: Annotated[list[Path] | None, typer.Option(help="Folder of other packages.")] = None,
    seeds: Annotated[int, typer.Option(help="Orders of a table; elsewhere four times as many.", min=1)] = 2,
    turns: Annotated[int, typer.Option(help="Questions of a run on a table.", min=3)] = 3000,
) -> None:
    """Print the table."""
    console, paths = Console(width=240), rivals or []
    learners_rivals.import_from(paths)
    missing = learners_rivals.available()
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    names = [*NAMES, *(name for name in RIVALS if name not in missing)]
    files = sorted(tables.glob("*.csv"))
    orders = range(4 * seeds)
    items = [
        *(("rhythm", "adaptive", seed) for seed in range(seeds)),
        *product(("changes", "two models"), names, orders),
        *(("two models", BASELINE, seed) for seed in orders),
        *product([path.stem for path in files], names, range(seeds)),
    ]
    work = partial(play, tables=files, folder=folder / "qa", paths=paths, turns=turns)
    every: dict[str, Found] = defaultdict(lambda: defaultdict(list))
    for (_, name, _), found in learners.run_in_parallel(console, items, work):
        for figure, values in found.items():
            every[name][figure] += values
    console.print(tabulate(every))


def tabulate(every: dict[str, Found]) -> learners.Table:
    """Return the table of all figures, by policy."""
    shown = {
        **dict.fromkeys(
            ("swap", "rise", *(f"{gap}: found" for gap in two_models.GAPS)), learners.write_delays
        ),
        "one rating": lambda values: f"{max(values):.2f}",
        "false": lambda values: f"{np.mean(values):.1f}",
    }
    figures = [*dict.fromkeys(figure for found in every.values() for figure in found)]
    table = learners.make_table("every goal", "policy", *figures)
    for name, found in every.items():
        cells = (
            shown.get(figure, learners.write_mean)(found[figure]) if figure in found else ""
            for figure in figures
        )
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    typer.run(main)
