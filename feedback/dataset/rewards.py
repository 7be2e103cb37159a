"""The rewards of many decisions at once: `RewardRule.reward_of`, over columns."""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from feedback.arrays import Floats
from feedback.events import Cost
from feedback.reward import Prices, RewardRule

PRICED: Mapping[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "kilotokens": ("prompt_tokens", "completion_tokens"),
    "seconds": ("retrieval_s", "llm_s"),
    "usd": ("usd",),
}
"""What of a raw cost each price is asked for."""


def priced(prices: Prices) -> tuple[str, ...]:
    """Return the attributes of `Cost` that have a price.

    >>> priced(Prices(steps=0.5, usd=1.0))
    ('steps', 'usd')
    """
    return tuple(name for price, names in PRICED.items() if getattr(prices, price) for name in names)


def rewards(
    rule: RewardRule, metrics: Mapping[str, Floats], cost: Mapping[str, Floats], failed: NDArray[np.bool_]
) -> Floats:
    """Return what each decision is worth, shape (n,); NaN where that is not declared.

    Args:
        rule: How rewards are made.
        metrics: Aggregated values of each metric that the rule declares, shape (n,); NaN where a
            decision has none.
        cost: The parts of the raw cost that have a price, shape (n,), by attribute of `Cost`.
        failed: Whether the drawn arm failed, shape (n,).

    >>> rule = RewardRule.model_validate({"metrics": {"right": {}}, "cost_weight": 0.1, "failed": 0.0})
    >>> values, steps = np.array([1.0, np.nan, np.nan]), np.array([2.0, 1.0, 1.0])
    >>> rewards(rule, {"right": values}, {"steps": steps}, np.array([False, False, True])).tolist()
    [0.8, nan, -0.1]
    """
    quality = np.where(failed, _or_nan(rule.failed), _quality(rule, metrics, len(failed)))
    # The formula of the rule itself, which knows no difference between a number and a column.
    total = cast(Any, rule.cost).total(cast(Any, Cost)(**{name: cost.get(name, 0.0) for name in _COST}))
    low, high = rule.clip
    net: Floats = np.minimum(high, np.maximum(low, quality - rule.cost_weight * total))
    return net


_COST = tuple(name for names in PRICED.values() for name in names)


def _quality(rule: RewardRule, metrics: Mapping[str, Floats], n: int) -> Floats:
    """Return the weighted mean of the metrics that have a value, shape (n,); the default where none has."""
    values, weights = [], []
    for name, metric in rule.metrics.items():
        known = ~np.isnan(metrics[name])
        signed = metrics[name] if metric.optimize == "max" else sum(metric.range) - metrics[name]
        values.append(np.where(known, metric.weight * signed, 0.0))
        weights.append(metric.weight * known)
    quality = np.full(n, _or_nan(rule.default))
    weight = _exact_sum(weights, n)
    np.divide(_exact_sum(values, n), weight, out=quality, where=weight > 0.0)
    return quality


def _exact_sum(columns: Sequence[Floats], n: int) -> Floats:
    """Add columns up as `math.fsum` adds numbers: two of them need no help."""
    if len(columns) <= 2:
        return sum(columns, np.zeros(n))
    return np.fromiter(map(fsum, zip(*(column.tolist() for column in columns), strict=True)), np.float64, n)


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
