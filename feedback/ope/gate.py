"""The gate: may a candidate go live? `promote`, or `hold` with reasons.

    verdict = judge(GateSpec(), log, p_target, reward_range=(0.0, 1.0), checked=500)
    verdict.promote, verdict.reasons

A candidate is promoted when the lower bound of its gain over the logging policy is above the margin, and
the checks of the log pass. The bound is a confidence sequence (`armwise.feedback.ope.confidence_sequences`):
it may be evaluated after every decision, and the candidate promoted as soon as it allows. The checks can only
hold a candidate back, so they do not affect its validity.

The log must hold settled decisions only (`armwise.feedback.training_log.settled`). They are taken in the
order in which they were made. In the order in which they were learned, those with early feedback would come
first: if positive feedback on an arm is faster than negative feedback, these rows are selected by their
rewards.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.feedback.arrays import TOLERANCE, Floats, Matrix, split
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import confidence_sequences as sequences
from armwise.feedback.ope.diagnostics import diagnose
from armwise.feedback.ope.sample import Sample

TRAIL = 200
"""Maximum number of points of the trail."""

LEAST_EFFECTIVE_N = 50
"""Least effective sample size of the weighted log (Kish), in decisions."""

LARGEST_SHARE = 0.05
"""Largest share of the sum of weights that a single decision may have."""

LARGEST_WEIGHT_ERROR = 4.0
"""Most standard errors by which the mean weight may differ from its expectation.

A larger difference means that the logged propensities are not those of the draws.
"""

LEAST_OVERLAP = 0.99
"""Least share of a candidate's choices that the log could have drawn; the rest counts as the worst reward."""


@dataclass(frozen=True, slots=True)
class GateFigures:
    """The numbers behind a verdict.

    Attributes:
        n: Number of decisions that were evaluated.
        served: Mean reward of the logging policy.
        gain: Estimated gain in reward a decision over the logging policy, cut to the possible range like both
            bounds.
        low: Lower bound of the gain, valid at all times at once.
        high: Upper bound of the gain, valid at all times at once.
        level: Confidence level of each bound.
        margin: Value that `low` has to exceed.
        effective_n: Kish's effective sample size.
        largest_share: Largest weight over the sum of all.
        mean_weight: Mean of the weights.
        expected_weight: Expectation of the weight: the overlap, or 1 if that is unknown.
        weight_error: Standard error of the mean weight, with groups of rows as observations, and at least
            that of draws from the logged distributions; None for a single observation.
        overlap: Share of the candidate's choices that the log could have drawn; None: only the probabilities
            of the drawn arms are known.
        checked: Decisions whose propensities were recomputed.
        mismatched: Decisions among these whose propensities differed from the log.
    """

    n: int
    served: float
    gain: float
    low: float
    high: float
    level: float
    margin: float
    effective_n: float
    largest_share: float
    mean_weight: float
    expected_weight: float
    weight_error: float | None
    overlap: float | None
    checked: int
    mismatched: int


