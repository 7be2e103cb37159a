"""Does the gate promote what is no better, and how soon does it promote what is?

    python benchmarks/gate.py [--runs 500] [--power-runs 100] [--range-runs 100]
        [--plot gate_power.png]

A/A: the candidate earns exactly what is served, or .01 less, by other choices, and the gate is asked 1,000
times on the way, with the setting `confidence: asymptotic` and with `strict`. Beside it, how often the lower
end of a one-sided 95 % normal interval, watched at every decision from the 50th on, was above 0.

Power: the candidate answers some of the questions with an arm that is right more often by 0.3, on so many of
them that the gain is what the table says. The gate is asked 300 times on the way. `everywhere`: it answers
all questions with another arm, which is right more often by the gain, with the shipped exploration of .02.

Range: how soon a gain of .05 is promoted by the range of rewards that the gate is told of, where rewards are
0 or 1: those two, what the shipped configuration allows, and from -1 to 1.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml
from matplotlib.figure import Figure
from rich.progress import track

from armwise.feedback.arrays import Floats, Integers, take_drawn
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope import judge
from armwise.feedback.reward import RewardRule

Range = tuple[float, float]
"""Smallest and largest possible reward."""

SHIPPED = Path(__file__).parents[1] / "serve_config.yaml"

SPEC = GateSpec()
SPECS = {"asymptotic": SPEC, "strict": GateSpec(confidence="strict")}
LENGTH = 20_000
"""Decisions of an A/A run."""

FIRST = 50
"""Decisions before the z-test is watched."""

GAINS = (0.01, 0.02, 0.05, 0.1, 0.2)
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
FLOORS, SHIPPED_FLOOR = (0.02, 0.1), 0.005
LIFT = 0.3
"""How much more often the better arm is right."""

LOOKS, LOOKS_AT_NONE = 300, 1_000

ASKED = 100
"""Times that the gate is asked at most where its bound allows a promotion; its checks of the log may not."""

RANGES: dict[str, Range] = {
    "[0, 1]: no cost": (0.0, 1.0),
    "[-0.05, 1]: the shipped configuration": RewardRule.model_validate(
        yaml.safe_load(SHIPPED.read_text())["applications"][0]["args"]["reward"]
    ).reward_range,
    "[-1, 1]": (-1.0, 1.0),
}
"""Ranges of rewards that the gate is told of."""


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A log and a candidate.

    Attributes:
        p_log: What was drawn from, shape (n, n_arms).
        p_target: What the candidate would have drawn from, shape (n, n_arms).
        drawn: Column of the drawn arm, shape (n,).
        reward: What it earned, shape (n,), in [0, 1].
        told: Whether the gate is told all of `p_log`, or of the drawn arms alone.
        possible: Range of rewards that it is told of.
    """

    p_log: Floats
    p_target: Floats
    drawn: Integers
    reward: Floats
    told: bool = True
    possible: Range = (0.0, 1.0)

    def bounds(self, rows: Integers | None = None, spec: GateSpec = SPEC) -> sequences.Bounds:
        """Return the sequence that the gate goes by."""
        weight = take_drawn(self.p_target, self.drawn) / take_drawn(self.p_log, self.drawn)
        reach = (self.p_target / self.p_log).max(axis=1) if self.told else None
        evidence = sequences.Evidence(weight, self.reward, self.possible, reach)
        asymptotic = spec.confidence == "asymptotic"
        return sequences.difference(evidence, spec.level, rows=rows, one_sided=True, asymptotic=asymptotic)

    def promoted(self, bounds: sequences.Bounds, spec: GateSpec = SPEC) -> int | None:
        """Return after how many decisions the gate first promotes; it is asked where the bound allows it."""
        allowed = bounds.rows[bounds.low > spec.margin]
        for n in allowed[:: 1 + len(allowed) // ASKED].tolist():
            log = LoggedDraws.from_arrays(
                tuple(map(str, range(self.p_log.shape[1]))),
                self.drawn[:n],
                self.reward[:n],
                p_log=self.p_log[:n] if self.told else None,
                propensity=None if self.told else take_drawn(self.p_log, self.drawn)[:n],
            )
            told = {"reward_range": self.possible, "checked": spec.least_checked}
            verdict = judge(spec, log, self.p_target[:n], **told)
            if verdict.promote:
                return int(n)
        return None

    def fooled(self) -> bool:
        """Return whether a z-test of the difference would have promoted at some time."""
        weight = take_drawn(self.p_target, self.drawn) / take_drawn(self.p_log, self.drawn)
        rows, n = (weight - 1.0) * self.reward, np.arange(1, len(self.reward) + 1)
        mean = np.cumsum(rows) / n
        error = np.sqrt(np.maximum(np.cumsum(rows**2) / n - mean**2, 0.0) / n)
        return bool((mean > 1.645 * error)[FIRST:].any())


def draws(p: Floats, rng: np.random.Generator) -> Integers:
    """Draw an arm in each row, shape (n,)."""
    drawn: Integers = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1).clip(max=p.shape[1] - 1)
    return drawn


