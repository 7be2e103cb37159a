"""Off-policy evaluation: estimators, intervals, the gate."""

from . import confidence_sequences, evaluation, gate, intervals, prediction_powered
from .diagnostics import Diagnostics, Overlap, diagnose
from .estimators import (
    ESTIMATORS,
    Estimator,
    Predictions,
    Rows,
    clipped_ips,
    cressie_read,
    dm,
    dr,
    dros,
    estimate,
    estimator,
    estimators_table,
    ips,
    mrdr,
    mrdr_weight,
    replay,
    sndr,
    snips,
    switch_dr,
)
from .evaluation import DEFAULT_ESTIMATORS, INTERVALS, EstimateWithInterval, evaluate, predict
from .gate import GateSpec, Verdict, judge
from .intervals import Interval
from .reward_model import Model, cross_fit
from .sample import NeverDrawnError, Sample, Terms

__all__ = [
    "DEFAULT_ESTIMATORS",
    "ESTIMATORS",
    "INTERVALS",
    "Diagnostics",
    "EstimateWithInterval",
    "Estimator",
    "GateSpec",
    "Interval",
    "Model",
    "NeverDrawnError",
    "Overlap",
    "Predictions",
    "Rows",
    "Sample",
    "Terms",
    "Verdict",
    "clipped_ips",
    "confidence_sequences",
    "cressie_read",
    "cross_fit",
    "diagnose",
    "dm",
    "dr",
    "dros",
    "estimate",
    "estimator",
    "estimators_table",
    "evaluate",
    "evaluation",
    "gate",
    "intervals",
    "ips",
    "judge",
    "mrdr",
    "mrdr_weight",
    "predict",
    "prediction_powered",
    "replay",
    "sndr",
    "snips",
    "switch_dr",
]
