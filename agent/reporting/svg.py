"""Draw matplotlib figures as SVG that takes its colours from the page."""

import re
import warnings
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from agent.reporting.style import GREY, INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Told = TypeVar("Told")

GRID = "#e6e8eb"

COLOURS = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    GREY: "var(--grey)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(PALETTE)},
}
"""What each colour is called in the style sheet of the page."""


def draw_svg(told: Told, draw: Callable[[Told], "Figure"], title: str) -> str:
    """Draw one of the pictures below, or another one that has their colours.

    Args:
        told: What is drawn.
        draw: One of the functions of this module.
        title: What is to be seen, for those who hear the page.
    """
    # Imported here as it takes a second, which no other command of the program should wait for.
    from matplotlib import rc_context

    file = StringIO()
    looks: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": draw.__name__,
        "text.parse_math": False,
        "date.converter": "concise",
    }
    with rc_context(looks), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the font is the reader's
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        draw(told).savefig(file, format="svg", transparent=True, metadata=nothing)
    picture = file.getvalue()
    picture = picture[picture.index("<svg") :]
    picture = re.sub(r' xmlns(:\w+)?="[^"]*"|(?<=<g) id="[^"]*"', "", picture)
    picture = re.sub(r'<svg (?:width|height)="[^"]*"|(?<=") (?:width|height)="[^"]*pt"', _opening, picture)
    for colour, name in COLOURS.items():
        picture = picture.replace(colour, name)
    return picture.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _opening(found: re.Match[str]) -> str:
    return "<svg" if found.group().startswith("<svg") else ""
