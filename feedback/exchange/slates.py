"""Rankings and slates: estimates from logs in which one request filled several positions.

    sips        weigh all rewards of a slate by the ratio of the slates; unbiased
    iips        weigh the reward at a position by the ratio of the items there alone; unbiased if a reward
                depends on the item at its own position alone
    rips        weigh it by the ratio of the items up to there; unbiased if users read from the top (cascade)
    cascade_dr  `rips` with a model of the rewards to come; unbiased like `rips`, with less variance
    pi          weigh the reward of a slate; unbiased if it is a sum of a part for each position

    found = evaluate_slates(Slates.from_arrays(reward, propensity, target), estimators=("sips", "rips"))
    found["rips"].value, found["rips"].low, found["rips"].high

The value is the expected sum of the rewards of a slate. For a log of Armwise, where each position is a
decision and a slate is an episode, `armwise.feedback.ope.evaluate` has `sips`, `rips` and `cascade_dr` too:
there the value is that of a decision, as for all estimators (`armwise.feedback.ope.estimators`).

Source: for each estimator, in its docstring.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from armwise.feedback.arrays import (
    TOLERANCE,
    Floats,
    Integers,
    refuse,
    refuse_unless_distributions,
    take_drawn,
)
from armwise.feedback.dataset import Log
from armwise.feedback.ope.estimators import correct_slates
from armwise.feedback.ope.intervals import LEVEL, bootstrap, by_group, hedged, normal
from armwise.feedback.ope.sample import NeverDrawnError, Prediction, SlateRows, Terms, row_products


@dataclass(frozen=True, slots=True, eq=False)
class Slates:
    """Positions of slates in sequence, with the probabilities of their items by a log and a target.

    Attributes:
        rows: The slate and position of each row.
        reward: Reward of each position, shape (n,), finite. A reward of the slate as a unit may be at any of
            its positions for `sips` and `pi`, and must be at the last for `rips` and `cascade_dr`.
        weight: Ratio of the probabilities of the item at a position, given the items before it, by the target
            and by the log, shape (n,), at least 0.
        marginal: Ratio of the marginal probabilities of this item at this position, over all items before it,
            shape (n,); for `iips` and `pi`.
        expected: Prediction of the rewards from this position on, if the target fills them all, given the
            items before, shape (n,); for `cascade_dr`.
        predicted: Prediction with the logged item at this position, shape (n,); for `cascade_dr`.

    Raises:
        ValueError: Shapes differ, there are no slates, or a value is out of its range.
    """

    rows: SlateRows
    reward: Floats
    weight: Floats
    marginal: Floats | None = None
    expected: Floats | None = None
    predicted: Floats | None = None

    def __post_init__(self) -> None:
        n = len(self.rows.slate)
        if not n:
            raise ValueError("there are no slates: an estimate needs at least one")
        for name in ("reward", "weight", "marginal", "expected", "predicted"):
            column = getattr(self, name)
            if column is None:
                continue
            if column.shape != (n,):
                raise ValueError(f"{name} must have the shape ({n},) of the positions, got {column.shape}")
            refuse(name, column, np.isfinite(column), "finite")
        for name in ("weight", "marginal"):
            if (column := getattr(self, name)) is not None:
                refuse(name, column, column >= 0.0, "at least 0")
        if (self.expected is None) != (self.predicted is None):
            raise ValueError("expected and predicted go together: give both, or neither")

    @classmethod
    def from_log(cls, log: Log, p_target: Floats) -> "Slates":
        """Return the episodes of a log, such as multi-slot decisions, with a row for each position.

        Positions are in the order in which they were decided. Incomplete episodes are left out.

        Args:
            log: The log.
            p_target: The distribution of the target at each row, given the logged rows before it, shape
                (n, n_arms).

        Raises:
            ValueError: The log has no complete episodes.
        """
        if log.episodes is None:
            raise ValueError("the log does not say which rows share an episode")
        if p_target.shape != (len(log), len(log.arms)):
            raise ValueError(f"p_target must be {len(log), len(log.arms)}, got {p_target.shape}")
        refuse_unless_distributions("p_target", p_target)
        whole = np.ones(len(log), dtype=np.bool_) if log.cut is None else ~log.cut
        if not whole.any():
            raise ValueError("of every episode some decision is not among the rows")
        _, slate = np.unique(log.episodes[whole], return_inverse=True)
        weight = (take_drawn(p_target, log.drawn) / log.propensity)[whole]
        return cls(SlateRows.of(slate, log.at[whole]), log.reward[whole], weight)

    @classmethod
    def from_arrays(
        cls,
        reward: Floats,
        propensity: Floats,
        target: Floats,
        *,
        marginal_propensity: Floats | None = None,
        marginal_target: Floats | None = None,
        items: Integers | None = None,
        p_target: Floats | None = None,
        q_hat: Floats | None = None,
    ) -> "Slates":
        """Return m slates of K positions each.

        Args:
            reward: Rewards, shape (m, K); or one for each slate, shape (m,), which is put at the last
                position.
            propensity: Probability of the item at each position, given those before it, by the log, shape
                (m, K), in (0, 1]. The product over a row is the probability of the slate.
            target: Probability of these items by the target, shape (m, K), in [0, 1].
            marginal_propensity: Marginal probability of this item at this position by the log, shape (m, K).
                If positions are drawn independently, it is `propensity`.
            marginal_target: Marginal probability by the target, shape (m, K).
            items: Column of the item at each position, shape (m, K); for `cascade_dr`.
            p_target: Distribution of the target at each position, given the logged items before it, shape
                (m, K, n_items); for `cascade_dr`.
            q_hat: Predicted sum of the rewards from a position on, for each item there, given the logged
                items before it and the target after it, shape (m, K, n_items); for `cascade_dr`.

        Raises:
            ValueError: Shapes differ, or a value is out of its range.

        >>> slates = Slates.from_arrays(np.array([[1.0, 1.0]]), np.full((1, 2), 0.5), np.array([[1.0, 0.5]]))
        >>> sips(slates).value, rips(slates).value
        (4.0, 4.0)
        """
        shape = propensity.shape
        if propensity.ndim != 2:
            raise ValueError(f"propensity must be (slates, positions), got {shape}")
        if reward.shape == shape[:1]:
            reward = np.concatenate([np.zeros((shape[0], shape[1] - 1)), reward[:, np.newaxis]], axis=1)
        ratio = _ratio("propensity", propensity, "target", target, shape)
        marginal = None
        if marginal_propensity is not None or marginal_target is not None:
            if marginal_propensity is None or marginal_target is None:
                raise ValueError("marginal_propensity and marginal_target go together: give both, or neither")
            named = "marginal_propensity", marginal_propensity, "marginal_target", marginal_target
            marginal = _ratio(*named, shape)
        if reward.shape != shape:
            raise ValueError(f"reward must be {shape} or {shape[:1]}, got {reward.shape}")
        expected = predicted = None
        if q_hat is not None:
            expected, predicted = _predictions(items, p_target, q_hat, shape)
        m, k = shape
        rows = SlateRows(np.repeat(np.arange(m), k), np.tile(np.arange(k), m))
        return cls(rows, reward.ravel().astype(np.float64), ratio, marginal, expected, predicted)


def _ratio(log: str, propensity: Floats, target: str, p_target: Floats, shape: tuple[int, ...]) -> Floats:
    for name, p in ((log, propensity), (target, p_target)):
        if p.shape != shape:
            raise ValueError(f"{name} must be {shape}, got {p.shape}")
    refuse(log, propensity, (propensity > 0.0) & (propensity <= 1.0 + TOLERANCE), "in (0, 1]")
    refuse(target, p_target, (p_target >= 0.0) & (p_target <= 1.0 + TOLERANCE), "in [0, 1]")
    ratio: Floats = (p_target / propensity).ravel()
    return ratio


def _predictions(
    items: Integers | None, p_target: Floats | None, q_hat: Floats, shape: tuple[int, ...]
) -> tuple[Floats, Floats]:
    if items is None or p_target is None:
        raise ValueError("q_hat needs items and p_target")
    for name, array, right in (
        ("items", items, shape),
        ("p_target", p_target, (*shape, q_hat.shape[-1])),
        ("q_hat", q_hat, (*shape, q_hat.shape[-1])),
    ):
        if array.shape != right:
            raise ValueError(f"{name} must be {right}, got {array.shape}")
    p, q = p_target.reshape(-1, q_hat.shape[-1]), q_hat.reshape(-1, q_hat.shape[-1])
    refuse_unless_distributions("p_target", p)
    return row_products(p, q), take_drawn(q, items.ravel())


# -- estimators ------------------------------------------------------------------------------------


def sips(slates: Slates, *, normalized: bool = False) -> Terms:
    """Weigh all rewards of a slate by the ratio of the probabilities of the whole slate.

    Args:
        slates: The slates.
        normalized: Whether the weights at each position are divided by their mean: little bias, less
        variance.

    Raises:
        NeverDrawnError: The target draws none of the logged slates.

    Source: Precup, Sutton and Singh (2000), "Eligibility traces for off-policy policy evaluation"; for
    rankings, standard IPS of McInerney et al. (2020).
    """
    return _weighed("sips", slates, slates.rows.total(slates.weight), normalized)


def iips(slates: Slates, *, normalized: bool = False) -> Terms:
    """Weigh the reward at a position by the ratio of the probabilities of the item there.

    Args:
        slates: The slates, with `marginal`.
        normalized: As `sips`.

    Raises:
        NeverDrawnError: As `sips`.
        ValueError: The slates lack `marginal`.

    Source: Li, Abbasi-Yadkori, Kveton, Muthukrishnan, Vinay and Wen (2018), "Offline evaluation of ranking
    policies with click models", the item-position model.
    """
    return _weighed("iips", slates, _marginal("iips", slates), normalized)


def rips(slates: Slates, *, normalized: bool = False) -> Terms:
    """Weigh the reward at a position by the ratio of the probabilities of the items up to there.

    Args:
        slates: The slates.
        normalized: As `sips`.

    Raises:
        NeverDrawnError: As `sips`.

    Source: McInerney, Brost, Chandar, Mehrotra and Carterette (2020), "Counterfactual evaluation of slate
    recommendations with sequential reward interactions".
    """
    return _weighed("rips", slates, slates.rows.upto(slates.weight), normalized)


def cascade_dr(slates: Slates) -> Terms:
    """Predict the rewards from each position on by a model, corrected by its weighted error.

    Args:
        slates: The slates, with `expected` and `predicted`.

    Raises:
        NeverDrawnError: As `sips`.
        ValueError: The slates lack predictions.

    Source: Kiyohara, Saito, Matsuhiro, Narita, Shimizu and Yamamoto (2022), "Doubly robust off-policy
    evaluation for ranking policies under the cascade behavior model".
    """
    if slates.expected is None or slates.predicted is None:
        raise ValueError("cascade_dr needs q_hat, items and p_target")
    _refuse_never_drawn(slates.weight)
    prediction = Prediction(slates.expected, slates.reward - slates.predicted)
    rows, weight = correct_slates(prediction, slates.rows.before(slates.weight), slates.weight)
    first = slates.rows.position == 0
    return _by_slate("cascade_dr", slates, rows, weight, float(slates.expected[first].mean()))


def pi(slates: Slates, weight: Floats | None = None) -> Terms:
    """Weigh the reward of a slate, assuming that it is a sum of an unknown part for each position.

    Args:
        slates: The slates.
        weight: Weight of each slate, shape (n_slates,), by `pseudoinverse_weight`; None: the log and the
            target draw positions independently, and it follows from `marginal`.

    Raises:
        NeverDrawnError: As `sips`.
        ValueError: Both `weight` and `marginal` are missing, or the number of weights differs from that of
            slates.

    Source: Swaminathan, Krishnamurthy, Agarwal, Dudik, Langford, Jose and Zitouni (2017), "Off-policy
    evaluation for slate recommendation".

    >>> ratio = np.array([[2.0, 1.0], [0.0, 1.0]])
    >>> slates = Slates.from_arrays(np.array([1.0, 1.0]), np.full((2, 2), 0.5), ratio / 2.0,
    ...     marginal_propensity=np.full((2, 2), 0.5), marginal_target=ratio / 2.0)
    >>> pi(slates).numerator.tolist()
    [2.0, 0.0]
    """
    m = slates.rows.n_slates
    if weight is None:
        marginal = _marginal("pi", slates)
        weight = _sums(slates, marginal) - slates.rows.size + 1.0
    elif weight.shape != (m,):
        raise ValueError(f"weight must be ({m},), one a slate, got {weight.shape}")
    _refuse_never_drawn(weight)
    return Terms("pi", weight * _sums(slates, slates.reward), np.ones(m), weight)


def pseudoinverse_weight(space: Integers, p_log: Floats, p_target: Floats, drawn: Integers) -> Floats:
    """Return the weight of each logged slate for `pi`, for policies whose positions depend on each other.

    Args:
        space: All slates that a log could draw, shape (n_possible, K), as columns of items.
        p_log: Probability of each slate in each request by the log, shape (m, n_possible).
        p_target: Probability of each slate in each request by the target, shape (m, n_possible).
        drawn: Index of the drawn slate, shape (m,).

    Raises:
        ValueError: Shapes differ, or a row is not a distribution.

    Returns:
        The weights, shape (m,); they may be negative.

    >>> both = np.array([[0, 1], [1, 0]])
    >>> log, target = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    >>> pseudoinverse_weight(both, log, target, np.array([0])).round(6).tolist()
    [2.0]
    """
    m = len(drawn)
    for name, p in (("p_log", p_log), ("p_target", p_target)):
        if p.shape != (m, len(space)):
            raise ValueError(f"{name} must be {(m, len(space))}, got {p.shape}")
        refuse_unless_distributions(name, p)
    refuse("drawn", drawn, (drawn >= 0) & (drawn < len(space)), f"a row of space below {len(space)}")
    positions, n_items = space.shape[1], int(space.max()) + 1
    shown = np.zeros((len(space), positions * n_items))
    shown[np.arange(len(space))[:, np.newaxis], space + n_items * np.arange(positions)] = 1.0
    weight = np.empty(m)
    weights_by_key: dict[bytes, Floats] = {}  # requests with the same log and target
    for row in range(m):
        key = p_log[row].tobytes() + p_target[row].tobytes()
        if key not in weights_by_key:
            moment = shown.T @ (p_log[row][:, np.newaxis] * shown)
            weights_by_key[key] = shown @ (np.linalg.pinv(moment, hermitian=True) @ (p_target[row] @ shown))
        weight[row] = weights_by_key[key][drawn[row]]
    return weight


def _marginal(name: str, slates: Slates) -> Floats:
    if slates.marginal is None:
        raise ValueError(
            f"{name} needs marginal_propensity and marginal_target: the probability that an item stands at a "
            "position, whatever stands before it"
        )
    return slates.marginal


def _weighed(name: str, slates: Slates, weight: Floats, normalized: bool) -> Terms:
    _refuse_never_drawn(weight)
    rows = weight * slates.reward
    if not normalized:
        return _by_slate(name, slates, rows, weight)
    for place, here in enumerate(slates.rows.by_position):
        mean = float(weight[here].mean())
        if mean == 0.0:
            raise NeverDrawnError(f"the target draws none of the logged slates up to position {place + 1}")
        scaled = weight[here] / mean
        typical = float(scaled @ slates.reward[here]) / len(here)
        rows[here] = typical + scaled * (slates.reward[here] - typical)  # value plus influence, as in sndr
    return _by_slate(name, slates, rows, weight)


def _by_slate(name: str, slates: Slates, rows: Floats, weight: Floats, mean: float = 0.0) -> Terms:
    return Terms(name, _sums(slates, rows), np.ones(slates.rows.n_slates), weight, mean)


def _sums(slates: Slates, rows: Floats) -> Floats:
    """Add up the rows of each slate, shape (n_slates,)."""
    return np.bincount(slates.rows.slate, rows).astype(np.float64, copy=False)


def _refuse_never_drawn(weight: Floats) -> None:
    if not weight.any():
        raise NeverDrawnError("the target draws none of the logged slates: its value cannot be estimated")


SLATE_ESTIMATORS: Mapping[str, Callable[[Slates], Terms]] = {
    each.__name__: each for each in (sips, iips, rips, cascade_dr, pi)
}
"""The estimators of slates by name."""


# -- estimates with intervals ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlateEstimate:
    """The expected sum of the rewards of a slate, with an interval.

    Attributes:
        value: The estimate.
        low: Lower end of the interval.
        high: Upper end.
        effective_n: Kish's effective number of positions.
    """

    value: float
    low: float
    high: float
    effective_n: float


def evaluate_slates(
    slates: Slates,
    estimators: Sequence[str] = ("rips",),
    *,
    interval: str = "normal",
    level: float = LEVEL,
    reward_range: tuple[float, float] | None = None,
    clusters: Integers | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, SlateEstimate]:
    """Estimate the value of a target from slates, with intervals.

    Intervals are hedged (`armwise.feedback.ope.intervals.hedged`) by two imaginary slates of the largest
    weight that was drawn: the probabilities of other slates are unknown.

    Args:
        slates: The slates.
        estimators: Names out of `SLATE_ESTIMATORS`.
        interval: `normal` or `bootstrap`.
        level: Coverage of the intervals, in (0, 1).
        reward_range: Smallest and largest possible sum of the rewards of a slate; those of the log by
            default.
        clusters: Code of the observation of each slate, such as its user, shape (n_slates,), from 0; None:
            each slate is one.
        resamples: Number of resamples of `bootstrap`.
        seed: Seed of the resamples.

    Raises:
        ValueError: An estimator or interval is unknown, or clusters have another shape; also raises the
            errors of the estimators.

    >>> one = np.ones((40, 2)) * np.repeat([[0.0], [1.0]], 20, axis=0)
    >>> half = np.full((40, 2), 0.5)
    >>> found = evaluate_slates(Slates.from_arrays(one, half, half), ("sips",))
    >>> found["sips"].value
    1.0
    """
    for name in estimators:
        if name not in SLATE_ESTIMATORS:
            raise ValueError(f"no estimator of slates {name!r}; there are: {', '.join(SLATE_ESTIMATORS)}")
    if interval not in ("normal", "bootstrap"):
        raise ValueError(f"no interval {interval!r} of slates; there are: normal, bootstrap")
    m = slates.rows.n_slates
    if clusters is not None:
        if clusters.shape != (m,):
            raise ValueError(f"clusters must be ({m},), one a slate, got {clusters.shape}")
        refuse("clusters", clusters, (clusters >= 0) & (clusters < m), f"a code from 0 to {m - 1}")
        _, clusters = np.unique(clusters, return_inverse=True)
    earned = _sums(slates, slates.reward)
    low, high = (float(earned.min()), float(earned.max())) if reward_range is None else reward_range
    terms_by_name = {name: SLATE_ESTIMATORS[name](slates) for name in estimators}
    safe = [
        hedged(terms if clusters is None else by_group(terms, clusters), float(terms.weight.max()), low, high)
        for terms in terms_by_name.values()
    ]
    if interval == "normal":
        ends = [normal(terms, level) for terms in safe]
    else:
        ends = bootstrap(safe, np.random.default_rng(seed), resamples, level)
    return {
        name: SlateEstimate(terms.value, *pair, terms.effective_n)
        for (name, terms), pair in zip(terms_by_name.items(), ends, strict=True)
    }
