"""Errors of the log. After a LogUnavailableError a retry is safe; the others stay until somebody acts."""


def describe_error(error: Exception) -> str:
    """Return one line with the type and the message of an error; timeouts have no message."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class StoreError(Exception):
    """The log cannot be read or written."""


class LogUnavailableError(StoreError):
    """The database is unreachable, locked or full; nothing was acknowledged, a retry is safe.

    Attributes:
        remedy: What an operator corrects, where the cause is known, else empty. Not in the message, which
            clients of the service read, too.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class NoLogError(StoreError):
    """There is no log at this place.

    Args:
        place: The absolute path of the file, or the URL of the database without its password.
    """

    def __init__(self, place: object) -> None:
        super().__init__(
            f"there is no log at {place}: start one with `armwise serve`, or correct `home` or `log_url` in "
            "the configuration"
        )


class ConflictError(StoreError):
    """An id is used already, with another content.

    Attributes:
        fact: The refused fact, if the error is about a fact.
    """

    def __init__(self, message: str, fact: object = None) -> None:
        super().__init__(message)
        self.fact = fact


class TooMuchFeedbackError(StoreError):
    """A decision or an episode has as many values of feedback, or retractions, as it may have.

    Attributes:
        fact: The refused feedback.
    """

    def __init__(self, message: str, fact: object = None) -> None:
        super().__init__(message)
        self.fact = fact


class SchemaError(StoreError):
    """The tables of the log are of another schema than this code reads and writes."""


class LogGapError(StoreError):
    """Positions of the log are missing: rows were deleted, so what follows them cannot be trusted."""


class ClockError(StoreError):
    """A clock jumped: its timestamps would contradict the order of the events."""


class BehindError(ClockError):
    """The clock of this process is behind the log: its timestamps would precede those in the log."""


class MetricRedefinedError(StoreError):
    """A metric is declared with another type or range than its values in the log have."""


class SupersededError(StoreError):
    """Another learner, or another worker, has taken over; this one must stop writing."""


class QueueFullError(StoreError):
    """Too many jobs are queued; retry when some are done."""


class ChangedMeanwhileError(StoreError):
    """The state that a decision rests on has changed; nothing was written."""


class UndecidedError(Exception):
    """A required evaluation is still under way; the message names it."""


class UnderWayError(StoreError):
    """A job of which one runs at a time is running, or requested already."""


class RebuiltError(StoreError):
    """The training log was rebuilt: a learner must restart from it."""


class ProjectTakenError(StoreError):
    """The log has ids that would become those of a new project."""


LOG_UNUSABLE = (LogUnavailableError, SchemaError, LogGapError, BehindError)
"""Errors of a log that cannot be used at all, whatever is asked of it."""
