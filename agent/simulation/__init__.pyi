from .questions import SHAPE, load_questions, shuffled
from .simulation import Simulation, SimulationError, simulate

__all__ = ["SHAPE", "Simulation", "SimulationError", "load_questions", "shuffled", "simulate"]
