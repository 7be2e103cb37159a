from . import (
    archive,
    decision_search,
    epochs,
    examples,
    imported_turns,
    lag,
    logged_labels,
    observed,
    rollups,
    router_contexts,
    traffic,
)
from .epochs import take_epoch
from .examples import StartingPoint, learned_examples
from .joiner import Joiner, Position, position_of, read_examples
from .refold import Refold

__all__ = [
    "Joiner",
    "Position",
    "Refold",
    "StartingPoint",
    "archive",
    "decision_search",
    "epochs",
    "examples",
    "imported_turns",
    "lag",
    "learned_examples",
    "logged_labels",
    "observed",
    "position_of",
    "read_examples",
    "rollups",
    "router_contexts",
    "take_epoch",
    "traffic",
]
