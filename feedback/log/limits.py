"""The limits of the numbers in columns: `append` keeps every new row within them.

Callers' values are refused at the door: by the API, an import or a verb. What an arm, a model or a clock
reports beyond them, such as 10^30 tokens, is written as the nearest limit, with a warning.
"""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import sqlalchemy as sa
from typing_extensions import override

from armwise.feedback.events import LEAST_PROPENSITY

LARGEST = 2**53
"""Largest number in a document or a value: the largest integer that every JSON parser reads exactly."""

MOST_TOKENS = 2**31 - 1
"""Largest number of tokens or steps of an answer."""

MOST_SPENT = 1e9
"""Most dollars or seconds of an answer."""

LONGEST_FINISH = 64
"""Most characters of the reason why a language model stopped."""

MOST_MARKS, LONGEST_MARK = 300, 256
"""Most marks of an execution, and most characters of one."""

LATEST = 4_102_444_800.0
"""Latest time of a fact, seconds since the epoch: the first of January 2100."""


def limit_marks(marks: Sequence[str]) -> list[str]:
    """Return the marks of an execution that are kept; too long ones are empty."""
    return [mark if len(mark) <= LONGEST_MARK else "" for mark in marks[:MOST_MARKS]]


class Limited:
    """A column of numbers from `low` to `high`.

    Args:
        low: The least number.
        high: The largest number.
    """

    nullable: ClassVar[bool] = False

    def __init__(self, low: float = 0.0, high: float = MOST_SPENT) -> None:
        super().__init__()
        self.low, self.high = low, high

    def within(self, value: float | None) -> float | None:
        """Return a number to write: the nearest limit beyond them, or null where a number may be missing.

        >>> Amount(0.0, 5.0).within(3.0), Amount(0.0, 5.0).within(-1.0), Setting(0.0, 1.0).within(1e308)
        (3.0, 0.0, None)
        """
        if value is None or self.low <= value <= self.high:
            return value
        if self.nullable:
            return None
        return self.low if value < self.low else self.high


class Amount(Limited, sa.Double[float]):
    """Dollars, seconds, a share or a value."""


class Count(Limited, sa.Integer):
    """A whole number of tokens or steps."""

    def __init__(self, low: int = 0, high: int = MOST_TOKENS) -> None:
        super().__init__(low, high)

    @override
    def within(self, value: float | None) -> int | None:
        """Return the nearest whole number within the limits.

        >>> Count().within(7.6), Count().within(-1), Count().within(None)
        (8, 0, None)
        """
        found = super().within(value)
        return None if found is None else round(found)


class Time(Limited, sa.Double[float]):
    """When something happened, seconds since the epoch."""

    def __init__(self) -> None:
        super().__init__(0.0, LATEST)


class Propensity(Limited, sa.Double[float]):
    """The probability with which the drawn arm was drawn."""

    nullable = True

    def __init__(self) -> None:
        super().__init__(LEAST_PROPENSITY, 1.0)


class Setting(Limited, sa.Double[float]):
    """A number that may be missing."""

    nullable = True


def are_numbers(values: Collection[Any], most: float = LARGEST) -> bool:
    """Return whether all values are numbers of at most this magnitude.

    >>> are_numbers([0.5, -7]), are_numbers([1e30]), are_numbers([1.0, "7"]), are_numbers([])
    (True, False, False, True)
    """
    try:
        return not values or bool(min(values) >= -most and max(values) <= most)
    except TypeError:  # some are none, or hold others
        return False
