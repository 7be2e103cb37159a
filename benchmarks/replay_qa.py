"""How far is each estimate from the truth, on logs of questions whose every outcome is known?

    python -m benchmarks.replay_qa FOLDER [--logs 200] [--model means --model ridge] [--plot FILE]

FOLDER holds `queries.jsonl.gz` and `outcomes.jsonl.gz`: what every arm answered on every question. A policy
logs answers to questions drawn from them (`benchmarks.replay_worlds`), and four other policies are evaluated
from that log. What they would have earned is a mean over all questions, of F1 less 0.02 a step.

In the longest log each question is asked eight times. Estimators whose name ends in `ridge` predict rewards
from the words of the question; the others, where they need a model, by the mean of each arm.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Annotated, get_args

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.progress import Progress

from armwise.feedback.arrays import Floats
from armwise.feedback.ope import ESTIMATORS, Model
from benchmarks.replay_worlds import KINDS, LOGGERS, SIZES, TARGETS, names_of, read, simulate

CHUNK = 10
"""Logs that a process makes between two steps of the progress bar."""


def work(
    folder: Path, logger: str, size: str, models: Sequence[Model], rngs: list[np.random.Generator]
) -> list[Floats]:
    """Make some logs, in a process of its own."""
    return [simulate(read(folder), logger, size, models, rng) for rng in rngs]


Said = dict[tuple[str, str], Floats]
"""By logging policy and size, what is said in all logs, shape (logs, targets, names, 1 + 2 * kinds)."""


def measure(
    folder: Path, sizes: Sequence[str], logs: int, models: Sequence[Model], seed: int, workers: int
) -> Said:
    """Make all logs, and show how far it is."""
    read(folder)  # inherited by the processes
    with Progress() as bar, ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        task = bar.add_task("logs", total=logs * len(LOGGERS) * len(sizes))
        waiting = {}
        for place, logger in enumerate(LOGGERS):
            for size in sizes:
                rngs = np.random.default_rng([seed, place, SIZES[size][0]]).spawn(logs)
                for start in range(0, logs, CHUNK):
                    chunk = rngs[start : start + CHUNK]
                    waiting[pool.submit(work, folder, logger, size, models, chunk)] = (logger, size, start)
        for future in as_completed(waiting):
            bar.advance(task, len(future.result()))
    parts: dict[tuple[str, str], list[Floats]] = {}
    for future, (logger, size, _) in sorted(waiting.items(), key=lambda item: item[1][2]):
        parts.setdefault((logger, size), []).extend(future.result())
    return {key: np.stack(parts[key]) for key in parts}


def spread(error: Floats) -> Floats:
    """Return the root mean square of errors, shape (logs, targets, estimators), for each estimator."""
    return np.sqrt(np.nanmean(error**2, axis=(0, 1)))


def slant(error: Floats) -> Floats:
    """Return how far each estimator is off on average, without sign, mean over targets."""
    return np.abs(np.nanmean(error, axis=0)).mean(axis=0)


def tables(said: Said, sizes: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of all tables."""
    columns = [f"{size} rows" for size in sizes]
    for logger in LOGGERS:
        yield f"\nlog: {logger}; root mean square error (bias)\n"
        yield from head("estimator", *columns)
        errors = [said[logger, size][..., 0] for size in sizes]
        far, off = [spread(error) for error in errors], [slant(error) for error in errors]
        for at, name in enumerate(names):
            cells = (f"{a[at]:.4f} ({b[at]:.4f})" for a, b in zip(far, off, strict=True))
            yield f"| {name} | " + " | ".join(cells) + " |"
    yield from ranks(said, sizes, names)
    yield "\nshare of 95 % intervals that held the truth (of the worst log and target), mean width\n"
    yield from head("interval", "estimator", *columns)
    for place, kind in enumerate(KINDS):
        for at, name in enumerate(names):
            ends = [
                np.stack([said[logger, size][:, :, at, 1 + 2 * place : 3 + 2 * place] for logger in LOGGERS])
                for size in sizes
            ]
            if not np.isnan(ends[0]).all():
                yield f"| {kind} | {name} | " + " | ".join(map(held, ends)) + " |"


