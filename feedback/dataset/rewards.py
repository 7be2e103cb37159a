"""The reward formula of `RewardRule`, over columns."""

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Any, cast

import numpy as np

from feedback.arrays import Flags, Floats, Integers
from feedback.events import Cost
from feedback.reward import Arithmetic, Prices, RewardRule

PRICED: Mapping[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "kilotokens": ("prompt_tokens", "completion_tokens"),
    "seconds": ("retrieval_s", "llm_s"),
    "usd": ("usd",),
}
"""The attributes of `Cost` that each price applies to."""


def priced(prices: Prices) -> tuple[str, ...]:
    """Return the attributes of `Cost` that have a price.

    >>> priced(Prices(steps=0.5, usd=1.0))
    ('steps', 'usd')
    """
    return tuple(name for price, names in PRICED.items() if getattr(prices, price) for name in names)


def rewards(
    rule: RewardRule,
    metrics: Mapping[str, Floats],
    cost: Mapping[str, Floats],
    cost_weight: Floats,
    failed: Flags,
) -> Floats:
    """Return `RewardRule.reward_of` of each decision, shape (n,); NaN where the rule declares no reward.

    Args:
        rule: The reward formula.
        metrics: Aggregated values of each metric that the rule declares, shape (n,); NaN where a
            decision has none.
        cost: The parts of the raw cost that have a price, shape (n,), by attribute of `Cost`.
        cost_weight: What each request gave up for a unit of priced cost, shape (n,); NaN for the rule's.
        failed: Whether the drawn arm failed, shape (n,).

    >>> rule = RewardRule.model_validate({"metrics": {"right": {}}, "cost_weight": 0.1, "failed": 0.0})
    >>> values, steps = np.array([1.0, 1.0, np.nan, np.nan]), np.array([2.0, 2.0, 1.0, 1.0])
    >>> weights, failed = np.array([np.nan, 0.25, np.nan, np.nan]), np.array([False, False, False, True])
    >>> rewards(rule, {"right": values}, {"steps": steps}, weights, failed).tolist()
    [0.8, 0.5, nan, -0.1]
    """
    total = cast(Any, rule.cost).total(cast(Any, Cost)(**{name: cost.get(name, 0.0) for name in _COST}))
    priced_cost = np.broadcast_to(np.float64(total), failed.shape)
    weights = np.where(np.isnan(cost_weight), rule.cost_weight, cost_weight)
    known = {name: ~np.isnan(metrics[name]) for name in rule.metrics}
    found = np.full(failed.shape, np.nan)
    for rows in _alike([failed, *known.values()]):
        values = {name: metrics[name][rows] for name, some in known.items() if some[rows[0]]}
        lost = bool(failed[rows[0]])
        reward = rule.formula(values, priced_cost[rows], weights[rows], failed=lost, arithmetic=COLUMNS)
        if reward is not None:
            found[rows] = reward
    return found


_COST = tuple(name for names in PRICED.values() for name in names)


def _alike(columns: Sequence[Flags]) -> Iterator[Integers]:
    """Yield the rows that agree in all columns, shape (n_alike,), for each combination that occurs."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, code = np.unique(2 * code + column, return_inverse=True)
    for one in range(code.max(initial=-1) + 1):
        yield np.flatnonzero(code == one)


def _total(columns: Sequence[Floats]) -> Floats:
    """Add columns up as `math.fsum` adds numbers; the sum of two is rounded correctly anyway."""
    if len(columns) <= 2:
        return sum(columns, np.zeros(len(columns[0])))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.fromiter(map(fsum, rows), np.float64, len(columns[0]))


def _clip(values: Floats, low: float, high: float) -> Floats:
    clipped: Floats = np.minimum(high, np.maximum(low, values))
    return clipped


COLUMNS: Arithmetic[Floats] = Arithmetic(_total, _clip)
"""Arithmetic of many decisions with the same metrics."""
