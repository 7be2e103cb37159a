from . import monitor
from .alarms import Alarm, Alarms, Watch, read_alarms, record_warm_start
from .detectors import DriftSpec

__all__ = ["Alarm", "Alarms", "DriftSpec", "Watch", "monitor", "read_alarms", "record_warm_start"]
