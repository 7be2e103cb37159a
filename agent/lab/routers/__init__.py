"""The kinds of routers, one file per router, and their validation."""

from . import cascade, cost_quality, cross_validation, utilities, validation
from .answer_selector import RouterSelector, TrainedDecider, open_selector
from .calibrated import Calibrated
from .contrastive import Contrastive
from .heuristic import AvgSim, MaxSim, Moran, OverallSim, SourceFit, VarSim
from .knn import NearestNeighbors
from .ltrr import ListNet, PairwiseFFN, PointwiseFFN
from .r3ag import Capability
from .ridge import RidgeRouter
from .svm import PairwiseSVM, PointwiseSVM
from .transformer import Transformer
from .trees import LambdaMART, PairwiseXGBoost, PointwiseXGBoost

__all__ = [
    "AvgSim",
    "Calibrated",
    "Capability",
    "Contrastive",
    "LambdaMART",
    "ListNet",
    "MaxSim",
    "Moran",
    "NearestNeighbors",
    "OverallSim",
    "PairwiseFFN",
    "PairwiseSVM",
    "PairwiseXGBoost",
    "PointwiseFFN",
    "PointwiseSVM",
    "PointwiseXGBoost",
    "RidgeRouter",
    "RouterSelector",
    "SourceFit",
    "TrainedDecider",
    "Transformer",
    "VarSim",
    "cascade",
    "cost_quality",
    "cross_validation",
    "open_selector",
    "utilities",
    "validation",
]
