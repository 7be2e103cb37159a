from . import arm_sets, evaluations, prices, promotions, runs, versions
from .arm_sets import ArmSet
from .evaluations import Evaluation
from .promotions import ActivePolicy, active_policy
from .runs import Run
from .versions import Version

__all__ = [
    "ActivePolicy",
    "ArmSet",
    "Evaluation",
    "Run",
    "Version",
    "active_policy",
    "arm_sets",
    "evaluations",
    "prices",
    "promotions",
    "runs",
    "versions",
]
