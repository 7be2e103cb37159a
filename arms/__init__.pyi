from .base import Arm, ArmError, Passage, Query, Retrieval
from .retrievers import ArmSpec, build_arm

__all__ = ["Arm", "ArmError", "ArmSpec", "Passage", "Query", "Retrieval", "build_arm"]
