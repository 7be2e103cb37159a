from . import (
    cascade,
    catalog,
    cost_quality,
    cross_validation,
    dataset,
    features,
    out_of_fold,
    saved,
    utility,
    validation,
)
from .answer_selector import open_selector
from .base import Router
from .catalog import RouterSpec, build_router
from .dataset import Features, RouterError, RoutingDataset, Stage
from .saved import Trained, read_trained

__all__ = [
    "Features",
    "Router",
    "RouterError",
    "RouterSpec",
    "RoutingDataset",
    "Stage",
    "Trained",
    "build_router",
    "cascade",
    "catalog",
    "cost_quality",
    "cross_validation",
    "dataset",
    "features",
    "open_selector",
    "out_of_fold",
    "read_trained",
    "saved",
    "utility",
    "validation",
]
