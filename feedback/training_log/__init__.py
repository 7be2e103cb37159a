"""From facts to ordered, rewarded examples."""

from . import (
    archive,
    drawn_turns,
    examples,
    imported_turns,
    lag,
    logged_labels,
    observed,
    rollups,
    router_contexts,
    served_turns,
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
    position_of,
    read_examples,
    take_epoch,
)
from .refold import Refold

__all__ = [
    "REBUILD",
    "DecisionFact",
    "Fold",
    "Joiner",
    "Position",
    "Refold",
    "StartingPoint",
    "archive",
    "confirm_epoch",
    "drawn_turns",
    "examples",
    "imported_turns",
    "lag",
    "learned_examples",
    "logged_labels",
    "newest_epoch",
    "observed",
    "position_of",
    "read_examples",
    "rollups",
    "router_contexts",
    "served_turns",
    "take_epoch",
    "traffic",
]
