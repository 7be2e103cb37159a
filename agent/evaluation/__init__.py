"""Evaluate candidates on the log: estimates, reports, the promotion gate."""

from .candidates import (
    CANDIDATE_NAMES,
    CandidateError,
    CandidateKind,
    EvaluationError,
    parse_name,
    spelled_out,
)
from .evaluate import evaluate_log
from .gate import EvaluationFailedError, judged_as, run_evaluation, verdict, verdict_on
from .job import Evaluations, evaluate_apart
from .report import CandidateResult, Estimated, Interval, Report
from .request import EvaluationRequest, Moment, moment_of, refuse_untrusted

__all__ = [
    "CANDIDATE_NAMES",
    "CandidateError",
    "CandidateKind",
    "CandidateResult",
    "Estimated",
    "EvaluationError",
    "EvaluationFailedError",
    "EvaluationRequest",
    "Evaluations",
    "Interval",
    "Moment",
    "Report",
    "evaluate_apart",
    "evaluate_log",
    "judged_as",
    "moment_of",
    "parse_name",
    "refuse_untrusted",
    "run_evaluation",
    "spelled_out",
    "verdict",
    "verdict_on",
]
