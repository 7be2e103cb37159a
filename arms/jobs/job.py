"""The base of every job on a pool of arms.

PoolJob     questions, arms and corpus, and the identity of the results; picklable
PoolWorker  the arms of a job, ready to search, in one process
"""

import contextlib
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import orjson
from numpy.typing import NDArray

from arms.base import Progress, Query
from arms.corpus import Corpus
from arms.jobs.sweep import Sweep
from arms.llm import LateWriter, LlmSpec
from arms.llm import catalog as llm_catalog
from arms.models import Backbone, ModelNotFoundError, build_embedder, digest_backbone, digest_of, locate
from arms.questions import Question
from arms.retrievers import ArmSpec, OpenTrained, Resources, Trust, catalog, prepare
from arms.retrievers import kind as retriever_kind


@dataclass(frozen=True, kw_only=True)
class PoolJob:
    """Arms and the questions that they search for.

    Attributes:
        questions: In order.
        corpus: The passages.
        indexes: The folder of the indexes.
        specs: The arms by name.
        backbones: Sentence encoders by name.
        llm: The language model, loaded with the first prompt; None for none.
        seed: Seed of the stochastic arms.
        block: Questions per block, at least 1.
        open_selector: Opens what was trained for an arm; picklable.
        trust: Which arms may reach what; None where all of them are trusted.
    """

    questions: tuple[Question, ...]
    corpus: Corpus
    indexes: Path
    specs: Mapping[str, ArmSpec]
    backbones: Mapping[str, Backbone]
    llm: LlmSpec | None = None
    seed: int = 0
    block: int = 32
    open_selector: OpenTrained = retriever_kind.no_selector
    trust: Trust | None = None

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return math.ceil(len(self.questions) / self.block)

    def questions_of(self, number: int) -> tuple[Question, ...]:
        """Return the questions of a block."""
        return self.questions[number * self.block : (number + 1) * self.block]

    def validated(self) -> Self:
        """Check the arms, and return the job with only the backbones that it needs. Raises ArmSpecError."""
        catalog.validate_specs(self.specs, self.backbones)
        needed = self.needed()
        return replace(self, backbones={name: one for name, one in self.backbones.items() if name in needed})

    def prepare(self, progress: Progress) -> None:
        """Build the missing indexes. Raises ModelNotFoundError, ArmBuildError."""
        resources = Resources(
            self.corpus,
            self.indexes,
            self.backbones,
            self.specs,
            write=LateWriter(self.llm),  # an entity graph may need it
            open_selector=self.open_selector,
        )
        prepare(resources, progress=progress)

    def facts(self) -> dict[str, str]:
        """Return the identity of what the arms find. Raises ModelNotFoundError."""
        arms = [(name, spec.kind, spec.params) for name, spec in self.specs.items()]
        encoders = {name: backbone.model_dump(exclude={"host"}) for name, backbone in self.backbones.items()}
        return {
            "corpus": self.corpus.digest,
            "questions": digest_of_document(self.questions),
            "arms": digest_of_document([arms, encoders]),
            "language model": language_model(self.llm),
            "seed": str(self.seed),
            "block": str(self.block),
            **{f"model {name}": digest_backbone(one) for name, one in self.backbones.items()},
            **{f"weights of {model}": weights_of(model) for model in sorted(_models(self.specs))},
        }

    def needed(self) -> frozenset[str]:
        """Return the names of the backbones that the arms are built with."""
        return frozenset[str]().union(*(catalog.backbones_of(name, self.specs) for name in self.specs))


class PoolWorker:
    """The arms of a job; loads the encoders once and maps the indexes.

    Args:
        job: The job.
        names: The arms to run, in this order, the others being only their members; None for all.

    Attributes:
        write: Prompts the language model, from any thread.
        embedders: Sentence encoders by name.
        resources: What the arms are built from.
        sweep: The arms.

    Raises:
        IndexMismatchError: An index is missing: call `PoolJob.prepare` first.
    """

    def __init__(self, job: PoolJob, names: Sequence[str] | None = None) -> None:
        self._seed = job.seed
        self.embedders = {name: build_embedder(backbone) for name, backbone in job.backbones.items()}
        self.write = LateWriter(job.llm)
        self.resources = Resources(
            job.corpus,
            job.indexes,
            job.backbones,
            job.specs,
            self.embed,
            self.write,
            job.open_selector,
            job.trust,
        )
        self.sweep = Sweep(self.resources, names)

    def queries(self, questions: Sequence[Question]) -> list[Query]:
        """Embed questions, all at once with each encoder."""
        texts = [question.text for question in questions]
        vectors = {name: encoder.encode_queries(texts) for name, encoder in self.embedders.items()}
        return [
            Query(
                question.text,
                {name: rows[row] for name, rows in vectors.items()},
                seed_of(self._seed, question.id),
            )
            for row, question in enumerate(questions)
        ]

    def embed(self, text: str, names: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        """Embed a text that an arm wrote, such as a follow-up query."""
        return {name: self.embedders[name].encode_queries([text])[0] for name in names}


def seed_of(seed: int, question: str) -> int:
    """Return the seed of a question by its id: the same in any order, block and process.

    >>> seed_of(0, "q1") == seed_of(0, "q1"), seed_of(0, "q1") == seed_of(1, "q1")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{question}".encode(), digest_size=7).digest())


def weights_of(model: str) -> str:
    """Return a digest of a model on disk, or the name of one on a hub. Raises ModelNotFoundError."""
    place = locate(model)
    return digest_of(place) if isinstance(place, Path) else place


def _models(specs: Mapping[str, ArmSpec]) -> set[str]:
    """Return the models that arms load themselves, those of the user's own classes excepted."""
    return {
        model
        for kind, params in (catalog.described(name, spec) for name, spec in specs.items())
        for model in kind.models(params)
    }


def language_model(spec: LlmSpec | None) -> str:
    """Return a digest of the spec of a language model, and of weights that run in this process."""
    if spec is None:
        return "none"
    weights = ""
    if isinstance(spec, llm_catalog.EmbeddedSpec | llm_catalog.VllmSpec):
        with contextlib.suppress(ModelNotFoundError):  # the job may need no language model
            weights = weights_of(spec.model)
    return digest_of_document([llm_catalog.identity_of(spec), weights])


def digest_of_document(document: object) -> str:
    """Return the digest of a JSON document, whatever the order of its keys."""
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
