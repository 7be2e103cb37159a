from . import catalog, fusion, index_version, kind
from .catalog import ArmSpecError, build_arm, closure, prepare
from .kind import DEFAULT_HOST, ArmSpec, OpenTrained, Resources, SelectorSpec, Trust
from .new_arms import NewArms
from .rerank import regularized

__all__ = [
    "DEFAULT_HOST",
    "ArmSpec",
    "ArmSpecError",
    "NewArms",
    "OpenTrained",
    "Resources",
    "SelectorSpec",
    "Trust",
    "build_arm",
    "catalog",
    "closure",
    "fusion",
    "index_version",
    "kind",
    "prepare",
    "regularized",
]
