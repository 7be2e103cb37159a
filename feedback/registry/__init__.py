"""Operational facts: versions, promotions, live arms, evaluations, runs."""

from . import (
    arm_sets,
    digests,
    evaluations,
    guards,
    jobs,
    keys,
    prices,
    promotions,
    routers,
    runs,
    usage,
    versions,
)
from .arm_sets import ArmSet, LiveArms
from .digests import Digest, DigestState
from .evaluations import EvaluationRow
from .keys import KeyLimits, KeySettings
from .promotions import ActivePolicy, active_policy
from .runs import Run
from .versions import Version

__all__ = [
    "ActivePolicy",
    "ArmSet",
    "Digest",
    "DigestState",
    "EvaluationRow",
    "KeyLimits",
    "KeySettings",
    "LiveArms",
    "Run",
    "Version",
    "active_policy",
    "arm_sets",
    "digests",
    "evaluations",
    "guards",
    "jobs",
    "keys",
    "prices",
    "promotions",
    "routers",
    "runs",
    "usage",
    "versions",
]
