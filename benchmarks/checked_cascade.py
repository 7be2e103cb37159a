"""A cheap model, a check of its answer, and a dear model: what is a checked cascade worth on tables?

    python benchmarks/checked_cascade.py --data FOLDER [--worth 10] [--seeds 20] [--passes 4]

FOLDER holds `firstpass-*.jsonl.gz`. A line is a task with what two models earned and cost on it, and what a
test and a judge said of each answer: {"id", "rewards": {arm: x}, "usd": {arm: dollars}, "check": {arm: x},
"judge": {arm: x or null}}. The model that costs less is the cheap one. A reward is the quality less `worth`
for a dollar.

    always ...             one model for all tasks
    cascade by the test    the dear model answers where the test fails; both are paid for
    cascade, judge >= s    the dear model answers below a grade; both are paid for
    ..., fitted            s is chosen on one half of the tasks and measured on the other, by
                           `armwise.agent.lab.offline.fit_threshold`: the best one on both answers of each
                           task ("table"), or from .5 on the one that is surely better in one answer each, as
                           a log with `explore` of .2 has them ("log")
    policy over ...        a policy draws one of the two models and the cascade by the test, and learns from
                           the reward of what it drew; the tasks come `passes` times, in another order each
    oracle                 the model of the larger reward on each task

Rows that are fitted or learn are means over seeds, with the standard deviation over seeds in brackets; a
policy is measured in its last pass. The interval of the difference in quality to always dear is a paired
bootstrap over tasks.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import learners
import numpy as np
import typer
from learners_outcomes import TEMPLATE, entries, read_settings
from learners_worlds import World
from numpy.typing import NDArray

from armwise.agent.lab.offline import CheckedAnswers, fit_threshold
from armwise.agent.policies import FeatureSpec, describe

Floats = NDArray[np.float64]

EXPLORE = 0.2
"""Share of the tasks of a log where a coin decides."""

RESAMPLES = 4000

POLICIES = {"adaptive": "template", "linear_thompson": "linear_thompson"}
"""Policies by the name of their row: those of `learners_outcomes.entries`."""


@dataclass(frozen=True, eq=False)
class CheckedTable:
    """What two models earned and cost on tasks, and what was said of the answer of the first.

    Attributes:
        arms: Names of the cheap and of the dear model.
        quality: Quality of each answer, shape (n, 2).
        usd: Dollars of each answer, shape (n, 2).
        test: What the test says of the cheap answer, shape (n,).
        grade: What the judge says of it; None: the table has no judge.
    """

    arms: tuple[str, str]
    quality: Floats
    usd: Floats
    test: Floats
    grade: Floats | None

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.test)


@dataclass(frozen=True, eq=False)
class Answered:
    """What a way to answer earned on tasks.

    Attributes:
        quality: Quality of the answer that was sent, shape (n,).
        usd: Dollars of all that was asked, shape (n,).
        dear: Whether the dear model was asked, shape (n,).
    """

    quality: Floats
    usd: Floats
    dear: Floats


def read_table(path: Path) -> CheckedTable:
    """Read a table. Raises SystemExit for a file that is none."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    try:
        names = sorted(rows[0]["usd"], key=lambda arm: float(np.mean([row["usd"][arm] for row in rows])))
        cheap, dear = names

        def column(field: str, *arms: str) -> Floats:
            return np.array([[row[field][arm] for arm in arms] for row in rows], dtype=np.float64)

        grade = column("judge", cheap)[:, 0]
        return CheckedTable(
            (cheap, dear),
            column("rewards", cheap, dear),
            column("usd", cheap, dear),
            column("check", cheap)[:, 0],
            None if np.isnan(grade).any() else grade,
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise SystemExit(f"{path}: no table of two models with a check: {error!r}") from error


def ask_one(table: CheckedTable, arm: int | NDArray[np.intp]) -> Answered:
    """Return what one model, or one for each task, earned."""
    chosen = np.broadcast_to(arm, len(table))
    every = np.arange(len(table))
    return Answered(table.quality[every, chosen], table.usd[every, chosen], (chosen == 1).astype(float))


def cascade(table: CheckedTable, goes_on: NDArray[np.bool_]) -> Answered:
    """Return what the cheap model earned, and the dear one after it where it goes on."""
    quality = np.where(goes_on, table.quality[:, 1], table.quality[:, 0])
    usd = table.usd[:, 0] + np.where(goes_on, table.usd[:, 1], 0.0)
    return Answered(quality, usd, goes_on.astype(float))


def net(answered: Answered, worth: float) -> Floats:
    """Return the reward of each task, shape (n,)."""
    return answered.quality - worth * answered.usd


def select(table: CheckedTable, rows: NDArray[np.intp]) -> CheckedTable:
    """Return some rows of a table."""
    grade = None if table.grade is None else table.grade[rows]
    return CheckedTable(table.arms, table.quality[rows], table.usd[rows], table.test[rows], grade)


def checked_answers(
    table: CheckedTable, score: Floats, worth: float, rng: np.random.Generator | None
) -> CheckedAnswers:
    """Return tasks as a log has them: of each task one answer, or both, each with probability 1/2.

    Args:
        table: The tasks.
        score: What is said of the cheap answer, shape (n,).
        worth: Quality that a dollar is worth.
        rng: Draws the coins of a log whose threshold is 0.5; None: both answers of each task are known.
    """
    rewards = [net(cascade(table, np.full(len(table), on)), worth) for on in (False, True)]
    if rng is None:
        n, both = len(table), np.tile(score, 2)
        return CheckedAnswers(both, np.repeat([False, True], n), np.full(2 * n, 0.5), np.concatenate(rewards))
    overruled = rng.random(len(table)) < EXPLORE / 2
    goes_on = (score < 0.5) ^ overruled
    p = np.where(overruled, EXPLORE / 2, 1 - EXPLORE / 2)
    return CheckedAnswers(score, goes_on, p, np.where(goes_on, rewards[1], rewards[0]))


def fit_and_measure(
    table: CheckedTable, score: Floats, worth: float, seed: int, *, from_log: bool
) -> tuple[float, Answered]:
    """Return the threshold that is fitted to one half, and what it earned on the other."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table))
    fitted, measured = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    answers = checked_answers(select(table, fitted), score[fitted], worth, rng if from_log else None)
    fit = fit_threshold("cascade", answers, 0.5)
    threshold = fit.chosen if from_log else fit.best.threshold
    return threshold, cascade(select(table, measured), score[measured] < threshold)


def play(
    table: CheckedTable, ways: Sequence[Answered], policy: str, worth: float, seed: int, passes: int
) -> Answered:
    """Return what a policy over several ways earned in its last pass over the tasks."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(table)) for _ in range(passes)])
    reward = np.stack([net(way, worth) for way in ways], axis=1)[order]
    spec = FeatureSpec.model_validate(read_settings(TEMPLATE)["features"])
    context = describe("", spec)  # the tables have no texts
    arms = tuple(f"way-{at}" for at in range(len(ways)))
    world = World((context,) * len(order), arms, reward, reward, (0, len(order)), {})
    entry = entries()[policy]
    player = learners.Ours(entry.spec, world, entry.exploration)
    drawn = np.empty(len(order), dtype=np.intp)
    for turn in range(len(order)):
        _, drawn[turn], fact = player.decide(turn, arms, rng.random())
        player.learn(turn, fact, arms[drawn[turn]], float(reward[turn, drawn[turn]]))
    last = np.arange(len(order)) >= len(order) - len(table)
    tasks = order[last]
    columns = [
        np.stack([getattr(way, name) for way in ways], axis=1)[tasks, drawn[last]]
        for name in ("quality", "usd", "dear")
    ]
    return Answered(*columns)


def interval(difference: Floats) -> str:
    """Return a mean and its 95 % interval by a bootstrap, in points of quality."""
    rng = np.random.default_rng(0)
    n = len(difference)
    means = [difference[rng.integers(0, n, n)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def row(name: str, answered: Answered, worth: float, beside: str) -> str:
    """Return a row of the table."""
    quality, usd = answered.quality.mean(), answered.usd.mean()
    return (
        f"| {name} | {quality:.4f} | {usd:.5f} | {usd / quality:.5f} | {answered.dear.mean():.0%} "
        f"| {net(answered, worth).mean():.4f} | {beside} |"
    )


def row_of_seeds(name: str, runs: Sequence[Answered], worth: float) -> str:
    """Return a row of means over seeds, with the standard deviation of quality and reward."""

    def over(read: Callable[[Answered], float]) -> tuple[float, float]:
        values = np.array([read(run) for run in runs])
        return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0

    quality, spread = over(lambda run: float(run.quality.mean()))
    usd, _ = over(lambda run: float(run.usd.mean()))
    reward, spread_of_reward = over(lambda run: float(net(run, worth).mean()))
    dear, _ = over(lambda run: float(run.dear.mean()))
    return (
        f"| {name} | {quality:.4f} ({spread:.4f}) | {usd:.5f} | {usd / quality:.5f} | {dear:.0%} "
        f"| {reward:.4f} ({spread_of_reward:.4f}) |  |"
    )


def rows_of(table: CheckedTable, worth: float, seeds: int, passes: int) -> Iterator[str]:
    """Yield the rows of a table of outcomes."""
    cheap, dear, by_test = ask_one(table, 0), ask_one(table, 1), cascade(table, table.test < 1.0)
    rewards = np.stack([net(cheap, worth), net(dear, worth)], axis=1)
    fixed = {
        "always cheap": cheap,
        "always dear": dear,
        "cascade by the test": by_test,
        "oracle": ask_one(table, rewards.argmax(axis=1)),
    }
    if table.grade is not None:
        fixed["cascade, judge >= 0.5"] = cascade(table, table.grade < 0.5)
        fixed["cascade, test and judge >= 0.5"] = cascade(table, np.minimum(table.test, table.grade) < 0.5)
    for name, answered in fixed.items():
        same = name == "always dear"
        yield row(name, answered, worth, "" if same else interval(answered.quality - dear.quality))
    if table.grade is not None:
        for what, score in (("judge", table.grade), ("test and judge", np.minimum(table.test, table.grade))):
            for source in ("table", "log"):
                found = [
                    fit_and_measure(table, score, worth, seed, from_log=source == "log")
                    for seed in range(seeds)
                ]
                chosen = ", ".join(f"{s:g}" for s in sorted({threshold for threshold, _ in found}))
                name = f"cascade, {what} >= s, fitted on a {source} (s of {chosen})"
                yield row_of_seeds(name, [answered for _, answered in found], worth)
    for name, policy in POLICIES.items():
        runs = [play(table, (cheap, dear, by_test), policy, worth, seed, passes) for seed in range(seeds)]
        yield row_of_seeds(f"policy over cheap, dear and cascade: {name}", runs, worth)


def main(
    data: Annotated[Path, typer.Option(help="Folder with firstpass-*.jsonl.gz.")],
    worth: Annotated[float, typer.Option(min=0, help="Quality that a dollar is worth.")] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, help="Splits and orders.")] = 20,
    passes: Annotated[int, typer.Option(min=1, help="Times that the tasks come to a policy.")] = 4,
) -> None:
    """Print a table for each file."""
    files = sorted(data.glob("firstpass-*.jsonl.gz"))
    if not files:
        raise SystemExit(f"{data}: no firstpass-*.jsonl.gz")
    for path in files:
        table = read_table(path)
        print(f"\n{path.name.split('.')[0]}: {len(table)} tasks, {table.arms[0]} and {table.arms[1]}\n")
        print(
            "| | quality | $ a task | $ a right answer | dear asked | reward | quality beside always dear |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for line in rows_of(table, worth, seeds, passes):
            print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
