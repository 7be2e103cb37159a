"""Off-policy evaluation: estimators, intervals, the gate."""

from . import (
    confidence_sequences,
    evaluation,
    gate,
    intervals,
)
from .diagnostics import Diagnostics, Overlap, diagnose
from .estimators import (
    ESTIMATORS,
    Estimator,
    Predictions,
    dm,
    dr,
    estimate,
    estimator,
    estimators_table,
    ips,
    snips,
    switch_dr,
)
from .evaluation import (
    DEFAULT_ESTIMATORS,
    INTERVALS,
    WITHOUT_PROPENSITIES,
    EstimateWithInterval,
    EstimatorResult,
    Evaluation,
    evaluate,
    evaluate_each,
    predict,
)
from .from_arrays import evaluate_arrays
from .gate import Verdict, judge
from .intervals import Interval
from .reward_model import Model, cross_fit, featurize, stack
from .sample import NeverDrawnError, Sample, Terms

__all__ = [
    "DEFAULT_ESTIMATORS",
    "ESTIMATORS",
    "INTERVALS",
    "WITHOUT_PROPENSITIES",
    "Diagnostics",
    "EstimateWithInterval",
    "Estimator",
    "EstimatorResult",
    "Evaluation",
    "Interval",
    "Model",
    "NeverDrawnError",
    "Overlap",
    "Predictions",
    "Sample",
    "Terms",
    "Verdict",
    "confidence_sequences",
    "cross_fit",
    "diagnose",
    "dm",
    "dr",
    "estimate",
    "estimator",
    "estimators_table",
    "evaluate",
    "evaluate_arrays",
    "evaluate_each",
    "evaluation",
    "featurize",
    "gate",
    "intervals",
    "ips",
    "judge",
    "predict",
    "snips",
    "stack",
    "switch_dr",
]
