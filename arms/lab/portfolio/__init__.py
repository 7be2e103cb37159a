"""The pool of candidate arms, its score matrix, and the choice of a few of them."""

from . import coverage, imputation, outcomes, pool, score_matrix, selection
from .outcomes import Outcomes, read_outcomes
from .pool import PoolSpec, load_pool
from .score_matrix import MatrixArms, ScoreMatrix, read_matrix, write_matrix
from .selection import Portfolio, greedy, knapsack

__all__ = [
    "MatrixArms",
    "Outcomes",
    "PoolSpec",
    "Portfolio",
    "ScoreMatrix",
    "coverage",
    "greedy",
    "imputation",
    "knapsack",
    "load_pool",
    "outcomes",
    "pool",
    "read_matrix",
    "read_outcomes",
    "score_matrix",
    "selection",
    "write_matrix",
]
