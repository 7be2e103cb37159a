"""OpenSearch and Elasticsearch over HTTP: words, vectors, and facts as keywords.

Source: the reference of each REST API: Create index, Put mapping, Bulk, Multi-get, Search, k-NN.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field, model_validator

from armwise.arms.base import ArmError, Passage, Query, QuestionRefusedError
from armwise.arms.engines.collection import FIELDS, EngineArm, FillState, Row, ServerParams, read_passage
from armwise.arms.engines.conditions import FactsDialect, build_condition
from armwise.arms.retrievers.remote import REFUSED, HttpArm, HttpParams, RemoteResponse

Json = dict[str, Any]

STATE = "armwise"

PAGE = 1000

NEIGHBORS = 100
"""Candidates of each shard in a vector search; a larger k replaces it."""


class SearchServerParams(ServerParams):
    """Parameters of an arm over an engine that is asked over HTTP."""

    url: str = Field(description="Address of the engine.")
    key_env: str | None = Field(
        None,
        description="Environment variable that holds the whole `Authorization` header.",
    )

    @property
    def http(self) -> HttpParams:
        """Settings of the HTTP requests."""
        headers = {} if self.key_env is None else {"Authorization": self.key_env}
        return HttpParams.model_validate({"url": self.url, "header_env": headers})

    @model_validator(mode="after")
    def _is_an_address(self) -> Self:
        if self.http.url != self.url or httpx.URL(self.url).query:
            raise ValueError(f"url {self.url!r} is not the address of a search engine")
        return self


class Rest:
    """Sends the requests for a collection.

    Args:
        params: Parameters of the arm.
        root: Path of all requests below the address, without a slash at either end.
        wait_s: Most seconds of a request, its retries included.
    """

    def __init__(self, params: SearchServerParams, root: str, wait_s: float) -> None:
        self._http = HttpArm("", params.http, wait_s)
        self._http.label = params.url
        self._root = f"{params.url.rstrip('/')}/{root}"

    def call(self, method: str, path: str, body: Json | None = None, *, asked: bool = False) -> Json:
        """Send a request, and return the reply.

        Raises:
            QuestionRefusedError: The engine refused a search, which `asked` says the request is.
            ArmError: The request failed.
        """
        return self.read(self.send(method, path, None if body is None else orjson.dumps(body)), asked=asked)

    def send(
        self, method: str, path: str, content: bytes | None = None, kind: str = "application/json"
    ) -> RemoteResponse:
        """Return the response to a request, of any status below 500. Raises ArmError."""
        return self._http.connections.waiting.run(self._http.send(self._request(method, path, content, kind)))

    def read(self, reply: RemoteResponse, *, asked: bool = False) -> Json:
        """Return the body of a response, {} if it has none. Raises ArmError."""
        content = self.check(reply, asked=asked).content
        body: Json = orjson.loads(content) if content else {}
        return body

    def check(self, reply: RemoteResponse, *, asked: bool = False) -> RemoteResponse:
        """Return the response if its status is a success. Raises ArmError."""
        if not httpx.codes.is_success(reply.status):
            error = QuestionRefusedError if asked and reply.status in REFUSED else ArmError
            raise error(f"{self._http.label} returned {reply}")
        return reply

    def _request(self, method: str, path: str, content: bytes | None, kind: str) -> httpx.Request:
        http = self._http
        headers = {**http.headers, **({} if content is None else {"Content-Type": kind})}
        return http.connections.client.build_request(
            method, f"{self._root}{path}", headers=headers, content=content
        )


class OpenSearchClauses(FactsDialect[Json]):
    """Conditions as clauses of the query language."""

    def match_any(self, facts: Sequence[str]) -> Json:
        """Return the condition that a passage has one of these facts."""
        return {"terms": {"facts": list(facts)}}

    def every(self, parts: Sequence[Json]) -> Json:
        """Return the conjunction of conditions."""
        return {"bool": {"filter": list(parts)}}

    def some(self, parts: Sequence[Json]) -> Json:
        """Return the disjunction of conditions."""
        return {"bool": {"should": list(parts), "minimum_should_match": 1}}

    def negate(self, part: Json) -> Json:
        """Return the negation of a condition."""
        return {"bool": {"must_not": [part]}}


class Index:
    """An index of OpenSearch.

    Args:
        params: Parameters of the arm.
    """

    def __init__(self, params: SearchServerParams, wait_s: float) -> None:
        self._rest = Rest(params, params.collection, wait_s)

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word of the query, by BM25."""
        words = {
            "must": [{"match": {"search": query.text}}],
            "filter": [build_condition(query, OpenSearchClauses())],
        }
        return self._find_passages({"query": {"bool": words}}, k)

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by cosine."""
        near = self.nearest(vector.astype(float).tolist(), k, build_condition(query, OpenSearchClauses()))
        return self._find_passages(near, k)

    @staticmethod
    def nearest(vector: list[float], k: int, condition: Json) -> Json:
        """Return the body of a search by a vector."""
        return {"query": {"knn": {"vector": {"vector": vector, "k": k, "filter": condition}}}}

    @staticmethod
    def vectors(dim: int) -> tuple[Json, Json]:
        """Return the mapping of vectors, and the settings of an index that has them."""
        method = {"name": "hnsw", "space_type": "cosinesimil", "engine": "lucene"}
        return {"type": "knn_vector", "dimension": dim, "method": method}, {"index": {"knn": True}}

    def _find_passages(self, body: Json, k: int) -> list[Passage]:
        reply = self._rest.call("POST", "/_search", {**body, "size": k, "_source": FIELDS}, asked=True)
        return [read_passage(hit["_source"], hit["_score"]) for hit in reply["hits"]["hits"]]

    def create(self, dim: int | None) -> None:
        """Create the index."""
        if self._mapping() is not None:
            return
        unread = {"type": "keyword", "index": False, "doc_values": False}
        fields: Json = {
            "id": {"type": "keyword"},
            "title": {"type": "text", "copy_to": "search"},
            "text": {"type": "text", "copy_to": "search"},
            "search": {"type": "text"},
            "facts": {"type": "keyword"},
            "metadata": unread,
            "digest": unread,
        }
        settings: Json = {}
        if dim is not None:
            fields["vector"], settings = self.vectors(dim)
        self._rest.call(
            "PUT", "", {"settings": settings, "mappings": {"dynamic": "strict", "properties": fields}}
        )

    def _mapping(self) -> Json | None:
        """Return the mapping of the index, or of the only index of an alias; None: there is no index."""
        reply = self._rest.send("GET", "/_mapping")
        if reply.status == httpx.codes.NOT_FOUND:
            return None
        mappings: Json = self._rest.read(reply)
        (mapping,) = (index["mappings"] for index in mappings.values())
        return dict(mapping)

    def state(self) -> FillState | None:
        """Return the state that was stored last."""
        kept = ((self._mapping() or {}).get("_meta") or {}).get(STATE)
        return None if kept is None else FillState(**kept)

    def keep(self, state: FillState) -> None:
        """Store a state in the metadata of the mapping."""
        self._rest.call("PUT", "/_mapping", {"_meta": {STATE: asdict(state)}})

    def count(self) -> int:
        """Return the number of documents."""
        if self._mapping() is None:
            return 0
        self._rest.call("POST", "/_refresh")
        return int(self._rest.call("GET", "/_count")["count"])

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of documents."""
        documents = self._rest.call("POST", "/_mget?_source=digest", {"ids": list(ids)})["docs"]
        return {document["_id"]: document["_source"]["digest"] for document in documents if document["found"]}

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        after: Json = {}
        while True:
            body = {"size": PAGE, "_source": False, "sort": [{"id": "asc"}], **after}
            hits = self._rest.call("POST", "/_search", body)["hits"]["hits"]
            yield from (hit["_id"] for hit in hits)
            if len(hits) < PAGE:
                return
            after = {"search_after": hits[-1]["sort"]}

    def write(self, rows: Sequence[Row]) -> None:
        """Insert or replace documents."""
        lines: list[Json] = []
        for row in rows:
            document = {**row.document, "facts": row.facts}
            if row.vector is not None and row.vector.any():  # a vector of zeros has no direction
                document["vector"] = row.numbers
            lines += [{"index": {"_id": row.passage.id}}, document]
        self._bulk(lines)

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents."""
        self._bulk([{"delete": {"_id": name}} for name in ids])

    def finish(self) -> None:
        """Make the written documents visible to searches."""
        self._rest.call("POST", "/_refresh")

    def _bulk(self, lines: Sequence[Json]) -> None:
        content = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        reply = self._rest.read(self._rest.send("POST", "/_bulk", content, "application/x-ndjson"))
        done = [outcome for item in reply["items"] for outcome in item.values()]
        if failed := [outcome for outcome in done if "error" in outcome]:
            raise ArmError(
                f"the engine refused {len(failed)} passages, such as {failed[0]['_id']!r}: "
                f"{failed[0]['error']}"
            )


class ElasticIndex(Index):
    """An index of Elasticsearch, which differs in its vectors."""

    @staticmethod
    def nearest(vector: list[float], k: int, condition: Json) -> Json:
        """Return the body of a search by a vector."""
        width = max(k, NEIGHBORS)
        near = {
            "field": "vector",
            "query_vector": vector,
            "k": k,
            "num_candidates": width,
            "filter": condition,
        }
        return {"knn": near}

    @staticmethod
    def vectors(dim: int) -> tuple[Json, Json]:
        """Return the mapping of vectors, and the settings of an index that has them."""
        return {"type": "dense_vector", "dims": dim, "index": True, "similarity": "cosine"}, {}


class OpenSearchArm(EngineArm[SearchServerParams]):
    """Searches a collection of [OpenSearch](engines.md)."""

    kind = "opensearch"
    params = SearchServerParams
    example: ClassVar = {"collection": "passages", "url": "https://search.example:9200"}
    open = Index


class ElasticsearchArm(EngineArm[SearchServerParams]):
    """Searches a collection of [Elasticsearch](engines.md)."""

    kind = "elasticsearch"
    params = SearchServerParams
    example: ClassVar = {"collection": "passages", "url": "https://search.example:9200"}
    open = ElasticIndex
