"""Resumable Ray batch jobs over questions."""

from . import answer_measures, checkpoint
from .answer_measures import Measure
from .job import derive_seed, digest_of_document
from .label_job import LabelJob, LabelReport, label
from .score_job import ScoreJob, ScoreReport, score

__all__ = [
    "LabelJob",
    "LabelReport",
    "Measure",
    "ScoreJob",
    "ScoreReport",
    "answer_measures",
    "checkpoint",
    "derive_seed",
    "digest_of_document",
    "label",
    "score",
]
