"""Ask a running service questions with known answers, and draw how it learns."""

from .questions import SHAPE, Question, load_questions, shuffled
from .simulation import Simulation, SimulationError, simulate

__all__ = [
    "SHAPE",
    "Question",
    "Simulation",
    "SimulationError",
    "load_questions",
    "shuffled",
    "simulate",
]
