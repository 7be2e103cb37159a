"""The utility of a router on held-out questions, compared with each arm and the oracle.

A router of stage retrieved or answered is charged the cost of all arms up to that stage. Ties are split
evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table

from armwise.agent.lab.routers.utilities import list_needed_costs, read_cost, utilities
from armwise.agent.routers.dataset import Floats, Stage
from armwise.agent.routers.utility import Utility
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.feedback.reward import Prices

ROUTER, ORACLE = "router", "oracle"

SHOWN = ("em", "f1")
"""Scores reported in addition to the utility, if known."""

PAID: Mapping[Stage, tuple[str, ...]] = {
    Stage.QUESTION: (),
    Stage.RETRIEVED: ("steps", "tokens", "retrieval_s", "search_usd"),
    Stage.ANSWERED: portfolio_outcomes.COSTS,
}
"""Costs paid for all arms before a router of each stage runs, as far as outcomes list them separately."""


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """Mean results of a router, an arm or the oracle.

    Attributes:
        utility: Mean utility in the unit of the measures, net of cost.
        scores: Known means of `SHOWN`.
        steps: Mean rounds of retrieval, if known.
    """

    utility: float
    scores: Mapping[str, float]
    steps: float | None


@dataclass(frozen=True, slots=True)
class RouterValidation:
    """The results of a router, and of the arms, on held-out questions.

    Attributes:
        questions: Number of questions on which every arm is known.
        arms: The result of each arm.
        router: The result of the router.
        oracle: The result of the best arm of each question.
        picks: Share of the questions on which the router picks each arm, by arm; they sum to 1.
        single: The arm with the best mean utility.
        gap: Share of the difference between that arm and the oracle that the router gains; None: they are
            equal.
    """

    questions: int
    arms: Mapping[str, ValidationRow]
    router: ValidationRow
    oracle: ValidationRow
    picks: Mapping[str, float]
    single: str
    gap: float | None

    def table(self) -> Table:
        """Return the results as a table."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        scores = list(self.oracle.scores)
        for column in ("", "utility", *scores, "steps", "picked"):
            table.add_column(column, justify="right" if column else "left")
        rows = {**self.arms, ROUTER: self.router, ORACLE: self.oracle}
        for name, row in rows.items():
            steps = "" if row.steps is None else f"{row.steps:.2f}"
            earned = [f"{row.scores[score]:.4f}" if score in row.scores else "" for score in scores]
            style = "bold" if name == ROUTER else None
            picked = f"{self.picks[name]:.1%}" if name in self.picks else ""
            table.add_row(name, f"{row.utility:.4f}", *earned, steps, picked, style=style)
        return table

    def conclusion(self) -> str:
        """Return a summary in one line."""
        if self.gap is None:
            return f"no arm is better than {self.single} on any question"
        return f"the router closes {self.gap:.1%} of the gap between {self.single} and the oracle"


def validate_router(
    outcomes: Outcomes, scores: Floats, utility: Utility, stage: Stage
) -> RouterValidation | None:
    """Evaluate a router on held-out questions.

    Args:
        outcomes: Outcomes of the held-out questions.
        scores: Scores of the router, shape (n_questions, n_arms).
        utility: Utility of an answer; it is reported unscaled, and without subtracting that of another arm.
        stage: Stage of the router.

    Returns:
        None: no question has the utility of every arm.

    Raises:
        RouterError: The outcomes lack a score or cost of the utility.
    """
    plain = utility.model_copy(update={"scale": "none", "over": None})
    worth = utilities(outcomes, plain)
    whole = ~np.isnan(worth).any(axis=1)
    if not whole.any():
        return None
    complete, worth = outcomes.only(whole), worth[whole]
    paid = charge_stage(complete, stage)
    arms = {
        arm: _row(complete, worth, np.tile(one_hot, (len(worth), 1)))
        for arm, one_hot in zip(complete.arms, np.eye(len(complete.arms)), strict=True)
    }
    single = max(arms, key=lambda arm: arms[arm].utility)
    picks = best(scores[whole])
    router = _row(paid, utilities(paid, plain), picks)
    oracle = _row(complete, worth, best(worth))
    way = oracle.utility - arms[single].utility
    gap = (router.utility - arms[single].utility) / way if way > 0.0 else None
    shares = dict(zip(complete.arms, picks.mean(axis=0).tolist(), strict=True))
    return RouterValidation(len(worth), arms, router, oracle, shares, single, gap)


def charge_stage(outcomes: Outcomes, stage: Stage) -> Outcomes:
    """Return the outcomes with the costs of a router of this stage: for each arm, the sum over all arms.

    The sum is unknown if the cost of any arm is unknown.
    """
    costs = dict(outcomes.costs)
    for name in PAID[stage]:
        if name in costs:
            costs[name] = np.tile(read_cost(outcomes, name).sum(axis=1, keepdims=True), len(outcomes.arms))
    charged = replace(outcomes, costs=costs)
    return charged if stage is Stage.ANSWERED else with_searches(charged, outcomes)


def with_searches(charged: Outcomes, outcomes: Outcomes) -> Outcomes:
    """Return outcomes whose dollars include those of the other arms' searches.

    Args:
        charged: Outcomes with `search_usd` of all searches, and the dollars of each arm's searches.
        outcomes: Outcomes with the costs of each arm's searches.
    """
    if not {"usd", "search_usd"} <= outcomes.costs.keys():
        return charged
    more = read_cost(charged, "search_usd") - read_cost(outcomes, "search_usd")
    return replace(charged, costs={**charged.costs, "usd": read_cost(outcomes, "usd") + more})


def warn_uncharged(outcomes: Outcomes, prices: Prices, stage: Stage) -> str:
    """Return a warning about priced costs that are only known for search and answer together; or "".

    A turn pays the searches of all arms, and their share of such a cost is unknown.

    Args:
        outcomes: Outcomes of the questions.
        prices: Prices of the costs.
        stage: Stage of the router.
    """
    if stage is not Stage.RETRIEVED:
        return ""
    components = list_needed_costs(prices, outcomes.costs)
    names = " and ".join(name for name, costs in components.items() if not set(costs) & set(PAID[stage]))
    return names and (
        f"all arms search before one is drawn, and {names} have a price: a turn pays the {names} of these "
        "searches, but the outcomes do not separate a search from its answer, so they are not charged here"
    )


def best(scores: Floats) -> Floats:
    """Return the share of each arm on each question: 1, split evenly among the best arms.

    >>> best(np.array([[1.0, 3.0, 3.0]])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    highest = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(highest / highest.sum(axis=1, keepdims=True))


def _row(outcomes: Outcomes, worth: Floats, shares: Floats) -> ValidationRow:
    means = {name: _mean(outcomes.scores[name], shares) for name in SHOWN if name in outcomes.scores}
    steps = _mean(outcomes.costs["steps"], shares) if "steps" in outcomes.costs else np.nan
    return ValidationRow(
        _mean(worth, shares),
        {name: value for name, value in means.items() if not np.isnan(value)},
        None if np.isnan(steps) else steps,
    )


def _mean(values: Floats, shares: Floats) -> float:
    """Return the mean of the known values that the shares select; NaN if all are unknown."""
    chosen = np.where(shares > 0.0, shares * values, 0.0).sum(axis=1)
    is_known = ~np.isnan(chosen)
    return float(chosen[is_known].mean()) if is_known.any() else float("nan")
