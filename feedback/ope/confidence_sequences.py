"""Confidence sequences: bounds that hold at every row of a log at once.

They are valid under continuous monitoring, by a betting martingale. For each row, take an unbiased
estimate Z that is never below -1 / (2 bet):

    value        Z = w r - (w - s) c          of the value of the target
    difference   Z = (w - 1) r - (w - s) c    of its difference to the logging policy

    w   p_target / p_log of the drawn arm
    r   its reward, scaled to [0, 1] by the declared range
    s   probability of the target on arms that the log could draw: 1, or less without full overlap
    c   a control variate: the mean reward of earlier rows, fixed before the arm is drawn

For a constant bet, the product of (1 + bet Z) / (1 + bet E[Z]) over the rows is a martingale. By Jensen's
inequality it is at least the product of (1 + bet Z) divided by (1 + bet m) to the power n, where m is the
mean of E[Z] over the n rows so far. Twelve bets that share the stake are again a martingale. It starts at 1
and ever exceeds 1 / (1 - level) with a probability of at most 1 - level (Ville), so the m at which it would
is a lower bound. The upper bound is the lower bound of the mirrored rewards.

Hence the bounds are about the mean over the rows so far of their conditional expectations. Logging policy,
target and questions may change, and depend on all earlier rows. Weights may be of any size: if their `reach`
is unknown, the control variate is left out, which makes bounds wider and keeps them valid. An arm that the
log could not draw counts as the worst reward for the lower bound and as the best for the upper bound.

The control variate of a row may be limited to the rewards that were known when the row was decided.

Rows of a unit, such as the session of a user, may depend on each other in any way: `unit_difference` bets on
the sum of a unit, as one observation.

Asymptotic bounds are closer where a few large weights decide: the sum S of the estimates minus its mean is
compared with a Brownian motion of the variance V that was observed. With a normal mixture whose scale is the
variance V0 after the first `LEAST_EFFECTIVE` effective rows, and x = V / V0, the mean is at least

    (S - sqrt(2 V (1 + 1/x) log(1 + sqrt(1 + x) / (2 error)))) / n

S and V have one more row, which was never drawn, with the worst reward. Its weight is the mean reach of the
rows, each as far as the target departs from what was served: 1 - 1 / reach. Without it a log lacks the rare
row that would show its variance, and the bound is wrong in up to 7 of 10 such logs. A row is effective as far
as it has its part in V: there are (sum of d^2)^2 / (sum of d^4) of them, where d is the deviation of a row.
Each row counts as much as the control variate allows, as no bet limits it.

Source: Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro (2022), "Anytime-valid off-policy inference for
contextual bandits"; Karampatziakis, Mineiro and Ramdas (2021), "Off-policy confidence sequences"; Orabona
and Jun (2021), "Tight concentrations and confidence sequences from the regret of universal portfolio", for
mixtures of constant bets; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas (2021), "Time-uniform central limit
theory and asymptotic confidence sequences".
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.feedback.arrays import Floats, Integers, refuse

BETS = 0.5 ** np.arange(1.0, 13.0)
"""Bets as shares of the stake; small ones serve long logs and large weights."""

LEAST_EFFECTIVE = 5.0
"""Effective rows of the estimates at which the asymptotic bound begins."""

STRICT_SHARE = 0.2
"""Share of the error of the bound by betting beside an asymptotic one; the closer of both counts."""

_BLOCK = 1 << 12
"""Rows that are processed at a time, few enough for the cache."""

_STEPS = 3
"""Steps of Newton's method, which converges from below, so that each iterate is a valid bound."""

_LEAST = -0.99 / BETS[0]
"""Mean at which `_solve` stops: below the least possible mean, -1, while all factors are above 0."""

