from . import correctness, scorers, signals
from .correctness import AnswerCorrectness
from .equivalence import Equivalence
from .scorers import AnswerScorer, ContainsScorer, JudgeScorer, RetrievalScorer, Scorer, ScoringError

__all__ = [
    "AnswerCorrectness",
    "AnswerScorer",
    "ContainsScorer",
    "Equivalence",
    "JudgeScorer",
    "RetrievalScorer",
    "Scorer",
    "ScoringError",
    "correctness",
    "scorers",
    "signals",
]
