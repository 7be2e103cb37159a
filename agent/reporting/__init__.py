"""Rendering: colours, HTML templates, and texts of others in a terminal."""

from .html import (
    GREY,
    INK,
    PALETTE,
    fill_template,
    format_counts,
    moment,
    write_dollars,
    write_further,
    write_number,
    write_price,
    write_span,
)
from .plain_text import Terminal, log_plainly, one_line, visible

__all__ = [
    "GREY",
    "INK",
    "PALETTE",
    "Terminal",
    "fill_template",
    "format_counts",
    "log_plainly",
    "moment",
    "one_line",
    "visible",
    "write_dollars",
    "write_further",
    "write_number",
    "write_price",
    "write_span",
]
