from . import candidate_names, request
from .candidate_names import CandidateError
from .evaluate import evaluate_log
from .gate import UnansweredError, answered, verdict, verdict_on
from .job import Evaluations, evaluate_apart
from .report import Report
from .request import EvaluationRequest

__all__ = [
    "CandidateError",
    "EvaluationRequest",
    "Evaluations",
    "Report",
    "UnansweredError",
    "answered",
    "candidate_names",
    "evaluate_apart",
    "evaluate_log",
    "request",
    "verdict",
    "verdict_on",
]
