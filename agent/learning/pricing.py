"""Keep the price of a budget: read what requests cost, and publish the price for all replicas."""

from collections.abc import Callable

from feedback.budget import Budget, Pacer, Price
from feedback.log import Store
from feedback.registry import prices

BATCH = 5000
"""Requests that are read at a time."""


class PriceKeeper:
    """Folds the costs in the log into a price; continues from the newest one of the budget.

    A new budget begins with the next request, at a price that is found from there.

    Args:
        store: The log.
        budget: The budget.
        epoch: The right to write, from `take_epoch`.
        clock: Seconds since the epoch.
    """

    def __init__(self, store: Store, budget: Budget, epoch: int, clock: Callable[[], float]) -> None:
        self._store, self._budget, self._epoch, self._clock = store, budget, epoch, clock
        found = prices.latest(store, budget)
        self._pacer = Pacer(budget) if found is None else found.pacer(budget)
        self._seq = store.log_seq() if found is None else found.log_seq

    def step(self) -> Price | None:
        """Read new costs; return the price if one is published.

        Raises:
            SupersededError: Another learner has taken the epoch.
            LogUnavailableError: Try again later, with a new one.
        """
        spending = prices.read_spending(self._store, self._budget, self._seq, BATCH)
        if not spending:
            return None
        for seq, arm, spent in spending:
            self._pacer.note(arm, spent)
            self._seq = seq
        price, debt, arms = self._pacer.price, self._pacer.debt, dict(self._pacer.arms)
        found = Price(self._budget.name, self._seq, price, debt, arms, self._epoch, self._clock())
        prices.publish(self._store, found)
        return found
