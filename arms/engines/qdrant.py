"""Qdrant: vectors, and words as sparse vectors, whose inverse document frequency the engine computes."""

import atexit
import hashlib
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self

import httpx
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import override

from armwise.arms import proxies
from armwise.arms.base import ArmBuildError, Passage, Query, QuestionRefusedError
from armwise.arms.engines.collection import (
    FORMAT,
    EngineArm,
    EngineParams,
    FillState,
    Row,
    client,
    format_error,
)
from armwise.arms.engines.conditions import Order, build_condition, load_metadata
from armwise.arms.filters import GROUPS, Scalar
from armwise.arms.relative_paths import LocalName
from armwise.arms.stems import Language, find_index_version, index_words

PAGE = 1000

STATE = "armwise_ingest"

EMPTY_LISTS = "empty_lists"
"""Field with the names of metadata that are empty lists, which Qdrant treats as missing."""

K1, B, USUAL_WORDS = 1.2, 0.75, 80.0
"""Parameters of BM25. The mean length of a passage is a constant, since sparse vectors are computed one by
one while a collection is filled."""


class PayloadFields(BaseModel):
    """Fields of a payload. The defaults fit a collection that `ingest` fills."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = Field(default="id", description="Field of the id. Null means the point's id.")
    title: str | None = Field(
        default="title", description=("Field of the title. If null, passages have no titles.")
    )
    text: str = Field(default="text", description="Field of the text, such as `page_content` for LangChain.")
    metadata: str = Field(default="metadata", description="Field of the metadata object.")
    vector: str = Field(
        default="dense", description=("Name of the vector. Leave it empty for the unnamed vector.")
    )
    words: str = Field(default="words", description="Name of the sparse word vector.")


class QdrantParams(EngineParams):
    """Parameters of an arm over a collection of Qdrant."""

    url: str | None = Field(None, description="Address of the server. Null if you set `path`.")
    path: LocalName | None = Field(
        None,
        description="Folder of a database inside the process, for small collections. Null if you set `url`.",
    )
    language: Language = Field(
        "english", description="Language of the words: other forms of a word are found as well."
    )
    fields: PayloadFields = Field(
        PayloadFields(), description="Fields, for a collection that another program fills."
    )

    @model_validator(mode="after")
    def _is_in_one_place(self) -> Self:
        if (self.url is None) == (self.path is None):
            raise ValueError("set either url or path")
        if self.url is not None and not re.fullmatch(r"https?://[^@/]+(/[^@]*)?", self.url):
            before, _, host = self.url.rpartition("@")
            shown = f"...@{host}" if before else self.url  # the part before the host may hold a password
            raise ValueError(f"url {shown!r} is not an address such as http://localhost:6333")
        return self


class QdrantFilters:
    """Conditions as filters of Qdrant.

    Args:
        models: The models of the client.
        metadata: The field of the metadata.
    """

    def __init__(self, models: Any, metadata: str) -> None:
        self._models = models
        self._metadata = metadata

    def match_one(self, key: str, values: Sequence[Scalar]) -> Any:
        """Return the condition that the value equals, or as a list contains, one of these values.

        Numbers are compared by a range, so that 1 equals 1.0.
        """
        models, path = self._models, self._path(key)
        matches = []
        for value in values:
            if isinstance(value, bool | str):
                what = {"match": models.MatchValue(value=value)}
            else:
                what = {"range": models.Range(gte=value, lte=value)}
            matches.append(models.FieldCondition(key=path, **what))
        return self.some(matches)

    def compare(self, key: str, how: Order, number: float) -> Any:
        """Return the condition that the value is a number in this order to `number`."""
        models = self._models
        return models.FieldCondition(key=self._path(key), range=models.Range(**{how: number}))

    def lacks(self, key: str) -> Any:
        """Return the condition that the key is missing; an empty list is not missing."""
        models = self._models
        missing = models.IsEmptyCondition(is_empty=models.PayloadField(key=self._path(key)))
        empty = models.FieldCondition(key=EMPTY_LISTS, match=models.MatchValue(value=key))
        return models.Filter(must=[missing], must_not=[empty])

    def every(self, parts: Sequence[Any]) -> Any:
        """Return the conjunction of conditions."""
        return self._models.Filter(must=list(parts))

    def some(self, parts: Sequence[Any]) -> Any:
        """Return the disjunction of conditions."""
        models = self._models
        return models.Filter(should=list(parts)) if parts else models.HasIdCondition(has_id=[])

    def negate(self, part: Any) -> Any:
        """Return the negation of a condition."""
        return self._models.Filter(must_not=[part])

    def _path(self, key: str) -> str:
        """Return the path of a value. Raises QuestionRefusedError for a name with a quotation mark."""
        if '"' in key:
            raise QuestionRefusedError(
                f"Qdrant does not support metadata names with a quotation mark: {key!r}"
            )
        return f'{self._metadata}."{key}"'


class QdrantCollection:
    """A collection of Qdrant."""

    def __init__(self, params: QdrantParams, wait_s: float) -> None:
        module = client("qdrant_client", "qdrant")
        self._models: Any = module.models
        self._params, self._name = params, params.collection
        if params.path is not None:
            self._connection = in_folder(params.path)
        else:
            try:
                proxy = proxies.find_proxy(str(params.url))
            except proxies.ProxySettingError as error:
                raise ArmBuildError(f"{params.url}: {error}") from error
            self._connection = module.QdrantClient(
                url=params.url,
                trust_env=False,
                proxy=None if proxy is None else proxy.url,
                verify=httpx.create_ssl_context(),
                api_key=params.key,
                timeout=max(1, round(wait_s)),
                check_compatibility=False,
            )
        self._filters = QdrantFilters(self._models, params.fields.metadata)

    @property
    def row_format(self) -> str:
        """The version of the stored words, and their language."""
        return f"{FORMAT}.{find_index_version()}.{self._params.language}"

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by BM25."""
        weights = sparse(query.text, self._params.language, query=True)
        if not weights:
            return []
        vector = self._models.SparseVector(indices=list(weights), values=list(weights.values()))
        return self._find_passages(vector, self._params.fields.words, query, k)

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages, by the measure of the collection."""
        return self._find_passages(
            vector.astype(float).tolist(), self._params.fields.vector or None, query, k
        )

    def _find_passages(self, vector: Any, using: str | None, query: Query, k: int) -> list[Passage]:
        points = self._connection.query_points(
            self._name,
            query=vector,
            using=using,
            query_filter=build_condition(query, self._filters),
            limit=k,
            with_payload=True,
        ).points
        fields = self._params.fields
        return [
            Passage(
                str(point.id if fields.id is None else point.payload[fields.id]),
                str((point.payload.get(fields.title) if fields.title else None) or ""),
                point.payload[fields.text],
                point.score,
                load_metadata(point.payload.get(fields.metadata)),
            )
            for point in points
        ]

    def create(self, dim: int | None) -> None:
        """Create the collection, with an index of the groups, by which every search filters."""
        models = self._models
        if self._connection.collection_exists(self._name):
            return
        self._connection.create_collection(
            self._name,
            vectors_config={}
            if dim is None
            else {"dense": models.VectorParams(size=dim, distance=models.Distance.COSINE)},
            sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        )
        if self._params.path is None:
            for field in (f'metadata."{GROUPS}"', EMPTY_LISTS):
                self._connection.create_payload_index(self._name, field, models.PayloadSchemaType.KEYWORD)

    def state(self) -> FillState | None:
        """Return the state that was stored last."""
        if not self._connection.collection_exists(self._name):
            return None
        kept = self._connection.get_collection(self._name).config.metadata or {}
        return FillState(**kept[STATE]) if STATE in kept else None

    def keep(self, state: FillState) -> None:
        """Store a state in the metadata of the collection."""
        kept = {name: getattr(state, name) for name in FillState.__slots__}
        self._connection.update_collection(self._name, metadata={STATE: kept})

    def count(self) -> int:
        """Return the number of points."""
        there = self._connection.collection_exists(self._name)
        return int(self._connection.count(self._name, exact=True).count) if there else 0

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of points."""
        points = self._connection.retrieve(
            self._name, [_point(passage_id) for passage_id in ids], with_payload=["id", "digest"]
        )
        return {point.payload["id"]: point.payload["digest"] for point in points}

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        after = None
        while True:
            points, after = self._connection.scroll(
                self._name, limit=PAGE, offset=after, with_payload=["id"], with_vectors=False
            )
            yield from (point.payload["id"] for point in points)
            if after is None:
                return

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace points, and wait until they are there."""
        points = [
            self._models.PointStruct(
                id=_point(row.passage.id), payload=_payload(row), vector=self._vectors(row)
            )
            for row in rows
        ]
        self._connection.upsert(self._name, points, wait=True)

    def _vectors(self, row: Row) -> dict[str, Any]:
        weights = sparse(row.search, self._params.language, query=False)
        vectors: dict[str, Any] = {}
        if weights:
            vectors["words"] = self._models.SparseVector(indices=list(weights), values=list(weights.values()))
        if row.vector is not None:
            vectors["dense"] = row.numbers
        return vectors

    def delete(self, ids: Sequence[str]) -> None:
        """Delete points, and wait until they are gone."""
        self._connection.delete(self._name, [_point(passage_id) for passage_id in ids], wait=True)

    def finish(self) -> None:
        """Do nothing: Qdrant indexes automatically."""


@cache
def in_folder(path: str) -> Any:
    """Return this process's only client for a folder."""
    try:
        opened = client("qdrant_client", "qdrant").QdrantClient(path=path)
    except RuntimeError as error:  # another process has it
        raise ArmBuildError(format_error(error)) from error
    atexit.register(opened.close)
    return opened


