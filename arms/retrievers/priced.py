"""What a search spends: on searches that have a price, and on the language model that an arm prompts.

A meter counts for the search that the running thread does, wherever in an arm it is spent; what a fused arm
returns need not say which members it has asked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from armwise.arms.base import UNUSED, Arm, ArmError, Query, Retrieval, Usage


@dataclass(slots=True)
class Meter:
    """What a search has spent.

    Attributes:
        spent: Usage of each call of the language model, and of each search with a price.
        abandoned: Whether nobody waits for the search any more.
    """

    spent: list[Usage] = field(default_factory=list)
    abandoned: bool = False

    @property
    def total(self) -> Usage:
        """The sum."""
        return sum(self.spent, UNUSED)


METER: ContextVar[Meter | None] = ContextVar("meter", default=None)
"""Meter of the search that the running thread does."""


@contextmanager
def metering() -> Iterator[Meter]:
    """Count what this thread spends within the block."""
    meter = Meter()
    token = METER.set(meter)
    try:
        yield meter
    finally:
        METER.reset(token)


class PricedArm:
    """An arm of which each search costs dollars. Thread-safe.

    A search is charged as it begins, so also where it fails: what a source bills then is not known, and a
    limit on dollars must hold. Attempts that the arm makes again within a search are not charged again.

    Args:
        arm: The arm.
        usd: Dollars of a search.
    """

    def __init__(self, arm: Arm, usd: float) -> None:
        self.name, self.backbones = arm.name, arm.backbones
        self._arm, self._price = arm, Usage(usd=usd, search_usd=usd)

    def search(self, query: Query, k: int) -> Retrieval:
        """Charge, and search. Raises ArmError, also where nobody waits for the search any more."""
        if (meter := METER.get()) is not None:
            if meter.abandoned:
                raise ArmError("the caller no longer waits for this search")
            meter.spent.append(self._price)
        return self._arm.search(query, k)
