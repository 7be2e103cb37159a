"""Evaluate candidates on the log: estimates, reports, the promotion gate."""

from .candidates import (
    CANDIDATE_NAMES,
    CandidateError,
    CandidateKind,
    EvaluationError,
    spell_out,
)
from .evaluate import evaluate_log
from .gate import (
    FRESH_S,
    EvaluationFailedError,
    name_candidate,
    newest_judgement,
    run_evaluation,
    verdict,
    verdict_on,
)
from .job import RETRIES_S, Evaluations, evaluate_apart, evaluate_here
from .report import Report, colour_candidates
from .request import EvaluationRequest, Moment, read_moment, refuse_untrusted

__all__ = [
    "CANDIDATE_NAMES",
    "FRESH_S",
    "RETRIES_S",
    "CandidateError",
    "CandidateKind",
    "EvaluationError",
    "EvaluationFailedError",
    "EvaluationRequest",
    "Evaluations",
    "Moment",
    "Report",
    "colour_candidates",
    "evaluate_apart",
    "evaluate_here",
    "evaluate_log",
    "name_candidate",
    "newest_judgement",
    "read_moment",
    "refuse_untrusted",
    "run_evaluation",
    "spell_out",
    "verdict",
    "verdict_on",
]
