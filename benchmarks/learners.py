"""Which policy learns, and follows a world that changes? Ours beside those of other packages.

    python benchmarks/learners.py FOLDER [--rivals PATH] [--seeds 32] [--plot learners.png]
    python benchmarks/learners.py FOLDER --only adaptive --world price
    python benchmarks/learners.py --outcomes FILE.csv [--turns 3000] [--seeds 8] [--json OUT]

FOLDER holds `qa/`: what a language model answered through four arms on 4,218 real questions. A reward is F1
less 0.02 a step. In each of the worlds of `learners_worlds.py` a policy answers 3,000 questions, in as many
orders as there are seeds, the same for every policy; a router is fitted to 1,000 others. Ours are drawn from
with the exploration of the service, .02 over all arms. `--rivals` is a folder of other packages
(`learners_rivals.py`).

With `--outcomes` the policies play in calm on a table of one's own (`learners_outcomes.py`), beside ridge
regressions and VW's own explorers; OUT has 1,000 times their lead over the best fixed arm, by policy.

A figure is 1,000 times the reward of a question less that of the arm that is best at the time, so that the
floor alone costs about 6. Questions to recover are those after the change until 200 follow that lose less
than 0.05 each, on average.
"""

import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, TypeVar

import learners_rivals
import numpy as np
import orjson
import typer
from learners_outcomes import Outcomes, entries, read_outcomes, summarise
from learners_worlds import FOUR, HALF, RECOVERED, World, worlds
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from scipy import stats

from armwise.agent.policies import Policy, PolicySpec, build_policy, choose, compute_served_distribution
from armwise.agent.policies.encoding import question_columns
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

Item, Found = TypeVar("Item"), TypeVar("Found")

EXPLORATION = 0.02
"""Share of the draws that all arms have alike, as in the default service."""

ON_ROUTER = {"prior_feature": "router"}

OURS: dict[str, dict[str, Any]] = {
    "uniform": {"kind": "uniform"},
    "LinUCB on the router": {"kind": "linucb", "params": ON_ROUTER},
    "LinUCB": {"kind": "linucb"},
    "Vowpal Wabbit": {"kind": "vowpal"},
    "epsilon-greedy": {"kind": "epsilon_greedy"},
    "adaptive": {"kind": "adaptive"},
}
"""Our policies by name."""

DIMS = 16
"""Columns of a question for rivals, after the constant 1."""

RECOVERY, NEAR = 200, -0.05
"""Questions over which a policy has recovered, and what it may lose there."""

SHARE = 100
"""Questions over which an arm has half of the traffic."""

KILLED, CHECKPOINT = 2017, 100
"""The question at which a process is killed, and the rewards between two checkpoints."""

FORM_COLUMNS = 32
"""Columns of the form of a question on a table of outcomes, for the ridge regressions."""

POINTS = 60
"""Points of a curve."""


@dataclass
class Run:
    """What became of a policy in a world.

    Attributes:
        lead: Reward of each question less that of the best arm of the time, shape (n,).
        share: Probability of the arm that is watched, shape (n,).
        surprise: Sum of the draws of each arm less their probabilities, and its variance, shape (2, n_arms).
        seconds: What deciding and learning took.
    """

    lead: Floats
    share: Floats
    surprise: Floats
    seconds: float


@dataclass
class Figures:
    """Means of runs, in one order of the questions each.

    Attributes:
        leads: Lead in the first 300, in the last third, and in the 500 after the change, shape (3,).
        recovery: Questions after the change until it has recovered.
        half: Questions until the arm that is watched has half of the traffic.
        draws: Draws of the arm that is watched, once it is there or has changed.
        curve: Mean lead in equal parts of the run, shape (POINTS,).
        surprise: As in `Run`.
        us: Microseconds of a question.
    """

    leads: Floats
    recovery: float
    half: float
    draws: float
    curve: Floats
    surprise: Floats
    us: float