def greedy(best: Integers, n_arms: int, floor: float) -> Floats:
    """Put all but the floor on one arm in each row."""
    p = np.full((len(best), n_arms), floor)
    p[np.arange(len(best)), best] = 1.0 - floor * (n_arms - 1)
    return p


def itself(n: int, rng: np.random.Generator) -> Course:
    """Take what was served for the candidate."""
    p = greedy(rng.integers(4, size=n), 4, 0.02)
    return Course(p, p, draws(p, rng), rng.binomial(1, 0.6, n).astype(np.float64))


def twins(n: int, rng: np.random.Generator) -> Course:
    """Choose another arm everywhere, which earns the same."""
    served, other = greedy(np.zeros(n, np.int64), 4, 0.02), greedy(np.ones(n, np.int64), 4, 0.02)
    drawn = draws(served, rng)
    quality = np.array([0.6, 0.6, 0.3, 0.3])[drawn]
    return Course(served, other, drawn, rng.binomial(1, quality).astype(np.float64))


def lasting(quality: float, loss: float = 0.0, floor: float = 0.005) -> Callable[..., Course]:
    """Return a situation in which the candidate is sure of another arm, right as often but for a loss."""

    def situation(n: int, rng: np.random.Generator) -> Course:
        served, other = greedy(np.zeros(n, np.int64), 4, floor), greedy(np.ones(n, np.int64), 4, floor)
        drawn = draws(served, rng)
        chance = np.where(drawn == 1, quality - loss, quality)
        return Course(served, other, drawn, rng.binomial(1, chance).astype(np.float64))

    return situation


def skewed(n: int, rng: np.random.Generator) -> Course:
    """Be sure of an arm that was served once in 200 times; rewards are mostly near 0, with a long tail."""
    served, other = greedy(np.zeros(n, np.int64), 4, 0.005), greedy(np.ones(n, np.int64), 4, 0.005)
    return Course(served, other, draws(served, rng), rng.beta(0.2, 3.8, n))


def in_turn(n: int, rng: np.random.Generator) -> Course:
    """Be sure of an arm that is worse for 1,000 decisions, better for as many, and so on."""
    served, other = greedy(np.zeros(n, np.int64), 4, 0.02), greedy(np.ones(n, np.int64), 4, 0.02)
    drawn, swing = draws(served, rng), -0.3 * np.sin(np.pi * np.arange(n) / 1_000.0)
    return Course(served, other, drawn, (rng.random(n) < 0.5 + swing * (drawn == 1)).astype(np.float64))


def heavy(n: int, rng: np.random.Generator) -> Course:
    """Be sure of an arm that was served once in 200 times, with rare rewards."""
    served, other = greedy(np.zeros(n, np.int64), 2, 0.005), np.tile([0.0, 1.0], (n, 1))
    return Course(served, other, draws(served, rng), rng.binomial(1, 0.05, n).astype(np.float64))


def wild(n: int, rng: np.random.Generator) -> Course:
    """Be sure of an arm whose chance falls to 1 in 10,000; the gate sees no chance of what was not drawn."""
    chance = 10.0 ** rng.uniform(-4.0, 0.0, n)
    served, other = np.stack([1.0 - chance, chance], axis=1), np.tile([0.0, 1.0], (n, 1))
    reward = rng.binomial(1, 0.5, n).astype(np.float64)
    return Course(served, other, draws(served, rng), reward, told=False)


