"""Drift detection and its alarms."""

from .alarms import Alarm, Alarms, Watch, newest_alarms, read_alarms, record_warm_start
from .monitor import Change, DriftSpec, Monitor

__all__ = [
    "Alarm",
    "Alarms",
    "Change",
    "DriftSpec",
    "Monitor",
    "Watch",
    "newest_alarms",
    "read_alarms",
    "record_warm_start",
]
