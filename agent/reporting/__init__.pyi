from .html import filled
from .style import GREY, INK, LEGEND, PALETTE, moving_average
from .svg import GRID, draw_svg
from .text import counted, moment

__all__ = [
    "GREY",
    "GRID",
    "INK",
    "LEGEND",
    "PALETTE",
    "counted",
    "draw_svg",
    "filled",
    "moment",
    "moving_average",
]