def shifted(n: int, rng: np.random.Generator) -> Course:
    """Let a policy learn in a world that drifts; the candidate gives each arm what that gives its twin."""
    kind = rng.integers(4, size=n)
    quality = rng.uniform(0.1, 0.7, (4, 3)).repeat(2, axis=1)
    season = 0.2 * (1.0 + np.sin(np.arange(n) / 400.0)) / 2.0
    earned, counts = np.full((4, 6), 0.5), np.ones((4, 6))
    p_log, drawn, reward = np.empty((n, 6)), np.empty(n, np.int64), np.empty(n)
    for start in range(0, n, 50):  # a version is served for 50 decisions
        rows = slice(start, start + 50)
        p_log[rows] = greedy((earned / counts).argmax(axis=1)[kind[rows]], 6, 0.02)
        drawn[rows] = draws(p_log[rows], rng)
        reward[rows] = rng.random(50) < quality[kind[rows], drawn[rows]] + season[rows]
        np.add.at(earned, (kind[rows], drawn[rows]), reward[rows])
        np.add.at(counts, (kind[rows], drawn[rows]), 1.0)
    return Course(p_log, p_log[:, [1, 0, 3, 2, 5, 4]], drawn, reward)


SITUATIONS: dict[str, Callable[[int, np.random.Generator], Course]] = {
    "the served policy itself": itself,
    "another arm of the same value, weights to 47": twins,
    "another arm of the same value, weights to 9": lasting(0.6, floor=0.1),
    "another arm of the same value, weights to 197": lasting(0.6),
    "the same, right in 95 %": lasting(0.95),
    "the same, right in 5 %": lasting(0.05),
    "worse by .01, weights to 197": lasting(0.6, 0.01),
    "worse by .01, weights to 47": lasting(0.6, 0.01, 0.02),
    "skewed rewards, weights to 197": skewed,
    "loses and gains in turn": in_turn,
    "sure of a rare arm, weights to 200, rare rewards": heavy,
    "weights to 10,000, reach not known": wild,
    "a learning policy against its twin, world drifts": shifted,
}


def everywhere(gain: float, floor: float, n: int, rng: np.random.Generator) -> Course:
    """Let the candidate gain so much a decision by another arm for all questions."""
    return lasting(0.5, -gain / (1.0 - 4 * floor), floor)(n, rng)


def better(gain: float, floor: float, n: int, rng: np.random.Generator) -> Course:
    """Let the candidate gain so much a decision by choosing better on some of the questions."""
    moved = rng.random(n) < gain / LIFT / (1.0 - 4 * floor)
    served, target = greedy(np.zeros(n, np.int64), 4, floor), greedy(moved.astype(np.int64), 4, floor)
    drawn = draws(served, rng)
    quality = 0.5 + LIFT * (moved & (drawn == 1))
    return Course(served, target, drawn, rng.binomial(1, quality).astype(np.float64))


def same(runs: int, seed: int) -> Iterator[str]:
    """Yield the lines of the A/A table."""
    yield f"| candidate | {' | '.join(SPECS)} | z-test |"
    yield "| --- |" + " --- |" * (len(SPECS) + 1)
    looks = np.unique(np.geomspace(FIRST, LENGTH, LOOKS_AT_NONE).astype(np.int64))
    for place, (name, situation) in enumerate(SITUATIONS.items()):
        count: Counter[str] = Counter()
        for rng in track(np.random.default_rng([seed, place]).spawn(runs), description=name):
            course = situation(LENGTH, rng)
            for confidence, spec in SPECS.items():
                count[confidence] += course.promoted(course.bounds(looks, spec), spec) is not None
            count["z-test"] += course.fooled()
        shares = (f"{100 * count[key] / runs:.1f} %" for key in (*SPECS, "z-test"))
        yield f"| {name} | " + " | ".join(shares) + " |"


def ranges(runs: int, seed: int) -> Iterator[str]:
    """Yield the lines of the table of ranges."""
    looks = np.unique(np.geomspace(50, SIZES[-1], LOOKS).astype(np.int64))
    yield f"| range of rewards | {' | '.join(f'floor {floor}' for floor in FLOORS)} |"
    yield "| --- |" + " --- |" * len(FLOORS)
    for name, possible in RANGES.items():
        medians = []
        for floor in FLOORS:
            first = []
            for rng in track(
                np.random.default_rng([seed, int(1e4 * floor), 500]).spawn(runs), description=name
            ):
                course = replace(better(0.05, floor, SIZES[-1], rng), possible=possible)
                promoted = course.promoted(course.bounds(looks))
                first.append(np.inf if promoted is None else float(promoted))
            medians.append(float(np.median(first)))
        yield f"| {name} | {' | '.join(f'{median:,.0f}' for median in medians)} |"


