"""Render the Jinja templates of this package."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent.reporting.style import PALETTE
from agent.reporting.text import counted, moment

DARK = (
    *("#7aa6d8", "#ff8f9c", "#5bb96a", "#ddcf6b", "#8ad8f0", "#cf72ad"),
    *("#f5a98a", "#8f86e0", "#6fc9bd", "#c76b86", "#cfdd6f", "#b5b5b5"),
)
"""The palette on a dark ground."""


def filled(template: str, pictures: Mapping[str, str], **told: object) -> str:
    """Return a template of this package, filled in: the one room for it.

    Args:
        template: Its name.
        pictures: SVG, which is put in as it is.
        told: All else, of which texts are escaped.
    """
    drawn = {name: Markup(picture) for name, picture in pictures.items()}
    palette = {"light": PALETTE, "dark": DARK}
    return _environment().get_template(template).render(pictures=drawn, palette=palette, **told)


@cache
def _environment() -> Environment:
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    found = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters["number"] = "{:,.0f}".format
    found.filters["signed"] = "{:+.3f}".format
    found.filters["moment"] = moment
    found.filters["counted"] = counted
    return found