def play(player: "Ours | Theirs", world: World, seed: Sequence[int]) -> Run:
    """Let a policy answer the questions of a world; the same seed gives the same numbers to draw by."""
    n, index = len(world.reward), {arm: i for i, arm in enumerate(world.arms)}
    lead, share, surprise = np.empty(n), np.zeros(n), np.zeros((2, len(world.arms)))
    uniform = np.random.default_rng(seed).random(n)
    due: deque[tuple[int, Any, int]] = deque()
    best, learned = world.best, list[tuple[int, Any, int]]()
    begun = time.process_time()
    for turn in range(n):
        if world.repriced is not None and turn == world.segments[1]:
            player.reprice(learned, world)
        arms = world.live(turn)
        p, drawn, fact = player.decide(turn, arms, float(uniform[turn]))
        at = [index[arm] for arm in arms]
        lead[turn] = p @ world.reward[turn, at] - best[turn]
        if world.watched in arms:
            share[turn] = p[arms.index(world.watched)]
        surprise[0, at] += (np.arange(len(at)) == drawn) - p
        surprise[1, at] += p * (1.0 - p)
        due.append((turn, fact, at[drawn]))
        if len(due) > world.delay:
            past_turn, fact, arm = due.popleft()
            if not np.isnan(world.told[past_turn, arm]):
                player.learn(past_turn, fact, world.arms[arm], float(world.told[past_turn, arm]))
                learned.append((past_turn, fact, arm))
    return Run(lead, share, surprise, time.process_time() - begun)


class Ours:
    """A policy of ours, drawn from as the service does."""

    def __init__(self, spec: Mapping[str, Any], world: World, exploration: float = EXPLORATION) -> None:
        self._spec, self._exploration = spec, exploration
        self.policy: Policy = build_policy(PolicySpec.model_validate(spec), world.live(0))
        self._contexts = world.contexts

    def decide(self, turn: int, arms: tuple[str, ...], u: float) -> tuple[Floats, int, Decision]:
        """Return the distribution, the place of the arm drawn, and the decision."""
        context = self._contexts[turn]
        p = compute_served_distribution(self.policy, context, arms, self._exploration / len(arms))
        drawn = choose(p, u)
        return p, drawn, Decision("d", context, arms, tuple(p.tolist()), arms[drawn], self.policy.kind, 1)

    def learn(self, turn: int, fact: Decision, arm: str, reward: float) -> None:
        """Learn a reward."""
        del turn, arm
        self.policy.learn(fact, reward)

    def reprice(self, known: Sequence[tuple[int, Decision, int]], world: World) -> None:
        """Learn the log anew at the prices of today, as the learner does where a price has changed."""
        assert world.repriced is not None
        self.policy = build_policy(PolicySpec.model_validate(self._spec), world.live(0))
        contexts, told = world.repriced
        for turn, fact, arm in known:
            self.policy.learn(replace(fact, context=contexts[turn]), float(told[turn, arm]))


class Theirs:
    """A rival, whose choice is all that is known of its distribution."""

    def __init__(
        self, rival: learners_rivals.Rival, world: World, dims: int = DIMS, *, plain: bool = False
    ) -> None:
        self.rival, self._dims, self._plain, self._contexts = rival, dims, plain, world.contexts
        rewards = world.told[~np.isnan(world.told)]
        self._least, self._range = float(rewards.min()), float(np.ptp(rewards)) or 1.0

    def decide(self, turn: int, arms: tuple[str, ...], u: float) -> tuple[Floats, int, None]:
        """Return its choice, as a distribution and as a place."""
        del u
        drawn = arms.index(self.rival.choose(self._contexts[turn].question, self._x(turn), arms))
        return np.eye(len(arms))[drawn], drawn, None

    def learn(self, turn: int, fact: None, arm: str, reward: float) -> None:
        """Learn a reward, scaled to [0, 1]."""
        del fact
        scaled = (reward - self._least) / self._range
        self.rival.learn(self._contexts[turn].question, self._x(turn), arm, scaled)

    def reprice(self, known: Sequence[tuple[int, None, int]], world: World) -> None:
        """Do nothing: it has no log."""

    def _x(self, turn: int) -> Floats:
        return numbers(self._contexts[turn], self._dims, plain=self._plain)