def power(
    runs: int, seed: int, make: Callable[..., Course], gains: Sequence[float], floor: float
) -> dict[float, dict[str, list[float]]]:
    """Return after how many decisions each run was promoted, by gain and confidence; inf for never."""
    looks = np.unique(np.geomspace(50, SIZES[-1], LOOKS).astype(np.int64))
    promotions = {}
    for gain in gains:
        first: dict[str, list[float]] = {confidence: [] for confidence in SPECS}
        rngs = np.random.default_rng([seed, int(1e4 * floor), int(1e4 * gain)]).spawn(runs)
        for rng in track(rngs, description=f"{make.__name__}, floor {floor}, gain {gain}"):
            course = make(gain, floor, SIZES[-1], rng)
            for confidence, spec in SPECS.items():
                promoted = course.promoted(course.bounds(looks, spec), spec)
                first[confidence].append(np.inf if promoted is None else float(promoted))
        promotions[gain] = first
    return promotions


def draw(found: Mapping[float, Mapping[float, Sequence[float]]], path: Path) -> None:
    """Plot the share promoted by the size of the log."""
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(FLOORS), sharey=True)
    colours = ("#8a6fb0", "#2f6fb7", "#3a9d5d", "#e0a030", "#d1495b")
    for axes, floor in zip(panels, FLOORS, strict=True):
        for gain, colour in zip(GAINS, colours, strict=True):
            first = np.sort(found[floor][gain])
            shares = 100 * np.arange(1, len(first) + 1) / len(first)
            # From nothing at the first look to what was reached at the last.
            at, reached = [50.0, *first[np.isfinite(first)]], [0.0, *shares[np.isfinite(first)]]
            axes.step([*at, SIZES[-1]], [*reached, reached[-1]], where="post", color=colour, label=f"{gain}")
        axes.set_xscale("log")
        axes.set_xlim(100, SIZES[-1])
        axes.set_ylim(-2, 102)
        axes.set_title(f"every arm is served at least {floor:.0%}", loc="left", fontsize=10, color="#22303c")
        axes.set_xlabel("decisions in the log", color="#22303c")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e8eb")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("candidates promoted, %", color="#22303c")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, title="true gain", loc="outside right")
    figure.savefig(path)


def main(
    runs: Annotated[int, typer.Option(help="A/A runs of each situation.", min=1)] = 500,
    power_runs: Annotated[int, typer.Option(help="Runs of each gain.", min=1)] = 100,
    range_runs: Annotated[int, typer.Option(help="Runs of each range of rewards.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 0,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes.")] = None,
) -> None:
    """Measure, and print tables."""
    table = list(same(runs, seed))
    print(f"\nA/A: share of {runs} runs of {LENGTH:,} decisions, watched all the time\n", *table, sep="\n")
    table = list(ranges(range_runs, seed))
    print(f"\nranges: median decisions of {range_runs} runs until a gain of 0.05\n", *table, sep="\n")

    found = {}
    for make, floor, gains in (
        *((better, floor, GAINS) for floor in FLOORS), (everywhere, SHIPPED_FLOOR, (0.05, 0.1, 0.2))
    ):  # fmt: skip
        promotions = power(power_runs, seed, make, gains, floor)
        print(f"\npower: share of {power_runs} runs promoted, {make.__name__}, floor {floor:.1%}\n")
        medians = " | ".join(f"median {confidence}" for confidence in SPECS)
        print("| true gain | " + " | ".join(f"{n:,} rows" for n in SIZES) + f" | {medians} |")
        print("| --- " * (1 + len(SPECS) + len(SIZES)) + "|")
        for gain in gains:
            first = np.array(promotions[gain][SPEC.confidence])
            cells = [f"{np.mean(first <= n):.2f}" for n in SIZES]
            for one in promotions[gain].values():
                median = float(np.sort(one)[power_runs // 2])
                cells.append(f"{median:,.0f}" if np.isfinite(median) else "-")
            print(f"| {gain} | " + " | ".join(cells) + " |")
        if make is better:
            found[floor] = {gain: one[SPEC.confidence] for gain, one in promotions.items()}
    if plot is not None:
        draw(found, plot)


if __name__ == "__main__":
    typer.run(main)