@dataclass(frozen=True, slots=True)
class Point:
    """The evidence after some decisions.

    Attributes:
        n: Number of decisions so far.
        at: Time of the last decision, seconds since the epoch, UTC.
        gain: Estimated gain.
        low: Lower bound of the gain.
    """

    n: int
    at: float
    gain: float
    low: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the gate on a candidate.

    Attributes:
        promote: Whether it may go live.
        reasons: Why it is held, one sentence per reason; empty if it is promoted.
        figures: The numbers on which the verdict rests; None: no decision is left.
        trail: The evidence over time, about `TRAIL` points, the last at the end of the judged decisions.
        undecided: Whether it is held only because evidence is missing: more decisions may still promote it.
    """

    promote: bool
    reasons: tuple[str, ...]
    figures: GateFigures | None
    trail: tuple[Point, ...]
    undecided: bool = False

    def document(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"verdict": "promote" if self.promote else "hold", **asdict(self)}


def judge(
    spec: GateSpec,
    log: LoggedDraws,
    p_target: Floats | Matrix,
    *,
    reward_range: tuple[float, float],
    known: NDArray[Any] | None = None,
    checked: int = 0,
    mismatched: int = 0,
) -> Verdict:
    """Decide whether a candidate may replace the logging policy.

    Args:
        spec: The conditions.
        log: The decisions of the logging policy.
        p_target: Distribution of the candidate in each row, shape (n, n_arms), computed before it learned
            from the row.
        reward_range: Smallest and largest reward, as declared rather than as observed.
        known: Position of the training log up to which rewards were known when each row of the log was
            decided, shape (n,); None: those of all rows before it.
        checked: Number of decisions of this log whose propensities were recomputed.
        mismatched: How many of these differed.

    Raises:
        ValueError: A row of `p_target` is not a distribution, or a reward is out of the range.

    >>> drawn = np.tile([0, 1], 1_000)
    >>> log = LoggedDraws.from_arrays(("bm25", "dense"), drawn, drawn * 0.2, p_log=np.full((2_000, 2), 0.5))
    >>> dense = np.tile([0.0, 1.0], (2_000, 1))
    >>> judge(GateSpec(), log, dense, reward_range=(0.0, 1.0), checked=2_000).promote
    True
    >>> judge(GateSpec(margin=0.09), log, dense, reward_range=(0.0, 1.0)).reasons[0]
    'The propensities of 0 decisions were recomputed; 100 are needed.'
    """
    if p_target.shape[1:] != (len(log.arms),):
        raise ValueError(f"arms must name the {p_target.shape[1]} columns of p_target, got {len(log.arms)}")
    sample = Sample(log.propensity, log.drawn, log.reward, p_target)
    diagnostics = diagnose(sample, log.arms, groups=log.groups, p_log=log.p_log if log.is_whole else None)
    order = np.argsort(log.at, kind="stable").astype(np.int32)
    evidence, shared = _evidence(log, sample, reward_range, known, order)
    del sample  # as long as the log, as all of these columns are
    rows = np.unique(np.linspace(1, len(log), TRAIL).astype(np.int64))
    asymptotic = spec.confidence == "asymptotic"
    bounds, mirrored = (
        sequences.difference(some, spec.level, rows=rows, one_sided=True, asymptotic=asymptotic)
        for some in (evidence, evidence.mirrored)
    )
    span = reward_range[1] - reward_range[0]
    # Wrong propensities, or few rows, can bring them beyond the possible range.
    estimate, low = (np.clip(values, -span, span) for values in (bounds.estimate, bounds.low))
    figures = GateFigures(
        n=len(log),
        served=float(log.reward.mean()),
        gain=float(estimate[-1]),
        low=float(low[-1]),
        high=max(-span, -float(mirrored.low[-1])),
        level=spec.level,
        margin=spec.margin,
        effective_n=diagnostics.effective_n,
        largest_share=diagnostics.largest_weight / (diagnostics.mean_weight * len(log))
        if diagnostics.mean_weight > 0.0
        else 0.0,
        mean_weight=diagnostics.mean_weight,
        expected_weight=shared,
        weight_error=diagnostics.mean_weight_error,
        overlap=shared if log.is_whole else None,
        checked=checked,
        mismatched=mismatched,
    )
    reasons = tuple(_reasons(spec, figures))
    trail = tuple(
        Point(int(k), float(log.at[order[k - 1]]), float(gain), float(least))
        for k, gain, least in zip(rows, estimate, low, strict=True)
    )
    sound = not mismatched and not _weighs_wrongly(figures)
    return Verdict(
        not reasons, reasons, figures, trail, bool(reasons) and sound and figures.high > spec.margin
    )


def can_decide(spec: GateSpec, figures: Mapping[str, Any] | None) -> bool:
    """Return whether a log has enough decisions for a verdict on a candidate, whatever they earned.

    Args:
        spec: The conditions.
        figures: `GateFigures` of the verdict's document; None: no decision is left.

    >>> can_decide(GateSpec(), {"checked": 151, "effective_n": 30.9})
    False
    """
    return (
        figures is not None
        and figures["checked"] >= spec.least_checked
        and figures["effective_n"] >= LEAST_EFFECTIVE_N
    )


def _evidence(
    log: LoggedDraws,
    sample: Sample,
    reward_range: tuple[float, float],
    known: NDArray[Any] | None,
    order: NDArray[Any],
) -> tuple[sequences.Evidence, float]:
    """Return the evidence in the order in which decisions were made, and the mean overlap."""
    overlap = _overlap(log.p_log, sample.p_target)
    shared, overlap = float(np.mean(overlap)), overlap[order]
    reach = log.reach(sample.p_target)[order] if log.is_whole else None
    learned = None if known is None else log.seq.astype(np.min_scalar_type(log.seq.max()))[order]
    columns = sample.weight[order], log.reward[order]
    known = None if known is None else known[order]
    return sequences.Evidence(*columns, reward_range, reach, overlap, learned=learned, known=known), shared


def _overlap(p_log: Floats | Matrix, p_target: Floats | Matrix) -> Floats:
    """Return the share of each distribution on arms that the log could draw, shape (n,)."""
    overlap = np.ones(len(p_target))
    for rows in split(len(p_target)):
        overlap[rows] = np.where(p_log[rows] <= 0.0, 0.0, p_target[rows]).sum(axis=1)
    return overlap


def _weighs_wrongly(figures: GateFigures) -> bool:
    """Return whether the mean weight is too far from its expectation."""
    off, error = abs(figures.mean_weight - figures.expected_weight), figures.weight_error
    return error is not None and off > LARGEST_WEIGHT_ERROR * error + TOLERANCE


def _reasons(spec: GateSpec, figures: GateFigures) -> list[str]:
    """Return why a candidate is held, one sentence for each condition that fails."""
    reasons = []
    if figures.mismatched:
        reasons.append(
            f"{figures.mismatched} of {figures.checked} recomputed propensities differ from the log; "
            "none may."
        )
    if figures.checked < spec.least_checked:
        reasons.append(
            f"The propensities of {figures.checked} decisions were recomputed; "
            f"{spec.least_checked} are needed."
        )
    if figures.overlap is not None and figures.overlap < LEAST_OVERLAP:
        reasons.append(
            f"The log could have drawn {figures.overlap:.1%} of what the candidate chooses; "
            f"{LEAST_OVERLAP:.1%} are needed."
        )
    if _weighs_wrongly(figures):
        reasons.append(
            f"The mean weight is {figures.mean_weight:.3f} with a standard error of "
            f"{figures.weight_error:.3f}; it must be within {LARGEST_WEIGHT_ERROR:g} of them of "
            f"{figures.expected_weight:.3f}, or the propensities are not those that were drawn from."
        )
    if figures.effective_n < LEAST_EFFECTIVE_N:
        reasons.append(
            f"The log of {figures.n} decisions is worth {figures.effective_n:.1f} of the candidate's; "
            f"{LEAST_EFFECTIVE_N} are needed."
        )
    if figures.largest_share > LARGEST_SHARE:
        reasons.append(
            f"One decision has {figures.largest_share:.1%} of all weights; {LARGEST_SHARE:.1%} are allowed."
        )
    if figures.low <= spec.margin:
        reasons.append(_too_little(figures))
    return reasons


def _too_little(figures: GateFigures) -> str:
    """Return in words how far the bound falls short of the margin."""
    shortfall = (
        f"The gain a decision is estimated at {figures.gain:+.4f} and at {100 * figures.level:g}% at least "
        f"{figures.low:+.4f}, which must be above {figures.margin:+.4f}"
    )
    ahead = figures.gain - figures.margin
    if round(ahead, 4) <= 0.0:  # what is shown as none would take any number of decisions
        return f"{shortfall}; the candidate does not look better."
    # A bound closes in about as one over the square root of the rows.
    needed = figures.n * (((figures.gain - figures.low) / ahead) ** 2 - 1.0)
    more = max(100, round(needed, -2))
    return f"{shortfall}; if the gain is so, about {more:,.0f} more decisions would show it."
