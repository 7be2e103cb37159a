"""Ask a running service questions with known answers, and score its answers."""

from .questions import load_questions, shuffle
from .simulation import Simulation, SimulationError, simulate

__all__ = [
    "Simulation",
    "SimulationError",
    "load_questions",
    "shuffle",
    "simulate",
]