def sparse(text: str, language: Language, *, query: bool) -> Mapping[int, float]:
    """Return the words of a text as a sparse vector: the term frequency part of BM25.

    Args:
        text: The text.
        language: Language of the words.
        query: Whether it is a question, whose words have their plain counts.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond.
    """
    terms = index_words(text, language, "english", question=query)
    times = Counter(int.from_bytes(hashlib.blake2b(w.encode(), digest_size=4).digest()) for w in terms)
    damping = K1 * (1 - B + B * len(terms) / USUAL_WORDS)
    return {word: float(n) if query else n * (K1 + 1) / (n + damping) for word, n in times.items()}


def _point(name: str) -> str:
    """Return the UUID of the point of a passage."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def _payload(row: Row) -> dict[str, Any]:
    passage = row.passage
    empty = [key for key, value in passage.metadata.items() if isinstance(value, list | tuple) and not value]
    return {
        **row.document,
        "metadata": dict(passage.metadata),
        **({EMPTY_LISTS: empty} if empty else {}),
    }


class QdrantArm(EngineArm[QdrantParams]):
    """Searches a collection of [Qdrant](engines.md)."""

    kind = "qdrant"
    params = QdrantParams
    example: ClassVar = {"collection": "passages", "url": "http://localhost:6333"}
    open = QdrantCollection

    @classmethod
    @override
    def models(cls, params: QdrantParams) -> tuple[str, ...]:
        return ()  # `path` is where a collection is stored
