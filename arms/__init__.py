"""Kinds of arms, language models, and the selection of a portfolio of arms.

The kinds of arms are in `armwise.arms.retrievers`. Each name is imported when it is first used, so that a
process loads only what it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Arm, ArmBuildError, ArmError, Passage, Query, Retrieval

__all__ = ["Arm", "ArmBuildError", "ArmError", "Passage", "Query", "Retrieval"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
