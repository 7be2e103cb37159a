"""Put a corpus into a collection of a search engine: once, again after a kill, and after a change.

The corpus is read in batches in order of position. A passage is written if the engine lacks its id or has
another digest, and the position is stored after each batch. Passages that the corpus has lost are deleted at
the end.
"""

import hashlib
from collections.abc import Collection as Several
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms.base import ArmError, Passage, Progress
from armwise.arms.engines.collection import (
    FORMAT,
    Collection,
    EngineArm,
    EngineParams,
    FillState,
    Row,
)
from armwise.arms.indexes import Vectors
from armwise.arms.models import digest_backbone
from armwise.arms.retrievers.arm_graph import ArmGraph
from armwise.arms.retrievers.build import build_arm
from armwise.arms.retrievers.catalog import KINDS, ArmSpecError
from armwise.arms.retrievers.kind import ArmSpec, Passages, Resources, digest_contents, digest_vectors

T = TypeVar("T")

BATCH = 500
"""Passages between two stored positions."""

PAGE = 1000
"""Ids that are looked up or deleted at a time."""

FILL_WAIT_S = 600.0
"""Longest time of a batch in seconds while a collection is filled: indexes grow with it."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of a corpus.

    Attributes:
        model: Digest of the model.
        vectors: Unit vectors by position, shape (n_passages, dim).
    """

    model: str
    vectors: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IngestReport:
    """The result of a run.

    Attributes:
        version: Version of the collection.
        written: Number of passages that were new or had changed.
        deleted: Number of passages that the corpus has lost.
    """

    version: str
    written: int = 0
    deleted: int = 0


def ingest(
    corpus: Passages, collection: Collection, embedded: Embedded | None, progress: Progress | None = None
) -> IngestReport:
    """Make a collection hold exactly a corpus.

    Args:
        corpus: The passages.
        collection: The collection to fill.
        embedded: The vectors of the passages; None: the arms over the collection search by words alone.
        progress: Called after each batch.

    Raises:
        ArmError: The collection has other contents: another corpus, vectors of another model, or documents
            that this function did not write.
    """
    model = "" if embedded is None else embedded.model
    version = compute_version(corpus, model, row_format(collection))
    state = collection.state()
    empty = state is None
    if state is None and (n := collection.count()):
        raise ArmError(
            f"the collection has {n:,} passages that ingest did not write: name another collection"
        )
    if state is not None:
        _check(state, corpus.name, model)
        if state.version == version == state.next:
            return IngestReport(version)
    collection.create(None if embedded is None else embedded.vectors.shape[1])
    if state is None or state.next != version:
        before = state.version if state is not None and state.version == state.next else ""
        state = FillState(before, version, corpus.name, model, 0)
        collection.keep(state)
    written, total = 0, len(corpus)
    for positions in _batches(range(state.done, total), BATCH):
        written += _put(corpus, collection, embedded, positions, empty=empty)
        state = replace(state, done=positions[-1] + 1)
        collection.keep(state)
        if progress is not None:
            progress("filling the engine", state.done, total)
    deleted = _delete_others(corpus, collection)
    collection.finish()
    collection.keep(replace(state, version=version))
    return IngestReport(version, written, deleted)


def fill_arm(arm: EngineArm[Any], have: Resources, progress: Progress | None = None) -> IngestReport:
    """Make the collection of an arm hold the corpus alone. Raises ArmError, ModelNotFoundError."""
    embedded = None
    if arm.backbone is not None:
        backbone = have.backbones[arm.backbone]
        kept = Vectors.locate(have.corpus, have.indexes, backbone)
        kept.prepare(have.corpus, backbone, progress)
        embedded = Embedded(str(kept.identity["model"]), kept.read())
    return arm.ask_collection(lambda: ingest(have.corpus, arm.collection, embedded, progress))


def current_version(arm: EngineArm[Any], have: Resources) -> str:
    """Return the version that the collection of an arm has once it holds the corpus."""
    model = "" if arm.backbone is None else digest_backbone(have.backbones[arm.backbone])
    return compute_version(have.corpus, model, row_format(arm.collection))


