"""Rendering: colours, SVG, HTML templates, and texts of others in a terminal."""

from .html import (
    COLOURS,
    GREY,
    GRID,
    INK,
    LEGEND,
    PALETTE,
    counted,
    draw_svg,
    filled,
    moment,
    write_dollars,
    write_number,
    write_price,
)
from .plain_text import Terminal, log_plainly, one_line, visible

__all__ = [
    "COLOURS",
    "GREY",
    "GRID",
    "INK",
    "LEGEND",
    "PALETTE",
    "Terminal",
    "counted",
    "draw_svg",
    "filled",
    "log_plainly",
    "moment",
    "one_line",
    "visible",
    "write_dollars",
    "write_number",
    "write_price",
]
