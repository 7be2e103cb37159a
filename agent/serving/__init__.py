"""What a replica of the ingress holds: live arms, the served version, metrics, and the turns that it runs."""

from .arms import arm_infos, same_document
from .replica import Replica
from .telemetry import PointState, Telemetry

__all__ = ["PointState", "Replica", "Telemetry", "arm_infos", "same_document"]
