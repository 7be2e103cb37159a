"""What is asked of a policy that learns, in one table: ours beside those of other packages.

    python benchmarks/goals.py FOLDER TABLES [--rivals PATH] [--seeds 2] [--turns 3000] [--part "one rating"]

FOLDER and `--rivals` are those of `learners.py`, TABLES holds tables of `outcome_tables.py`.

    calm         1,000 times the lead over the best fixed arm on the tables
    one rating   the largest mean change of 40 other questions' probabilities by one rating after 0 to 1,000
                 others, of any arm, and the lowest or the highest that there is; on tables of 3 and 11 arms
    swap         questions until it has recovered, after the best and the worst arm exchanged their rewards
    rise         questions until an arm that has become the best has half of the traffic
    after it     1,000 times the lead over the best arm in the last third
    cold rise    as rise, and after it as "after", without the scores of a router
    two models   questions until nine of ten go to the right one of two models (`two_models.py`), by the extra
                 cost of the large one, and 1,000 times the lead over always using that
    few ratings  that lead at an extra cost of .1, where 5 % are rated and a tenth of these wrongly
    false        restarts in 100,000 rewards with a daily rhythm of .3 standard deviations, of the detector

Means have their standard error over tables and orders; delays are the median and the 90 % quantile. A second
table has the effect of one rating by age, in the largest case of the orders and in their mean.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
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

from armwise.feedback.events import Decision

OTHERS, AGES = 40, (0, 1, 3, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 700, 1000)
"""Other questions, and the ratings before the one whose effect on them is measured."""

BY_FORM_ALONE = "adaptive, form"

OF_ONE_RATING = ("mba", "qa", "routerbench")
"""Tables on which that is measured: of 3, 11 and 11 arms."""

ON_TABLES = {"adaptive": "shipped", BY_FORM_ALONE: "template"}
"""Names of policies in `learners_outcomes.py` that differ from those in `learners.py`."""

BASELINE = "adaptive, baseline: large"

BY_FORM = {"adaptive": "template", BASELINE: "baseline"}
"""Names of policies in `two_models.py`: as `armwise init` writes them."""

NAMES = {"adaptive": "adaptive", "LinUCB": "linucb", "Vowpal Wabbit": "vowpal"}
"""Our policies in `learners.py`, and elsewhere unless named above."""

PARTS = ("calm", "one rating", "changes", "two models", "rhythm")

REWARDS = 100_000
"""Rewards of the detector with a daily rhythm."""

RIVALS = ("MABWiser LinUCB", "ParetoBandit", "river UCB")

Found = dict[str, list[float]]

read_outcomes = cache(learners_outcomes.read_outcomes)
"""A process encodes the questions of a table once: that takes longer than to answer them."""


def play(
    item: tuple[str, str, int, str], tables: Sequence[Path], folder: Path, paths: Sequence[Path], turns: int
) -> Found:
    """Let one policy play one part in one order; return its figures by name."""
    learners_rivals.import_from(paths)
    part, name, seed, table = item
    if part == "two models":
        return play_two_models(BY_FORM.get(name, NAMES.get(name, name)), seed)
    if part == "rhythm":
        days = [world for title, world in restarts.calm(seed).items() if "rhythm" in title]
        random = np.random.default_rng(seed)
        return {"false": [float(restarts.alone(world, REWARDS, random)) for world in days]}
    if part == "changes":
        of_order = worlds(folder, seed)
        swap, rise, cold = (
            learners.figures(learners.play(learners.enter(name, world, seed), world, (seed, 0)), world)
            for world in (of_order["swap"], of_order["rise"], of_order["cold rise"])
        )
        rises = {"rise": [rise.half], "after it": [float(rise.leads[1])]}
        return {"swap": [swap.recovery], **rises, "cold rise": [cold.half], "after": [float(cold.leads[1])]}
    outcomes = read_outcomes(next(path for path in tables if path.stem == table))
    on_table = ON_TABLES.get(name, NAMES.get(name, name))
    if part == "calm":
        return {"calm": [learners.play_outcomes((seed, on_table), outcomes, turns, paths)["all"] / 1000.0]}
    jumps = measure_jumps(on_table, outcomes, seed)
    by_age = {f"{len(outcomes.arms)} arms, {age}": [jump] for age, jump in jumps.items()}
    return {"one rating": [max(jumps.values())], **by_age}


def play_two_models(name: str, seed: int) -> Found:
    """Let a policy choose between two models in one order, at each extra cost."""
    found: Found = {}
    for gap in two_models.GAPS:
        *_, lead, first = two_models.simulate(name, gap, seed, 1.0, 0.0)
        found |= {f"{gap}: found": [first], f"{gap}: lead": [lead]}
    return found | {"few ratings": [two_models.simulate(name, 0.1, seed, 0.05, 0.1)[2]]}


def measure_jumps(name: str, outcomes: learners_outcomes.Outcomes, seed: int) -> dict[int, float]:
    """Return the largest mean change of other questions' probabilities by one rating, by its age."""
    ages = [age for age in AGES if age + OTHERS < len(outcomes.reward)]
    player, world = learners.enter_outcomes(name, outcomes, seed, ages[-1] + 1 + OTHERS)
    uniform, largest = np.random.default_rng([seed, 3]).random(ages[-1] + 1 + OTHERS), {}

    def look(one: two_models.Player, age: int) -> learners.Floats:
        """Return the probabilities of the other questions; asking a rival may change it."""
        asked = one if isinstance(one, learners.Ours) else copy.deepcopy(one)
        turns = range(age + 1, age + 1 + OTHERS)
        return np.array([asked.decide(turn, world.arms, float(uniform[turn]))[0] for turn in turns])

    def learn(one: two_models.Player, turn: int, fact: Decision | None, arm: str, reward: float) -> None:
        """Learn a rating, of an arm that need not be the one drawn."""
        known = None if fact is None else replace(fact, drawn=arm)
        one.learn(turn, known, arm, reward)  # type: ignore[arg-type]

    for turn in range(ages[-1] + 1):
        _, drawn, fact = player.decide(turn, world.arms, float(uniform[turn]))
        if turn in ages:
            before, found = look(player, turn), [0.0]
            for arm, rating in product(world.arms, (world.told.min(), world.told.max())):
                rated = duplicate(player)
                learn(rated, turn, fact, arm, float(rating))
                found.append(float(np.abs(look(rated, turn) - before).sum(axis=1).mean() / 2.0))
            largest[turn] = max(found)
        learn(player, turn, fact, world.arms[drawn], float(world.told[turn, drawn]))
    return largest


