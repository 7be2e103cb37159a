"""How often is an alarm of drift false, and how long does a true one take to come?

    python benchmarks/drift.py [QUESTIONS] [--runs 20] [--seed 0] [--plot drift.png]

Everything passes through `armwise.feedback.drift.Monitor`, as in the learner. Where the world stays as it is,
every alarm is false: one arm on its own, and five arms among which a policy learns to choose, so that each is
shown other questions than before. Where it changes, an arm falls or the questions become others. Those of
QUESTIONS, JSON lines with a `dataset`, are asked one data set after the other.

What a monitor takes an example stands beside Vowpal Wabbit's update from text in the same run.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, permutations, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from drift_worlds import (
    ARMS,
    LEARNING,
    LONG,
    RULE,
    WORLDS,
    Build,
    delay,
    examples,
    false_alarms,
    questions,
    turned,
    while_learning,
)
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table
from river import drift
from vowpalwabbit import Workspace

from armwise.agent.lab.simulation import load_questions
from armwise.agent.policies import FeatureSpec, describe
from armwise.agent.policies.vowpal import DEFAULT
from armwise.feedback.drift import monitor as drift_monitor
from armwise.feedback.events import Context

SETTINGS: dict[str, Build] = {
    "adwin": drift_monitor.build_detector,
    "adwin, river's": drift.ADWIN,
    "page_hinkley, river's": drift.PageHinkley,
}
FALLS = (0.1, 0.2, 0.3, 0.5)
WATCHED = (500, 2_000, 10_000)
"""Rewards of an arm before it falls."""

TURNS: dict[str, dict[str, Any]] = {
    "12 words instead of 10": {"words": 12},
    "15 words instead of 10": {"words": 15},
    "1 word in 10 is new": {"new": 0.1},
    "1 word in 4 is new": {"new": 0.25},
    "embeddings turned by 30 degrees": {"turn": 1 / 3},
    "embeddings turned by 90 degrees": {"turn": 1.0},
}
LEARNERS = tuple(product(("vowpal", "linucb"), ("linear", "not linear")))
"""Policies that learn, and the worlds in which they do."""

ENOUGH = drift_monitor.REFERENCE + 200
"""Questions of a data set that comes first."""

Step = Callable[[], None]


def table_of(title: str, *headings: str) -> Table:
    """Return an empty table whose figures stand to the right."""
    table = Table(title=title, title_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def delay_cells(delays: Sequence[float]) -> list[str]:
    """Return the median, the 90th percentile and the share of misses."""
    some = sorted(delays)
    places = [some[int(q * (len(some) - 1))] for q in (0.5, 0.9)]
    show = [f"{place:,.0f}" if np.isfinite(place) else "-" for place in places]
    return [*show, f"{100 * float(np.mean(np.isinf(some))):.0f} %"]


def stationary(rngs: Sequence[np.random.Generator], step: Step) -> Iterator[Table]:
    """Count alarms where nothing changes."""
    table = table_of(f"false alarms in {LONG:,} rewards of an arm", "", *WORLDS)
    context = table_of(f"false alarms in {LONG:,} questions", "", "length", "features", "embeddings")
    for name, build in SETTINGS.items():
        cells, alarms_by_subject = [], Counter[str]()
        for rewards in WORLDS.values():
            alarms = sum((false_alarms(rng, build, rewards) for rng in rngs), Counter[str]())
            cells.append(f"{alarms.pop('reward of a', 0) / len(rngs):.2f}")
            alarms_by_subject += alarms
            step()
        table.add_row(name, *cells)
        subjects = ("length of questions", "unknown features", "likeness of embeddings")
        context.add_row(
            name, *(f"{alarms_by_subject[subject] / len(rngs) / len(WORLDS):.2f}" for subject in subjects)
        )
    yield from (table, context)


def learning(rngs: Sequence[np.random.Generator], step: Step) -> Iterator[Table]:
    """Count alarms where nothing but the policy changes."""
    title = f"false alarms in {LONG:,} rewards while a policy learns"
    table = table_of(title, "policy", "world", "alarms", "on plain rewards")
    for kind, world in LEARNERS:
        counts = [while_learning(rng, kind, linear=world == "linear") for rng in rngs]
        rates = np.mean(counts, axis=0) * LONG / LEARNING
        table.add_row(kind, world, *(f"{rate:.2f}" for rate in rates))
        step()
    yield table


def falling(
    rngs: Sequence[np.random.Generator], step: Step, curves: dict[tuple[int, float], list[float]]
) -> Iterator[Table]:
    """Measure how long a fall goes unnoticed; keep what the default took, by rewards before and fall."""
    for before in WATCHED:
        title = f"rewards until a fall from 0.7 is noticed, after {before:,}"
        table = table_of(title, "", "fall", "median", "9 in 10", "missed")
        for name, build in SETTINGS.items():
            for fall in FALLS:
                delays = [delay(rng, build, before, fall) for rng in rngs for _ in range(5)]
                table.add_row(name, f"{fall}", *delay_cells(delays))
                if name == "adwin":
                    curves[before, fall] = delays
                step()
        yield table


def turning(rngs: Sequence[np.random.Generator], step: Step) -> Iterator[Table]:
    """Measure how long it goes unnoticed that the questions are others."""
    table = table_of("questions until others are noticed, adwin", "", "median", "9 in 10", "missed", "by")
    for name, change in TURNS.items():
        turns = [turned(rng, questions(rng, 2000), questions(rng, 2000, **change)) for rng in rngs]
        table.add_row(name, *delay_cells([late for late, _ in turns]), by(turns))
        step()
    yield table


def following(
    sets: Mapping[str, Sequence[Context]],
    pairs: Sequence[tuple[str, str]],
    rngs: Sequence[np.random.Generator],
    step: Step,
) -> Iterator[Table]:
    """Measure how long it goes unnoticed that another data set is asked."""
    title = "questions until those of another data set are noticed, adwin"
    table = table_of(title, "first", "then", "median", "9 in 10", "missed", "by")
    for first, then in pairs:
        turns = [turned(rng, shuffled(sets[first], rng), shuffled(sets[then], rng)) for rng in rngs]
        table.add_row(first, then, *delay_cells([late for late, _ in turns]), by(turns))
        step()
    if pairs:
        yield table


def sets_of(path: Path) -> dict[str, list[Context]]:
    """Return the questions of each data set, as a policy sees them."""
    sets = defaultdict(list)
    for question in load_questions(path):
        sets[question.group].append(describe(question.question, FeatureSpec()))
    return sets


def shuffled(contexts: Sequence[Context], rng: np.random.Generator) -> list[Context]:
    """Return them in another order."""
    return [contexts[i] for i in rng.permutation(len(contexts))]


def by(found: Sequence[tuple[float, str]]) -> str:
    """Return what noticed a change most often."""
    return Counter(subject for _, subject in found).most_common(1)[0][0]


def cost(rng: np.random.Generator) -> Table:
    """Measure what a monitor takes an example beside an update of VW from text; the best of ten rounds."""
    table = table_of("microseconds an example", "a question has", "monitor", "VW text update", "/ VW")
    vocabulary, law = np.array([f"word{i}" for i in range(5000)]), 1.0 / np.arange(1, 5001)
    for dims in (0, 32):
        drawn = rng.choice(vocabulary, (4000, 10), p=law / law.sum())
        contexts = [asked(" ".join(words), dims, rng) for words in drawn]
        log = list(examples(contexts, rng.choice(ARMS, len(contexts)).tolist()))
        texts = [as_text(example.decision.context, example.decision.drawn) for example in log]
        monitor, vw = (
            drift_monitor.Monitor(RULE),
            Workspace(arg_list=[*DEFAULT.split(), "--quiet"]),
        )
        best = [np.inf, np.inf]
        for _ in range(10):
            start = time.process_time()
            for example in log:
                monitor.see(example, 0.5)
            middle = time.process_time()
            for text in texts:
                vw.learn(text)
            best = np.minimum(best, np.diff([start, middle, time.process_time()]) / len(log) * 1e6)
        what = "10 words" if not dims else f"10 words, {dims} numbers"
        table.add_row(what, *(f"{us:.1f}" for us in best), f"{best[0] / best[1]:.2f}")
    return table


def asked(text: str, dims: int, rng: np.random.Generator) -> Context:
    """Return what a policy sees of a question."""
    return Context(text, describe(text, FeatureSpec()).features, tuple(rng.normal(size=dims).tolist()))


def as_text(context: Context, drawn: str) -> str:
    """Write a decision as VW's text, one to learn from."""
    named = " ".join(f"{name}:{value:.6f}" for name, value in context.features.items())
    dense = " ".join(f"{i}:{value:.6f}" for i, value in enumerate(context.embedding))
    label = f"0:-0.5:{1 / len(ARMS)} "
    return "\n".join(
        [f"shared |s {named} |e {dense}", *(f"{label if arm == drawn else ''}|a {arm}" for arm in ARMS)]
    )


