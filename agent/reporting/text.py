"""Numbers and times for people."""

from collections.abc import Mapping
from datetime import UTC, datetime


def moment(at: float) -> str:
    """Return seconds since the epoch as a date and time in UTC.

    >>> moment(0.0)
    '1970-01-01 00:00 UTC'
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def counted(reasons: Mapping[str, int]) -> str:
    """Return the count for each reason as text.

    >>> counted({"forced": 1200, "not judged": 3})
    '1,200 forced, 3 not judged'
    """
    return ", ".join(f"{n:,} {reason}" for reason, n in reasons.items())
