from . import candidate_names, request
from .candidate_names import CandidateError
from .evaluate import evaluate_log
from .gate import EvaluationFailedError, judged_as, run_evaluation, verdict, verdict_on
from .job import Evaluations, evaluate_apart
from .report import Report
from .request import EvaluationRequest, refuse_untrusted

__all__ = [
    "CandidateError",
    "EvaluationFailedError",
    "EvaluationRequest",
    "Evaluations",
    "Report",
    "candidate_names",
    "evaluate_apart",
    "evaluate_log",
    "judged_as",
    "refuse_untrusted",
    "request",
    "run_evaluation",
    "verdict",
    "verdict_on",
]
