from .base import Arm, ArmBuildError, ArmError, Passage, Query, Retrieval
from .retrievers import ArmSpec, build_arm

__all__ = ["Arm", "ArmBuildError", "ArmError", "ArmSpec", "Passage", "Query", "Retrieval", "build_arm"]
