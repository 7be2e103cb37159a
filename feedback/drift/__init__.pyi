from . import monitor
from .alarms import Alarm, Alarms, Watch, standing_alarms, warm_started
from .detectors import DriftSpec

__all__ = ["Alarm", "Alarms", "DriftSpec", "Watch", "monitor", "standing_alarms", "warm_started"]
