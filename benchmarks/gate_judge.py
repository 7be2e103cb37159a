"""Would grades of a judge on decisions without feedback let the gate promote sooner, and stay right?

    python -m benchmarks.gate_judge [--runs 2000] [--power-runs 400]

Of all decisions a random share is audited: they get feedback. All are graded by a judge. For each decision,
with w the weight of the candidate, r the reward, A whether it is audited and s the share of audits:

    Z = (w - 1) (m - c) + A / s (w - 1) (r - m)

    m   reward that the grade predicts, by least squares on the audits before
    c   mean reward of the audits before

Whatever m is, the expectation of Z is the gain, if A depends on nothing else and s is right: then (1 - A / s)
m has expectation 0. With m = c it is the row of the gate, on audits alone. So a judge that predicts nothing
costs width, and one that is wrong no validity. Bettors stake s times what those of the gate do, and where the
candidate gains weight m and c are cut so that none of them can lose all it has (`LIMIT`).

Source: Zrnic and Candes (2024), "Active statistical inference", arXiv:2403.03208, for the estimate; Xu,
Karampatziakis and Mineiro (2024), "Active, anytime-valid risk controlling prediction sets", arXiv:2406.10490,
for betting on it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from armwise.feedback.arrays import Flags, Floats, take_drawn
from armwise.feedback.ope import confidence_sequences as sequences
from benchmarks.gate import SPEC, Course, better, shifted, twins

LIMIT = 0.9
"""Share of its capital that m and c may cost a bettor in one decision."""

GATE_LIMIT = 0.5
"""The same for c in the gate."""

TRUST = 10.0
"""Effective number of audits at which half of the slope of the grades is believed."""

LENGTH = 10_000
"""Decisions of a run without a gain."""

GAIN = 0.05
FLOORS = (0.02, 0.1)
AUDITED = {0.02: 26_000, 0.1: 6_000}
"""Audits of a run with a gain, by floor."""

SHARES = (0.1, 0.3)
AGREEMENTS = (0.6, 0.8, 0.95)
ENOUGH = float(np.log(1.0 / (1.0 - SPEC.level)))
"""Logarithm of a capital that a fair game reaches with a probability of at most 1 - level."""

_BLOCK = 1 << 12


def capital(
    course: Course, audited: Flags, share: float, grade: Floats | None, limit: float = LIMIT
) -> Floats:
    """Return the logarithm of the capital against a gain of 0 after each decision, shape (n,).

    The lower bound of the gain is above 0 where it exceeds `ENOUGH`.

    Args:
        course: The log and the candidate; rewards of decisions that are not audited are not read.
        audited: Whether each has feedback, shape (n,).
        share: Probability of that.
        grade: Grades of the judge, shape (n,), of which none depends on whether the decision is audited;
            None to predict by the mean of the audits before.
        limit: Share of its capital that m and c may cost a bettor.
    """
    weight = take_drawn(course.p_target, course.drawn) / take_drawn(course.p_log, course.drawn)
    reach, away = (course.p_target / course.p_log).max(axis=1), weight - 1.0
    reward = np.where(audited, course.reward, 0.0)
    mean, more = predictions(np.where(audited, np.abs(away), 0.0), reward, grade)
    bets, total = sequences.BETS[:, np.newaxis], np.empty(len(weight))
    growth = np.full((len(sequences.BETS), 1), -np.log(len(sequences.BETS)))
    for begin in range(0, len(weight), _BLOCK):
        here = slice(begin, begin + _BLOCK)
        most = limit / (bets * reach[here])
        centre = np.minimum(mean[here], most)
        predicted = np.clip(mean[here] + more[here], 0.0, 1.0)
        predicted = np.where(away[here] > 0.0, np.minimum(predicted, most), predicted)
        staked = audited[here] * (reward[here] - predicted) + share * (predicted - centre)
        grown = growth + np.cumsum(np.log1p(bets * away[here] * staked), axis=1)
        growth, top = grown[:, -1:], grown.max(axis=0)
        total[here] = top + np.log(np.exp(grown - top).sum(axis=0))
    return total


def predictions(pull: Floats, reward: Floats, grade: Floats | None) -> tuple[Floats, Floats]:
    """Return the mean reward of the audits before each decision, and what its grade adds to it, both (n,).

    Args:
        pull: How much the candidate moves each decision, |w - 1|; 0 where it is not audited. Shape (n,).
        reward: Rewards of the audits, shape (n,).
        grade: Grades, shape (n,); None for none.

    >>> mean, more = predictions(np.ones(4), np.array([1.0, 0.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0]))
    >>> mean.round(2).tolist(), more.round(2).tolist()
    ([0.5, 0.75, 0.5, 0.62], [0.0, -0.0, 0.08, -0.15])
    """
    mean = (0.5 + _before(pull * reward)) / (1.0 + _before(pull))
    if grade is None:
        return mean, np.zeros(len(mean))
    heavy = pull * pull
    total, grades, rewards = _before(heavy), _before(heavy * grade), _before(heavy * reward)
    weight = np.maximum(total, 1e-12)
    centre = grades / weight
    spread = _before(heavy * grade * grade) / weight - centre**2
    both = _before(heavy * grade * reward) / weight - centre * rewards / weight
    slope = np.divide(both, spread, out=np.zeros_like(both), where=spread > 1e-9)
    effective = total**2 / np.maximum(_before(heavy * heavy), 1e-12)
    return mean, slope * effective / (effective + TRUST) * (grade - centre)


def _before(rows: Floats) -> Floats:
    """Return the sums of the rows before each one."""
    return np.concatenate([[0.0], np.cumsum(rows)[:-1]])


def agreeing(agreement: float, course: Course, rng: np.random.Generator) -> Floats:
    """Grade as the reward says, in a share of the decisions, and the other way round in the rest."""
    return np.where(rng.random(len(course.reward)) < agreement, course.reward, 1.0 - course.reward)


def biased(course: Course, rng: np.random.Generator) -> Floats:
    """Grade as `agreeing` does, but all that the candidate would draw more often as the best."""
    weight = take_drawn(course.p_target, course.drawn) / take_drawn(course.p_log, course.drawn)
    return np.where(weight > 1.0, 1.0, agreeing(0.8, course, rng))


def turning(course: Course, rng: np.random.Generator) -> Floats:
    """Grade well at first, and be biased once the audits have shown that grades are right."""
    late = np.arange(len(course.reward)) > len(course.reward) // 2
    return np.where(late, biased(course, rng), agreeing(0.95, course, rng))


Judge = Callable[[Course, np.random.Generator], Floats]

JUDGES: dict[str, Judge] = {
    "agrees in 80 %": partial(agreeing, 0.8),
    "agrees in 95 %": partial(agreeing, 0.95),
    "useless, agrees in 50 %": partial(agreeing, 0.5),
    "all of the candidate's is the best": biased,
    "right in 95 %, then biased": turning,
}

SITUATIONS: dict[str, Callable[[int, np.random.Generator], Course]] = {
    "another arm of the same value": twins,
    "a learning policy against its twin, world drifts": shifted,
}


def alike(n: int, rng: np.random.Generator) -> Course:
    """Draw two arms of the same value alike; the candidate always draws the second."""
    drawn = rng.integers(2, size=n)
    p_log, p_target = np.full((n, 2), 0.5), np.tile([0.0, 1.0], (n, 1))
    return Course(p_log, p_target, drawn, rng.binomial(1, 0.6, n).astype(np.float64))


def same(runs: int, seed: int) -> Iterator[str]:
    """Yield lines: how often a candidate without a gain is promoted."""
    yield "| candidate | judge | 10 % audited | 30 % audited |"
    yield "| --- | --- | --- | --- |"
    for world, (name, situation) in enumerate(SITUATIONS.items()):
        for number, (judge, grades) in enumerate(JUDGES.items()):
            promoted = np.zeros(len(SHARES))
            for rng in track(
                np.random.default_rng([seed, world, number]).spawn(runs), description=f"{name}, {judge}"
            ):
                course = situation(LENGTH, rng)
                grade, luck = grades(course, rng), rng.random(LENGTH)
                for at, share in enumerate(SHARES):
                    promoted[at] += (capital(course, luck < share, share, grade) > ENOUGH).any()
            yield (
                f"| {name} | {judge} | "
                + " | ".join(f"{100 * count / runs:.1f} %" for count in promoted)
                + " |"
            )


def unequal(runs: int, seed: int) -> Iterator[str]:
    """Yield lines: how often a candidate without a gain is promoted where feedback depends on the answer."""
    yield "| feedback on good and on bad answers | feedback alone | with grades |"
    yield "| --- | --- | --- |"
    n = 20_000
    for good, bad in ((0.1, 0.1), (0.11, 0.085), (0.15, 0.05)):
        promoted = np.zeros(2)
        for rng in track(np.random.default_rng([seed, 7]).spawn(runs), description=f"{good} and {bad}"):
            course = alike(n, rng)
            audited = rng.random(n) < np.where(course.reward > 0.0, good, bad)
            grade = np.where(course.drawn == 1, 0.5, agreeing(0.8, course, rng))
            share = 0.6 * good + 0.4 * bad
            for at, grades in enumerate((None, grade)):
                promoted[at] += (capital(course, audited, share, grades) > ENOUGH).any()
        yield (
            f"| {good:.1%}, {bad:.1%} | "
            + " | ".join(f"{100 * count / runs:.1f} %" for count in promoted)
            + " |"
        )


def first_audits(audited: Flags, shown: Flags) -> float:
    """Return how many audits there were when a gain was first shown; inf for never.

    Args:
        audited: Whether each decision has feedback, shape (n,).
        shown: Whether it is shown after each, shape (n,).

    >>> first_audits(np.array([True, False, True]), np.array([False, True, True]))
    1.0
    """
    return float(audited[: shown.argmax() + 1].sum()) if shown.any() else np.inf


def saved(runs: int, seed: int) -> Iterator[str]:
    """Yield lines: how many decisions with feedback it takes, with grades and without."""
    judges = (f"agrees in {agreement:.0%}" for agreement in AGREEMENTS)
    yield " | ".join(["| every arm served at least", "audited", "the gate", f"limit {LIMIT}", *judges]) + " |"
    yield "| --- " * (4 + len(AGREEMENTS)) + "|"
    for floor in FLOORS:
        for share in SHARES:
            n = int(AUDITED[floor] / share)
            first_counts: list[list[float]] = []
            rngs = np.random.default_rng([seed, int(1e4 * floor), int(1e4 * share)]).spawn(runs)
            for rng in track(rngs, description=f"floor {floor}, {share} audited"):
                course = better(GAIN, floor, n, rng)
                audited, luck = rng.random(n) < share, rng.random(n)
                columns = (course.p_log, course.p_target, course.drawn, course.reward)
                kept = Course(*(column[audited] for column in columns))
                every = np.ones(len(kept.reward), dtype=np.bool_)
                firsts = [
                    first_audits(every, capital(kept, every, 1.0, None, limit) > ENOUGH)
                    for limit in (GATE_LIMIT, LIMIT)
                ]
                for agreement in AGREEMENTS:
                    grade = np.where(luck < agreement, course.reward, 1.0 - course.reward)
                    firsts.append(first_audits(audited, capital(course, audited, share, grade) > ENOUGH))
                first_counts.append(firsts)
            medians = np.sort(np.array(first_counts), axis=0)[runs // 2]
            cells = [f"{median:,.0f}" for median in medians]
            for at in range(2, len(cells)):
                cells[at] += f" ({medians[at] / medians[1] - 1.0:+.0%})" if np.isfinite(medians[1]) else ""
            yield f"| {floor:.0%} | {share:.0%} | " + " | ".join(cells) + " |"


def main(
    runs: Annotated[int, typer.Option(help="Runs without a gain of each kind.", min=1)] = 2_000,
    power_runs: Annotated[int, typer.Option(help="Runs of each other kind.", min=1)] = 400,
    seed: Annotated[int, typer.Option(help="Draws the worlds.", min=0)] = 0,
) -> None:
    """Measure, and print tables."""
    for lines, title in (
        (
            saved,
            f"a gain of {GAIN}: median of {power_runs} runs of the decisions with feedback until it is shown",
        ),
        (
            unequal,
            f"satisfied users give feedback more often: share of {power_runs} runs of 20,000 decisions",
        ),
        (same, f"no gain: share of {runs} runs of {LENGTH:,} decisions, watched all the time"),
    ):
        table = list(lines(runs if lines is same else power_runs, seed))
        print(f"\n{title}\n", *table, sep="\n")


if __name__ == "__main__":
    typer.run(main)
