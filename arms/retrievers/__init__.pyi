from . import catalog, kind
from .catalog import ArmSpecError, build_arm, closure, prepare
from .kind import DEFAULT_HOST, ArmSpec, OpenSelector, Resources, SelectorSpec
from .rerank import regularized

__all__ = [
    "DEFAULT_HOST",
    "ArmSpec",
    "ArmSpecError",
    "OpenSelector",
    "Resources",
    "SelectorSpec",
    "build_arm",
    "catalog",
    "closure",
    "kind",
    "prepare",
    "regularized",
]
