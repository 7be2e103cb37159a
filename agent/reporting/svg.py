"""Draw matplotlib figures as SVG that takes its colours from the page."""

import re
import warnings
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from agent.reporting.style import GREY, INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = TypeVar("Data")

GRID = "#e6e8eb"

COLOURS = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    GREY: "var(--grey)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(PALETTE)},
}
"""CSS variable of each colour."""


def draw_svg(data: Data, draw: Callable[[Data], "Figure"], title: str) -> str:
    """Draw a figure as SVG whose colours are variables of the page.

    Args:
        data: What is drawn.
        draw: Makes the figure, with the colours of `COLOURS`.
        title: Text alternative for screen readers.
    """
    # Imported here as it takes a second that no other command should spend.
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
        draw(data).savefig(file, format="svg", transparent=True, metadata=nothing)
    picture = file.getvalue()
    picture = picture[picture.index("<svg") :]
    picture = re.sub(r' xmlns(:\w+)?="[^"]*"|(?<=<g) id="[^"]*"', "", picture)
    picture = re.sub(r'<svg (?:width|height)="[^"]*"|(?<=") (?:width|height)="[^"]*pt"', _opening, picture)
    for colour, name in COLOURS.items():
        picture = picture.replace(colour, name)
    return picture.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _opening(found: re.Match[str]) -> str:
    return "<svg" if found.group().startswith("<svg") else ""
