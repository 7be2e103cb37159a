"""The budget: while spending is above the ceiling, arms lose reward in proportion to their cost."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from armwise.agent.turn.steps.base import Draft, StepRecord, TurnStep
from armwise.feedback.budget import Price


class BudgetStep(TurnStep):
    """Counts the price of costs against arms.

    Args:
        get_price: Returns the price of a unit of cost now; None before the first request under the budget.
    """

    name: ClassVar[str] = "budget"

    def __init__(self, get_price: Callable[[], Price | None]) -> None:
        self._get_price = get_price

    @classmethod
    def build(cls, *, budget: object, get_price: Callable[[], Price | None]) -> Self | None:
        """Return the step of a service; None: there is no budget."""
        return None if budget is None else cls(get_price)

    def plan(self, draft: Draft) -> StepRecord | None:
        """Return the price, and the expected cost of each arm in the unit of the budget."""
        if (price := self._get_price()) is None:
            return None
        return {
            "price": price.price,
            "costs": dict(zip(draft.names, price.costs(draft.names), strict=True)),
        }

    @classmethod
    def weigh(cls, record: Mapping[str, Any], arms: Sequence[str]) -> Sequence[float]:
        """Return the price of the expected cost of each arm."""
        return [record["price"] * record["costs"][arm] for arm in arms]
