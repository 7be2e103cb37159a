from .child_process import environment_of_a_child, this_process
from .runner import BEAT_S, JobFailedError, Jobs, ProgressCallback, StoppedError, Task, UndecidedError

__all__ = [
    "BEAT_S",
    "JobFailedError",
    "Jobs",
    "ProgressCallback",
    "StoppedError",
    "Task",
    "UndecidedError",
    "environment_of_a_child",
    "this_process",
]
