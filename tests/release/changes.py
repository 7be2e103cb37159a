"""A document with one change, for the tests of comparisons."""

import copy
from collections.abc import Callable
from typing import Any

Change = Callable[[dict[str, Any]], object]
"""Changes a document in place."""


def changed(document: dict[str, Any], change: Change) -> dict[str, Any]:
    """Return a copy of a document with a change, which has to be one."""
    made = copy.deepcopy(document)
    change(made)
    assert made != document
    return made
