"""Render the Jinja templates of this package."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent.reporting.plain_text import visible
from agent.reporting.style import PALETTE
from agent.reporting.text import counted, moment

DARK = (
    *("#7aa6d8", "#ff8f9c", "#5bb96a", "#ddcf6b", "#8ad8f0", "#cf72ad"),
    *("#f5a98a", "#8f86e0", "#6fc9bd", "#c76b86", "#cfdd6f", "#b5b5b5"),
)
"""The palette on a dark ground."""

TEMPLATES = Path(__file__).parent / "templates"


def filled(template: Path | str, pictures: Mapping[str, str], **values: object) -> str:
    """Render a template as HTML.

    Args:
        template: The name of a template of this package, or the path of another one; it may include ours.
        pictures: SVG, inserted as it is but for control characters.
        values: Everything else; text is escaped.
    """
    # drawn by us; matplotlib escapes the texts in them
    drawn = {name: Markup(visible(picture)) for name, picture in pictures.items()}  # nosec B704
    palette = {"light": PALETTE, "dark": DARK}
    path = TEMPLATES / template  # an absolute path stays as it is
    return _environment(path.parent).get_template(path.name).render(pictures=drawn, palette=palette, **values)


def _visible(value: object) -> object:
    """Return a text without control characters, and any other value as it is."""
    return visible(value) if type(value) is str else value


@cache
def _environment(folder: Path) -> Environment:
    found = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = "{:,.0f}".format
    found.filters["signed"] = "{:+.3f}".format
    found.filters["moment"] = moment
    found.filters["counted"] = counted
    return found
