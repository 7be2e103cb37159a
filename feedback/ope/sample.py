"""Inputs and outputs of estimators: a log with a target policy, and the terms of an estimate.

A `Sample` is validated once; its weights and predictions are computed once and shared by all
estimators (`armwise.feedback.ope.estimators`). `Terms` are an estimate row by row, from which the value and
any interval are computed (`armwise.feedback.ope.intervals`).
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from armwise.feedback.arrays import (
    TOLERANCE,
    Flags,
    Floats,
    Integers,
    refuse,
    refuse_unless_distributions,
    take_drawn,
)

UNKNOWN = "no propensity is on record, so no reward can be weighed"
"""Why a log without propensities permits only averages of predictions."""


class NeverDrawnError(ValueError):
    """The target draws none of the logged arms, so its value cannot be estimated."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """An estimate row by row: the value is the sum of one column over the sum of another.

    Attributes:
        estimator: Name of the estimator.
        numerator: Column of the numerator, shape (n,).
        denominator: Column of the denominator, shape (n,); all 1 if the estimate is a mean over rows.
        weight: Weight of the reward of each row, shape (n_rows,): p_target / p_log of the drawn arms,
            as the estimator clips or shrinks them; 0 for `dm`, which uses predictions alone.
        mean_prediction: Expectation of a row before its reward is known: the mean prediction of a
            doubly robust estimate, 0 for estimates that only weigh rewards.
        ratio: Whether the denominator is random too (`snips`, `replay`).
        cap: Largest weight that the estimator allows; `inf`: unlimited.
        parameter: The clip, threshold or shrinkage that was used, if the estimator has one.
    """

    estimator: str
    numerator: Floats
    denominator: Floats
    weight: Floats
    mean_prediction: float = 0.0
    ratio: bool = False
    cap: float = inf
    parameter: float | None = None

    @property
    def value(self) -> float:
        """The point estimate."""
        return float(self.numerator.sum() / self.denominator.sum())

    @property
    def effective_n(self) -> float:
        """Kish's effective sample size, in [0, n]; see `effective_size`."""
        return effective_size(self.weight)


@dataclass(frozen=True, eq=False)
class SlateRows:
    """The rows of a log as positions of slates, or as turns of episodes.

    Attributes:
        slate: Code of the slate of each row, shape (n,): 0, 1, 2, without gaps.
        position: Place of each row in its slate, shape (n,): 0, 1, 2, without gaps.
        whole: Whether all positions of the slate of a row are among the rows, shape (n,); None: all are.

    Raises:
        ValueError: Shapes differ, or codes or positions have gaps.

    >>> rows = SlateRows.of(np.array([0, 1, 0]))
    >>> rows.position.tolist(), rows.before(np.array([2.0, 3.0, 5.0])).tolist()
    ([0, 0, 1], [1.0, 1.0, 2.0])
    """

    slate: Integers
    position: Integers
    whole: Flags | None = None

    def __post_init__(self) -> None:
        n = len(self.slate)
        shapes = [a.shape for a in (self.slate, self.position) if a is not None]
        if self.whole is not None:
            shapes.append(self.whole.shape)
        if set(shapes) != {(n,)}:
            raise ValueError(f"slate, position and whole must share one shape (n,), got {shapes}")
        refuse("slate", self.slate, (self.slate >= 0) & (self.slate < n), f"a code from 0 to {n - 1}")
        sizes = np.bincount(self.slate)
        refuse("rows of a slate", sizes, sizes > 0, "above 0: codes are 0, 1, 2 and so on")
        size = sizes[self.slate]
        right = (self.position >= 0) & (self.position < size)
        refuse("position", self.position, right, "below the number of rows of its slate")
        if len(np.unique(self.slate * (int(size.max()) + 1) + self.position)) < n:
            raise ValueError("two rows have the same slate and position")

    @classmethod
    def of(cls, slate: Integers, order: Floats | None = None, whole: Flags | None = None) -> "SlateRows":
        """Return rows whose positions follow from an order.

        Args:
            slate: Codes of the slates, shape (n,).
            order: Sort key of the rows of a slate, shape (n,); ties are in the order of the rows, and so are
                all rows by default.
            whole: See the attribute.
        """
        n = len(slate)
        rows = np.lexsort((np.arange(n), np.zeros(n) if order is None else order, slate))
        position = np.empty(n, dtype=np.int64)
        start = np.searchsorted(slate[rows], slate[rows])
        position[rows] = np.arange(n) - start
        return cls(slate, position, whole)

    @property
    def n_slates(self) -> int:
        """Number of slates."""
        return int(self.slate.max()) + 1

    @cached_property
    def size(self) -> Integers:
        """Number of rows of each slate, shape (n_slates,)."""
        return np.bincount(self.slate)

    @cached_property
    def by_position(self) -> tuple[Integers, ...]:
        """The rows at each position, the first position first."""
        order = np.argsort(self.position, kind="stable")
        ends = np.cumsum(np.bincount(self.position))[:-1]
        return tuple(np.split(order, ends))

    @cached_property
    def following(self) -> Integers:
        """The row at the next position of the same slate, shape (n,); -1: the last position."""
        order = np.lexsort((self.position, self.slate))
        following = np.full(len(order), -1, dtype=np.int64)
        same = self.slate[order[1:]] == self.slate[order[:-1]]
        following[order[:-1][same]] = order[1:][same]
        return following

    def before(self, weight: Floats) -> Floats:
        """Return the product of the weights at the positions before each row, shape (n,); 1 at the first."""
        running, product = np.ones(self.n_slates), np.ones(len(weight))
        for rows in self.by_position:
            slates = self.slate[rows]
            product[rows] = running[slates]
            running[slates] *= weight[rows]
        return product

    def upto(self, weight: Floats) -> Floats:
        """Return the product of the weights at the positions up to that of a row, shape (n,)."""
        return self.before(weight) * weight

    def total(self, weight: Floats) -> Floats:
        """Return the product of the weights of all positions of the slate of a row, shape (n,)."""
        product = np.ones(self.n_slates)
        np.multiply.at(product, self.slate, weight)
        whole: Floats = product[self.slate]
        return whole


