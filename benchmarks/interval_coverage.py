"""How often does each interval hold the truth?

    python benchmarks/interval_coverage.py [--worlds 500] [--seed 2015] [--rare] [--estimator snips]

Each world has six kinds of questions and four arms. An epsilon-greedy policy with a floor of 0.02 logs n
decisions in it, and four other policies, whose true value is known, are evaluated: their value, and its
difference to that of what was served. Rewards are 0 or 1 less the arm's cost, so they lie in [-0.1, 1].
In the rare worlds an arm costs nothing and is right in 0.2 to 2 % of cases: many logs have no reward but 0.

`anytime` (`armwise.feedback.ope.confidence_sequences`) counts as right only if it holds the truth after every
row. `normal, watched` is the normal interval by the same measure, from the 50th row on.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import ESTIMATORS, Interval, Sample, Terms, intervals
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope.estimators import Predictions, estimate
from armwise.feedback.ope.reward_model import cross_fit
from armwise.feedback.ope.sample import NeverDrawnError

KINDS, COST, FLOOR = 6, np.array([0.0, 0.03, 0.06, 0.1]), 0.02
LOW, HIGH = -float(COST.max()), 1.0
RARE = 0.0222
"""How often an arm of a rare world is right, to one of the others."""
ARMS = ("a", "b", "c", "d")
SIZES = (100, 300, 1_000, 3_000, 10_000)
FIRST = 50
"""Rows before the normal interval is watched."""


@dataclass(frozen=True, slots=True)
class World:
    """What each arm earns on each kind of question, and who logs.

    Attributes:
        quality: Chance of a right answer, shape (KINDS, 4).
        cost: What each arm costs, shape (4,).
        logging: The policy that logs, shape (KINDS, 4).
        targets: Policies to evaluate, by name, each of shape (KINDS, 4).
    """

    quality: Floats
    cost: Floats
    logging: Floats
    targets: dict[str, Floats]

    @classmethod
    def invent(cls, rng: np.random.Generator, *, rare: bool = False) -> "World":
        """Draw qualities, a policy that saw them blurred, and four to be evaluated."""
        scale, cost = (RARE, np.zeros(len(ARMS))) if rare else (1.0, COST)
        quality = scale * rng.uniform(0.1, 0.9, (KINDS, len(ARMS)))
        blurred = quality + scale * rng.normal(0.0, 0.15, quality.shape)
        often = np.bincount(blurred.argmax(axis=1), minlength=len(ARMS))
        targets = {
            "candidate": nearly_greedy(quality - cost + scale * rng.normal(0.0, 0.1, quality.shape)),
            "commonest arm": np.tile(np.eye(len(ARMS))[often.argmax()], (KINDS, 1)),
            "rarest arm": np.tile(np.eye(len(ARMS))[often.argmin()], (KINDS, 1)),
            "uniform": np.full(quality.shape, 1.0 / len(ARMS)),
        }
        return cls(quality, cost, nearly_greedy(blurred), targets)

    def value(self, target: Floats) -> float:
        """Return the true expected reward of a policy, shape (KINDS, 4)."""
        return float((target * (self.quality - self.cost)).sum() / KINDS)

    def log(self, n: int, rng: np.random.Generator) -> tuple[LoggedDraws, Integers]:
        """Return n logged decisions and the kind of each question, shape (n,)."""
        kind = rng.integers(KINDS, size=n)
        p_log = self.logging[kind]
        drawn = (p_log.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=len(ARMS) - 1)
        reward = (rng.random(n) < self.quality[kind, drawn]) - self.cost[drawn]
        return LoggedDraws.from_arrays(ARMS, drawn, reward, p_log=p_log), kind


def nearly_greedy(score: Floats) -> Floats:
    """Put all but the floor on the best arm of each row."""
    p = np.full(score.shape, FLOOR)
    p[np.arange(len(score)), score.argmax(axis=1)] = 1.0 - FLOOR * (score.shape[1] - 1)
    return p


@dataclass(frozen=True, slots=True)
class Trial:
    """One interval and what it should hold.

    Attributes:
        of: `value` or `difference`.
        interval: Kind of interval.
        estimator: What it was put on.
        target: Whose value.
        held: Whether the truth was in it.
        width: How wide it was.
    """

    of: str
    interval: str
    estimator: str
    target: str
    held: bool
    width: float

    @classmethod
    def by(cls, of: str, interval: str, estimator: str, target: str, ends: Interval, truth: float) -> "Trial":
        """Return the trial of an interval."""
        return cls(of, interval, estimator, target, ends[0] <= truth <= ends[1], ends[1] - ends[0])


def simulate(
    n: int,
    rng: np.random.Generator,
    resamples: int = 500,
    *,
    rare: bool = False,
    names: Sequence[str] = tuple(ESTIMATORS),
) -> Iterator[Trial]:
    """Invent a world, log n decisions in it, and yield every interval of every target."""
    world = World.invent(rng, rare=rare)
    log, kind = world.log(n, rng)
    ones = np.broadcast_to(1.0, log.reward.shape)
    served, truth_served = Terms("ips", log.reward, ones, ones), world.value(world.logging)
    safe_served = intervals.hedge(served, 1.0, LOW, HIGH)
    modelled = any(ESTIMATORS[name].predictions is not Predictions.NONE for name in names)
    q_hat = fitted(log, kind, rng) if modelled else None
    waiting: list[tuple[str, Terms]] = []
    for name, policy in world.targets.items():
        p_target, truth = policy[kind], world.value(policy)
        truth_lead = truth - truth_served
        ratio = p_target / log.p_log
        reach = float(ratio.max())
        plain = Sample(log.propensity, log.drawn, log.reward, p_target)
        if not plain.weight.any():
            continue  # refused by all but `dm`: the log says nothing of this target
        sample = Sample(log.propensity, log.drawn, log.reward, p_target, q_hat)
        for estimator, terms in estimates(sample, names):
            safe = intervals.hedge(terms, reach, LOW, HIGH)
            lead = intervals.difference(safe, safe_served)
            waiting.append((name, safe))
            yield Trial.by("value", "normal", estimator, name, intervals.normal(safe), truth)
            yield Trial.by("value", "normal, not hedged", estimator, name, intervals.normal(terms), truth)
            yield Trial.by("difference", "normal", estimator, name, intervals.normal(lead), truth_lead)
        evidence = sequences.Evidence(sample.weight, log.reward, (LOW, HIGH), ratio.max(axis=1))
        yield lasting("value", "anytime", "betting", name, sequences.value(evidence), truth)
        yield lasting("difference", "anytime", "betting", name, sequences.difference(evidence), truth_lead)
        for of, less, shift, aim in (("value", 0.0, 0.0, truth), ("difference", 1.0, 1.0, truth_lead)):
            rows = (sample.weight - less) * log.reward
            imaginary = (reach - shift) * np.array([LOW, HIGH])
            yield lasting(of, "normal, watched", "ips", name, watched(rows, imaginary), aim)
    yield from resampled(world, waiting, safe_served, rng, resamples)


def estimates(sample: Sample, names: Sequence[str]) -> Iterator[tuple[str, Terms]]:
    """Yield the terms of every estimator that does not refuse."""
    for name in names:
        try:
            yield name, estimate(sample, name)
        except NeverDrawnError:
            continue


def resampled(
    world: World,
    waiting: list[tuple[str, Terms]],
    served: Terms,
    rng: np.random.Generator,
    resamples: int,
) -> Iterator[Trial]:
    """Yield the bootstrap intervals of all terms, from the same resamples."""
    values = intervals.replicates([*(terms for _, terms in waiting), served], rng, resamples)
    leads = values[:-1] - values[-1]
    truth_served = world.value(world.logging)
    for (name, terms), ends, lead in zip(
        waiting, intervals.percentiles(values[:-1]), intervals.percentiles(leads), strict=True
    ):
        truth = world.value(world.targets[name])
        yield Trial.by("value", "bootstrap", terms.estimator, name, ends, truth)
        yield Trial.by("difference", "bootstrap", terms.estimator, name, lead, truth - truth_served)


def lasting(
    of: str, interval: str, estimator: str, target: str, bounds: sequences.Bounds, truth: float
) -> Trial:
    """Return the trial of bounds that must hold at every row; the width is the last one."""
    held = bool(((bounds.low <= truth) & (truth <= bounds.high)).all())
    return Trial(of, interval, estimator, target, held, float(bounds.high[-1] - bounds.low[-1]))


def watched(rows: Floats, imaginary: Floats) -> sequences.Bounds:
    """Return the normal interval of a mean, hedged with imaginary rows, after each row."""
    n = np.arange(1, len(rows) + 1) + len(imaginary)
    mean = (np.cumsum(rows) + imaginary.sum()) / n
    squares = (np.cumsum(rows**2) + (imaginary**2).sum()) / n
    half = 1.96 * np.sqrt(np.maximum(squares - mean**2, 0.0) / (n - 1))
    shown = slice(FIRST - 1, None)
    return sequences.Bounds(n[shown], mean[shown], (mean - half)[shown], (mean + half)[shown])


def fitted(log: LoggedDraws, kind: Integers, rng: np.random.Generator) -> Floats:
    """Predict rewards of all arms by cross-fitted ridge regression."""
    return cross_fit(np.eye(KINDS)[kind], log.drawn, log.reward, log.groups, len(ARMS), rng)


def main(
    worlds: Annotated[int, typer.Option(help="Worlds of each size.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 2015,
    rare: Annotated[bool, typer.Option("--rare", help="Worlds in which hardly any answer is right.")] = False,
    estimator: Annotated[list[str] | None, typer.Option(help="Only this one; repeatable.")] = None,
) -> None:
    """Print, for each interval and estimator, coverage and width by size of the log."""
    trials: dict[tuple[str, str, str], dict[int, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for n in SIZES:
        rngs = np.random.default_rng([seed, n]).spawn(worlds)
        for rng in track(rngs, description=f"{n:,} rows"):
            for trial in simulate(n, rng, rare=rare, names=estimator or tuple(ESTIMATORS)):
                trials[trial.of, trial.interval, trial.estimator][n].append(trial)
    for of in ("value", "difference"):
        print(f"\n{of}: share of {worlds} worlds held (of the worst target), mean width\n")
        print("| interval | estimator | " + " | ".join(f"{n:,} rows" for n in SIZES) + " |")
        print("| --- " * (2 + len(SIZES)) + "|")
        kinds = dict.fromkeys(interval for quantity, interval, _ in trials if quantity == of)
        for kind in kinds:
            for key in (key for key in trials if key[:2] == (of, kind)):
                cells = (told(trials[key][n]) for n in SIZES)
                print(f"| {kind} | {key[2]} | " + " | ".join(cells) + " |")


def told(trials: list[Trial]) -> str:
    """Return coverage, coverage of the target that has the worst, and mean width."""
    by_target = defaultdict(list)
    for trial in trials:
        by_target[trial.target].append(trial.held)
    worst = min(float(np.mean(held)) for held in by_target.values())
    mean = np.mean([trial.held for trial in trials])
    return f"{mean:.3f} ({worst:.3f}) {np.mean([trial.width for trial in trials]):.2f}"


if __name__ == "__main__":
    typer.run(main)
