"""What we can do: kinds of arms, language models, and choosing a portfolio among them.

The kinds of arms are in `armwise.arms.retrievers`. A name is imported when it is first used: what starts a
process loads the rooms that it needs alone.
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