_ROUNDING = 1e-9
"""Relative rounding error by which a reward or a weight may exceed its limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The rows of a log with a target, in the order in which they came.

    Attributes:
        weight: p_target / p_log of the drawn arms, shape (n,), at least 0.
        reward: Rewards, shape (n,), within the range.
        reward_range: Smallest and largest possible reward.
        reach: Largest weight that each row could have had, shape (n,), or a number for all; None: unknown.
        overlap: Probability that the target gives to arms which the log could draw, shape (n,), or a number
            for all.
        learned: Position at which the reward of each row became known, shape (n,), at least 1; None: in the
            order of the rows.
        known: Position up to which rewards were known when each row was decided, shape (n,), at least 0;
            None: those of all rows before.

    Raises:
        ValueError: The log is empty, shapes differ, or a value is out of its range; or `learned` or `known`
            is given alone.
    """

    weight: Floats
    reward: Floats
    reward_range: tuple[float, float]
    reach: Floats | float | None = None
    overlap: Floats | float = 1.0
    learned: NDArray[Any] | None = None
    known: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        n = len(self.weight)
        if not n or any(np.shape(a) != (n,) for a in (self.weight, self.reward)):
            raise ValueError(
                f"weight and reward must share one shape (n,) with n above 0, got {self.weight.shape} and "
                f"{self.reward.shape}"
            )
        low, high = self.reward_range
        if not low < high:
            raise ValueError(f"the range of rewards must rise, got {low:.6g} to {high:.6g}")
        slack = _ROUNDING * (high - low)
        inside = (self.reward >= low - slack) & (self.reward <= high + slack)
        refuse("reward", self.reward, inside, f"in the declared range [{low:.6g}, {high:.6g}]")
        refuse(
            "weight", self.weight, (self.weight >= 0.0) & np.isfinite(self.weight), "finite and at least 0"
        )
        if (self.learned is None) != (self.known is None):
            raise ValueError("give both learned and known, or neither")
        for name in ("learned", "known"):
            column = getattr(self, name)
            if column is not None and column.shape != (n,):
                raise ValueError(f"{name} must have the shape of weight, ({n},), got {column.shape}")
        if self.reach is not None:
            within = self.weight <= np.multiply(self.reach, 1.0 + _ROUNDING)
            refuse("weight", self.weight, within, "at most the reach of its row")

    @property
    def mirrored(self) -> "Evidence":
        """The evidence with mirrored rewards: the sum of the range minus each."""
        return replace(self, reward=sum(self.reward_range) - self.reward)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """A confidence sequence, at some or all rows.

    Attributes:
        rows: Numbers of rows after which the bounds hold, shape (k,), rising.
        estimate: Mean of the estimates of the rows so far, shape (k,), not cut to the possible range.
        low: Lower bounds, shape (k,).
        high: Upper bounds, shape (k,); for one-sided bounds the largest possible value.
    """

    rows: Integers
    estimate: Floats
    low: Floats
    high: Floats


def value(
    evidence: Evidence, level: float = 0.95, *, rows: Integers | None = None, one_sided: bool = False
) -> Bounds:
    """Bound the value of the target at all rows at once.

    Args:
        evidence: The log and the target.
        level: Least probability that all bounds hold together, in (0, 1).
        rows: Numbers of rows after which bounds are computed, shape (k,), rising; by default all. Fewer are
            faster, and as wide.
        one_sided: Whether the entire error probability is spent on the lower bound.

    Raises:
        ValueError: The level or a row number is out of its range.

    >>> sure = Evidence(np.ones(1_000), np.ones(1_000), (0.0, 1.0))
    >>> bounds = value(sure, rows=np.array([10, 1_000]))
    >>> bounds.low.round(3).tolist(), bounds.high.tolist()
    ([0.0, 0.982], [1.0, 1.0])
    """
    return _bounds(evidence, 0.0, level, rows, one_sided=one_sided)


def difference(
    evidence: Evidence,
    level: float = 0.95,
    *,
    rows: Integers | None = None,
    one_sided: bool = False,
    asymptotic: bool = False,
) -> Bounds:
    """Bound the value of the target minus that of the logging policy; arguments and errors are as in `value`.

    With `asymptotic`, most of the error goes to a bound that is closer, and whose level is reached as the
    effective rows grow.

    For a target that equals the logging policy, the bounds converge to 0 faster than those of
    either value:

    >>> same = Evidence(np.ones(1_000), np.tile([0.0, 1.0], 500), (0.0, 1.0), reach=1.0)
    >>> bounds = difference(same, rows=np.array([1_000]))
    >>> bounds.low.round(3).tolist(), bounds.high.round(3).tolist()
    ([-0.012], [0.012])
    """
    return _bounds(evidence, 1.0, level, rows, one_sided=one_sided, asymptotic=asymptotic)


