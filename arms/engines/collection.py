"""The protocol of a collection of a search engine, and the arms that search it; `ingest` fills it."""

import importlib
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import override

from armwise.arms import proxies
from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval
from armwise.arms.engines.conditions import dump_metadata, list_facts, load_metadata
from armwise.arms.extras import install_command
from armwise.arms.retrievers.fusion import fuse
from armwise.arms.retrievers.kind import Kind, Members, ReadVersion, Resources
from armwise.arms.retrievers.remote import best
from armwise.arms.retrievers.versioned import BETWEEN
from armwise.arms.secrets import read_secret

P = TypeVar("P", bound="EngineParams")

T = TypeVar("T")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,62}$")]
"""A name that every engine accepts unescaped, in a path or a URL."""

DEPTH = 50
"""Passages of each of the two rankings of a hybrid search, at least k."""

PLACES = 5
"""Decimals of a score."""

FORMAT = 1
"""Version of the stored form of a passage: raising it has every passage written again."""

VERSION_S = 10.0
"""Seconds for which a read version of a collection counts as current."""


@dataclass(frozen=True, slots=True)
class FillState:
    """The state of a collection that `ingest` fills, as stored in the engine.

    Attributes:
        version: Version of the last complete contents; empty if there were none.
        next: Version of the contents that are being written; equal to `version` once complete.
        corpus: Name of the corpus.
        model: Digest of the model of the vectors; empty without vectors.
        done: Number of positions of the corpus that are written.
    """

    version: str
    next: str
    corpus: str
    model: str
    done: int

    @property
    def shown(self) -> str:
        """The version; while the collection is being filled, old and new version."""
        return self.version if self.version == self.next else f"{self.version}{BETWEEN}{self.next}"

    def to_json(self) -> str:
        """Return it as JSON."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return it from JSON."""
        return cls(**orjson.loads(text))


@dataclass(frozen=True, slots=True)
class Row:
    """A passage as a collection holds it.

    Attributes:
        passage: The passage.
        digest: Hash of the passage and its vector.
        vector: Unit vector, shape (dim,), if the collection has vectors.
    """

    passage: Passage
    digest: str
    vector: NDArray[np.float32] | None

    @property
    def document(self) -> dict[str, Any]:
        """The texts that a search returns, the metadata as JSON among them, and the digest."""
        passage = self.passage
        texts = {"id": passage.id, "title": passage.title, "text": passage.text}
        return {**texts, "metadata": dump_metadata(passage.metadata), "digest": self.digest}

    @property
    def search(self) -> str:
        """The text that is searched by words."""
        return f"{self.passage.title} {self.passage.text}"

    @property
    def facts(self) -> list[str]:
        """The facts by which an engine filters that cannot compare metadata."""
        return list_facts(self.passage.metadata)

    @property
    def numbers(self) -> list[float] | None:
        """The vector as numbers of JSON, if there is one."""
        return None if self.vector is None else self.vector.astype(float).tolist()


FIELDS = ["id", "title", "text", "metadata"]
"""Fields of a document that a search reads."""


def read_passage(document: Mapping[str, Any], score: float) -> Passage:
    """Return the passage of a document of `Row.document`.

    Args:
        document: Fields of the document, by name.
        score: Score of the passage.
    """
    metadata = load_metadata(document["metadata"])
    return Passage(document["id"], document["title"], document["text"], score, metadata)


