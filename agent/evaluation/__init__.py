"""Replay a log with other candidates: estimates, documents, the promotion gate."""

from .blocks import Map
from .candidates import (
    CANDIDATE_NAMES,
    CandidateError,
    CandidateKind,
    EvaluationError,
    spell_out,
)
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
from .on_ray import map_on_ray
from .replay_log import replay
from .report import ReplayDocument, list_footnotes, make_page, make_table
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
    "Map",
    "Moment",
    "ReplayDocument",
    "evaluate_apart",
    "evaluate_here",
    "list_footnotes",
    "make_page",
    "make_table",
    "map_on_ray",
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