def unit_difference(
    evidence: Evidence, starts: Integers, most: int, errors: tuple[float, float]
) -> tuple[float, float, float]:
    """Bound the sum of the differences in a unit, on average over the units: target minus logging policy.

    A unit may end by what happened in it, but `most` must be set before its first row, and hold for all. The
    bounds hold at every number of units, if what one unit earns does not depend on the draws of another.

    Args:
        evidence: The log and the target, unit by unit, in the order in which the units began.
        starts: Index of the first row of each unit, shape (n_units,), rising from 0.
        most: Most rows that a unit may have, at least 1.
        errors: Probabilities that the lower bound ever fails, and the upper one, in (0, 1).

    Returns:
        The estimate, not cut to the possible range, the lower and the upper bound.

    Raises:
        ValueError: The starts do not rise from 0, a unit has more than `most` rows, or an error is not in
            (0, 1).

    >>> same = Evidence(np.ones(2_000), np.tile([0.0, 1.0], 1_000), (0.0, 1.0), reach=1.0)
    >>> [round(end, 3) for end in unit_difference(same, np.arange(0, 2_000, 2), 2, (0.025, 0.025))]
    [0.0, -0.024, 0.024]
    """
    n = len(evidence.weight)
    refuse("start of a unit", starts, (np.diff(starts, prepend=-1) > 0) & (starts < n), f"rising, below {n}")
    sizes = np.diff(starts, append=n)
    if starts[0] != 0:
        raise ValueError(f"the first unit must start at row 0, got {starts[0]}")
    refuse("rows of a unit", sizes, sizes <= most, f"at most {most}")
    if not all(0.0 < error < 1.0 for error in errors):
        raise ValueError(f"errors must be in (0, 1), got {errors[0]:.6g} and {errors[1]:.6g}")
    # rewards of the same unit may depend on the draw of a row: the control variate leaves them out
    apart = replace(evidence, learned=np.arange(1, n + 1), known=np.repeat(starts, sizes))
    least, highest = evidence.reward_range
    scale = most * (highest - least)
    low, mean = _lower_of_units(apart, starts, most, errors[0])
    mirrored, _ = _lower_of_units(apart.mirrored, starts, most, errors[1])
    return scale * mean, scale * low, -scale * mirrored


def _lower_of_units(evidence: Evidence, starts: Integers, most: int, error: float) -> tuple[float, float]:
    """Return the lower bound and the mean over units of `1 / most` of their sums, of scaled rewards."""
    weight, reward = evidence.weight, _scale_rewards(evidence)
    reach = np.broadcast_to(1.0 if evidence.reach is None else evidence.reach, weight.shape)
    control = np.zeros(len(weight))
    if evidence.reach is not None:
        control = _control(evidence, reward, np.abs(weight - 1.0))
    gain, tilt = (weight - 1.0) * reward, weight - evidence.overlap
    growth, total, n_units = np.zeros((len(BETS), 1)), 0.0, len(starts)
    edges = np.append(starts, len(weight))
    for first in range(0, n_units, _BLOCK):
        last = min(first + _BLOCK, n_units)
        here = slice(edges[first], edges[last])
        steps = _steps(gain[here], tilt[here], control[here], reach[here])
        sums = np.add.reduceat(steps, starts[first:last] - edges[first], axis=1) / most
        growth += np.log1p(BETS[:, np.newaxis] * sums).sum(axis=1, keepdims=True)
        total += float(sums[-1].sum())
    bound = float(_solve(growth, np.array([n_units]), error)[0])
    return max(bound, -1.0), total / n_units


def compute_lower_ends(
    values: Floats, scale: float, error: float, *, rows: Integers | None = None, moves: bool = True
) -> Floats:
    """Bound a mean from below at all rows at once, from values that estimate it without bias.

    Args:
        values: Values in the order in which they came, shape (n,), each at least `-scale`.
        scale: Fixed before the first row, above 0.
        error: Probability that any bound fails, in (0, 1).
        rows: Numbers of rows after which to bound, shape (k,), rising; by default all.
        moves: Whether the mean may change from row to row; the bound is then about its average so far.
            If it is fixed, each bound is at least the one before.

    Returns:
        Lower bounds, shape (k,). For an upper bound, negate values and bounds.

    Raises:
        ValueError: A value is below `-scale` or not a number, or the error is not in (0, 1).

    >>> compute_lower_ends(np.tile([1.0, 0.0], 500), 1.0, 0.05, rows=np.array([10, 1_000])).round(3).tolist()
    [-0.566, 0.45]
    """
    refuse("value", values, values >= -scale * (1.0 + _ROUNDING), f"at least {-scale:g}")
    if not 0.0 < error < 1.0:
        raise ValueError(f"error must be in (0, 1), got {error:.6g}")
    rows = np.arange(1, len(values) + 1) if rows is None else rows
    low, growth = np.empty(len(rows)), np.zeros((len(BETS), 1))
    for begin in range(0, len(values), _BLOCK):
        steps = np.maximum(values[begin : begin + _BLOCK] / scale, -1.0)
        grown = growth + np.cumsum(np.log1p(BETS[:, np.newaxis] * steps), axis=1)
        growth = grown[:, -1:]
        here = slice(*np.searchsorted(rows, [begin + 1, begin + 1 + len(steps)]))
        low[here] = _solve(grown[:, rows[here] - begin - 1], rows[here], error)
    low = scale * np.maximum(low, -1.0)
    return low if moves else np.maximum.accumulate(low)


