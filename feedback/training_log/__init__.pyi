from . import epochs, examples, imported_turns, lag, logged_labels, traffic
from .epochs import take_epoch
from .examples import StartingPoint, learned_examples
from .joiner import Joiner, Position, position_of, read_examples
from .refold import Refold

__all__ = [
    "Joiner",
    "Position",
    "Refold",
    "StartingPoint",
    "epochs",
    "examples",
    "imported_turns",
    "lag",
    "learned_examples",
    "logged_labels",
    "position_of",
    "read_examples",
    "take_epoch",
    "traffic",
]
