from . import evaluation, gate, intervals, prediction_powered
from .diagnostics import Diagnostics
from .estimators import ESTIMATORS
from .evaluation import DEFAULT_ESTIMATORS, evaluate
from .gate import GateSpec, judge
from .intervals import Interval
from .joint_intervals import INTERVALS, EstimateWithInterval
from .reward_model import Model
from .sample import Sample, Terms

__all__ = [
    "DEFAULT_ESTIMATORS",
    "ESTIMATORS",
    "INTERVALS",
    "Diagnostics",
    "EstimateWithInterval",
    "GateSpec",
    "Interval",
    "Model",
    "Sample",
    "Terms",
    "evaluate",
    "evaluation",
    "gate",
    "intervals",
    "judge",
    "prediction_powered",
]