def numbers(context: Context, dims: int = DIMS, *, plain: bool = False) -> Floats:
    """Return what a rival sees of a question: 1, its form in so many columns, its embedding unless plain."""
    seen = replace(context, embedding=()) if plain else context
    return np.array([1.0, *question_columns(seen, dims, None)])


def enter(name: str, world: World, seed: int) -> Ours | Theirs:
    """Return a policy that has seen nothing of a world, by its name."""
    if name in OURS:
        return Ours(OURS[name], world)
    return Theirs(learners_rivals.RIVALS[name](world.live(0), 1 + DIMS, seed), world)


def play_outcomes(
    item: tuple[int, str], table: Outcomes, turns: int, paths: Sequence[Path]
) -> dict[str, float]:
    """Let one policy answer the questions of a table in one order."""
    learners_rivals.import_from(paths)
    seed, name = item
    player, world = enter_outcomes(name, table, seed, turns)
    return summarise(play(player, world, (seed, 0)).lead)


def enter_outcomes(name: str, table: Outcomes, seed: int, turns: int) -> "tuple[Ours | Theirs, World]":
    """Return a policy that has seen nothing of a table, by its name, and the questions in an order."""
    entry = entries().get(name)
    world = table.world(seed, turns, plain=entry is not None and entry.plain)
    if entry is not None:
        return Ours(entry.spec, world, entry.exploration), world
    if name in (ridges := learners_rivals.ridges(FORM_COLUMNS)):
        d = 1 + FORM_COLUMNS + len(world.contexts[0].embedding)
        return Theirs(ridges[name](world.arms, d, seed), world, FORM_COLUMNS), world
    return enter_by_form(name, world, seed), world


def enter_by_form(name: str, world: World, seed: int) -> Theirs:
    """Return a policy of another package that sees the form of a question."""
    return Theirs(learners_rivals.RIVALS[name](world.arms, 1 + DIMS, seed), world, plain=True)


