"""Charts as JSON, which `console.js` draws."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from armwise.feedback.ope import intervals


def draw_chart(x: Sequence[float], series: Sequence[Mapping[str, Any]], **rest: Any) -> str:
    """Return a chart as JSON for `console.js`: `x` has times or counts, and each series the same length."""
    return orjson.dumps({"x": x, "series": series, **rest}).decode()


def band(label: str, colour: str, found: Iterable[tuple[float, intervals.Interval] | None]) -> dict[str, Any]:
    """Return a series of estimates with the band of their intervals; None makes a gap."""
    columns = [(None, None, None) if estimate is None else (estimate[0], *estimate[1]) for estimate in found]
    value, low, high = zip(*columns, strict=True) if columns else ((), (), ())
    return {"label": label, "colour": colour, "values": value, "low": low, "high": high}