@dataclass(frozen=True, eq=False)
class Sample:
    """The rows of a log with the distribution of a target in each.

    Attributes:
        propensity: Probability with which the logged arm was drawn, shape (n,), in (0, 1]; NaN in all rows if
            it is unknown, and then every weight is 0.
        drawn: Column of the logged arm, shape (n,).
        reward: Reward, shape (n,), finite.
        p_target: The target's distribution, shape (n, n_arms), rows sum to 1.
        q_hat: Predicted reward of every arm, shape (n, n_arms), finite, by a model that was fitted without
            the row (`armwise.feedback.ope.reward_model`).
        q_mrdr: Predictions like `q_hat`, by a model that was weighted for this target; for `mrdr`.
        q_slate: Predicted sum of the rewards from the position of a row to the end of its slate, with the
            target at the positions after it, for each arm at this one, shape (n, n_arms); for `cascade_dr`.
        slates: The slate and position of each row; None: each row is a slate.
        p_log: The logged distribution, shape (n, n_arms); for `mips` with categories.
        categories: Discrete features of each arm in each row, as codes, shape (n, n_arms, n_features), for
            `mips`; None: each arm is a category.

    Raises:
        ValueError: Shapes differ, the log is empty, or a value is out of its range.

    >>> half, first = np.full(2, 0.5), np.array([[1.0, 0.0], [1.0, 0.0]])
    >>> Sample(half, np.array([0, 1]), np.ones(2), first).weight.tolist()
    [2.0, 0.0]
    """

    propensity: Floats
    drawn: Integers
    reward: Floats
    p_target: Floats
    q_hat: Floats | None = None
    q_mrdr: Floats | None = None
    q_slate: Floats | None = None
    slates: SlateRows | None = None
    p_log: Floats | None = None
    categories: Integers | None = None

    def __post_init__(self) -> None:
        n = len(self.reward)
        columns = [a.shape for a in (self.propensity, self.drawn, self.reward)]
        if columns != [(n,)] * 3 or self.p_target.ndim != 2 or len(self.p_target) != n:
            raise ValueError(
                "propensity, drawn and reward must share one shape (n,) and p_target be (n, n_arms), got "
                f"{', '.join(str(shape) for shape in [*columns, self.p_target.shape])}"
            )
        if not n:
            raise ValueError("the log is empty: an estimate needs at least one row")
        for name, q in (
            ("q_hat", self.q_hat),
            ("q_mrdr", self.q_mrdr),
            ("q_slate", self.q_slate),
            ("p_log", self.p_log),
        ):
            if q is not None and q.shape != self.p_target.shape:
                raise ValueError(
                    f"{name} must have the shape {self.p_target.shape} of p_target, got {q.shape}"
                )
        if self.slates is not None and len(self.slates.slate) != n:
            raise ValueError(f"slates must have the {n} rows of reward, got {len(self.slates.slate)}")
        if self.categories is not None and self.categories.shape[:-1] != self.p_target.shape:
            raise ValueError(
                f"categories must have the shape {self.p_target.shape} of p_target and a third dimension "
                f"for the features, got {self.categories.shape}"
            )
        if self.categories is not None and self.p_log is None:
            raise ValueError("categories need p_log: the weight of a category is over all arms that have it")
        n_arms = self.p_target.shape[1]
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < n_arms), f"a column below {n_arms}")
        if not self.unknown:
            possible = (self.propensity > 0.0) & (self.propensity <= 1.0 + TOLERANCE)
            refuse("propensity", self.propensity, possible, "in (0, 1]")
        refuse("reward", self.reward, np.isfinite(self.reward), "finite")
        refuse_unless_distributions("p_target", self.p_target)
        if self.p_log is not None:
            refuse_unless_distributions("p_log", self.p_log)

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def unknown(self) -> bool:
        """Whether all propensities are unknown, so that only predictions can be averaged."""
        return bool(np.isnan(self.propensity).all())

    @cached_property
    def weight(self) -> Floats:
        """Importance weight p_target / p_log of each drawn arm, shape (n,)."""
        if self.unknown:
            return np.zeros(len(self))
        return take_drawn(self.p_target, self.drawn) / self.propensity

    @property
    def supported_weight(self) -> Floats:
        """The weights, at least one of them above 0.

        Raises:
            NeverDrawnError: All are 0.
        """
        if self.unknown:
            raise NeverDrawnError(UNKNOWN)
        if not self.weight.any():
            raise NeverDrawnError(
                f"the target draws none of the {len(self)} logged arms: its value cannot be estimated"
            )
        return self.weight

    @cached_property
    def slate_rows(self) -> SlateRows:
        """The slates of the rows; without slates each row is one."""
        if self.slates is not None:
            return self.slates
        n = len(self)
        return SlateRows(np.arange(n), np.zeros(n, dtype=np.int64))

    @cached_property
    def prediction(self) -> "Prediction":
        """The predictions for this target. Raises ValueError without `q_hat`."""
        if self.q_hat is None:
            raise ValueError(
                "the direct and the doubly robust estimates need q_hat, see armwise.feedback.ope.reward_model"
            )
        return Prediction.of(self, self.q_hat, "q_hat")


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The predictions of a reward model for a target.

    Attributes:
        expected: Predicted reward of the target in each row, shape (n,).
        residual: Reward minus the prediction for the drawn arm, shape (n,).
    """

    expected: Floats
    residual: Floats

    @classmethod
    def of(cls, sample: Sample, q: Floats, name: str) -> "Prediction":
        """Read predictions `q`, shape (n, n_arms). Raises ValueError unless all are finite."""
        expected = row_products(sample.p_target, q)
        if not np.isfinite(expected).all():
            refuse(name, q, np.isfinite(q), "finite")
        residual = sample.reward - take_drawn(q, sample.drawn)
        return cls(expected, residual)


def ones(rows: Floats) -> Floats:
    """Return the denominator of a mean over rows: shape (n,), all 1, a broadcast scalar."""
    return np.broadcast_to(1.0, rows.shape)


def effective_size(weight: Floats) -> float:
    """Return Kish's effective sample size: (sum of weights) squared over sum of squares.

    That many rows drawn from the target itself would have about the same variance; 0 if all weights are 0.

    Source: Kish (1965), "Survey sampling".

    >>> effective_size(np.array([1.0, 1.0, 1.0, 0.0]))
    3.0
    """
    squares = float(weight @ weight)
    return float(weight.sum()) ** 2 / squares if squares > 0.0 else 0.0


def row_products(p: Floats, q: Floats | Flags) -> Floats:
    """Return the inner product of each row of `p` with that of `q`, both (n, n_arms), shape (n,).

    >>> row_products(np.array([[0.5, 0.5]]), np.array([[1.0, 3.0]])).tolist()
    [2.0]
    """
    products: Floats = np.einsum("ij,ij->i", p, q)
    return products
