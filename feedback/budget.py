"""A budget: the mean cost of a request is held at a ceiling by a price on cost.

    distribution  =  a policy whose scores are reduced by price x expected cost of each arm
    price         =  raised after a request that cost more than allowed, lowered after a cheaper one

The price is the dual variable of "as much reward as possible, while the mean cost is at most the ceiling",
and each request is a step of its mirror descent: the price is multiplied, so that it finds its scale
whatever the units of rewards and costs are. An overspend, as at the start, is paid back over the next
`window` requests, so that the mean over all requests comes to the ceiling and not only that of the last.

Source: Agrawal and Devanur 2016, Linear contextual bandits with knapsacks, arXiv:1507.06738, for the dual;
Balseiro, Lu and Mirrokni 2023, The best of many worlds: dual mirror descent for online allocation problems,
arXiv:2011.10124, for the multiplied price.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from armwise.feedback.events import Cost
from armwise.number import Number

Unit = Literal["usd", "steps"]

START = 0.1
"""First price, in rewards per ceiling."""

RANGE = (1e-3, 1e3)
"""Smallest and largest price, in rewards per ceiling: it is multiplied, so it must stay above 0."""

STEP = 4.0
"""Change of the logarithm of the price over a window in which each request costs twice the ceiling."""

MOST_AT_ONCE = 20.0
"""Largest overspend of one request that the price follows, in ceilings; more is paid back later."""

MOST_PAID_BACK = 0.5
"""Largest part of the ceiling by which an earlier overspend, or an earlier saving, shifts it."""

MOST_OWED = 2.0
"""Largest debt, or saving, that is remembered, in ceilings times the window."""


class Budget(BaseModel):
    """A ceiling on the mean cost per request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_request: Number | None = Field(
        default=None,
        ge=1e-9,
        le=1e9,
        description="Ceiling in dollars per request.",
    )
    steps_per_request: Number | None = Field(
        default=None,
        ge=1e-9,
        le=1e9,
        description="Ceiling in rounds of retrieval per request, instead of dollars.",
    )
    window: int = Field(
        default=200,
        ge=20,
        le=1_000_000,
        description=(
            "Number of requests over which the policy averages each arm's cost and makes up for overspending."
        ),
    )

    @model_validator(mode="after")
    def _has_one_ceiling(self) -> "Budget":
        if (self.usd_per_request is None) == (self.steps_per_request is None):
            raise ValueError("set either usd_per_request or steps_per_request")
        return self

    @property
    def unit(self) -> Unit:
        """Unit of cost that is counted."""
        return "steps" if self.usd_per_request is None else "usd"

    @property
    def ceiling(self) -> float:
        """Largest mean cost of a request, in its unit."""
        return cast(float, self.usd_per_request or self.steps_per_request)

    @property
    def name(self) -> str:
        """Identifies the budget.

        >>> Budget(usd_per_request=0.002).name
        'usd 0.002/200'
        """
        return f"{self.unit} {self.ceiling!r}/{self.window}"

    def measure(self, cost: Cost) -> float:
        """Return what a request cost, in the unit of the budget."""
        return cost.usd if self.unit == "usd" else float(cost.steps)


@dataclass(slots=True)
class Pacer:
    """The price as a fold over the costs of requests, in order.

    Attributes:
        budget: The budget.
        price: Reward that a unit of cost has to be worth; 0 before the first request.
        debt: Amount spent above the ceiling so far, in units of cost; negative for a saving.
        arms: Number of costs that are averaged and their mean, by arm.
    """

    budget: Budget
    price: float = 0.0
    debt: float = 0.0
    arms: dict[str, tuple[int, float]] = field(default_factory=dict)

    def note(self, arm: str, spent: float, paid: float | None = None) -> None:
        """Take a step of the price.

        Args:
            arm: The arm that was drawn.
            spent: Cost of its request.
            paid: Amount charged to the budget; None: `spent`. In a replay of another distribution, what that
                distribution would have paid.
        """
        ceiling, window = self.budget.ceiling, self.budget.window
        self.arms[arm] = _update_average(self.arms.get(arm), spent, window)
        over = (spent if paid is None else paid) / ceiling - 1.0
        owed = _clip(self.debt / ceiling / window, MOST_PAID_BACK)
        step = STEP / window * (min(over, MOST_AT_ONCE) + owed)
        price = (self.price * ceiling or START) * math.exp(step)
        self.price = min(RANGE[1], max(RANGE[0], price)) / ceiling
        self.debt = _clip(self.debt + over * ceiling, MOST_OWED * window * ceiling)

    def costs(self, arms: Sequence[str]) -> tuple[float, ...]:
        """Return the expected cost of each arm."""
        return list_expected_costs({arm: mean for arm, (_, mean) in self.arms.items()}, arms)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a unit of cost at a position of the log.

    Attributes:
        budget: Name of the budget.
        log_seq: Position of the log up to which costs are counted.
        price: Reward that a unit of cost has to be worth.
        debt: Amount spent above the ceiling so far, in units of cost; negative for a saving.
        arms: Number of costs that are averaged and their mean, by arm.
        epoch: Epoch of the learner that wrote it.
        at: Seconds since the epoch, UTC.
    """

    budget: str
    log_seq: int
    price: float
    debt: float
    arms: Mapping[str, tuple[int, float]]
    epoch: int
    at: float

    def costs(self, arms: Sequence[str]) -> tuple[float, ...]:
        """Return the expected cost of each arm, in the unit of the budget."""
        return list_expected_costs({arm: mean for arm, (_, mean) in self.arms.items()}, arms)

    def pacer(self, budget: Budget) -> Pacer:
        """Return a pacer that continues from here."""
        return Pacer(budget, self.price, self.debt, dict(self.arms))


def mean_costs(budget: Budget, costs: Iterable[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Return the number of averaged costs and their mean by arm, as a pacer computes them from its start."""
    arms: dict[str, tuple[int, float]] = {}
    for arm, spent in costs:
        arms[arm] = _update_average(arms.get(arm), spent, budget.window)
    return arms


def _update_average(average: tuple[int, float] | None, spent: float, window: int) -> tuple[int, float]:
    n, mean = average or (0, spent)
    n = min(n + 1, window)
    return n, mean + (spent - mean) / n


def list_expected_costs(means: Mapping[str, float], arms: Sequence[str]) -> tuple[float, ...]:
    """Return the expected cost of each arm; 0 for an arm that was never drawn, so that it is tried.

    >>> list_expected_costs({"none": 0.0, "graph": 3.0}, ["graph", "new"])
    (3.0, 0.0)
    """
    return tuple(means.get(arm, 0.0) for arm in arms)


def _clip(value: float, most: float) -> float:
    return min(most, max(-most, value))
