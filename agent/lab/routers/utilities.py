"""Utilities of each arm on each question, computed from outcomes, score matrices or the log."""

from collections.abc import Collection, Mapping

import numpy as np

from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from armwise.agent.routers.features import scale_columns
from armwise.agent.routers.utility import PRIOR_MEASURE, Utility
from armwise.arms.lab.portfolio import Outcomes, ScoreMatrix
from armwise.arms.suggestions import did_you_mean
from armwise.feedback.reward import Prices

COST_COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "steps": (("steps",),),
    "kilotokens": (("prompt_tokens", "completion_tokens"), ("total_tokens",), ("tokens",)),
    "seconds": (("retrieval_s", "llm_s"), ("seconds",)),
}
"""Groups of costs that sum to a component of `Prices`; the first complete group counts.

Dollars are not listed: missing dollars count as 0.
"""


def utilities(outcomes: Outcomes, utility: Utility) -> Floats:
    """Return the utility of each arm on each question, shape (n_questions, n_arms), NaN where unknown.

    Args:
        outcomes: Scores and costs.
        utility: Weights of scores and costs.

    Raises:
        RouterError: The outcomes lack a measure, a cost that has a price, or the arm to compare with.
    """
    worth = np.zeros((len(outcomes.questions), len(outcomes.arms)))
    for name, weight in utility.measures.items():
        worth = worth + weight * _score(outcomes, name)
    if utility.prior > 0.0:
        worth = worth + utility.prior * np.nanmean(_score(outcomes, PRIOR_MEASURE), axis=0)
    if utility.cost_weight > 0.0:
        worth = worth - utility.cost_weight * price_costs(outcomes, utility.cost)
    if utility.over is not None:
        worth = worth - worth[:, positions(outcomes.arms, [utility.over])]
    return scale_columns(worth.T).T if utility.scale == "minmax" else worth


def routing_labels(
    features: Features, outcomes: Outcomes, utility: Utility, quality: Floats | None = None
) -> RoutingDataset:
    """Return the labels of questions for a router; raises as `utilities`, and RouterError of the dataset.

    Args:
        features: Features of the questions.
        outcomes: Outcomes of the arms of the features on these questions.
        utility: Weights of scores and costs.
        quality: Quality of each arm's passages, shape (n_questions, n_arms).
    """
    plain = utility.model_copy(update={"prior": 0.0, "scale": "none"})
    without_prior = utilities(outcomes, plain) if utility.prior > 0.0 else None
    return RoutingDataset(features, utilities(outcomes, utility), quality, without_prior)


def price_costs(outcomes: Outcomes, prices: Prices) -> Floats:
    """Return the priced cost of each arm on each question, shape (n_questions, n_arms).

    Raises:
        RouterError: A cost that has a price is missing.
    """
    total = np.zeros((len(outcomes.questions), len(outcomes.arms)))
    if "usd" in outcomes.costs:
        total = total + prices.usd * read_cost(outcomes, "usd")
    for component, costs in list_needed_costs(prices, outcomes.costs).items():
        price = getattr(prices, component)
        for cost in costs:
            if cost not in outcomes.costs:
                raise RouterError(
                    f"{component} have the price {price:g}, but no outcome has {cost!r}: {remedy(component)}"
                )
            total = total + (price / 1000.0 if component == "kilotokens" else price) * outcomes.costs[cost]
    return total


def list_needed_costs(prices: Prices, known: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the costs that must be known for each component with a price.

    Args:
        prices: Prices of the components.
        known: Names of the known costs.

    >>> list_needed_costs(Prices(steps=0, seconds=1), ["steps", "seconds"]), list_needed_costs(Prices(), [])
    ({'seconds': ('seconds',)}, {'steps': ('steps',)})
    """
    return {name: choose_costs(name, known) for name in COST_COLUMNS if getattr(prices, name) > 0.0}


def choose_costs(component: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the costs that sum to a component: the first known group, or else the first group."""
    groups = COST_COLUMNS[component]
    return next((group for group in groups if all(cost in known for cost in group)), groups[0])


def remedy(component: str) -> str:
    """Return advice for a component that has a price and is unknown.

    >>> remedy("steps")
    'price steps at 0 for these labels, or add steps to them'
    """
    return (
        f"price {component} at 0 for these labels, or add {' and '.join(COST_COLUMNS[component][0])} to them"
    )


def read_cost(outcomes: Outcomes, name: str) -> Floats:
    """Return a cost, shape (n_questions, n_arms); unknown costs are NaN, unknown dollars 0."""
    values = outcomes.costs[name]
    return np.nan_to_num(values) if name in ("usd", "search_usd") else values


def _score(outcomes: Outcomes, name: str) -> Floats:
    if name not in outcomes.scores:
        raise RouterError(f"no score {name!r} among the outcomes{did_you_mean(name, outcomes.scores)}")
    return outcomes.scores[name]


def to_outcomes(matrix: ScoreMatrix, name: str) -> Outcomes:
    """Return a score matrix as outcomes; an arm has its mean cost on each question.

    Args:
        matrix: Scores in [0, 1], NaN where unknown.
        name: Name of the score, such as `recall`.
    """
    n = len(matrix.questions)
    costs = {cost: np.tile(matrix.costs(cost), (n, 1)) for cost in matrix.table.costs}
    return Outcomes(
        matrix.questions,
        matrix.arms,
        {name: np.ascontiguousarray(matrix.scores.T, dtype=np.float64)},
        costs,
        ((None,) * len(matrix.arms),) * n,
        ((None,) * len(matrix.arms),) * n,
    )
