"""From facts to ordered, rewarded examples."""

from . import (
    delays,
    examples,
    label_turns,
    lag,
    logged_labels,
    observed,
    rated,
    raters,
    rollups,
    router_contexts,
    settled,
    traffic,
)
from .examples import StartingPoint, learned_examples
from .join import LoggedFeedback, Turn, find_deadline
from .joiner import (
    REBUILD,
    Joiner,
    Position,
    confirm_epoch,
    delete_training_log,
    newest_epoch,
    read_examples,
    read_position,
    take_epoch,
)
from .refold import find_difference, require_gapless
from .settled import Settled, WaitingDecisions, settled_at, waiting

__all__ = [
    "REBUILD",
    "Joiner",
    "LoggedFeedback",
    "Position",
    "Settled",
    "StartingPoint",
    "Turn",
    "WaitingDecisions",
    "confirm_epoch",
    "delays",
    "delete_training_log",
    "examples",
    "find_deadline",
    "find_difference",
    "label_turns",
    "lag",
    "learned_examples",
    "logged_labels",
    "newest_epoch",
    "observed",
    "rated",
    "raters",
    "read_examples",
    "read_position",
    "require_gapless",
    "rollups",
    "router_contexts",
    "settled",
    "settled_at",
    "take_epoch",
    "traffic",
    "waiting",
]
