"""Batch work without a service: make questions, label and score arms, train models, choose a portfolio."""

from .balancing import FEWEST, on_par
from .cascade_training import CascadeTraining, cascade_spec, train_cascade
from .check_threshold import CheckedAnswers, ThresholdError, ThresholdFit, fit_logged_threshold, fit_threshold
from .choose_portfolio import YAML, PortfolioSelection, select_portfolio
from .cost_curve import CostCurve, cost_curve
from .evaluate import EvaluationSettings, evaluate_model
from .label import MEASURES, Labelling, label_questions
from .labelled_data import join_outcomes, read_labelled, read_place, read_questions, select_arms, write_scores
from .relevance_training import RelevanceTraining, train_relevance, validate_relevance
from .router_features import (
    ObservedFeatures,
    embed_questions,
    measure_fit,
    observe_features,
    relevance_of_others,
    sample_profiles,
)
from .router_training import Training, router_spec, train_router
from .score import CONTAINS, JUDGE, Scoring, open_corpus, score_arms
from .synthesize import Synthesis, make_questions

__all__ = [
    "CONTAINS",
    "FEWEST",
    "JUDGE",
    "MEASURES",
    "YAML",
    "CascadeTraining",
    "CheckedAnswers",
    "CostCurve",
    "EvaluationSettings",
    "Labelling",
    "ObservedFeatures",
    "PortfolioSelection",
    "RelevanceTraining",
    "Scoring",
    "Synthesis",
    "ThresholdError",
    "ThresholdFit",
    "Training",
    "cascade_spec",
    "cost_curve",
    "embed_questions",
    "evaluate_model",
    "fit_logged_threshold",
    "fit_threshold",
    "join_outcomes",
    "label_questions",
    "make_questions",
    "measure_fit",
    "observe_features",
    "on_par",
    "open_corpus",
    "read_labelled",
    "read_place",
    "read_questions",
    "relevance_of_others",
    "router_spec",
    "sample_profiles",
    "score_arms",
    "select_arms",
    "select_portfolio",
    "train_cascade",
    "train_relevance",
    "train_router",
    "validate_relevance",
    "write_scores",
]
