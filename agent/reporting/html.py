"""Pages for people: templates filled as HTML, their colours, numbers and times."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from armwise.agent.reporting.plain_text import visible

if TYPE_CHECKING:
    from jinja2 import Environment

INK, GREY = "#1f2430", "#8a8f98"

PALETTE = (
    *("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377"),
    *("#ee8866", "#332288", "#44aa99", "#882255", "#bbcc33", "#999999"),
)
"""Distinguishable with any colour vision; they repeat after twelve arms."""

DARK = (
    *("#7aa6d8", "#ff8f9c", "#5bb96a", "#ddcf6b", "#8ad8f0", "#cf72ad"),
    *("#f5a98a", "#8f86e0", "#6fc9bd", "#c76b86", "#cfdd6f", "#b5b5b5"),
)
"""The palette on a dark ground."""

TEMPLATES = Path(__file__).parent / "templates"


def fill_template(template: Path | str, **values: object) -> str:
    """Render a template as HTML.

    Args:
        template: The name of a template of this package, or the path of another one; it may include ours.
        values: Variables of the template; text is escaped.
    """
    palette = {"light": PALETTE, "dark": DARK}
    path = TEMPLATES / template  # an absolute path stays as it is
    return _environment(path.parent).get_template(path.name).render(palette=palette, **values)


def _visible(value: object) -> object:
    """Return a text without control characters, and any other value as it is."""
    return visible(value) if type(value) is str else value


@cache
def _environment(folder: Path) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = "{:,.0f}".format
    environment.filters["signed"] = "{:+.3f}".format
    environment.filters["digits"] = write_number
    environment.filters["dollars"] = write_dollars
    environment.filters["price"] = write_price
    environment.filters["moment"] = moment
    environment.filters["clock"] = write_clock
    environment.filters["instant"] = write_instant
    environment.filters["counted"] = format_counts
    return environment


def moment(at: float) -> str:
    """Return seconds since the epoch as a date and time in UTC; as seconds where no calendar has them.

    >>> moment(0.0), moment(253402351199.0)
    ('1970-01-01 00:00 UTC', '253402351199 s after 1970')
    """
    date = _find_date(at)
    return f"{at:.15g} s after 1970" if date is None else date.strftime("%Y-%m-%d %H:%M UTC")


def write_span(first: float, last: float) -> str:
    """Return a stretch of time, by seconds since the epoch; a log without times has 0 for all of them.

    >>> write_span(0.0, 86400.0), write_span(0.0, 1.0)
    ('1970-01-01 00:00 UTC to 1970-01-02 00:00 UTC', 'no times on record')
    """
    return f"{moment(first)} to {moment(last)}" if last > 1.0 else "no times on record"


def write_clock(at: float) -> str:
    """Return seconds since the epoch as a time of day in UTC, with its seconds.

    >>> write_clock(3_661.0)
    '01:01:01 UTC'
    """
    date = _find_date(at)
    return moment(at) if date is None else date.strftime("%H:%M:%S UTC")


def write_instant(at: float) -> str:
    """Return seconds since the epoch for the `datetime` of a `time` element; empty: no calendar has them.

    >>> write_instant(0.5), write_instant(253402351199.0)
    ('1970-01-01T00:00:00Z', '')
    """
    date = _find_date(at)
    return "" if date is None else date.strftime("%Y-%m-%dT%H:%M:%SZ")


def _find_date(at: float) -> datetime | None:
    """Return the date and time of seconds since the epoch, in UTC; None: no calendar has them."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def write_number(value: float, digits: int = 3) -> str:
    """Return a number with at most so many significant digits, never with an exponent.

    >>> write_number(0.0000098, 2), write_number(12345.678), write_number(0.5), write_number(-2)
    ('0.0000098', '12,300', '0.5', '-2')
    """
    return format(Decimal(f"{value:.{digits}g}"), ",f")


def write_dollars(amount: float, beside: float = 0.0) -> str:
    """Return an amount in dollars; if it and `beside` are small, with two significant digits.

    >>> write_dollars(1234.5), write_dollars(0.01234), write_dollars(0.0), write_dollars(-2.5)
    ('$1,234.50', '$0.012', '$0', '-$2.50')
    >>> write_dollars(0.098), write_dollars(0.3, 0.01), write_dollars(0.01, 20.0)
    ('$0.10', '$0.30', '$0.01')
    """
    size = max(abs(amount), abs(beside))
    if size == 0.0:
        return "$0"
    places = next((n for n in range(2, 12) if round(size, n) >= 10.0 ** (1 - n)), 12)
    return f"{'-' if amount < 0.0 else ''}${abs(amount):,.{places}f}"


def write_price(usd: float) -> str:
    """Return the dollars that one answer costs; those of 1,000 answers if one costs less than a cent.

    >>> write_price(0.000098), write_price(0.01), write_price(0.0), write_price(-0.002)
    ('$0.10 per 1,000', '$0.010', '$0', '-$2.00 per 1,000')
    """
    if usd == 0.0 or abs(usd) >= 0.01:
        return write_dollars(usd)
    return f"{write_dollars(1000.0 * usd)} per 1,000"


def write_further(more: tuple[int, int | None], rows: str = "decisions") -> str:
    """Return a forecast of further rows in words.

    >>> write_further((320, 1300)), write_further((320, None), "ratings"), write_further((1, 1300), "draws")
    ('about 320 to 1,300 more decisions', 'at least about 320 more ratings', 'up to about 1,300 more draws')
    """
    least, most = more
    if most is None:
        return f"at least about {least:,} more {rows}"
    return f"about {least:,} to {most:,} more {rows}" if least > 1 else f"up to about {most:,} more {rows}"


def format_counts(reasons: Mapping[str, int]) -> str:
    """Return the count for each reason as text.

    >>> format_counts({"forced": 1200, "no reward": 3})
    '1,200 forced, 3 no reward'
    """
    return ", ".join(f"{n:,} {reason}" for reason, n in reasons.items())
