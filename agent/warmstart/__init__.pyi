from . import insert_labels
from .job import WarmStarts
from .run import RunFailedError, foreseen, warm_start
from .schedule import Planned, look

__all__ = ["Planned", "RunFailedError", "WarmStarts", "foreseen", "insert_labels", "look", "warm_start"]
