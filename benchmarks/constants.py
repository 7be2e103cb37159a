"""Which constants of the policy `adaptive` matter? Each at half and at twice its value.

    python benchmarks/constants.py FOLDER TABLES RESULTS.json [--orders 1] [--turns 300] [--minutes 10]

FOLDER holds `qa/`, TABLES holds tables of `outcome_tables.py`. Figures are mean differences from the policy
as it is, in the same orders, with their standard error over the runs. Of the policy, as 1,000 times the lead:

    calm         the tables, in every other order without embeddings
    worlds       the second half of two of `learners_worlds.py`, and `two_models.py` at an extra cost of .06

Of its detector of changes, in the worlds of `restarts.py`:

    found        rewards until it notices that two arms have exchanged their rates, at most 1,500
    false        changes in 100,000 rewards where there is none; their number, not a difference

RESULTS.json keeps what was measured, an order of all constants after the other. After `--minutes` the table
has what there is, and the next run goes on.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Annotated

import learners
import learners_outcomes
import numpy as np
import orjson
import restarts
import two_models
import typer
from learners_worlds import worlds
from rich.console import Console

from armwise.agent.policies import adaptive, arm_regressions, change_detector

MODULES = adaptive, arm_regressions, change_detector

NO_CHOICE = {
    "DIFFERENCE",
    "LAYOUT",
    "LOOKS",
    "NO_COLUMNS",
    "OF_OTHERS",
    "OF_SCORED",
    "RUN_LENGTH",
    "TIE",
    "TINY",
}
"""Names of what is a place, a limit of floating-point numbers, or a default of a parameter."""

NEAR_ONE = {"NOISE_DECAY", "STAKED"}
"""Constants of which it is the distance from 1 that is halved."""

OF_POLICY, OF_DETECTOR, FACTORS = ("calm", "worlds"), ("found", "false"), (0.5, 2.0)

IN_WORLDS, IN_CALM = ("newcomer", "cold rise"), ("rate 0.02", "learning", "daily rhythm, 0.5, 2,000")
"""Worlds of the policy, and those of the detector in which nothing changes."""

AS_IT_IS = "as it is"

REWARDS, EXCHANGES = 8_000, 10
"""Rewards in a world without a change, and exchanges of each two rates."""

Results = dict[str, dict[str, list[float]]]

read_outcomes = cache(learners_outcomes.read_outcomes)


def find_constants(module: ModuleType) -> dict[str, object]:
    """Return the constants of a module by name, except those that it imports."""
    lines = Path(str(module.__file__)).read_text()
    numbers = int, float, tuple, np.ndarray
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, numbers)
        and name not in NO_CHOICE
        and re.search(rf"^[A-Z_, ]*\b{name}\b[A-Z_, ]* = ", lines, re.M)
    }


EVERY = {name: value for module in MODULES for name, value in find_constants(module).items()}


@contextmanager
def scale(name: str, factor: float) -> Iterator[None]:
    """Multiply a constant wherever it is used."""
    value = EVERY.get(name, 1.0)
    scaled = 1.0 - (1.0 - np.array(value)) * factor if name in NEAR_ONE else np.array(value) * factor
    new = max(round(float(scaled)), 1) if isinstance(value, int) else scaled
    if isinstance(value, float | tuple):
        new = type(value)(scaled.tolist())
    there = [module for module in MODULES if hasattr(module, name)]
    for module in there:
        setattr(module, name, new)
    yield
    for module in there:
        setattr(module, name, value)


def measure_policy(folder: Path, files: list[Path], seed: int, turns: int) -> dict[str, list[float]]:
    """Return the leads of the runs of an order."""
    shown = ("template", "shipped")[seed % 2]
    calm = [learners.play_outcomes((seed, shown), read_outcomes(file), turns, ())["all"] for file in files]
    leads = [1000.0 * float(two_models.simulate("template", 0.06, seed, 1.0, 0.0)[2])]
    of_order = worlds(folder / "qa", seed)
    for world in (of_order[name] for name in IN_WORLDS):
        lead = learners.play(learners.enter("adaptive", world, seed), world, (seed, 0)).lead
        leads.append(1000.0 * float(lead[len(lead) // 2 :].mean()))
    return {"calm": calm, "worlds": leads}


def measure_detector(seed: int) -> dict[str, list[float]]:
    """Return when the detector notices exchanges, and how often it does without one, of an order."""
    found = []
    for (one, other), run in product(restarts.SWAPS, range(EXCHANGES)):
        world = restarts.World(np.array([[one, other]]), change=restarts.BEFORE)
        rng, detector, seen = np.random.default_rng([seed, run]), change_detector.ChangeDetector(), 0
        for turn in range(restarts.BEFORE + restarts.PATIENCE):
            arm = int(rng.integers(2))
            noticed = detector.see(str(arm), world.reward(rng, turn, 0, arm))
            seen += turn >= restarts.BEFORE
            if noticed is not None and seen:
                break
        found.append(float(seen))
    calm = restarts.calm(seed)
    false = [restarts.alone(calm[name], REWARDS, np.random.default_rng(seed)) for name in IN_CALM]
    return {"found": found, "false": [100_000.0 * one / REWARDS for one in false]}


def tabulate(results: Results, modules: Sequence[ModuleType], figures: Sequence[str]) -> learners.Table:
    """Return the table of some modules' constants."""
    headings = [f"{figure}, x {factor:g}" for figure, factor in product(figures, FACTORS)]
    table = learners.make_table(", ".join(figures), "constant", "value", *headings)
    for name, value in (item for module in modules for item in find_constants(module).items()):
        cells = []
        for figure, factor in product(figures, FACTORS):
            run = results.get(f"{name} x {factor:g}", {}).get(figure, [])
            apart = np.subtract(run, results[AS_IT_IS][figure][: len(run)] if figure != "false" else 0.0)
            is_same = figure != "false" and not np.any(apart)
            cells.append("" if not run else "0" if is_same else learners.write_mean((apart / 1e3).tolist()))
        table.add_row(name, str(value), *cells)
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    tables: Annotated[Path, typer.Argument(help="Holds tables of outcomes, CSV files.")],
    kept: Annotated[Path, typer.Argument(help="What was measured; written after each constant.")],
    orders: Annotated[int, typer.Option(help="Orders of a table and of a world.", min=1)] = 1,
    turns: Annotated[int, typer.Option(help="Questions of a run on a table.", min=3)] = 300,
    minutes: Annotated[float, typer.Option(help="After which no further constant is begun.")] = 10.0,
) -> None:
    """Measure what is not kept yet, and print the table."""
    begun, files = time.monotonic(), sorted(tables.glob("*.csv"))
    results: Results = orjson.loads(kept.read_bytes()) if kept.exists() else {}
    runs = [(AS_IT_IS, 1.0), *product(EVERY, FACTORS)]
    for seed, (name, factor) in product(range(orders), runs):
        run = results.setdefault(name if name == AS_IT_IS else f"{name} x {factor:g}", {"orders": []})
        if len(run["orders"]) > seed or time.monotonic() - begun > 60.0 * minutes:
            continue
        with scale(name, factor):
            found = (
                {} if name in find_constants(change_detector) else measure_policy(folder, files, seed, turns)
            )
            if name == AS_IT_IS or not found:
                found |= measure_detector(seed)
        for figure, values in found.items():
            run.setdefault(figure, []).extend(values)
        run["orders"].append(seed)
        kept.write_bytes(orjson.dumps(results))
        print(f"{name} x {factor:g}, order {seed}: {time.monotonic() - begun:.0f} s", flush=True)
    console = Console(width=160)
    console.print(tabulate(results, MODULES[:2], OF_POLICY))
    console.print(tabulate(results, MODULES[2:], OF_DETECTOR))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    typer.run(main)
