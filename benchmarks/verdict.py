"""Are the verdicts of `armwise prove --challenger` true, and how many pairs do they take?

    python benchmarks/outcome_tables.py FOLDER TABLES
    python benchmarks/verdict.py TABLES [--runs 20] [--pairs 2000] [--plot docs/img/verdict.png]
    python benchmarks/verdict.py TABLES --small [--runs 1000]

Each table has the scores of several arms on the same questions. The best arm is the reference, and four
others are challengers: the next best one, the median one, and the next best one made as good, or made to lose
just more than the margin, the hardest case for a false `switch`. A pair is better or worse if the scores
differ by more than a twentieth of their range.

A judge sees the pairs. One is exact, two err in 10 and 25 % of the pairs, one names the first answer in 30 %
of the pairs, and one the longer answer, which the challenger writes four of five times. The last is also
corrected by labels on the first 500 pairs. A quarter of the pairs is judged in both orders, as the command
does, and a judge that mostly names the same place gives no verdict.

    judged      runs that ever had a verdict that is false of what the judge says of all questions:
                at most 5 %
    true        the same of the scores: an erring judge is not found out, unless labels correct it
    verdict     runs with a verdict within the pairs; pairs: the median number that it took
    share       how often the plain difference of the first 143 pairs, without an interval, is on the wrong
                side of the margin

A line for each judge and challenger; the worst table of each is in brackets.

`--plot` draws the picture of docs/guide/receipt.md instead of a table: the intervals of three simulated
challengers as pairs come in. `--small` prints how often any interval of small files ever missed the truth:
both arms are equally good, and the judge guesses.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.progress import track
from routing_plots import BLUE, GREEN, INK, RED, _dress

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.proof import judged_pairs
from armwise.agent.proof.pairs import BOTH_ORDERS
from armwise.agent.proof.verdict import ENOUGH_BOTH, FOLLOWS_PLACE
from armwise.feedback.arrays import Flags, Floats
from armwise.feedback.ope.confidence_sequences import compute_lower_ends

MARGIN, TIE = 0.1, 0.05
"""Accepted loss, and the part of the range of scores up to which two are alike."""

PLAIN = 143
"""Pairs after which others print a share."""

BEYOND = 0.005
"""Loss beyond the margin of the challenger that is made to lose just more."""

SMALL = ((50,), (100,), (35, 12, 3), (60, 30, 10))
"""Classes of the small files."""

CHALLENGERS = ("next best", "median", "as good", "just beyond")

PLACE, LENGTH, LONGER = 0.3, 0.3, 0.8
"""How often a judge follows place or length, and how often the challenger writes the longer answer."""

LABELS = 500
"""First pairs that are labelled."""

JUDGES = ("exact", "errs 10 %", "errs 25 %", "first", "longer", "longer, labels")

DRAWN = (
    ((0.06, 0.06), GREEN, "as good"),
    ((0.06, 0.15), BLUE, "9 points worse"),
    ((0.04, 0.26), RED, "22 points worse"),
)
"""Challengers of the picture: shares of better and of worse pairs."""


@dataclass
class Runs:
    """The runs of a judge on a challenger; `by_table` has the share of false verdicts."""

    false_judged: list[bool] = field(default_factory=list)
    false_true: list[bool] = field(default_factory=list)
    taken: list[int | None] = field(default_factory=list)
    plain_wrong: list[bool] = field(default_factory=list)
    by_table: defaultdict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))


def read_scores(path: Path) -> Floats:
    """Return the scores of a table, shape (n, n_arms), in parts of their range."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    scores = np.array([[float(cell) for cell in row[1:]] for row in rows])
    found: Floats = (scores - scores.min()) / (scores.max() - scores.min())
    return found


