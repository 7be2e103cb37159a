"""What a scoring job is, and how a block of its questions is scored: plain Python, in one process."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from arms.base import Query
from arms.blocking import LateWriter
from arms.blocks import Block
from arms.catalog import described
from arms.corpus import Corpus
from arms.embedding import Backbone, build_embedder, digest_backbone
from arms.kinds import ArmSpec, Resources, Write
from arms.llm import EmbeddedSpec, LlmSpec, VllmSpec
from arms.matrix import Question
from arms.models import ModelNotFoundError, digest_of, locate
from arms.scorers import Scorer
from arms.sweep import FAILED, Stopwatch, Sweep

TIMED_QUESTIONS = 32
"""Questions that arms are timed on in turn."""


@dataclass(frozen=True)
class Job:
    """What is scored, on what, and how.

    Attributes:
        questions: Scored in this order.
        corpus: The passages.
        indexes: The folder in which indexes are kept.
        specs: The arms by name.
        backbones: Sentence encoders by name.
        scorer: Makes the scorer from a function that asks the language model.
        llm: The language model, loaded by the first arm or scorer that asks it; None for none.
        seed: Of the arms that draw.
        block: Questions in a block, at least 1.
        timed: Searches by which each arm is timed; 0 for none, and no cost in seconds.
    """

    questions: tuple[Question, ...]
    corpus: Corpus
    indexes: Path
    specs: Mapping[str, ArmSpec]
    backbones: Mapping[str, Backbone]
    scorer: Callable[[Write], Scorer]
    llm: LlmSpec | None = None
    seed: int = 0
    block: int = 32
    timed: int = 4

    @property
    def n_blocks(self) -> int:
        """How many blocks the questions make."""
        return math.ceil(len(self.questions) / self.block)

    def questions_of(self, number: int) -> tuple[Question, ...]:
        """Return the questions of a block."""
        return self.questions[number * self.block : (number + 1) * self.block]

    def identity(self, scorer: Scorer) -> dict[str, str]:
        """Return all that the scores by this scorer follow from. Raises ModelNotFoundError."""
        arms = [(name, spec.kind, spec.params) for name, spec in self.specs.items()]
        encoders = {name: backbone.model_dump() for name, backbone in self.backbones.items()}
        return {
            "corpus": self.corpus.digest,
            "questions": _digest(self.questions),
            "arms": _digest([arms, encoders]),
            "language model": _language_model(self.llm),
            "measure": scorer.measure,
            "seed": str(self.seed),
            "block": str(self.block),
            **{fact: str(value) for fact, value in scorer.identity.items()},
            **{f"model {name}": digest_backbone(one) for name, one in self.backbones.items()},
            **{f"weights of {model}": _weights(model) for model in sorted(_models(self.specs))},
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a job.

    Attributes:
        measure: What the scores are of.
        n_questions: How many were scored, in this run or before it.
        resumed: How many of them were scored before it.
        unknown: On how many questions an arm has no score, by arm.
        problems: The first reason why an arm has no score, by arm; empty when the matrix was there already.
    """

    measure: str
    n_questions: int
    resumed: int
    unknown: Mapping[str, int]
    problems: Mapping[str, str]


class Worker:
    """Scores blocks of a job; loads the encoders once and maps the indexes.

    Raises:
        IndexMismatchError: An index is missing: call `arms.catalog.prepare` first.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._embedders = {name: build_embedder(backbone) for name, backbone in job.backbones.items()}
        write = LateWriter(job.llm)
        self._resources = Resources(job.corpus, job.indexes, job.backbones, job.specs, self._embed, write)
        self._sweep = Sweep(self._resources)
        self._scorer = job.scorer(write)
        self._stopwatch: Stopwatch | None = None

    def score(self, number: int) -> Block:
        """Ask every arm each question of a block, and score what they found."""
        questions = self._job.questions_of(number)
        n_arms = len(self._job.specs)
        scores = np.empty((len(questions), n_arms), dtype=np.float32)
        answered, steps, tokens = np.zeros((3, n_arms))
        problems: dict[int, str] = {}
        for row, (question, query) in enumerate(zip(questions, self._queries(questions), strict=True)):
            found = self._sweep.search(query, self._scorer.k)
            marks = self._scorer.score(question, found.rankings)
            values = np.array([*(mark.value for mark in marks), math.nan])
            scores[row] = values[found.which]  # FAILED points at the last one
            answered += found.which != FAILED
            steps += found.steps
            tokens += found.tokens
            for column in np.flatnonzero(np.isnan(scores[row])).tolist():
                told = found.problems.get(column) or marks[found.which[column]].problem
                problems.setdefault(column, f"question {question.id!r}: {told}")
        return Block(scores, answered, steps, tokens, problems)

    def seconds(self, names: Sequence[str]) -> dict[str, float]:
        """Return how long a search of each of these arms takes."""
        if self._stopwatch is None:
            queries = self._queries(self._job.questions[:TIMED_QUESTIONS])
            self._stopwatch = Stopwatch(self._resources, queries, self._scorer.k, self._job.timed)
        return {name: self._stopwatch.seconds(name) for name in names}

    def _queries(self, questions: Sequence[Question]) -> list[Query]:
        """Embed the questions, all at once with each encoder."""
        texts = [question.text for question in questions]
        vectors = {name: encoder.encode_queries(texts) for name, encoder in self._embedders.items()}
        return [
            Query(
                question.text,
                {name: rows[row] for name, rows in vectors.items()},
                seed_of(self._job.seed, question.id),
            )
            for row, question in enumerate(questions)
        ]

    def _embed(self, text: str, names: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        return {name: self._embedders[name].encode_queries([text])[0] for name in names}


def seed_of(seed: int, question: str) -> int:
    """Return the seed of a question by its id: the same in any order, block and process.

    >>> seed_of(0, "q1") == seed_of(0, "q1"), seed_of(0, "q1") == seed_of(1, "q1")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{question}".encode(), digest_size=7).digest())


def _models(specs: Mapping[str, ArmSpec]) -> set[str]:
    """Name the models that arms load themselves; what a class of the user's own loads is not known."""
    return {
        model
        for kind, params in (described(name, spec) for name, spec in specs.items())
        for model in kind.models(params)
    }


def _language_model(spec: LlmSpec | None) -> str:
    """Return a digest of a language model: of the spec, and of the weights that run in this process."""
    if spec is None:
        return "none"
    weights = ""
    if isinstance(spec, EmbeddedSpec | VllmSpec):
        with contextlib.suppress(ModelNotFoundError):  # it may be that nobody asks it
            weights = _weights(spec.model)
    return _digest([spec.model_dump(mode="json"), weights])


def _weights(model: str) -> str:
    """Return a digest of a model on disk, or the name of one on a hub. Raises ModelNotFoundError."""
    place = locate(model)
    return digest_of(place) if isinstance(place, Path) else place


def _digest(document: object) -> str:
    told = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(told, digest_size=16).hexdigest()


__all__ = ["TIMED_QUESTIONS", "Job", "LateWriter", "Report", "Worker", "seed_of"]
