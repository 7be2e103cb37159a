"""A replica of the ingress: live arms, versions and turns; metrics."""

from . import admission
from .arms import arm_infos
from .replica import Backends, Gate, Replica
from .telemetry import ScrapedState, Telemetry

__all__ = [
    "Backends",
    "Gate",
    "Replica",
    "ScrapedState",
    "Telemetry",
    "admission",
    "arm_infos",
]
