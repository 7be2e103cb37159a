"""What a router is worth on questions that it was not fitted to, beside each arm and the best arm a question.

A router that looks at what was retrieved, or answered, is charged with what all arms took: that is the
price of looking. Ties are split evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table

from agent.routers.dataset import Floats, Stage
from agent.routers.utility import Utility, cost_of, needed, utilities
from arms.portfolio import Outcomes
from arms.portfolio import outcomes as portfolio_outcomes
from feedback.reward import Prices

ROUTER, ORACLE = "router", "oracle"

SHOWN = ("em", "f1")
"""Scores that are shown beside the utility, where they are known."""

PAID: Mapping[Stage, tuple[str, ...]] = {
    Stage.QUESTION: (),
    Stage.RETRIEVED: ("steps", "tokens", "retrieval_s"),
    Stage.ANSWERED: portfolio_outcomes.COSTS,
}
"""Costs of all arms that are paid before a router can be asked, as far as outcomes tell them apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one way of choosing earns on average.

    Attributes:
        utility: In the unit of the measures, net of cost.
        scores: Those of `SHOWN` that are known.
        steps: Rounds of retrieval; None where nobody knows.
    """

    utility: float
    scores: Mapping[str, float]
    steps: float | None


@dataclass(frozen=True, slots=True)
class RouterValidation:
    """What a router earned on questions that were held out.

    Attributes:
        questions: How many, of those on which every arm is known.
        arms: What each earned.
        router: What the router earned.
        oracle: What the best arm of each question earned.
        single: The arm that is best on average, here.
        gap: How much of the way from that arm to the oracle the router goes; None where there is no way.
    """

    questions: int
    arms: Mapping[str, Row]
    router: Row
    oracle: Row
    single: str
    gap: float | None

    def table(self) -> Table:
        """Return the figures as people read them."""
        table = Table(title=f"{self.questions:,} questions that were held out")
        scores = list(self.oracle.scores)
        for column in ("", "utility", *scores, "steps"):
            table.add_column(column, justify="right" if column else "left")
        rows = {**self.arms, ROUTER: self.router, ORACLE: self.oracle}
        for name, row in rows.items():
            steps = "" if row.steps is None else f"{row.steps:.2f}"
            earned = [f"{row.scores[score]:.4f}" if score in row.scores else "" for score in scores]
            style = "bold" if name == ROUTER else None
            table.add_row(name, f"{row.utility:.4f}", *earned, steps, style=style)
        return table

    def conclusion(self) -> str:
        """Say what it comes to, in a line."""
        if self.gap is None:
            return f"no arm is better than {self.single} on any question"
        return f"the router closes {self.gap:.1%} of the gap between {self.single} and the oracle"


def validate_router(
    outcomes: Outcomes, scores: Floats, utility: Utility, stage: Stage
) -> RouterValidation | None:
    """Work out what a router earned.

    Args:
        outcomes: Of the held-out questions.
        scores: What the router gave, shape (n_questions, n_arms).
        utility: What an answer is worth. It is reported neither scaled nor over an arm.
        stage: How far a question must have come for the router.

    Returns:
        None where there is no question on which every arm is known.

    Raises:
        RouterError: The utility does not fit the outcomes.
    """
    plain = utility.model_copy(update={"scale": "none", "over": None})
    worth = utilities(outcomes, plain)
    whole = ~np.isnan(worth).any(axis=1)
    if not whole.any():
        return None
    seen, worth = outcomes.only(whole), worth[whole]
    paid = charged(seen, stage)
    arms = {
        arm: _row(seen, worth, np.tile(one, (len(worth), 1)))
        for arm, one in zip(seen.arms, np.eye(len(seen.arms)), strict=True)
    }
    single = max(arms, key=lambda arm: arms[arm].utility)
    router = _row(paid, utilities(paid, plain), best(scores[whole]))
    oracle = _row(seen, worth, best(worth))
    way = oracle.utility - arms[single].utility
    gap = (router.utility - arms[single].utility) / way if way > 0.0 else None
    return RouterValidation(len(worth), arms, router, oracle, single, gap)


def charged(outcomes: Outcomes, stage: Stage) -> Outcomes:
    """Return the outcomes as they are for a router: each arm costs what all cost that must be looked at.

    Where the cost of one is not known, that of all is not.
    """
    costs = dict(outcomes.costs)
    for name in PAID[stage]:
        if name in costs:
            costs[name] = np.tile(cost_of(outcomes, name).sum(axis=1, keepdims=True), len(outcomes.arms))
    return replace(outcomes, costs=costs)


def uncharged(outcomes: Outcomes, prices: Prices, stage: Stage) -> str:
    """Say in a line what has a price, but is told of a search and its answer together only; empty if nothing.

    A turn pays it for the searches of all arms, and nobody knows how much that is.

    Args:
        outcomes: What is known.
        prices: Of what a router costs.
        stage: How far a question must have come for the router.
    """
    if stage is not Stage.RETRIEVED:
        return ""
    costs = needed(prices, outcomes.costs)
    names = " and ".join(name for name, told in costs.items() if not set(told) & set(PAID[stage]))
    return names and (
        f"all arms search before one is drawn, and {names} have a price: a turn pays the {names} of these "
        "searches, but the outcomes tell no search from its answer, so they are not charged here"
    )


def best(scores: Floats) -> Floats:
    """Return how much of each question goes to each arm: all to the best, split among ties.

    >>> best(np.array([[1.0, 3.0, 3.0]])).tolist()
    [[0.0, 0.5, 0.5]]
    """
    highest = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(highest / highest.sum(axis=1, keepdims=True))


def _row(outcomes: Outcomes, worth: Floats, shares: Floats) -> Row:
    known = {name: _mean(outcomes.scores[name], shares) for name in SHOWN if name in outcomes.scores}
    steps = _mean(outcomes.costs["steps"], shares) if "steps" in outcomes.costs else np.nan
    return Row(
        _mean(worth, shares),
        {name: value for name, value in known.items() if not np.isnan(value)},
        None if np.isnan(steps) else steps,
    )


def _mean(values: Floats, shares: Floats) -> float:
    """Return the mean of what the shares select, over the questions on which it is known; NaN if none."""
    chosen = np.where(shares > 0.0, shares * values, 0.0).sum(axis=1)
    known = ~np.isnan(chosen)
    return float(chosen[known].mean()) if known.any() else float("nan")
