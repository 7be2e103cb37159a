from . import (
    alignment,
    choose_portfolio,
    evaluate_router,
    label,
    labelled_data,
    router_features,
    score,
    synthesize,
    train_cascade,
    train_relevance,
    train_router,
)
from .alignment import Comparing
from .choose_portfolio import Selection, select_portfolio
from .evaluate_router import Evaluation
from .label import Labelling
from .score import Scoring
from .synthesize import Synthesis
from .train_relevance import RelevanceTraining
from .train_router import Training

__all__ = [
    "Comparing",
    "Evaluation",
    "Labelling",
    "RelevanceTraining",
    "Scoring",
    "Selection",
    "Synthesis",
    "Training",
    "alignment",
    "choose_portfolio",
    "evaluate_router",
    "label",
    "labelled_data",
    "router_features",
    "score",
    "select_portfolio",
    "synthesize",
    "train_cascade",
    "train_relevance",
    "train_router",
]