class Collection(Protocol):
    """A collection of an engine; thread-safe. It raises ArmError and the errors of its client.

    If its words are ours, its attribute `row_format` is `FORMAT` with their version and language.
    """

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages that share words with a question and that its caller may see, best first.

        The question has at least one word.
        """
        ...

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the passages nearest to a nonzero vector that the caller may see, best first."""
        ...

    def create(self, dim: int | None) -> None:
        """Make the collection if it is missing, for vectors of `dim` numbers, or without vectors."""
        ...

    def state(self) -> FillState | None:
        """Return the state; None: the collection is missing, or was not made by `ingest`."""
        ...

    def keep(self, state: FillState) -> None:
        """Store a state, after all earlier writes."""
        ...

    def count(self) -> int:
        """Return the number of passages; 0 if the collection is missing."""
        ...

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of the passages that the collection has, by id."""
        ...

    def ids(self) -> Iterator[str]:
        """Yield the id of every passage; nothing must be written meanwhile."""
        ...

    def write(self, rows: Sequence[Row]) -> None:
        """Add passages, in place of those with the same ids."""
        ...

    def delete(self, ids: Sequence[str]) -> None:
        """Remove passages; missing ones are ignored."""
        ...

    def finish(self) -> None:
        """Build the indexes that the engine needs for a fast search, after all writes."""
        ...


class CollectionVersion:
    """Reads the version of a collection. Thread-safe.

    Args:
        collection: The collection.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._version: str | None = None
        self._looked_at = -math.inf

    def __call__(self, fresh: bool) -> str | None:
        """Return the version; None: `ingest` has not filled it. Errors of the client are passed on.

        Args:
            fresh: Whether to ask the engine even if the version is less than `VERSION_S` seconds old.
        """
        now = time.monotonic()
        if fresh or now - self._looked_at >= VERSION_S:
            self._looked_at = now  # also where it fails: an engine that is away is not asked at each search
            self._version = None
            state = self._collection.state()
            self._version = None if state is None else state.shown
        return self._version


