"""The base of every job on a pool of arms.

PoolJob     questions, arms and corpus, and the identity of the results; picklable
PoolWorker  the arms of a job, ready to search, in one process
Sweep       searches with every arm of a pool for one question, in batches where the kind has them; returns
            the distinct rankings, and which arm returned which
"""

import contextlib
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.base import Arm, ArmError, Progress, Query
from armwise.arms.corpus import Corpus
from armwise.arms.lab.scoring import scorers
from armwise.arms.llm import GeneratorError, LateWriter, LlmSpec
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.models import (
    Backbone,
    ModelNotFoundError,
    build_embedder,
    digest_backbone,
    digest_file,
    locate,
)
from armwise.arms.questions import Question
from armwise.arms.retrievers import (
    ArmGraph,
    ArmSpec,
    BatchedArms,
    Kind,
    OpenTrained,
    Resources,
    build_arm,
    metering,
    no_selector,
    prepare,
)

MakeBatches = Callable[[Mapping[str, Any], Resources], Sequence[BatchedArms]]

FAILED = -1
"""Index in place of a ranking for an arm that failed."""


@dataclass(frozen=True, slots=True)
class Rankings:
    """The rankings of all arms for one question.

    Attributes:
        rankings: The distinct rankings.
        which: Index of each arm's ranking, or `FAILED`, shape (n_arms,).
        steps: Rounds of retrieval, 0 for an arm that failed, shape (n_arms,).
        tokens: Tokens of a language model, 0 for an arm that failed, shape (n_arms,).
        usd: Dollars of priced searches, 0 for an arm that failed, shape (n_arms,).
        problems: Error of each failed arm, by column.
    """

    rankings: tuple[scorers.Ranking, ...]
    which: NDArray[np.intp]
    steps: NDArray[np.float64]
    tokens: NDArray[np.float64]
    usd: NDArray[np.float64]
    problems: dict[int, str]


class Sweep:
    """Arms that search together.

    Args:
        resources: Resources with prepared indexes.
        names: The arms, in the order of their columns; None: all of `resources.specs`.

    Raises:
        ArmSpecError: An arm cannot be built.
        IndexMismatchError: An index is missing: call `armwise.arms.retrievers.prepare` first.
    """

    def __init__(self, resources: Resources, names: Sequence[str] | None = None) -> None:
        self._corpus = resources.corpus
        self._column = {name: at for at, name in enumerate(resources.specs if names is None else names)}
        self._expected_steps, self._expected_usd = np.zeros((2, len(self._column)))
        self._batches = [
            (batch, np.array([self._column[name] for name in batch.names]), start)
            for start, batch in self._make_batches(resources)
        ]
        batched = {name for batch, _, _ in self._batches for name in batch.names}
        self._alone = {
            column: build_arm(name, resources) for name, column in self._column.items() if name not in batched
        }

    def _make_batches(self, resources: Resources) -> Iterable[tuple[int, BatchedArms]]:
        """Yield batches, each over a corpus, and the position of its first passage."""
        groups: dict[tuple[str, str | None], tuple[type[Kind[Any]], dict[str, Any]]] = {}
        graph = ArmGraph(resources.specs)
        for name in self._column:
            spec, (kind, params) = graph.spec(name), graph.resolve(name)
            _, group = groups.setdefault((spec.kind, spec.corpus), (kind, {}))
            group[name] = params
        for kind, group in groups.values():
            arm_resources = resources.select_corpus(resources.specs[next(iter(group))])
            for batch in kind.batch(group, arm_resources):
                for name in batch.names:
                    self._expected_steps[self._column[name]] = kind.steps(group[name])
                    self._expected_usd[self._column[name]] = graph.estimate_usd(name)
                yield resources.corpus.start(arm_resources.corpus.prefix), batch

    def search(self, query: Query, k: int) -> Rankings:
        """Return at most `k` passages from every arm, or its error."""
        n_arms = len(self._column)
        which = np.full(n_arms, FAILED, dtype=np.intp)
        steps, tokens, usd = np.zeros((3, n_arms))
        columns, rows, problems = self._search_batches(query, k)
        rankings, which[columns] = self._read(rows)
        steps[columns], usd[columns] = self._expected_steps[columns], self._expected_usd[columns]
        number = {tuple(passage.id for passage in ranking): at for at, ranking in enumerate(rankings)}
        for column, arm in self._alone.items():
            try:
                with metering() as meter:
                    answer = arm.search(query, k)
            except (ArmError, GeneratorError) as error:
                problems[column] = str(error)
                continue
            ranking = answer.passages[:k]
            which[column] = number.setdefault(tuple(passage.id for passage in ranking), len(rankings))
            if which[column] == len(rankings):
                rankings.append(ranking)
            steps[column], tokens[column] = answer.steps, answer.tokens
            usd[column] = meter.total.search_usd
        return Rankings(tuple(rankings), which, steps, tokens, usd, problems)

    def _search_batches(
        self, query: Query, k: int
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], dict[int, str]]:
        """Return the columns that succeeded, their positions, shape (n, k), and the errors by column."""
        columns, rows = [np.empty(0, dtype=np.intp)], [np.empty((0, k), dtype=np.intp)]
        problems: dict[int, str] = {}
        for batch, batch_columns, start in self._batches:
            try:
                positions = batch.positions(query, k)
                rows.append(np.where(positions >= 0, positions + start, positions))
            except ArmError as error:
                problems.update(dict.fromkeys(batch_columns.tolist(), str(error)))
            else:
                columns.append(batch_columns)
        return np.concatenate(columns), np.concatenate(rows), problems

    def _read(self, rows: NDArray[np.intp]) -> tuple[list[scorers.Ranking], NDArray[np.intp]]:
        """Return the distinct rankings, and the index of each row's ranking."""
        distinct, which = np.unique(rows, axis=0, return_inverse=True)
        positions = np.unique(distinct[distinct >= 0])
        passages = dict(zip(positions.tolist(), self._corpus.passages(positions), strict=True))
        return [tuple(passages[p] for p in row if p >= 0) for row in distinct.tolist()], which.reshape(-1)


