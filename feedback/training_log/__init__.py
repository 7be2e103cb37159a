"""From facts to ordered, rewarded examples."""

from . import (
    delays,
    draws,
    examples,
    label_turns,
    lag,
    logged_labels,
    raters,
    router_contexts,
    settled,
    summary,
    traffic,
)
from .examples import StartingPoint, read_learned_examples
from .join import (
    LoggedFeedback,
    TurnFacts,
    find_deadline,
    find_last_counted,
    find_rating_end,
    read_ratings,
)
from .joiner import (
    REBUILD,
    Joiner,
    confirm_epoch,
    delete_training_log,
    newest_epoch,
    read_examples,
    take_epoch,
)
from .position import Position, read_position
from .refold import find_difference, require_gapless
from .rewards_view import create_rewards_view
from .settled import Settled, find_settled

__all__ = [
    "REBUILD",
    "Joiner",
    "LoggedFeedback",
    "Position",
    "Settled",
    "StartingPoint",
    "TurnFacts",
    "confirm_epoch",
    "create_rewards_view",
    "delays",
    "delete_training_log",
    "draws",
    "examples",
    "find_deadline",
    "find_difference",
    "find_last_counted",
    "find_rating_end",
    "find_settled",
    "label_turns",
    "lag",
    "logged_labels",
    "newest_epoch",
    "raters",
    "read_examples",
    "read_learned_examples",
    "read_position",
    "read_ratings",
    "require_gapless",
    "router_contexts",
    "settled",
    "summary",
    "take_epoch",
    "traffic",
]
