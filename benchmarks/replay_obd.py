"""What is Thompson sampling worth, told from the log of a random policy, and the reverse?

    python -m benchmarks.replay_obd FOLDER [--campaign men]

FOLDER holds `random/` and `bts/` as the Open Bandit Dataset has them: the same shop in the same week, where a
policy that draws all items alike and Bernoulli Thompson sampling each showed a part of the items. What one of
them really earned stands beside what the log of the other says of it.

The log of Thompson sampling tells the probability of the drawn item only, and the posterior moves from minute
to minute. What it would have drawn from at another moment is recovered from the rows around that moment, for
each position by itself: an item's share is its weighted number of draws, over the weighted sum of 1/p.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scipy import stats

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.decisions import tabulate
from armwise.feedback.exchange import Faults, make_rule, read_obp
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import ESTIMATORS, EstimateWithInterval, Sample, evaluate
from armwise.feedback.ope.diagnostics import diagnose
from armwise.feedback.ope.estimators import snips
from armwise.feedback.ope.evaluation import EstimatorResult

MINUTES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, np.inf)
"""Widths that are tried: how far around a moment most of the rows lie that tell of it."""


SPECIAL = {"ips": "anytime"}
"""Estimators that have an interval of their own kind, and which."""


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A log of items that were shown, and where.

    Attributes:
        log: The decisions; a reward is a click.
        position: Code of the place that an item was shown at, shape (n,).
    """

    log: LoggedDraws
    position: Integers

    @property
    def on_policy(self) -> str:
        """Say what was really earned."""
        clicks, n = int(self.log.reward.sum()), len(self.log)
        low, high = stats.binomtest(clicks, n).proportion_ci(method="exact")
        return f"{clicks} clicks in {n:,} rows, {clicks / n:.4f} [{low:.4f}, {high:.4f}]"


def load(folder: Path) -> Shown:
    """Read the tables of a campaign that one policy showed; columns are sorted by item."""
    faults = Faults()
    examples = list(read_obp(folder, "click", (0.0, 1.0), faults))
    log = LoggedDraws.from_decisions(tabulate(examples, make_rule("click", (0.0, 1.0))))
    if faults.counts or log.excluded:
        print(f"{folder}: left out {dict(faults.counts)} {dict(log.excluded)}")
    by_name = sorted(log.arms, key=lambda arm: (len(arm), arm))
    column = np.array([by_name.index(arm) for arm in log.arms])
    place = {example.seq: example.decision.context.features["position"] for example in examples}
    _, position = np.unique([place[seq] for seq in log.seq.tolist()], return_inverse=True)
    return Shown(replace(log, arms=tuple(by_name), drawn=column[log.drawn]), position)


def recovered(
    teacher: Shown, at: Floats, position: Integers, width_s: float, *, apart: bool = False
) -> Floats:
    """Estimate what a policy would have drawn from, from its log; rows do not sum to 1 yet.

    Args:
        teacher: Its log.
        at: Moments, seconds since the epoch, shape (n,).
        position: Place at each moment, shape (n,).
        width_s: Rows count 1 / (1 + (distance / width)^2), and all alike if it is infinite.
        apart: Whether the moments are those of the log itself, so that no row tells of itself.

    Returns:
        Shape (n, n_arms). In expectation an item's draws are the sum of its p over the rows, and the sum of
        1 / p over its draws is the number of rows, so their ratio is the p of a policy that stands still.
    """
    p = np.zeros((len(at), len(teacher.log.arms)))
    for place in np.unique(position):
        moments, logged = np.flatnonzero(position == place), np.flatnonzero(teacher.position == place)
        near = 1.0 / (1.0 + (np.subtract.outer(at[moments], teacher.log.at[logged]) / width_s) ** 2)
        if apart:
            np.fill_diagonal(near, 0.0)
        draws = np.eye(p.shape[1])[teacher.log.drawn[logged]]
        number, over = near @ draws, near @ (draws / teacher.log.propensity[logged, np.newaxis])
        p[moments] = np.divide(number, over, out=np.zeros_like(number), where=over > 0.0)
    return p


def normed(p: Floats) -> Floats:
    """Make each row sum to 1."""
    return p / p.sum(axis=1, keepdims=True)


