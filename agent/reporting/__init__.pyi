from . import plain_text
from .html import filled
from .plain_text import Terminal, log_plainly
from .style import GREY, INK, LEGEND, PALETTE, moving_average
from .svg import GRID, draw_svg
from .text import counted, moment

__all__ = [
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
    "moving_average",
    "plain_text",
]
