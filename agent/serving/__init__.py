"""A replica of the ingress: decision points, each with live arms, versions and turns; metrics."""

from . import ask
from .arms import arm_infos
from .point import Backends, DecisionPoint, Gate, Service
from .replica import Replica
from .telemetry import PointState, Telemetry

__all__ = [
    "Backends",
    "DecisionPoint",
    "Gate",
    "PointState",
    "Replica",
    "Service",
    "Telemetry",
    "arm_infos",
    "ask",
]