def fill_collection(name: str, resources: Resources, progress: Progress | None = None) -> IngestReport:
    """Put the corpus into the collection of a search engine that an arm searches.

    Args:
        name: The arm.
        resources: The resources of the arms.
        progress: Progress callback.

    Raises:
        ArmSpecError: The arm is unknown, or has no collection.
        ArmError: The collection has other contents, or the engine fails.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    graph = ArmGraph(resources.specs)
    spec, (_, params) = graph.spec(name), graph.resolve(name)
    if not isinstance(params, EngineParams):
        kinds = ", ".join(name for name, kind in KINDS.own.items() if issubclass(kind.params, EngineParams))
        raise ArmSpecError(
            f"arm {name!r} of kind {spec.kind!r} has no collection: use one of the kinds {kinds}"
        )
    ArmGraph({name: spec}).validate(resources.backbones, resources.corpus.names)
    arm_resources = resources.select_corpus(spec)
    if len(arm_resources.corpus.parts) > 1:
        raise ArmSpecError(
            f"arm {name!r} names no corpus: set `corpus` to the one to write into its collection; `corpora` "
            f"has {', '.join(resources.corpus.names)}"
        )
    patient = replace(resources, wait_s=FILL_WAIT_S)
    return fill_arm(_engine_arm(name, spec, patient), arm_resources, progress)


def read_ingested(name: str, resources: Resources) -> tuple[str, bool] | None:
    """Return the version of the collection that an arm searches, and whether it is that of the corpus.

    None: the arm has no collection, or one that is filled elsewhere, since it names none of several corpora.
    The version is empty before the first `ingest`.

    Raises:
        ArmSpecError: The arm is unknown.
        ArmError: The engine does not answer.
    """
    graph = ArmGraph(resources.specs)
    arm_resources = resources.select_corpus(graph.spec(name))
    if not isinstance(graph.resolve(name)[1], EngineParams) or len(arm_resources.corpus.parts) > 1:
        return None
    arm = _engine_arm(name, graph.spec(name), resources)
    return arm.version, arm.version == current_version(arm, arm_resources)


def _engine_arm(name: str, spec: ArmSpec, resources: Resources) -> EngineArm[Any]:
    """Build an arm over a collection to fill or to examine it, free of charge."""
    free = {**resources.specs, name: spec.model_copy(update={"usd": 0.0})}
    return cast(EngineArm[Any], build_arm(name, replace(resources, specs=free)))


def compute_version(corpus: Passages, model: str, stored_as: int | str = FORMAT) -> str:
    """Return the version of a collection that holds a corpus with the vectors of a model."""
    vectors = digest_vectors(model) if model else "words"
    return f"{digest_contents(corpus)}-{vectors}-{stored_as}"


def _check(state: FillState, corpus: str, model: str) -> None:
    """Refuse to replace what is there by something else."""
    if state.corpus != corpus:
        raise ArmError(
            f"the collection holds corpus {state.corpus!r}, not {corpus!r}: name another collection"
        )
    if state.model != model:
        have, want = (f"of model {digest[:8]}" if digest else "missing" for digest in (state.model, model))
        raise ArmError(
            f"the collection's vectors are {have}, and this arm would write {want}: name another collection, "
            "or use the same backbone for all arms that search it"
        )


def _put(
    corpus: Passages,
    collection: Collection,
    embedded: Embedded | None,
    positions: Sequence[int],
    *,
    empty: bool,
) -> int:
    """Write what is new or has changed, all where the collection was empty; return how much that was."""
    stored_as = row_format(collection)
    model, vectors = ("", None) if embedded is None else (embedded.model, embedded.vectors)
    rows = [
        Row(
            passage, digest_passage(passage, model, stored_as), None if vectors is None else vectors[position]
        )
        for position, passage in zip(positions, corpus.passages(positions), strict=True)
    ]
    there = {} if empty else collection.digests([row.passage.id for row in rows])
    changed = [row for row in rows if there.get(row.passage.id) != row.digest]
    if changed:
        collection.write(changed)
    return len(changed)


def digest_passage(passage: Passage, model: str, stored_as: int | str = FORMAT) -> str:
    """Return the digest of a passage with its vector."""
    parts = [stored_as, model, passage.id, passage.title, passage.text, dict(passage.metadata)]
    return hashlib.blake2b(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def row_format(collection: Collection) -> int | str:
    """Return the version of the stored form of a passage in a collection."""
    return getattr(collection, "row_format", FORMAT)


def _delete_others(corpus: Passages, collection: Collection) -> int:
    """Delete what the corpus does not have, and return how much that was."""
    surplus = collection.count() - len(corpus)
    if surplus == 0:
        return 0
    others: list[str] = []
    for page in _batches(collection.ids(), PAGE):
        corpus_ids: Several[str] = corpus.find_positions(page)
        others += [passage_id for passage_id in page if passage_id not in corpus_ids]
    for page in _batches(others, PAGE):
        collection.delete(page)
    return len(others)


def _batches(values: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(values)
    while batch := list(islice(left, size)):
        yield batch
