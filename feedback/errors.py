"""What can go wrong with the log, and whether trying again may help.

StoreError                 the log cannot be read or written
|-- LogUnavailableError    the database is away, locked or full: safe to try again
|-- ConflictError          the same id was used for something else
|-- UnderWayError          what is done once at a time is being done
|-- SchemaError            the tables are those of an older or a newer Armwise
|-- LogGapError            rows of the log are missing
|-- ClockError             a clock jumped
|   `-- BehindError        that of this process: it cannot write any more
|-- MetricRedefinedError   a metric means something else than its values in the log
|-- SupersededError        another learner or worker has taken over: this one must stop writing
|-- QueueFullError         too many jobs wait already
|-- ChangedMeanwhileError  somebody else said something since; whoever wants it nevertheless says it again
`-- RebuiltError           the training log was made anew: a learner must start again
"""


def described(error: Exception) -> str:
    """Return one line that names an error; time-outs carry no message of their own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class StoreError(Exception):
    """The log cannot be read or written."""


class LogUnavailableError(StoreError):
    """The database is away, locked or full; nothing was acknowledged, trying again is safe."""


class ConflictError(StoreError):
    """An id was used again for something else.

    Attributes:
        fact: The fact that was refused for it; None where it is none.
    """

    def __init__(self, message: str, fact: object = None) -> None:
        super().__init__(message)
        self.fact = fact


class SchemaError(StoreError):
    """The tables of the log are not those that this code reads and writes."""


class LogGapError(StoreError):
    """Positions of the log are missing: rows were deleted, and what follows them cannot be trusted."""


class ClockError(StoreError):
    """A clock jumped: the order of what it stamps would not be the order in which it happened."""


class BehindError(ClockError):
    """The clock of this process is behind the log: what it stamped would not be later than what is there."""


class MetricRedefinedError(StoreError):
    """A metric is declared as something else than what its values in the log are."""


class SupersededError(StoreError):
    """Another learner, or another worker, has taken over; this one must stop writing."""


class QueueFullError(StoreError):
    """Too many jobs wait already; one more may be taken once some are done."""


class ChangedMeanwhileError(StoreError):
    """What was decided rests on what is no longer in force; nothing was written."""


class UnderWayError(StoreError):
    """What is done once at a time is being done, or was asked for already."""


class RebuiltError(StoreError):
    """The training log was made anew: a learner must start again, from what is there now."""
