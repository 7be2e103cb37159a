"""Charts as JSON, which `console.js` draws."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson


def draw_chart(x: Sequence[float], series: Sequence[Mapping[str, Any]], **rest: Any) -> str:
    """Return a chart as JSON for `console.js`: each series is as long as `x`."""
    return orjson.dumps({"x": x, "series": series, **rest}).decode()


def draw_levels(
    spans: Sequence[tuple[float, float]], series: Sequence[Mapping[str, Any]], **rest: Any
) -> str:
    """Return a chart of levels as JSON for `console.js`: each holds from begin to end, a gap is left between.

    A level is a mean of its span: a line from one to the next would show values that were never measured.

    Args:
        spans: Begin and end of each level, in order.
        series: Series with a value for each span.
        rest: Further fields of the chart.
    """
    x: list[float] = []
    levels: list[int | None] = []
    for number, (begin, end) in enumerate(spans):
        x.append(begin)
        levels.append(number)
        if number + 1 == len(spans):
            x.append(end)
            levels.append(number)
        elif end < spans[number + 1][0]:
            x += [end, (end + spans[number + 1][0]) / 2]
            levels += [number, None]
    drawn = [
        {**one, "values": [None if level is None else one["values"][level] for level in levels]}
        for one in series
    ]
    return draw_chart(x, drawn, levels=True, **rest)
