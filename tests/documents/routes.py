"""The list of the routes in `docs/reference/http.md`.

An item joins an operation of the OpenAPI document with its section in a page of `docs/reference/http/`, whose
heading is the method and the path.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from armwise.agent.api.documented import document
from armwise.agent.api.routes import list_routes

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs" / "reference"

PAGE = DOCUMENTS / "http.md"

HEADING = re.compile(r"^## ((?:GET|POST|PUT|PATCH|DELETE) /\S+)$", re.MULTILINE)

LONGEST = 56
"""Characters of a purpose that is shown in full; a longer one ends at its first comma."""


def page() -> str:
    """Return the page of the routes with its list."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [at for at, line in enumerate(lines) if line.startswith("- [`")]
    return "\n".join([*lines[: listed[0]], *routes_list(), *lines[listed[-1] + 1 :]]) + "\n"


def routes_list() -> list[str]:
    """Return an item for each section of the pages, in their order.

    Raises:
        ValueError: A section is of no operation.
    """
    operations = dict(_operations())
    items = []
    for path in sorted(DOCUMENTS.glob("http/*.md")):
        for route in HEADING.findall(path.read_text(encoding="utf-8")):
            if (operation := operations.get(_bare(route))) is None:
                raise ValueError(f"http/{path.name} has a section of {route}, which is no operation")
            anchor = re.sub(r"[^\w -]", "", route.lower()).replace(" ", "-")
            summary = operation["summary"].partition(";")[0]
            shown = summary if len(summary) <= LONGEST else summary.partition(",")[0]
            purpose = f"{shown[0].lower()}{shown[1:]}"
            items.append(f"- [`{route}`](http/{path.name}#{anchor}): {purpose}")
    return items


def _operations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the operations of the document by method and path, without the names of parameters."""
    for path, methods in document(FastAPI(routes=list_routes()))["paths"].items():
        for method, operation in methods.items():
            yield _bare(f"{method.upper()} {path}"), operation


def _bare(route: str) -> str:
    """Return a route without the names of its parameters, which a page may shorten.

    >>> _bare("GET /v1/decisions/{decision_id}")
    'GET /v1/decisions/{}'
    """
    return re.sub(r"\{[^{}]*\}", "{}", route)