def _bounds(
    evidence: Evidence,
    served: float,
    level: float,
    rows: Integers | None,
    *,
    one_sided: bool,
    asymptotic: bool = False,
) -> Bounds:
    """Bound the weighted reward minus `served` times the reward."""
    n = len(evidence.weight)
    rows = np.arange(1, n + 1) if rows is None else rows
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level:.6g}")
    rising = (rows <= n) & (np.diff(rows, prepend=0) > 0)
    refuse("row number", rows, rising, f"above the one before, from 1 to {n}")
    least, most = evidence.reward_range
    # A value starts at the least reward, a difference at 0.
    start, width = least * (1.0 - served), most - least
    error = 1.0 - level if one_sided else (1.0 - level) / 2.0
    low, mean = _find_lower(evidence, served, rows, error, asymptotic)
    high = np.ones(len(rows))
    if not one_sided:
        # Mirrored, a value v is 1 - v and a difference d is -d.
        mirrored, _ = _find_lower(evidence.mirrored, served, rows, error, asymptotic)
        high = 1.0 - served - mirrored
    return Bounds(rows, start + width * mean, start + width * low, start + width * high)


def _find_lower(
    evidence: Evidence, served: float, rows: Integers, error: float, asymptotic: bool
) -> tuple[Floats, Floats]:
    """Return what `_lower` does; with `asymptotic`, the closer of both bounds, which share the error."""
    if not asymptotic:
        return _lower(evidence, served, rows, error)
    low, _ = _lower(evidence, served, rows, STRICT_SHARE * error)
    closer, mean = _asymptotic_lower(evidence, rows, (1.0 - STRICT_SHARE) * error)
    return np.maximum(low, closer), mean


def _lower(evidence: Evidence, served: float, rows: Integers, error: float) -> tuple[Floats, Floats]:
    """Return lower bounds and means after `rows` rows, both (len(rows),), of rewards scaled to [0, 1]."""
    weight, control = evidence.weight, np.zeros(1)
    if evidence.reach is not None:
        control = _control(evidence, _scale_rewards(evidence), np.abs(weight - served))
    reach = np.broadcast_to(1.0 if evidence.reach is None else evidence.reach, weight.shape)
    control, overlap = (np.broadcast_to(column, weight.shape) for column in (control, evidence.overlap))
    bets = BETS[:, np.newaxis]
    low, mean = np.empty(len(rows)), np.empty(len(rows))
    growth, total = np.zeros((len(BETS), 1)), 0.0
    for begin in range(0, len(weight), _BLOCK):
        here = slice(begin, begin + _BLOCK)
        gain = (weight[here] - served) * _scale_rewards(evidence, here)
        steps = _steps(gain, weight[here] - overlap[here], control[here], reach[here])
        grown = growth + np.cumsum(np.log1p(bets * steps), axis=1)
        sums = total + np.cumsum(steps[-1])
        growth, total = grown[:, -1:], sums[-1]
        wanted_rows = slice(*np.searchsorted(rows, [begin + 1, begin + 1 + len(sums)]))
        columns = rows[wanted_rows] - begin - 1
        mean[wanted_rows] = sums[columns] / rows[wanted_rows]
        low[wanted_rows] = _solve(grown[:, columns], rows[wanted_rows], error)
    return np.maximum(low, -served), mean


