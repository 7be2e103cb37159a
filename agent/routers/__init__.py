"""Routers: fitted offline to what arms earn on questions, they score arms; one file a router."""

from . import (
    cascade,
    cost_quality,
    cross_validation,
    dataset,
    features,
    out_of_fold,
    saved,
    utility,
    validation,
)
from .answer_selector import RouterSelector, TrainedDecider, open_selector
from .base import Parameters, Parametrised, Router, Schema, StageParameters, State
from .catalog import ROUTERS, RouterSpec, build_router, load_router
from .contrastive import Contrastive
from .dataset import ArmTable, Features, RouterError, RoutingDataset, Stage, positions
from .ensembles import Blend, Calibrated
from .heuristic import AvgSim, MaxSim, Moran, OverallSim, VarSim
from .ltrr import ListNet, PairwiseFFN, PointwiseFFN
from .r3ag import Capability
from .ridge import RidgeRouter
from .saved import RouterConfig, Trained, read_trained
from .svm import PairwiseSVM, PointwiseSVM
from .transformer import Transformer
from .trees import LambdaMART, LogisticXGBoost, PairwiseXGBoost, PointwiseXGBoost

__all__ = [
    "ROUTERS",
    "ArmTable",
    "AvgSim",
    "Blend",
    "Calibrated",
    "Capability",
    "Contrastive",
    "Features",
    "LambdaMART",
    "ListNet",
    "LogisticXGBoost",
    "MaxSim",
    "Moran",
    "OverallSim",
    "PairwiseFFN",
    "PairwiseSVM",
    "PairwiseXGBoost",
    "Parameters",
    "Parametrised",
    "PointwiseFFN",
    "PointwiseSVM",
    "PointwiseXGBoost",
    "RidgeRouter",
    "Router",
    "RouterConfig",
    "RouterError",
    "RouterSelector",
    "RouterSpec",
    "RoutingDataset",
    "Schema",
    "Stage",
    "StageParameters",
    "State",
    "Trained",
    "TrainedDecider",
    "Transformer",
    "VarSim",
    "build_router",
    "cascade",
    "cost_quality",
    "cross_validation",
    "dataset",
    "features",
    "load_router",
    "open_selector",
    "out_of_fold",
    "positions",
    "read_trained",
    "saved",
    "utility",
    "validation",
]
