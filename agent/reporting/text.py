"""Numbers and times for people."""

from collections.abc import Mapping
from datetime import UTC, datetime


def moment(at: float) -> str:
    """Return seconds since the epoch as a date and time in UTC; as seconds where no calendar has them.

    >>> moment(0.0), moment(253402351199.0)
    ('1970-01-01 00:00 UTC', '253402351199 s after 1970')
    """
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at:.15g} s after 1970"


def counted(reasons: Mapping[str, int]) -> str:
    """Return the count for each reason as text.

    >>> counted({"forced": 1200, "not judged": 3})
    '1,200 forced, 3 not judged'
    """
    return ", ".join(f"{n:,} {reason}" for reason, n in reasons.items())
