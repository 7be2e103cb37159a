"""Evaluate candidates on the log: estimates, reports, the promotion gate."""

from .audit import AuditReport, NothingToAuditError, audit_file, audit_store
from .candidates import (
    CANDIDATE_NAMES,
    CandidateError,
    CandidateKind,
    EvaluationError,
    parse_name,
    spelled_out,
)
from .evaluate import evaluate_log
from .gate import (
    FRESH_S,
    EvaluationFailedError,
    judged_as,
    newest_judgement,
    run_evaluation,
    verdict,
    verdict_on,
)
from .job import Evaluations, evaluate_apart
from .report import CandidateResult, Estimated, Interval, Report
from .request import EvaluationRequest, Moment, read_moment, refuse_untrusted

__all__ = [
    "CANDIDATE_NAMES",
    "FRESH_S",
    "AuditReport",
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
    "NothingToAuditError",
    "Report",
    "audit_file",
    "audit_store",
    "evaluate_apart",
    "evaluate_log",
    "judged_as",
    "newest_judgement",
    "parse_name",
    "read_moment",
    "refuse_untrusted",
    "run_evaluation",
    "spelled_out",
    "verdict",
    "verdict_on",
]