def figures(run: Run, world: World) -> Figures:
    """Return what a table shows of a run."""
    lead, n = run.lead, len(run.lead)
    change = next(iter(world.added.values()), world.segments[-2] if len(world.segments) > 2 else n)
    after = lead[change : change + 500]
    leads = np.array([lead[:300].mean(), lead[-(n // 3) :].mean(), after.mean() if len(after) else np.nan])
    back = find_first(average(lead[change:], RECOVERY) > NEAR) if change < n else np.nan
    half = find_first(average(run.share[change:], SHARE) >= 0.5) if change < n else np.nan
    draws = run.share[change:].sum() if change < n else np.nan
    curve = np.array([part.mean() for part in np.array_split(lead, POINTS)])
    return Figures(leads, back, half, float(draws), curve, run.surprise, run.seconds / n * 1e6)


def average(values: Floats, window: int) -> Floats:
    """Return the mean of each window, shape (n - window + 1,)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((total[window:] - total[:-window]) / window)


def find_first(holds: NDArray[np.bool_]) -> float:
    """Return the first place that holds; infinity where there is none."""
    return float(holds.argmax()) if holds.any() else np.inf


def task(
    item: tuple[int, str], folder: Path, paths: Sequence[Path], among: Sequence[str]
) -> dict[str, Figures]:
    """Let one policy answer the questions of some worlds in one order; of all, where none is named."""
    learners_rivals.import_from(paths)
    seed, name = item
    return {
        title: figures(play(enter(name, world, seed), world, (seed, number)), world)
        for number, (title, world) in enumerate(worlds(folder, seed).items())
        if title in among or not among
    }


# -- kill -9 -------------------------------------------------------------------------------------------


def killed(name: str, world: World, seed: int) -> str:
    """Return what is lost where the process is killed in the middle: rewards, or that none is.

    Ours are restored as a learner does it: from a checkpoint and the log after it, where it resumes exactly,
    else from the log. The others have what was saved at every hundredth reward, and no log.
    """
    with tempfile.TemporaryDirectory() as folder:
        if (child := os.fork()) == 0:
            try:
                _live_and_die(name, world, seed, Path(folder))
            finally:
                os._exit(1)  # reached by an error alone
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"{name} ended before it was killed")
        rows = [orjson.loads(line) for line in Path(folder, "log").read_bytes().splitlines()]
        saved = Path(folder, "checkpoint")
        if name not in OURS:
            return f"{len(rows) % CHECKPOINT} rewards"
        restored, whole = Ours(OURS[name], world), Ours(OURS[name], world)
        restored_rows = 0
        if restored.policy.resumes_exactly:
            restored_rows = len(rows) // CHECKPOINT * CHECKPOINT
            restored.policy = restored.policy.load(saved.read_bytes())
        for number, (turn, drawn, p, reward) in enumerate(rows):
            arms = world.live(turn)
            fact = Decision("d", world.contexts[turn], arms, tuple(p), drawn, whole.policy.kind, 1)
            whole.policy.learn(fact, reward)
            if number >= restored_rows:
                restored.policy.learn(fact, reward)
        return "nothing" if restored.policy.save() == whole.policy.save() else "its state differs"


def _live_and_die(name: str, world: World, seed: int, folder: Path) -> None:
    """Answer questions, write each reward down, and be killed."""
    player = enter(name, world, seed)
    uniform = np.random.default_rng([seed, 2]).random(KILLED)
    with (folder / "log").open("wb") as log:
        for turn in range(KILLED):
            arms = world.live(turn)
            p, drawn, fact = player.decide(turn, arms, float(uniform[turn]))
            reward = float(world.told[turn, world.arms.index(arms[drawn])])
            log.write(orjson.dumps([turn, arms[drawn], p.tolist(), reward]) + b"\n")
            log.flush()
            player.learn(turn, fact, arms[drawn], reward)  # type: ignore[arg-type]
            if (turn + 1) % CHECKPOINT == 0:
                _keep(player, folder)
    os.kill(os.getpid(), signal.SIGKILL)


def _keep(player: Ours | Theirs, folder: Path) -> None:
    (folder / "part").write_bytes(player.policy.save() if isinstance(player, Ours) else player.rival.save())
    (folder / "part").rename(folder / "checkpoint")


# -- tables and plot -----------------------------------------------------------------------------------


@dataclass
class Results:
    """What every policy did in every world, by policy, world and seed."""

    of: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)

    def add(self, name: str, found: Mapping[str, Figures]) -> None:
        """Add the figures of one seed."""
        for title, run in found.items():
            self.of.setdefault(name, {}).setdefault(title, []).append(run)

    def tables(self) -> Iterator[Table]:
        """Yield the tables of rewards."""
        titles = [*next(iter(self.of.values()))]
        changing = [world for world in CHANGING if world in titles]
        for title, place, shown in (
            ("first 300 questions", 0, [world for world in titles if world in ("calm", "cold", "misled")]),
            (f"the 500 questions after the change at {HALF:,} (recovery: {RECOVERED:,})", 2, changing),
            ("last third", 1, titles),
        ):
            table = make_table(title, "policy", *shown)
            for name, runs_by_world in self.of.items():
                cells = (write_mean([run.leads[place] for run in runs_by_world[world]]) for world in shown)
                table.add_row(name, *cells)
            yield table
        table = make_table("questions to recover, median / 9 in 10", "policy", *changing)
        for name, runs_by_world in self.of.items():
            table.add_row(
                name, *(write_delays([run.recovery for run in runs_by_world[world]]) for world in changing)
            )
        yield table
        watched = [world for world in ("newcomer", "rise", "cold rise", "price") if world in titles]
        empty = ["empty"] if "empty" in titles else []
        headings = [*(f"{world}: its draws" for world in empty), *(f"{world}: half" for world in watched)]
        table = make_table("an arm that is added, rises or becomes cheaper", "policy", *headings)
        for name, runs_by_world in self.of.items():
            draws = (f"{np.mean([run.draws for run in runs_by_world[world]]):.0f}" for world in empty)
            table.add_row(
                name, *draws, *(write_delays([run.half for run in runs_by_world[world]]) for world in watched)
            )
        yield table

    def records(self, lost: Mapping[str, str]) -> Table:
        """Return what is on record of each policy: its propensities, its state and what it takes."""
        table = make_table(
            "on record", "policy", "chi-square of draws, p", "lost by kill -9", "us a question"
        )
        for name, runs_by_world in self.of.items():
            every = [run for runs in runs_by_world.values() for run in runs]
            us = f"{np.mean([run.us for run in every]):.0f}"
            table.add_row(name, _fit(every) if name in OURS else "no chance on record", lost[name], us)
        return table

    def draw(self, path: Path) -> None:
        """Plot the lead over the questions of eight worlds."""
        shown = ("calm", "misled", "swap", "sparse", "delayed", "poisoned", "rise", "newcomer")
        figure = Figure(figsize=(13, 6), dpi=150, layout="constrained")
        panels = figure.subplots(2, 4, sharex=True, sharey=True).ravel()
        at = (np.arange(POINTS) + 0.5) * len(FOUR) * 750 / POINTS
        for axes, world in zip(panels, shown, strict=True):
            for name, runs_by_world in self.of.items():
                curve = np.mean([run.curve for run in runs_by_world[world]], axis=0)
                smooth = np.convolve(np.pad(curve, 1, mode="edge"), np.ones(3) / 3, mode="valid")
                style = STYLES.get(name, {"color": "#b9c1c9", "linewidth": 0.9})
                axes.plot(at, smooth, label=name if name in STYLES else None, **style)
            axes.set_title(world, loc="left", fontsize=10, color="#22303c")
            axes.axhline(0.0, color="#22303c", linewidth=0.6)
            axes.set_ylim(-0.25, 0.03)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color="#e6e8eb")
            axes.set_axisbelow(True)
        figure.supxlabel("questions", color="#22303c", fontsize=10)
        figure.supylabel("reward less that of the best arm of the time", color="#22303c", fontsize=10)
        figure.legend(
            *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        figure.savefig(path)


CHANGING = (
    "swap",
    "cold",
    "sparse",
    "delayed",
    "censored",
    "poisoned",
    "rise",
    "cold rise",
    "recovery",
    "price",
)
"""Worlds in which an arm changes."""

STYLES: dict[str, dict[str, Any]] = {
    "adaptive": {"color": "#22303c", "linewidth": 2.6, "zorder": 5},
    "Vowpal Wabbit": {"color": "#d1495b", "linewidth": 1.5},
    "epsilon-greedy": {"color": "#e0a03a", "linewidth": 1.5},
    "LinUCB on the router": {"color": "#2f6fb7", "linewidth": 1.5},
    "ParetoBandit": {"color": "#3a9d5d", "linewidth": 1.5},
    "LiteLLM adaptive": {"color": "#8d5fb0", "linewidth": 1.5},
}
"""Policies with a colour of their own; the others are grey."""


def make_table(title: str, *headings: str) -> Table:
    """Return an empty table in Markdown, whose first column is text."""
    table = Table(title=title, title_justify="left", box=MARKDOWN)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=not place)
    return table


def write_mean(values: Sequence[float]) -> str:
    """Return 1,000 times the mean of some values, with its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{1000 * np.mean(values):+.0f} ({1000 * error:.0f})"


def write_delays(values: Sequence[float]) -> str:
    """Return the median and the 90 % quantile of some numbers of questions."""
    median, late = np.quantile(values, (0.5, 0.9), method="higher")
    return " / ".join("never" if np.isinf(quantile) else f"{quantile:.0f}" for quantile in (median, late))


def _fit(every: Sequence[Figures]) -> str:
    """Return the p-value of the draws of all runs under the chances on record."""
    total, freedom = 0.0, 0
    for run in every:
        there = run.surprise[1] > 0.0
        total += float((run.surprise[0, there] ** 2 / run.surprise[1, there]).sum())
        freedom += int(there.sum())
    return f"{stats.chi2.sf(total, freedom):.2f}"


def main(
    folder: Annotated[Path | None, typer.Argument(help="Holds qa/.")] = None,
    rivals: Annotated[list[Path] | None, typer.Option(help="Folder of other packages.")] = None,
    seeds: Annotated[int, typer.Option(help="Orders of the questions.", min=1)] = 32,
    only: Annotated[list[str] | None, typer.Option(help="Policies to run; all if not given.")] = None,
    world: Annotated[list[str] | None, typer.Option(help="Worlds to play; all if not given.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes, of all worlds.")] = None,
    outcomes: Annotated[Path | None, typer.Option(help="A table: `question`, and a reward an arm.")] = None,
    turns: Annotated[int, typer.Option(help="Questions of a run on that table.", min=3)] = 3000,
    to: Annotated[Path | None, typer.Option("--json", help="Where the leads on that table go.")] = None,
) -> None:
    """Play all worlds, or on one table, and print tables."""
    console, paths = Console(width=200), rivals or []
    learners_rivals.import_from(paths)
    missing = learners_rivals.available()
    for name, why in missing.items():
        console.print(f"left out: {name} ({why})", style="yellow")
    installed = [name for name in learners_rivals.RIVALS if name not in missing]
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    if outcomes is not None:
        names = _choose([*entries(), *learners_rivals.ridges(FORM_COLUMNS), *installed], only)
        work = partial(play_outcomes, table=read_outcomes(outcomes), turns=turns, paths=paths)
        leads = _on_outcomes(console, names, seeds, work)
        if to is not None:
            to.write_bytes(orjson.dumps(leads, option=orjson.OPT_INDENT_2))
        return
    if folder is None:
        raise typer.BadParameter("FOLDER, or --outcomes FILE.csv, is missing")
    names = _choose([*OURS, *installed], only)
    if unknown := set(world or ()) - worlds(folder / "qa", 0).keys():
        raise typer.BadParameter(f"{', '.join(unknown)}: not among {', '.join(worlds(folder / 'qa', 0))}")
    results = Results({name: {} for name in names})
    play_worlds = partial(task, folder=folder / "qa", paths=paths, among=world or ())
    for (_, name), by_world in run_in_parallel(console, [*product(range(seeds), names)], play_worlds):
        results.add(name, by_world)
    for table in results.tables():
        console.print(table)
    if world:
        return
    swap = worlds(folder / "qa", 0)["swap"]
    console.print(results.records({name: killed(name, swap, 0) for name in names}))
    if plot is not None:
        results.draw(plot)


def _choose(names: Sequence[str], only: Sequence[str] | None) -> list[str]:
    """Return the policies to run. Raises BadParameter for one that is not there."""
    if unknown := set(only or ()) - {*names}:
        raise typer.BadParameter(f"{', '.join(unknown)}: not among {', '.join(names)}")
    return [name for name in names if not only or name in only]


def run_in_parallel(
    console: Console, items: Sequence[Item], work: Callable[[Item], Found]
) -> Iterator[tuple[Item, Found]]:
    """Yield what becomes of each item, in their order, with a progress bar."""
    columns = (*Progress.get_default_columns()[:1], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool,
        Progress(*columns, TimeRemainingColumn(), console=console) as progress,
    ):
        bar = progress.add_task("policies and orders", total=len(items))
        for item, found in zip(items, pool.map(work, items), strict=True):
            yield item, found
            progress.advance(bar)


def _on_outcomes(
    console: Console, names: Sequence[str], seeds: int, work: Callable[[tuple[int, str]], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Play on a table, print the leads with their standard errors, and return their means by policy."""
    leads: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for (_, name), found in run_in_parallel(console, [*product(range(seeds), names)], work):
        leads[name].append(found)
    columns = [*leads[names[0]][0]]
    table = make_table("1,000 x lead over the best fixed arm", "policy", *columns)
    for name, runs in sorted(leads.items(), key=lambda item: -np.mean([run["all"] for run in item[1]])):
        table.add_row(name, *(write_mean([run[column] / 1000.0 for run in runs]) for column in columns))
    console.print(table)
    return {
        name: {column: float(np.mean([run[column] for run in runs])) for column in columns}
        for name, runs in leads.items()
    }


if __name__ == "__main__":
    typer.run(main)
