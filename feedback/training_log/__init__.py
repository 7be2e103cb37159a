"""From facts to ordered, rewarded examples."""

from . import (
    delays,
    examples,
    label_turns,
    lag,
    logged_labels,
    observed,
    raters,
    rollups,
    router_contexts,
    settled,
    traffic,
)
from .examples import StartingPoint, learned_examples
from .join import (
    REBUILD,
    DecisionFact,
    Fold,
    Joiner,
    Position,
    confirm_epoch,
    newest_epoch,
    read_examples,
    read_position,
    take_epoch,
)
from .refold import Refold
from .settled import Settled, WaitingDecisions, settled_at, waiting

__all__ = [
    "REBUILD",
    "DecisionFact",
    "Fold",
    "Joiner",
    "Position",
    "Refold",
    "Settled",
    "StartingPoint",
    "WaitingDecisions",
    "confirm_epoch",
    "delays",
    "examples",
    "label_turns",
    "lag",
    "learned_examples",
    "logged_labels",
    "newest_epoch",
    "observed",
    "raters",
    "read_examples",
    "read_position",
    "rollups",
    "router_contexts",
    "settled",
    "settled_at",
    "take_epoch",
    "traffic",
    "waiting",
]
