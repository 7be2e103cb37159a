"""Replay a log with other candidates: estimates, documents, the promotion gate."""

from .candidate_names import CANDIDATE_NAMES, CandidateError, CandidateKind, EvaluationError, spell_out
from .evaluation_request import EvaluationRequest, Moment, read_moment, refuse_untrusted
from .evaluation_task import Evaluations, evaluate_apart, evaluate_here
from .promotion_verdict import (
    FRESH_S,
    EvaluationFailedError,
    name_candidate,
    newest_judgement,
    run_evaluation,
    verdict,
    verdict_on,
)
from .replay_document import ReplayDocument
from .replay_log import replay
from .replay_page import list_footnotes, make_page, make_table

__all__ = [
    "CANDIDATE_NAMES",
    "FRESH_S",
    "CandidateError",
    "CandidateKind",
    "EvaluationError",
    "EvaluationFailedError",
    "EvaluationRequest",
    "Evaluations",
    "Moment",
    "ReplayDocument",
    "evaluate_apart",
    "evaluate_here",
    "list_footnotes",
    "make_page",
    "make_table",
    "name_candidate",
    "newest_judgement",
    "read_moment",
    "refuse_untrusted",
    "replay",
    "run_evaluation",
    "spell_out",
    "verdict",
    "verdict_on",
]