def duplicate(player: two_models.Player) -> two_models.Player:
    """Return a player that may learn something else."""
    if isinstance(player, learners.Theirs):
        return copy.deepcopy(player)
    found = copy.copy(player)
    found.policy = player.policy.load(player.policy.save())
    return found


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    tables: Annotated[Path, typer.Argument(help="Holds tables of outcomes, CSV files.")],
    rivals: Annotated[list[Path] | None, typer.Option(help="Folder of other packages.")] = None,
    seeds: Annotated[int, typer.Option(help="Orders of a table; elsewhere four times as many.", min=1)] = 2,
    turns: Annotated[int, typer.Option(help="Questions of a run on a table.", min=3)] = 3000,
    part: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PARTS)}; all if not given.")] = None,
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
        *product(["rhythm"], ["adaptive"], range(seeds), [""]),
        *product(["changes", "two models"], names, orders, [""]),
        *product(["two models"], [BASELINE], orders, [""]),
        *product(["calm"], [*names, BY_FORM_ALONE], range(seeds), [path.stem for path in files]),
        *product(["one rating"], [*names, BY_FORM_ALONE], range(seeds), OF_ONE_RATING),
    ]
    items = [item for item in items if item[0] in (part or PARTS)]
    work = partial(play, tables=files, folder=folder / "qa", paths=paths, turns=turns)
    every: dict[str, Found] = defaultdict(lambda: defaultdict(list))
    for (_, name, *_), found in learners.run_in_parallel(console, items, work):
        for figure, values in found.items():
            every[name][figure] += values
    console.print(tabulate(every))
    console.print(tabulate_ages(every))


def tabulate(every: dict[str, Found]) -> learners.Table:
    """Return the table of all figures, by policy."""
    shown = {
        **dict.fromkeys(
            ("swap", "rise", "cold rise", *(f"{gap}: found" for gap in two_models.GAPS)),
            learners.write_delays,
        ),
        "one rating": lambda values: f"{max(values):.2f}",
        "false": lambda values: f"{np.mean(values):.1f}",
    }
    figures = dict.fromkeys(figure for found in every.values() for figure in found if "arms, " not in figure)
    table = learners.make_table("every goal", "policy", *figures)
    for name, found in every.items():
        cells = (
            shown.get(figure, learners.write_mean)(found[figure]) if figure in found else ""
            for figure in figures
        )
        table.add_row(name, *cells)
    return table


def tabulate_ages(every: dict[str, Found]) -> learners.Table:
    """Return the table of the effects of one rating by its age, by policy and number of arms."""
    table = learners.make_table("one rating, largest / mean", "policy", "arms", *map(str, AGES))
    for (name, found), n_arms in product(every.items(), (3, 11)):
        by_age = [found[f"{n_arms} arms, {age}"] for age in AGES if f"{n_arms} arms, {age}" in found]
        if by_age:
            cells = (f"{max(values):.2f} / {np.mean(values):.2f}" for values in by_age)
            table.add_row(name, f"{n_arms}", *cells)
    return table


if __name__ == "__main__":
    typer.run(main)