def _asymptotic_lower(evidence: Evidence, rows: Integers, error: float) -> tuple[Floats, Floats]:
    """Return what `_lower` does for a difference, asymptotically; the bound is -inf before it begins."""
    weight = evidence.weight
    control = _control(evidence, _scale_rewards(evidence), np.abs(weight - 1.0))
    reach = np.broadcast_to(weight if evidence.reach is None else evidence.reach, weight.shape)
    overlap = np.broadcast_to(evidence.overlap, weight.shape)
    low, mean = np.full(len(rows), -np.inf), np.empty(len(rows))
    sums, scale = np.zeros((5, 1)), 0.0
    for begin in range(0, len(weight), _BLOCK):
        here = slice(begin, begin + _BLOCK)
        gain = (weight[here] - 1.0) * _scale_rewards(evidence, here)
        z = gain - (weight[here] - overlap[here]) * control[here]
        departs = np.maximum(reach[here], 1.0) - 1.0
        grown = sums + np.cumsum([z, z**2, z**4, departs, departs / (1.0 + departs)], axis=1)
        sums = grown[:, -1:]
        largest = np.divide(grown[3], grown[4], out=np.ones(len(z)), where=grown[4] > 0.0)
        never_drawn = -largest * control[here]
        total, squares, fourths = grown[:3] + np.stack([never_drawn, never_drawn**2, never_drawn**4])
        spread = squares - total**2 / np.arange(begin + 2, begin + 2 + len(z))
        enough = (squares**2 >= LEAST_EFFECTIVE * fourths) & (spread > 0.0)
        first = 0 if scale else int(enough.argmax())
        if not scale and enough[first]:
            scale = float(spread[first])
        wanted_rows = slice(*np.searchsorted(rows, [begin + 1, begin + 1 + len(z)]))
        columns = rows[wanted_rows] - begin - 1
        mean[wanted_rows] = grown[0, columns] / rows[wanted_rows]
        if scale:
            x = spread[columns] / scale
            radius = np.sqrt(2.0 * scale * (1.0 + x) * np.log1p(np.sqrt(1.0 + x) / (2.0 * error)))
            bound = (total[columns] - radius) / rows[wanted_rows]
            low[wanted_rows] = np.where(columns >= first, bound, -np.inf)
    return low, mean


def _scale_rewards(evidence: Evidence, rows: slice = slice(None)) -> Floats:
    """Return the rewards of some rows as shares of their range, shape (n_rows,), in [0, 1]."""
    least, most = evidence.reward_range
    scaled = evidence.reward[rows] - least
    scaled /= most - least
    return np.clip(scaled, 0.0, 1.0, out=scaled)


def _steps(gain: Floats, tilt: Floats, control: Floats, reach: Floats) -> Floats:
    """Return the estimate Z of each row as each bet takes it, shape (n_bets, n).

    A control variate of c lowers a row by reach * c at most; each bet limits that.
    """
    return gain - tilt * np.minimum(control, 0.5 / (BETS[:, np.newaxis] * reach))


def _control(evidence: Evidence, reward: Floats, pull: Floats) -> Floats:
    """Return the mean of the rewards known before each row, weighted by `pull`, shape (n,), in [0, 1]."""
    order: NDArray[Any] | None = None
    earlier: NDArray[Any] = np.arange(len(pull), dtype=np.int32)
    if evidence.learned is not None and evidence.known is not None:
        order = np.argsort(evidence.learned, kind="stable").astype(np.int32)
        earlier = np.searchsorted(evidence.learned[order], evidence.known, side="right").astype(np.int32)
    # One imaginary row of reward 1/2 comes first, and the row itself is excluded.
    mean = _sum_earlier(pull * reward, order, earlier)
    mean += 0.5
    pulled = _sum_earlier(pull, order, earlier)
    pulled += 1.0
    mean /= pulled
    return mean


def _sum_earlier(column: Floats, order: NDArray[Any] | None, earlier: NDArray[Any]) -> Floats:
    """Return for each row the sum of as many of the first rows in an order, shape (n,)."""
    total = column.copy() if order is None else column[order]
    del column  # it may be as long as the log
    sums: Floats = np.cumsum(total, out=total)[np.maximum(earlier - 1, 0)]
    sums[earlier == 0] = 0.0
    return sums


def _solve(growth: Floats, rows: Integers, error: float) -> Floats:
    """Return the mean at which the mixture of all bets would have reached 1 / error, shape (k,).

    Args:
        growth: Logarithm of the product of (1 + bet Z), shape (n_bets, k).
        rows: Factors in each product, shape (k,).
        error: Failure probability of the bound.
    """
    bets = BETS[:, np.newaxis]
    target = np.log(len(BETS) / error)
    # The bound of each bet alone; the mixture is at least as good as the best of them.
    mean: Floats = (np.expm1((growth - target) / rows) / bets).max(axis=0, initial=_LEAST)
    for _ in range(_STEPS):
        fair = 1.0 + bets * mean
        capital = growth - rows * np.log(fair)
        top = capital.max(axis=0)
        share = np.exp(capital - top)
        whole = share.sum(axis=0)
        # The logarithm of the capital is convex and falls in the mean.
        slope = (share * (rows * bets / fair)).sum(axis=0)
        mean = np.maximum(mean + (top + np.log(whole) - target) * whole / slope, _LEAST)
    return mean
