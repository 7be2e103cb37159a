"""Vespa, over HTTP: words, vectors, and facts as keywords of a schema that its operator deploys.

A question is bound to a parameter and read by `text`, which knows no syntax; keys of documents and facts
are hashes.

Source: the reference of Vespa: YQL, Query API, `/document/v1`.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import field_validator

from arms.base import ArmError, Passage, Query
from arms.retrievers.engines.collection import Row, State, engine_kind
from arms.retrievers.engines.conditions import TextDialect, condition_of, facts_of, loaded_metadata, stored
from arms.retrievers.engines.rest import Json, Rest, SearchServerParams

NAMESPACE = "armwise"
"""Namespace of the ids of documents."""

STATE = "armwise-state"
"""Key and only fact of the document that holds the state."""

NOTHING = "none"
"""A fact that no passage has: a list of values may not be empty."""

PAGE = 100
"""Documents of one request; a query returns 400 at most."""

CANDIDATES = 100
"""Documents that are ranked on each node in a search by words, at least."""

SHOWN = "passage, title, text, metadata"


class VespaParams(SearchServerParams):
    """Parameters of an arm over a schema of Vespa."""

    @field_validator("collection")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if "-" in name:
            raise ValueError(f"{name!r} is not a name of a schema of Vespa, which has no '-'")
        return name


class Conditions(TextDialect):
    """Conditions in YQL; a negation needs something to take away from."""

    def any_of(self, facts: Sequence[str]) -> str:
        """Return: one of these is a fact of the passage."""
        return f"facts in ({', '.join(repr(fact) for fact in facts or [NOTHING])})"

    def negated(self, part: str) -> str:
        """Return: this does not hold."""
        return f"(true and !({part}))"


class Documents:
    """The documents of a schema.

    Args:
        params: Parameters of the arm.
    """

    def __init__(self, params: SearchServerParams) -> None:
        self._name = params.collection
        self._search = Rest(params, "search/")
        self._documents = Rest(params, f"document/v1/{NAMESPACE}/{params.collection}/docid")

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word, by BM25."""
        words = f"default contains ({{targetHits: {max(k, CANDIDATES)}}}text(@question))"
        return self._found(words, query, k, {"question": query.text, "ranking": "words"})

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by the angle."""
        near = f"({{targetHits: {k}}}nearestNeighbor(vector, near))"
        asked = {"input.query(near)": vector.astype(float).tolist(), "ranking": "near"}
        return self._found(near, query, k, asked)

    def _found(self, wanted: str, query: Query, k: int, asked: Json) -> list[Passage]:
        where = f"{wanted} and {condition_of(query, Conditions())}"
        root = self._query(SHOWN, where, {**asked, "hits": k}, asked=True)
        hits = [(hit["fields"], hit["relevance"]) for hit in root.get("children", [])]
        return [
            Passage(
                one["passage"], one.get("title", ""), one["text"], score, loaded_metadata(one["metadata"])
            )
            for one, score in hits
        ]

    def _query(self, fields: str, where: str, params: Json, *, asked: bool = False) -> Json:
        """Return the root of the results. Raises ArmError."""
        yql = f"select {fields} from {self._name} where {where}"
        root: Json = self._search.call("POST", "", {"yql": yql, **params}, asked=asked)["root"]
        if errors := root.get("errors"):
            raise ArmError(f"Vespa has failed: {errors[0].get('message') or errors[0].get('summary')}")
        if not asked and not root.get("coverage", {}).get("full", True):
            raise ArmError("Vespa has searched only a part of its documents")
        return root

    def create(self, dim: int | None) -> None:
        """Check that the schema is deployed. Raises ArmError."""
        del dim  # of the schema
        if not self._deployed():
            raise ArmError(
                f"no schema {self._name!r} is deployed: docs/guide/engines.md has the one that is needed"
            )

    def _deployed(self) -> bool:
        reply = self._documents.send("GET", f"/{STATE}")
        if reply.status == httpx.codes.BAD_REQUEST:  # there is no such type of documents
            return False
        if reply.status != httpx.codes.NOT_FOUND:
            self._documents.read(reply)
        return True

    def state(self) -> State | None:
        """Return what was put there."""
        reply = self._documents.send("GET", f"/{STATE}")
        if reply.status in (httpx.codes.NOT_FOUND, httpx.codes.BAD_REQUEST):
            return None
        return State(**orjson.loads(self._documents.read(reply)["fields"]["metadata"]))

    def keep(self, state: State) -> None:
        """Store a state as a document without a text."""
        kept = orjson.dumps(asdict(state)).decode()
        self._documents.call("POST", f"/{STATE}", {"fields": {"metadata": kept, "facts": [STATE]}})

    def count(self) -> int:
        """Return the number of passages."""
        if not self._deployed():
            return 0
        passages = Conditions().negated(Conditions().any_of([STATE]))
        root = self._query("passage", passages, {"hits": 0, "ranking": "unranked"})
        return int(root["fields"]["totalCount"])

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of documents."""
        replies = self._documents.send_all(
            "GET", [(f"/{_key(name)}?fieldSet={self._name}:digest", None) for name in ids]
        )
        return {
            name: self._documents.read(reply)["fields"]["digest"]
            for name, reply in zip(ids, replies, strict=True)
            if reply.status != httpx.codes.NOT_FOUND
        }

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        after = ""
        asked = f"?wantedDocumentCount={PAGE}&fieldSet={self._name}:passage"
        while True:
            page = self._documents.call("GET", f"{asked}{after}")
            fields = (one["fields"] for one in page["documents"])
            yield from (one["passage"] for one in fields if "passage" in one)
            if "continuation" not in page:
                return
            after = f"&continuation={page['continuation']}"

    def write(self, rows: Sequence[Row]) -> None:
        """Put documents, in place of those with the same ids."""
        documents = []
        for row in rows:
            fields: Json = {
                "passage": row.passage.id,
                "title": row.passage.title,
                "text": row.passage.text,
                "metadata": stored(row.passage.metadata),
                "facts": facts_of(row.passage.metadata),
                "digest": row.digest,
            }
            if row.vector is not None and row.vector.any():  # a vector of zeros has no angle
                fields["vector"] = {"values": row.vector.astype(float).tolist()}
            documents.append((f"/{_key(row.passage.id)}", {"fields": fields}))
        self._all_done("POST", [row.passage.id for row in rows], documents)

    def delete(self, ids: Sequence[str]) -> None:
        """Remove documents."""
        self._all_done("DELETE", ids, [(f"/{_key(name)}", None) for name in ids])

    def _all_done(self, method: str, ids: Sequence[str], parts: Sequence[tuple[str, Json | None]]) -> None:
        replies = zip(ids, self._documents.send_all(method, parts), strict=True)
        if failed := [(name, one) for name, one in replies if not httpx.codes.is_success(one.status)]:
            name, reply = failed[0]
            raise ArmError(f"{len(failed)} passages are refused, such as {name!r}: {reply}")

    def finish(self) -> None:
        """Do nothing: Vespa finds what it has acknowledged."""


def _key(name: str) -> str:
    """Return the key of the document of a passage, which may have any id."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


KIND = engine_kind("vespa", VespaParams, Documents)
