"""Weaviate, over HTTP: words, vectors, and facts as keywords.

The official client needs older versions of protobuf and grpcio than Ray does, and Weaviate's search over
REST takes no vector, so questions are asked in GraphQL. All texts in it are literals of JSON, which are
literals of GraphQL, too.

Source: the reference of Weaviate: GraphQL, filters; REST, `/schema`, `/objects`, `/batch/objects`.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import httpx
import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import field_validator

from arms.base import ArmError, Passage, Query
from arms.retrievers.engines.collection import Row, State, engine_kind
from arms.retrievers.engines.conditions import FactsDialect, condition_of, facts_of, loaded_metadata, stored
from arms.retrievers.engines.rest import Json, Rest, SearchServerParams

NAMES = uuid.UUID("5d0d0a55-4c8c-4d6a-9c1b-0d6a2b2f2c11")
"""Namespace of the ids of objects."""

NOTHING = "none"
"""A fact that no passage has: a list of values may not be empty."""

PAGE = 100

AT_ONCE = 50
"""Objects of a request to write: its response repeats them with their vectors, and may not be too long."""

STATE = "State"
"""What the name of the collection that holds the state ends with."""

SHOWN = "passage title text metadata"


class WeaviateParams(SearchServerParams):
    """Parameters of an arm over a collection of Weaviate."""

    @field_validator("collection")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if "-" in name or not name[0].isalpha():
            raise ValueError(f"{name!r} is not a name of a collection of Weaviate: letters, digits and _ are")
        return name


class Filters(FactsDialect[str]):
    """Conditions as literals of GraphQL."""

    def any_of(self, facts: Sequence[str]) -> str:
        """Return: one of these is a fact of the passage."""
        values = literal(list(facts) or [NOTHING])
        return f'{{path: ["facts"], operator: ContainsAny, valueText: {values}}}'

    def every(self, parts: Sequence[str]) -> str:
        """Return: all of these hold."""
        return f"{{operator: And, operands: [{', '.join(parts)}]}}"

    def some(self, parts: Sequence[str]) -> str:
        """Return: one of these holds."""
        return f"{{operator: Or, operands: [{', '.join(parts)}]}}"

    def negated(self, part: str) -> str:
        """Return: this does not hold."""
        return f"{{operator: Not, operands: [{part}]}}"


class Objects:
    """The objects of a collection.

    Args:
        params: Parameters of the arm.
    """

    def __init__(self, params: SearchServerParams) -> None:
        self._name = params.collection[0].upper() + params.collection[1:]  # as Weaviate does
        self._rest = Rest(params, "v1")

    def lexical(self, query: Query, k: int) -> list[Passage]:
        """Return passages with at least one word, by BM25."""
        words = f'bm25: {{query: {literal(query.text)}, properties: ["title", "text"]}}'
        return self._found(words, query, k, "score")

    def dense(self, vector: NDArray[np.float32], query: Query, k: int) -> list[Passage]:
        """Return the nearest passages by the cosine."""
        near = f"nearVector: {{vector: {literal(vector.astype(float).tolist())}}}"
        return self._found(near, query, k, "distance")

    def _found(self, wanted: str, query: Query, k: int, measure: str) -> list[Passage]:
        where = condition_of(query, Filters())
        found = self._asked(
            f"{{Get {{{self._name}(limit: {int(k)}, {wanted}, where: {where}) "
            f"{{{SHOWN} _additional {{{measure}}}}}}}}}",
            asked=True,
        )["Get"][self._name]
        passages = []
        for one in found:
            value = float(one["_additional"][measure])
            score = value if measure == "score" else 1.0 - value
            metadata = loaded_metadata(one["metadata"])
            passages.append(Passage(one["passage"], one["title"], one["text"], score, metadata))
        return passages

    def _asked(self, query: str, *, asked: bool = False) -> Json:
        """Return the data of an answer. Raises ArmError."""
        reply = self._rest.call("POST", "/graphql", {"query": query}, asked=asked)
        if errors := reply.get("errors"):
            raise ArmError(f"Weaviate has refused: {errors[0].get('message')}")
        found: Json = reply["data"]
        return found

    def create(self, dim: int | None) -> None:
        """Make the collection."""
        del dim  # of the first vector
        unread = {"indexFilterable": False, "indexSearchable": False}
        self._create(
            self._name,
            [
                {"name": "passage", "dataType": ["text"], **unread},
                {"name": "title", "dataType": ["text"], "tokenization": "word"},
                {"name": "text", "dataType": ["text"], "tokenization": "word"},
                {"name": "metadata", "dataType": ["text"], **unread},
                {"name": "digest", "dataType": ["text"], **unread},
                {"name": "facts", "dataType": ["text[]"], "tokenization": "field", "indexSearchable": False},
            ],
        )

    def _create(self, name: str, properties: Sequence[Json]) -> None:
        if not self._exists(name):
            own = {"vectorizer": "none", "vectorIndexConfig": {"distance": "cosine"}}
            self._rest.call("POST", "/schema", {"class": name, "properties": list(properties), **own})

    def _exists(self, name: str) -> bool:
        reply = self._rest.send("GET", f"/schema/{name}")
        if reply.status != httpx.codes.NOT_FOUND:
            self._rest.read(reply)
        return reply.status != httpx.codes.NOT_FOUND

    def state(self) -> State | None:
        """Return what was put there."""
        name = f"{self._name}{STATE}"
        if not self._exists(name):
            return None
        reply = self._rest.send("GET", f"/objects/{name}/{_key(name)}")
        if reply.status == httpx.codes.NOT_FOUND:
            return None
        return State(**orjson.loads(self._rest.read(reply)["properties"]["state"]))

    def keep(self, state: State) -> None:
        """Store a state in a collection beside."""
        name = f"{self._name}{STATE}"
        self._create(name, [{"name": "state", "dataType": ["text"], "indexSearchable": False}])
        kept = {"state": orjson.dumps(asdict(state)).decode()}
        self._put([{"class": name, "id": _key(name), "properties": kept}])

    def count(self) -> int:
        """Return the number of objects."""
        if not self._exists(self._name):
            return 0
        found = self._asked(f"{{Aggregate {{{self._name} {{meta {{count}}}}}}}}")
        return int(found["Aggregate"][self._name][0]["meta"]["count"])

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of objects."""
        paths = [(f"/objects/{self._name}/{_key(name)}", None) for name in ids]
        return {
            name: self._rest.read(reply)["properties"]["digest"]
            for name, reply in zip(ids, self._rest.send_all("GET", paths), strict=True)
            if reply.status != httpx.codes.NOT_FOUND
        }

    def ids(self) -> Iterator[str]:
        """Yield every id, a page at a time."""
        after = ""
        while page := self._rest.call("GET", f"/objects?class={self._name}&limit={PAGE}{after}")["objects"]:
            yield from (one["properties"]["passage"] for one in page)
            after = f"&after={page[-1]['id']}"

    def write(self, rows: Sequence[Row]) -> None:
        """Put objects, in place of those with the same ids."""
        objects = []
        for row in rows:
            properties = {
                "passage": row.passage.id,
                "title": row.passage.title,
                "text": row.passage.text,
                "metadata": stored(row.passage.metadata),
                "facts": facts_of(row.passage.metadata),
                "digest": row.digest,
            }
            one: Json = {"class": self._name, "id": _key(row.passage.id), "properties": properties}
            if row.vector is not None and row.vector.any():  # a vector of zeros has no direction
                one["vector"] = row.vector.astype(float).tolist()
            objects.append(one)
        for begin in range(0, len(objects), AT_ONCE):
            self._put(objects[begin : begin + AT_ONCE])

    def _put(self, objects: Sequence[Json]) -> None:
        content = orjson.dumps({"objects": objects})
        done = orjson.loads(self._rest.checked(self._rest.send("POST", "/batch/objects", content)).content)
        if failed := [one for one in done if one.get("result", {}).get("errors")]:
            reason = failed[0]["result"]["errors"]["error"][0]["message"]
            raise ArmError(
                f"{len(failed)} passages are refused, such as "
                f"{failed[0]['properties'].get('passage')!r}: {reason}"
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Delete objects."""
        paths = [(f"/objects/{self._name}/{_key(name)}", None) for name in ids]
        for reply in self._rest.send_all("DELETE", paths):
            if reply.status != httpx.codes.NOT_FOUND:
                self._rest.read(reply)

    def finish(self) -> None:
        """Do nothing: Weaviate indexes by itself."""


def literal(value: object) -> str:
    r"""Return a text, a number or a list of them as a literal of GraphQL: that of JSON.

    >>> literal('say "hi"\n}'), literal([1.5, -2.0])
    ('"say \\"hi\\"\\n}"', '[1.5,-2.0]')
    """
    return orjson.dumps(value).decode()


def _key(name: str) -> str:
    """Return the id of an object, which is a UUID."""
    return str(uuid.uuid5(NAMES, name))


KIND = engine_kind("weaviate", WeaviateParams, Objects)
