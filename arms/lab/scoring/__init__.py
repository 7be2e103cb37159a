"""Scores of rankings and answers, in [0, 1]."""

from . import correctness, scorers
from .correctness import AnswerCorrectness
from .scorers import ContainsScorer, JudgeScorer, RetrievalScorer, Scorer, ScoringError

__all__ = [
    "AnswerCorrectness",
    "ContainsScorer",
    "JudgeScorer",
    "RetrievalScorer",
    "Scorer",
    "ScoringError",
    "correctness",
    "scorers",
]