class Stopwatch:
    """Times arms one by one, on the calling thread.

    Caches are cleared before each search, so that an arm pays for its first stage. The embedding of the
    question is excluded: the service computes it once for all arms.

    Args:
        resources: Resources with prepared indexes.
        queries: Queries with the embeddings that the arms need; used in rotation.
        k: Number of passages to find.
        timed: Number of searches per arm, at least 1.
    """

    def __init__(self, resources: Resources, queries: Sequence[Query], k: int, timed: int) -> None:
        self._resources = resources
        self._turns = itertools.cycle(queries)
        self._k = k
        self._timed = timed
        self._warm: set[tuple[str, frozenset[str]]] = set()

    def seconds(self, name: str) -> float:
        """Return the mean seconds of a search, failed ones included."""
        arm = build_arm(name, self._resources)
        kin = (self._resources.specs[name].kind, arm.backbones)
        if kin not in self._warm:  # the first search reads the index from the disk
            self._search(arm)
            self._warm.add(kin)
        return sum(self._search(arm) for _ in range(self._timed)) / self._timed

    def _search(self, arm: Arm) -> float:
        query = next(self._turns)
        self._resources.forget()
        started = time.perf_counter()
        with contextlib.suppress(ArmError, GeneratorError):  # a failed search is timed, too
            arm.search(query, self._k)
        return time.perf_counter() - started


