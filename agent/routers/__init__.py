"""Routers: models, fitted offline to the utilities of arms on questions, that score arms."""

from . import dataset, features, out_of_fold, saved
from .base import Parameters, Parametrised, Router, Schema, StageParameters, State
from .catalog import ROUTERS, RouterSpec, build_router, load_router
from .dataset import ArmTable, Features, RouterError, RoutingDataset, Stage, TooLittleError, positions
from .saved import RouterConfig, Trained, read_trained
from .utility import PRIOR_MEASURE, Utility

__all__ = [
    "PRIOR_MEASURE",
    "ROUTERS",
    "ArmTable",
    "Features",
    "Parameters",
    "Parametrised",
    "Router",
    "RouterConfig",
    "RouterError",
    "RouterSpec",
    "RoutingDataset",
    "Schema",
    "Stage",
    "StageParameters",
    "State",
    "TooLittleError",
    "Trained",
    "Utility",
    "build_router",
    "dataset",
    "features",
    "load_router",
    "out_of_fold",
    "positions",
    "read_trained",
    "saved",
]