def ranks(said: Said, sizes: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table that ranks estimators within each log, size and target."""
    far = np.array(
        [[np.sqrt(np.nanmean(said[log, size][..., 0] ** 2, axis=0)) for log in LOGGERS] for size in sizes]
    )
    far = far.reshape(len(sizes), -1, len(names))
    place = far.argsort(axis=2).argsort(axis=2) + 1
    worse = (far / far.min(axis=2, keepdims=True)).reshape(-1, len(names))
    gone = np.mean([np.isnan(each[..., 0]).mean(axis=(0, 1)) for each in said.values()], axis=0)
    yield f"\nmean rank by root mean square error, {len(worse)} cells: a log, a size and a target each\n"
    columns = [f"{size} rows" for size in sizes]
    yield from head(
        "estimator", *columns, "all", "first in", "times the least error, median", "most", "no answer"
    )
    for at in place.mean(axis=(0, 1)).argsort():
        cells = [f"{rank:.1f}" for rank in (*place[..., at].mean(axis=1), place[..., at].mean())]
        cells += [
            str((place[..., at] == 1).sum()),
            f"{np.median(worse[:, at]):.2f}",
            f"{worse[:, at].max():.2f}",
        ]
        yield f"| {names[at]} | " + " | ".join([*cells, f"{100 * gone[at]:.2f} %"]) + " |"


def head(*columns: str) -> list[str]:
    """Return the first two lines of a table."""
    return ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]


def held(ends: Floats) -> str:
    """Return coverage, that of the worst log and target, and mean width; (loggers, logs, targets, 2)."""
    low, high = ends[..., 0], ends[..., 1]
    inside = np.where(np.isnan(low), np.nan, (low <= 0.0) & (high >= 0.0))
    return f"{np.nanmean(inside):.3f} ({np.nanmean(inside, axis=1).min():.3f}) {np.nanmean(high - low):.3f}"


def draw(said: Said, sizes: Sequence[str], path: Path) -> None:
    """Plot error against size under two logging policies."""
    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    ink, rows = "#22303c", [SIZES[size][0] for size in sizes]
    colours = ("#9aa5b1", "#2f6fb7", "#00a1b3", "#d1495b", "#22303c", "#3a9d5d")
    styles = [(colour, style) for style in ("-", "--") for colour in colours]
    shown = {"uniform": "the log draws all arms alike", "greedy": "the log draws all but one arm at 2 %"}
    for axes, (logger, title) in zip(panels, shown.items(), strict=True):
        lines = np.array([spread(said[logger, size][..., 0]) for size in sizes])
        for name, line, (colour, style) in zip(ESTIMATORS, lines.T, styles, strict=False):
            axes.plot(rows, line, color=colour, linestyle=style, linewidth=1.5, label=name)
        axes.set(xscale="log", yscale="log", xticks=rows)
        axes.set_xticks(rows, sizes)
        axes.minorticks_off()
        axes.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2], ["0.01", "0.02", "0.05", "0.1", "0.2"])
        axes.set_ylim(0.01, 0.25)
        axes.set_title(title, loc="left", fontsize=10, color=ink)
        axes.set_xlabel("rows in the log", color=ink)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e8eb")
        axes.set_axisbelow(True)
        axes.spines[["left", "bottom"]].set_color("#9aa5b1")
        axes.tick_params(colors=ink, labelsize=9)
    panels[0].set_ylabel("root mean square error, four targets", color=ink)
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside right")
    figure.savefig(path)


def main(
    folder: Annotated[Path, typer.Argument(help="Questions and outcomes.")],
    logs: Annotated[int, typer.Option(help="Logs of each kind.", min=2)] = 200,
    model: Annotated[
        list[str] | None, typer.Option(help="What predicts rewards: means (default), ridge.")
    ] = None,
    size: Annotated[list[str] | None, typer.Option(help="Rows of a log, as in the tables; all.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the logs.", min=0)] = 2020,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes.")] = None,
) -> None:
    """Measure, and print tables."""
    start, sizes, models = perf_counter(), size or list(SIZES), model or ["means"]
    if unknown := [*set(sizes).difference(SIZES), *set(models).difference(get_args(Model))]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is no size ({'; '.join(SIZES)}) and no model (means; ridge)"
        )
    pool = read(folder)
    print(f"{len(pool.reward):,} questions, {len(pool.arms)} arms, which earn:")
    earned = zip(pool.arms, pool.reward.mean(axis=0).tolist(), strict=True)
    print("  " + ", ".join(f"{arm} {mean:.3f}" for arm, mean in earned))
    print("targets earn:")
    print("  " + ", ".join(f"{target} {pool.worth(pool.targets[target]):.4f}" for target in TARGETS))
    errors = measure(folder, sizes, logs, models, seed, workers)
    print(f"\n{logs} logs of each kind", *tables(errors, sizes, list(names_of(models))), sep="\n")
    if plot is not None:
        draw(errors, sizes, plot)
    print(f"\n{perf_counter() - start:.0f} s")


if __name__ == "__main__":
    typer.run(main)
