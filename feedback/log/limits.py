"""The limits of the values in columns, and what readers get in the place of a value beyond them.

Values are checked here instead of in each reader: every number comes through the type of its column, every
document through `backend.loads`. So a wrong row, whatever its origin, moves an estimate by at most what its
limits allow, and readers go on. `CommitBatch` keeps new rows within the same limits.

    Amount, Count     the nearest limit
    Time              0, the earliest time: it closes nothing and is in no window
    Propensity        null, like an unknown one: estimates that weigh by it leave the decision out
    Setting           null, like one that was not recorded
    Word              a word that is neither learned from nor counted: see its column
    documents         the nearest limit, for each number in them
    Numbers           the nearest limit, and 0 for what is not a number
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from operator import is_
from typing import Any, ClassVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from armwise.feedback.events import LEAST_PROPENSITY

LARGEST = 2**53
"""Largest number in a document or a value: the largest integer that every JSON parser reads exactly."""

MOST_TOKENS = 2**31 - 1
"""Largest number of tokens or steps of an answer."""

MOST_SPENT = 1e9
"""Most dollars or seconds of an answer."""

MOST_SUM = 1e100
"""Largest sum of weights, of rewards and of their squares over many decisions."""

LATEST = 4_102_444_800.0
"""Latest time of a fact, seconds since the epoch: the first of January 2100."""


class Limited(TypeDecorator[Any]):
    """A number from `low` to `high`; for others readers get `instead`, or the nearest limit if it is empty.

    Args:
        low: The least number.
        high: The largest number.
    """

    impl: Any = sa.Double
    cache_ok = True
    instead: ClassVar[tuple[float | None, ...]] = ()

    def __init__(self, low: float = 0.0, high: float = MOST_SPENT) -> None:
        super().__init__()
        self.low, self.high = low, high

    def within(self, value: Any) -> Any:
        """Return a number, or its replacement.

        >>> Limited(0.0, 5.0).within(3.0), Limited(0.0, 5.0).within(-1.0), Time().within(1e308)
        (3.0, 0.0, 0.0)
        """
        if value is None or (isinstance(value, int | float) and self.low <= value <= self.high):
            return value
        if self.instead:
            return self.instead[0]
        return self.low if isinstance(value, int | float) and value < self.low else self.high

    def all_within(self, values: list[Any]) -> NDArray[Any]:
        """Return numbers as an array of shape (n,), each through `within`; NaN for null."""
        kind = np.int64 if isinstance(self.impl_instance, sa.Integer) else np.float64
        try:
            column = np.array(values, dtype=kind)
            if not len(column) or (column.min() >= self.low and column.max() <= self.high):
                return column
        except (OverflowError, ValueError, TypeError):
            pass
        return np.array([self.within(value) for value in values], dtype=kind)

    def beyond(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return the condition that the value of a column is beyond its limits."""
        return ~column.between(self.low, self.high)

    @override
    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return self.within(value)


class Amount(Limited):
    """Dollars, seconds, a share or a value."""

    cache_ok = True


class Count(Limited):
    """A whole number of tokens or steps."""

    impl = sa.Integer
    cache_ok = True

    def __init__(self, low: int = 0, high: int = MOST_TOKENS) -> None:
        super().__init__(low, high)


class LargeCount(Count):
    """A whole number that sums over many answers."""

    impl = sa.BigInteger
    cache_ok = True

    def __init__(self, low: int = 0, high: int = LARGEST) -> None:
        super().__init__(low, high)


class VersionNumber(LargeCount):
    """A number that the database assigned to a row of another table."""

    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Integer() if dialect.name == "sqlite" else sa.BigInteger())


class Time(Limited):
    """When something happened, seconds since the epoch."""

    cache_ok = True
    instead = (0.0,)

    def __init__(self) -> None:
        super().__init__(0.0, LATEST)


class Propensity(Limited):
    """The probability with which the drawn arm was drawn."""

    cache_ok = True
    instead = (None,)

    def __init__(self) -> None:
        super().__init__(LEAST_PROPENSITY, 1.0)


class Setting(Limited):
    """A number that may be missing."""

    cache_ok = True
    instead = (None,)


class Word(TypeDecorator[str]):
    """A word of an enumeration; for any other word readers get `instead`.

    Args:
        instead: Word of the enumeration.
    """

    impl = sa.String(16)
    cache_ok = True

    def __init__(self, instead: StrEnum) -> None:
        super().__init__()
        self.instead = instead.value
        self.words = tuple(word.value for word in type(instead))

    def within(self, value: Any) -> Any:
        """Return a word, or its replacement; null stays, as in the rows of an outer join.

        >>> from armwise.feedback.events import Status
        >>> [Word(Status.CANCELLED).within(word) for word in ("ok", "great", None)]
        ['ok', 'cancelled', None]
        """
        return value if value is None or value in self.words else self.instead

    def beyond(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
        """Return the condition that the word of a column is outside of the enumeration."""
        return column.not_in(self.words)

    @override
    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return self.within(value)


class Numbers(sa.JSON):
    """A document of numbers in lists or by name; `numeric` reads it."""


def numeric(value: Any, most: float = LARGEST) -> Any:
    """Return a document of numbers within limits; the same object if unchanged.

    Args:
        value: A number, or lists and mappings of numbers; anything else in it becomes 0.
        most: Largest magnitude; larger numbers are reduced to it.

    >>> numeric({"small": [900, None, "7"]}), numeric((0.5, 0.5)), numeric([-1e9, 1e9, 3.0], 1e6)
    ({'small': [900, 0.0, 0.0]}, (0.5, 0.5), [-1000000.0, 1000000.0, 3.0])
    """
    match value:
        case int() | float():
            return value if -most <= value <= most else max(-most, min(most, value))
        case Mapping() if not are_numbers(value.values(), most):
            named = {name: numeric(part, most) for name, part in value.items()}
            return value if all(part is value[name] for name, part in named.items()) else named
        case list() | tuple() if not are_numbers(value, most):
            parts = [numeric(part, most) for part in value]
            return value if all(map(is_, parts, value)) else type(value)(parts)
        case Mapping() | list() | tuple():
            return value
    return 0.0


def are_numbers(values: Collection[Any], most: float = LARGEST) -> bool:
    """Return whether all values are numbers of at most this magnitude.

    >>> are_numbers([0.5, -7]), are_numbers([1e30]), are_numbers([1.0, "7"]), are_numbers([])
    (True, False, False, True)
    """
    try:
        return not values or bool(min(values) >= -most and max(values) <= most)
    except TypeError:  # some are none, or hold others
        return False
