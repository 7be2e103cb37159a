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
from .served import (
    Alternative,
    CurveStretch,
    KindShares,
    LearningCurve,
    Mark,
    Promise,
    ServedComparison,
    least_floor,
    read_curve,
    shares_by_kind,
    summarise_served,
)

__all__ = [
    "CANDIDATE_NAMES",
    "FRESH_S",
    "Alternative",
    "AuditReport",
    "CandidateError",
    "CandidateKind",
    "CandidateResult",
    "CurveStretch",
    "Estimated",
    "EvaluationError",
    "EvaluationFailedError",
    "EvaluationRequest",
    "Evaluations",
    "Interval",
    "KindShares",
    "LearningCurve",
    "Mark",
    "Moment",
    "NothingToAuditError",
    "Promise",
    "Report",
    "ServedComparison",
    "audit_file",
    "audit_store",
    "evaluate_apart",
    "evaluate_log",
    "judged_as",
    "least_floor",
    "newest_judgement",
    "parse_name",
    "read_curve",
    "read_moment",
    "refuse_untrusted",
    "run_evaluation",
    "shares_by_kind",
    "spelled_out",
    "summarise_served",
    "verdict",
    "verdict_on",
]