@dataclass(frozen=True, kw_only=True)
class PoolJob:
    """Arms and the questions that they search for.

    Attributes:
        questions: The questions, in order.
        corpus: The passages.
        indexes: The folder of the indexes.
        specs: The arms by name.
        backbones: Sentence encoders by name.
        llm: The language model; loaded for the first prompt.
        seed: Seed of the stochastic arms.
        block: Questions per block, at least 1.
        open_selector: Opens a model that was trained for an arm; picklable.
        wait_s: Most seconds that a search waits for another service.
    """

    questions: tuple[Question, ...]
    corpus: Corpus
    indexes: Path
    specs: Mapping[str, ArmSpec]
    backbones: Mapping[str, Backbone]
    llm: LlmSpec | None = None
    seed: int = 0
    block: int = 32
    open_selector: OpenTrained = no_selector
    wait_s: float = 8.0

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return math.ceil(len(self.questions) / self.block)

    def list_questions(self, number: int) -> tuple[Question, ...]:
        """Return the questions of a block."""
        return self.questions[number * self.block : (number + 1) * self.block]

    def validate(self) -> Self:
        """Check the arms, and return the job with only the backbones that it needs. Raises ArmSpecError."""
        ArmGraph(self.specs).validate(self.backbones, self.corpus.names)
        needed = self.list_backbones()
        return replace(
            self, backbones={name: backbone for name, backbone in self.backbones.items() if name in needed}
        )

    def prepare(self, progress: Progress) -> None:
        """Build the missing indexes. Raises ModelNotFoundError, ArmBuildError."""
        resources = Resources(
            self.corpus,
            self.indexes,
            self.backbones,
            self.specs,
            open_selector=self.open_selector,
        )
        prepare(resources, progress=progress)

    def facts(self) -> dict[str, str]:
        """Return the identity of the arms' results. Raises ModelNotFoundError."""
        arms = [
            (name, spec.kind, spec.params, *filter(None, (spec.corpus, spec.usd)))
            for name, spec in self.specs.items()
        ]
        encoders = {name: backbone.model_dump(exclude={"host"}) for name, backbone in self.backbones.items()}
        return {
            "corpus": self.corpus.digest,
            "questions": digest_of_document(self.questions),
            "arms": digest_of_document([arms, encoders]),
            "language model": language_model(self.llm),
            "seed": str(self.seed),
            "block": str(self.block),
            **{f"model {name}": digest_backbone(backbone) for name, backbone in self.backbones.items()},
            **{f"weights of {model}": digest_weights(model) for model in sorted(_models(self.specs))},
        }

    def list_backbones(self) -> frozenset[str]:
        """Return the names of the backbones that the arms are built with."""
        return frozenset[str]().union(*map(ArmGraph(self.specs).backbones, self.specs))


class PoolWorker:
    """The arms of a job; loads the encoders once and maps the indexes.

    Args:
        job: The job.
        names: The arms to run, in this order; other arms serve only as members of these. None: all.

    Attributes:
        write: Prompts the language model, from any thread.
        embedders: Sentence encoders by name.
        resources: Resources from which the arms are built.
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
            job.wait_s,
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
                derive_seed(self._seed, question.id),
            )
            for row, question in enumerate(questions)
        ]

    def embed(self, text: str, names: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        """Embed a text that an arm wrote, such as a follow-up query."""
        return {name: self.embedders[name].encode_queries([text])[0] for name in names}


def derive_seed(seed: int, question: str) -> int:
    """Return the seed of a question by its id: the same in any order, block and process.

    >>> derive_seed(0, "q1") == derive_seed(0, "q1"), derive_seed(0, "q1") == derive_seed(1, "q1")
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}\0{question}".encode(), digest_size=7).digest())


def digest_weights(model: str) -> str:
    """Return a digest of a model on disk, or the name of one on a hub. Raises ModelNotFoundError."""
    place = locate(model)
    return digest_file(place) if isinstance(place, Path) else place


def _models(specs: Mapping[str, ArmSpec]) -> set[str]:
    """Return the models that arms load themselves, except arms of a user's class."""
    return {model for kind, params in map(ArmGraph(specs).resolve, specs) for model in kind.models(params)}


def language_model(spec: LlmSpec | None) -> str:
    """Return a digest of a language model's spec and of its weights, if it runs in this process."""
    if spec is None:
        return "none"
    weights = ""
    if isinstance(spec, llm_catalog.EmbeddedSpec | llm_catalog.VllmSpec):
        with contextlib.suppress(ModelNotFoundError):  # the job may need no language model
            weights = digest_weights(spec.model)
    return digest_of_document([llm_catalog.identify(spec), weights])


def digest_of_document(document: object) -> str:
    """Return the digest of a JSON document; the order of keys is immaterial."""
    canonical = orjson.dumps(document, option=orjson.OPT_SORT_KEYS)
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