def fitting(teacher: Shown, other: Shown) -> Floats:
    """Print how well each width recovers what was logged; return the best distributions in the other log.

    Each row is recovered from the other rows, so the figures are those of moments that it has not seen.
    """
    log = teacher.log
    print("\nthe distribution recovered from the other rows of the log, beside the logged propensities\n")
    columns = (
        "width, minutes",
        "sum over items",
        "within a third",
        "mean log ratio",
        "mean weight (z)",
        "snips",
    )
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    by_divergence = {}
    for minutes in MINUTES:
        raw = recovered(teacher, log.at, teacher.position, 60.0 * minutes, apart=True)
        total, p = raw.sum(axis=1), normed(raw)
        # An item that was drawn once only is not recovered without that row.
        ratio = np.log(log.propensity / np.maximum(p[np.arange(len(log)), log.drawn], 1e-6))
        weight = diagnose(Sample(log.propensity, log.drawn, log.reward, p), log.arms)
        target = normed(recovered(teacher, other.log.at, other.position, 60.0 * minutes))
        # In expectation over the draws, the mean log ratio is the divergence from the truth.
        by_divergence[float(ratio.mean())] = minutes, target
        value = snips(Sample(other.log.propensity, other.log.drawn, other.log.reward, target)).value
        low, high = np.quantile(total, (0.05, 0.95))
        cells = (
            f"{minutes:g}",
            f"{total.mean():.3f} ({low:.2f} to {high:.2f})",
            f"{100 * np.mean(np.abs(ratio) < np.log(4 / 3)):.0f} %",
            f"{ratio.mean():.3f}",
            f"{weight.mean_weight:.3f} ({weight.mean_weight_z:+.1f})",
            f"{value:.4f}",
        )
        print("| " + " | ".join(cells) + " |")
    minutes, target = by_divergence[min(by_divergence)]
    print(f"\nthe least divergence is that of {minutes:g} minutes")
    return target


def compare(log: LoggedDraws, target: str, p_target: Floats, truth: Shown) -> Iterator[str]:
    """Yield the lines of what a log says of a target, beside what that really earned."""
    kinds = ("normal", "bootstrap", *dict.fromkeys(SPECIAL.values()))
    estimates: dict[str, dict[str, EstimatorResult]] = {}
    for kind in kinds:
        evaluation = evaluate(
            log,
            {target: p_target},
            np.random.default_rng(0),
            estimators=tuple(ESTIMATORS),
            interval=kind,
            reward_range=(0.0, 1.0),
            reward_model="means",
        )[target]
        estimates[kind] = {each.estimator: each for each in evaluation.estimates}
    diagnostics = evaluation.diagnostics
    yield f"\n{target}: {truth.on_policy}"
    yield (
        f"the other log: {len(log):,} rows, effective n {diagnostics.effective_n:.0f}, largest weight "
        f"{diagnostics.largest_weight:.1f}, mean weight {diagnostics.mean_weight:.3f} "
        f"(z {diagnostics.mean_weight_z:+.1f}), "
        f"{100 * diagnostics.covered:.0f} % covered\n"
    )
    aim = float(truth.log.reward.mean())
    columns = ("estimator", "effective n", "value", "off by", "normal", "bootstrap", "exact or anytime")
    yield "| " + " | ".join([*columns, "beyond what was served"]) + " |"
    yield "| --- " * (len(columns) + 1) + "|"
    for name in tuple(ESTIMATORS):
        estimate = estimates["normal"][name]
        if estimate.value is None or estimate.difference is None:
            yield f"| {name} | 0 | {estimate.note} | | | | | |"
            continue
        beyond, kind = estimate.difference, SPECIAL.get(name, "")
        special = estimates[kind][name] if kind else None
        cells = (
            f"{estimate.effective_n:.0f} | {estimate.value.value:.4f} | {estimate.value.value - aim:+.4f}",
            ends(estimate.value),
            ends(estimates["bootstrap"][name].value),
            f"{ends(special.value)} {kind}" if special and special.value.kind == kind else "",
            f"{beyond.value:+.4f} [{beyond.low:+.4f}, {beyond.high:+.4f}]"
            + ("" if ESTIMATORS[name].covers else " biased"),
        )
        yield f"| {name} | " + " | ".join(cells) + " |"


def ends(figure: EstimateWithInterval | None) -> str:
    """Return an interval; nothing where there is none."""
    return "" if figure is None else f"[{figure.low:.4f}, {figure.high:.4f}]"


def main(
    folder: Annotated[Path, typer.Argument(help="Has `random/` and `bts/`.")],
    campaign: Annotated[str, typer.Option(help="Of the Open Bandit Dataset.")] = "men",
) -> None:
    """Recover the distribution, evaluate both ways, and print tables."""
    uniform, thompson = (load(folder / policy / campaign) for policy in ("random", "bts"))
    if uniform.log.arms != thompson.log.arms:
        raise SystemExit("the two logs have different items")
    p = fitting(thompson, uniform)
    log, alike = uniform.log, np.full_like(p, 1.0 / p.shape[1])
    exact_log = replace(log, propensity=alike[:, 0], p_log=alike)
    print(*compare(exact_log, "Thompson sampling", p, thompson), sep="\n")
    alike = np.full((len(thompson.log), p.shape[1]), 1.0 / p.shape[1])
    print(*compare(thompson.log, "uniform", alike, uniform), sep="\n")


if __name__ == "__main__":
    typer.run(main)