class EngineParams(BaseModel):
    """Parameters of every arm over a search engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    collection: Name = Field(description="Name of the collection, index or table.")
    mode: Literal["lexical", "dense", "hybrid"] = Field(
        "lexical",
        description=(
            "How to search. `lexical`: by words. `dense`: by vectors. `hybrid`: by both, fused by "
            "reciprocal rank."
        ),
    )
    backbone: str | None = Field(
        None,
        description="Backbone for the vectors. Required for `dense` and `hybrid`, and to fill a collection "
        "with vectors.",
    )
    key_env: str | None = Field(
        None, description="Environment variable that holds the password or key of the engine."
    )

    @property
    def key(self) -> str | None:
        """The password or key, if there is one. Raises ArmBuildError."""
        if self.key_env is None:
            return None
        if not (key := read_secret(self.key_env)):
            raise ArmBuildError(
                f"the password or key is missing: set the environment variable {self.key_env}"
            )
        return key

    @model_validator(mode="after")
    def _has_vectors(self) -> Self:
        if self.mode != "lexical" and self.backbone is None:
            raise ValueError(f"mode {self.mode} needs a backbone")
        return self


class ServerParams(EngineParams):
    """Parameters of an arm over an engine at an address."""

    url: str = Field(description="Address of the engine, without a password.")

    @model_validator(mode="after")
    def _is_open_to_all(self) -> Self:
        try:
            password = httpx.URL(self.url).password
        except httpx.InvalidURL as error:
            raise ValueError(f"url is not a valid address: {error}") from None
        if password:
            raise ValueError(
                "url contains a password that others could read: put it into a variable and name that in "
                "key_env"
            )
        return self


class EngineArm(Kind[P]):
    """The base of arms over a search engine: by words, by vectors or by both.

    A hybrid search fuses the two rankings of the engine by reciprocal ranks, the same for all engines.

    Attributes:
        collection: The collection that it searches.
        backbone: Name of the encoder of the collection's vectors; None: it has none.
    """

    filters = holds_corpus = True

    def __init__(self, name: str, params: P, collection: Collection) -> None:
        self.name = name
        self.backbones = frozenset(self.embeds(params))
        self.backbone = params.backbone
        self.collection = collection
        self._params = params
        self._version = CollectionVersion(collection)

    @staticmethod
    @abstractmethod
    def open(params: P, wait_s: float) -> Collection:
        """Open a collection, which connects on first use and waits for so long. Raises ArmBuildError."""

    @classmethod
    @override
    def embeds(cls, params: P) -> tuple[str, ...]:
        return () if params.mode == "lexical" else cls.encoders(params)

    @classmethod
    @override
    def version_reader(cls, params: P, have: Resources) -> ReadVersion:
        opened = cls._open_shared(params, have)
        collection_version = have.share(("version", opened), lambda: CollectionVersion(opened))

        def read(fresh: bool) -> str | None:
            try:
                return collection_version(fresh)
            except Exception as error:  # of a client that is not ours
                raise ArmError(format_error(error)) from error

        return read

    @classmethod
    @override
    def build(cls, name: str, params: P, have: Resources, member: Members) -> Self:
        return cls(name, params, cls._open_shared(params, have))

    @classmethod
    def _open_shared(cls, params: P, have: Resources) -> Collection:
        """Return the collection shared by arms of this kind whose settings differ only in mode."""
        shared = params.model_copy(update={"mode": "lexical"})
        return have.share(("collection", cls, have.wait_s, shared), lambda: cls.open(shared, have.wait_s))

    @property
    def version(self) -> str:
        """Version of the collection, up to `VERSION_S` seconds old; empty: it is not filled."""
        return self.ask_collection(lambda: self._version(False)) or ""

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Return the `k` best passages; a text without words or a vector of zeros finds none.

        Raises MissingEmbeddingError, ArmError.
        """
        params = self._params
        n = max(k, DEPTH) if params.mode == "hybrid" else k
        rankings: list[tuple[Passage, ...]] = []
        if params.mode != "dense":
            has_words = any(character.isalnum() for character in query.text)
            passages = self.ask_collection(lambda: self._lexical(query, n)) if has_words else []
            rankings.append(_rank(passages, n))
        if params.mode != "lexical":
            vector = query.embedding(params.backbone or "", arm=self.name)
            if not np.isfinite(vector).all():
                raise ArmError(f"arm {self.name!r}: the query's embedding has a number that is not finite")
            passages = (
                self.ask_collection(lambda: self.collection.dense(vector, query, n)) if vector.any() else []
            )
            rankings.append(_rank(passages, n))
        return Retrieval(rankings[0] if len(rankings) == 1 else fuse(rankings)[:k])

    def _lexical(self, query: Query, n: int) -> list[Passage]:
        """Search by words, after a check that the collection splits them in the same way. Raises ArmError."""
        wanted = getattr(self.collection, "row_format", None)
        version = None if wanted is None else self._version(False)
        if version is not None and not version.endswith(f"-{wanted}"):
            raise ArmError(
                f"the collection's word index has another version, {version}: "
                "run `armwise ingest --into` with this arm to write it again"
            )
        return self.collection.lexical(query, n)

    def ask_collection(self, ask: Callable[[], T]) -> T:
        """Ask the collection. Raises ArmError."""
        try:
            return ask()
        except ArmError as error:
            raise type(error)(f"arm {self.name!r}: {error}") from error
        except Exception as error:  # of a client that is not ours
            way = proxies.describe_way(getattr(self._params, "url", None) or "")
            raise ArmError(f"arm {self.name!r}: {format_error(error)}{way}") from error


def _rank(passages: list[Passage], n: int) -> tuple[Passage, ...]:
    """Return the best passages.

    Scores are rounded: in some engines the same sum of 32-bit numbers varies between searches. The cosine
    with a vector of zeros is NaN, and counts as 0.
    """
    scores = (round(passage.score, PLACES) if math.isfinite(passage.score) else 0.0 for passage in passages)
    return best((passage.replace_score(score) for passage, score in zip(passages, scores, strict=True)), n)


def format_error(error: Exception) -> str:
    """Return the first line of an error of an engine's client."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


def client(module: str, engine: str) -> ModuleType:
    """Return the module of an engine's client. Raises ArmBuildError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArmBuildError(
            f"the client of {engine} is not installed ({error}): {install_command([module])}"
        ) from error
