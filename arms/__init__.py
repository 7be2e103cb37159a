"""What we can do: kinds of arms, language models, and choosing a portfolio among them.

The kinds of arms are in `armwise.arms.retrievers`.
"""

from .base import Arm, ArmBuildError, ArmError, Passage, Query, Retrieval

__all__ = ["Arm", "ArmBuildError", "ArmError", "Passage", "Query", "Retrieval"]