def draw(curves: dict[tuple[int, float], list[float]], path: Path) -> None:
    """Plot which share of falls is noticed within so many rewards."""
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(WATCHED), sharey=True)
    for axes, before in zip(panels, WATCHED, strict=True):
        for fall, colour in zip(FALLS, ("#9aa5b1", "#2f6fb7", "#3a9d5d", "#d1495b"), strict=True):
            delays = np.sort(curves[before, fall])
            shares = 100 * np.arange(1, len(delays) + 1) / len(delays)
            axes.step(np.minimum(delays, 1e9), shares, where="post", color=colour, label=f"by {fall}")
        axes.set_xlim(10, 2000)
        axes.set_xscale("log")
        axes.set_title(f"after {before:,} rewards", loc="left", fontsize=10, color="#22303c")
        axes.set_xlabel("rewards of the arm since", color="#22303c")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e8eb")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("falls from 0.7 that were noticed, %", color="#22303c")
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, title="a fall", loc="outside right")
    figure.savefig(path)


def main(
    path: Annotated[
        Path | None, typer.Argument(metavar="[QUESTIONS]", help="JSON lines with a `dataset`.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Worlds of each sort.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes.")] = None,
) -> None:
    """Measure, and print tables."""
    console = Console()
    curves: dict[tuple[int, float], list[float]] = {}
    sets = {} if path is None else sets_of(path)
    pairs = [(first, then) for first, then in permutations(sets, 2) if len(sets[first]) >= ENOUGH]
    total = (
        len(SETTINGS) * (len(WORLDS) + len(WATCHED) * len(FALLS)) + len(LEARNERS) + len(TURNS) + len(pairs)
    )
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("worlds", total=total)

        def step() -> None:
            progress.advance(task)

        def rngs() -> list[np.random.Generator]:
            return np.random.default_rng(seed).spawn(runs)

        for table in chain(
            stationary(rngs(), step),
            learning(rngs(), step),
            falling(rngs(), step, curves),
            turning(rngs(), step),
            following(sets, pairs, rngs(), step),
        ):
            console.print(table)
    console.print(cost(np.random.default_rng(seed)))
    if plot is not None:
        draw(curves, plot)


if __name__ == "__main__":
    typer.run(main)