def list_challengers(scores: Floats, rng: np.random.Generator) -> dict[str, Floats]:
    """Return what is true of each question, in {-1, 0, 1}, by challenger."""
    order = np.argsort(-scores.mean(axis=0))
    gaps = {
        "next best": scores[:, order[1]] - scores[:, order[0]],
        "median": scores[:, order[len(order) // 2]] - scores[:, order[0]],
    }
    truths = {name: np.where(np.abs(gap) > TIE, np.sign(gap), 0.0) for name, gap in gaps.items()}
    next_best = truths["next best"]
    return {
        **truths,
        "as good": shift(next_best, 0.0, rng),
        "just beyond": shift(next_best, -MARGIN - BEYOND, rng),
    }


def shift(truth: Floats, mean: float, rng: np.random.Generator) -> Floats:
    """Return a truth in which random questions are better, or worse, until their mean is right."""
    shifted = truth.copy()
    sign = 1.0 if truth.mean() < mean else -1.0
    for at in rng.permutation(len(shifted)):
        if sign * (shifted.mean() - mean) >= 0.0:
            break
        shifted[at] = max(min(shifted[at] + sign, 1.0), -1.0)
    return shifted


def judge(name: str, truth: Floats, rng: np.random.Generator) -> tuple[Floats, Flags, Flags]:
    """Return what a judge says of each question, and which are judged in both orders and name a place twice.

    Of those that are judged in both orders, the second array has those in which it names an answer at all.
    """
    n, said, same_place = len(truth), truth.copy(), np.zeros(len(truth), dtype=np.bool_)
    both = rng.random(n) < BOTH_ORDERS
    if name.startswith("errs"):
        share = float(name.split()[1]) / 100.0
        wrong = rng.random(n) < share
        said[wrong] = rng.choice([-1.0, 0.0, 1.0], size=int(wrong.sum()))
    elif name == "first":
        follows = rng.random(n) < PLACE
        said[follows] = rng.choice([-1.0, 1.0], size=int(follows.sum()))
        same_place = both & follows
        said[same_place] = 0.0
    elif name.startswith("longer"):
        follows = rng.random(n) < LENGTH
        said[follows] = np.where(rng.random(int(follows.sum())) < LONGER, 1.0, -1.0)
    return said, both & ((said != 0.0) | same_place), same_place


def find_verdict(low: Floats, high: Floats, allowed: Flags) -> tuple[judged_pairs.Word, int | None]:
    """Return the first verdict that is allowed, and the number of pairs that it took."""
    decided = allowed & ((low > -MARGIN) | (high < -MARGIN))
    if not decided.any():
        return judged_pairs.Word.NOT_YET, None
    at = int(np.argmax(decided))
    return (judged_pairs.Word.SWITCH if low[at] > -MARGIN else judged_pairs.Word.KEEP), at + 1


def is_false(word: judged_pairs.Word, truth: float) -> bool:
    """Return whether a verdict contradicts a difference."""
    if word is judged_pairs.Word.NOT_YET:
        return False
    return (word is judged_pairs.Word.SWITCH) != (truth > -MARGIN)


def bound(value: Floats, labels: Floats | None) -> tuple[Floats, Floats]:
    """Return the lower and the upper end after each pair, the first of which may be labelled."""
    errors = (
        judged_pairs.ERROR * judged_pairs.LOWER_SHARE,
        judged_pairs.ERROR * judged_pairs.UPPER_SHARE,
    )
    if labels is None:
        return compute_lower_ends(value, 1.0, errors[0], moves=False), -compute_lower_ends(
            -value, 1.0, errors[1], moves=False
        )
    gap, ends = labels - value[: len(labels)], list[Floats]()
    for sign, error in zip((1.0, -1.0), errors, strict=True):
        of_judge = compute_lower_ends(sign * value, 1.0, error / 2.0, moves=False)
        of_gap = compute_lower_ends(sign * gap, 2.0, error / 2.0, moves=False)
        ends.append(sign * (of_judge + np.concatenate([of_gap, np.full(len(value) - len(gap), of_gap[-1])])))
    return ends[0], ends[1]


def run(truth: Floats, name: str, most: int, seed: int, found: Runs, table: str) -> None:
    """Judge drawn pairs until there is a verdict."""
    rng = np.random.default_rng([seed, JUDGES.index(name)])
    said, named, same_place = judge(name, truth, rng)
    _, member, _ = judged_pairs.draw((len(truth),), most, seed)
    low, high = bound(said[member], truth[member][:LABELS] if "labels" in name else None)
    n_named, n_same = np.cumsum(named[member]), np.cumsum(same_place[member])
    allowed = (n_named < ENOUGH_BOTH) | (n_same <= FOLLOWS_PLACE * n_named)
    word, taken = find_verdict(low, high, allowed)
    if "labels" not in name:
        found.false_judged.append(is_false(word, float(said.mean())))
        found.by_table[table].append(found.false_judged[-1])
    found.false_true.append(is_false(word, float(truth.mean())))
    found.taken.append(taken)
    plain = float(said[member][:PLAIN].mean()) > -MARGIN
    found.plain_wrong.append(plain != (float(truth.mean()) > -MARGIN))


def describe(name: str, challenger: str, found: Runs, most: int) -> str:
    """Return a line of the table."""
    judged = "-"
    if found.false_judged:
        worst = max(float(np.mean(flags)) for flags in found.by_table.values())
        judged = f"{np.mean(found.false_judged):.1%} ({worst:.0%})"
    taken = [most + 1 if n is None else n for n in found.taken]
    median = int(np.median(taken))
    reached = np.mean([n is not None for n in found.taken])
    return (
        f"{name:16}{challenger:13}{judged:>13}{np.mean(found.false_true):9.1%}{reached:10.0%}"
        f"{f'{median:,}' if median <= most else f'> {most:,}':>10}{np.mean(found.plain_wrong):9.1%}"
    )


def draw_intervals(path: Path, most: int) -> None:
    """Draw the intervals of three challengers as pairs come in, and the accepted loss."""
    figure = Figure(figsize=(8.4, 3.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    x = np.arange(1, most + 1)
    for (better, worse), colour, word in DRAWN:
        truth = np.random.default_rng(0).choice(
            [1.0, 0.0, -1.0], most, p=[better, 1.0 - better - worse, worse]
        )
        low, high = bound(truth, None)
        found, taken = find_verdict(low, high, np.ones(most, dtype=np.bool_))
        axes.fill_between(x, 100.0 * low, 100.0 * high, color=colour, alpha=0.25, linewidth=0)
        label = f"{word}: {found.value}" + (f" after {taken}" if taken else "")
        axes.plot(x, 100.0 * np.cumsum(truth) / x, color=colour, linewidth=1.4, label=label)
        if taken is not None:
            axes.axvline(taken, color=colour, linewidth=0.9, linestyle=":")
        print(label)
    axes.axhline(-100.0 * MARGIN, color=INK, linewidth=0.9, linestyle="--", label="accepted loss")
    axes.set_xlabel("pairs", color=INK)
    axes.set_ylabel("points of 100", color=INK)
    axes.set_xlim(1, most)
    axes.set_ylim(-45, 30)
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")
    _dress(axes, "")
    figure.savefig(path)


def judge_small_files(runs: int) -> None:
    """Print how often an interval of a small file missed that both arms are equal, at any pair.

    Each interval lies in all those before it, so the last one says it.
    """
    print(f"{'requests by class':20}{'pairs':>7}{'missed':>9}{'points of 100':>16}")
    for sizes in SMALL:
        for most in (200, 800):
            missed, widths = 0, list[float]()
            for seed in range(runs):
                rng = np.random.default_rng([seed, len(sizes)])
                group, _, place = judged_pairs.draw(sizes, most, seed)
                guesses = rng.choice([-1.0, 1.0], size=len(group))
                found = judged_pairs.compare(judged_pairs.JudgedPairs(guesses, group, len(sizes), place))
                some = [one for one in (found.whole, *found.groups) if one is not None]
                ends = [one.difference for one in some]
                ends += [tuple(2.0 * end - 1.0 for end in one.no_worse) for one in some]
                missed += any(not low <= 0.0 <= high for _, low, high in ends)
                widths.append(50.0 * (ends[0][2] - ends[0][1]))
            half = f"+/- {np.mean(widths):.0f}"
            print(f"{' + '.join(map(str, sizes)):20}{most:>7}{missed / runs:>9.1%}{half:>16}")


def main(
    tables: Annotated[Path, typer.Argument(help="Folder of `outcome_tables.py`.")],
    runs: Annotated[int, typer.Option(min=1, help="Runs of each judge on each challenger of a table.")] = 20,
    most: Annotated[int, typer.Option("--pairs", min=PLAIN, help="Most pairs of a run.")] = 2000,
    small: Annotated[bool, typer.Option("--small", help="Judge small files instead of tables.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the picture to this file instead.")] = None,
) -> None:
    """Print the table, or draw the picture."""
    if small:
        judge_small_files(runs)
        return
    if plot is not None:
        draw_intervals(plot, most)
        return
    paths = sorted(tables.glob("*.csv"))
    found = defaultdict[tuple[str, str], Runs](Runs)
    for path in track(paths, "tables"):
        for challenger, truth in list_challengers(read_scores(path), np.random.default_rng(0)).items():
            for name in JUDGES:
                for seed in range(runs):
                    run(truth, name, most, seed, found[name, challenger], path.stem)
    print(
        f"{len(paths)} tables, {runs} runs of each, a margin of {100 * MARGIN:g} points, up to {most:,} pairs"
    )
    print(f"{'judge':16}{'challenger':13}{'judged':>13}{'true':>9}{'verdict':>10}{'pairs':>10}{'share':>9}")
    for name in JUDGES:
        for challenger in CHALLENGERS:
            print(describe(name, challenger, found[name, challenger], most))


if __name__ == "__main__":
    typer.run(main)
