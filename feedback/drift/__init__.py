"""Drift detection and its alarms."""

from .alarms import Alarm, Alarms, Watch, read_alarms, record_warm_start
from .monitor import Change, DriftSpec, Monitor

__all__ = ["Alarm", "Alarms", "Change", "DriftSpec", "Monitor", "Watch", "read_alarms", "record_warm_start"]
