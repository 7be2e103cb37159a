"""A double of OpenSearch and of Elasticsearch: the part of their documented API that the arms use.

It refuses what they do not know, as the real ones do: another path, clause or field. Words are compared
without stemming, and scored by how many of them a passage has.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
from typing_extensions import override

from armwise.arms.tokenizer import words
from tests.arms.engines.double import Double, RefusedError

Json = dict[str, Any]


class Index:
    """One index."""

    def __init__(self, body: Json) -> None:
        self.mappings: Json = body["mappings"]
        self.settings: Json = body["settings"]
        self.documents: dict[str, Json] = {}
        self.visible: dict[str, Json] = {}

    def put(self, name: str, document: Json) -> None:
        if unknown := document.keys() - self.mappings["properties"].keys():
            raise RefusedError(400, f"strict_dynamic_mapping_exception: {unknown}")
        vector = document.get("vector")
        if vector is not None and not any(vector):
            raise RefusedError(400, "a vector of zero magnitude has no cosine")
        self.documents[name] = document


def holds(clause: Json, document: Json) -> bool:
    ((kind, what),) = clause.items()
    if kind == "terms":
        ((field, values),) = what.items()
        return not set(document[field]).isdisjoint(values)
    if kind != "bool" or not what or what.keys() - {"filter", "should", "must_not", "minimum_should_match"}:
        raise RefusedError(400, f"unknown clause {clause}")
    if "should" in what and what["minimum_should_match"] != 1:
        raise RefusedError(400, "minimum_should_match")
    return (
        all(holds(part, document) for part in what.get("filter", ()))
        and ("should" not in what or any(holds(part, document) for part in what["should"]))
        and not any(holds(part, document) for part in what.get("must_not", ()))
    )


def cosine(one: list[float], other: list[float] | None) -> float | None:
    if other is None:
        return None
    both = np.asarray(one), np.asarray(other)
    return float((1 + both[0] @ both[1] / np.linalg.norm(both[0]) / np.linalg.norm(both[1])) / 2)


def scored(body: Json, document: Json, *, elastic: bool) -> float | None:
    """Return the score of a document, as either engine says it; None where it does not match."""
    if elastic and "knn" in body:
        near = body["knn"]
        assert near.keys() == {"field", "query_vector", "k", "num_candidates", "filter"}
        assert near["k"] <= near["num_candidates"] <= 10_000
        return (
            cosine(near["query_vector"], document.get("vector")) if holds(near["filter"], document) else None
        )
    ((kind, what),) = body["query"].items()
    if kind == "knn" and not elastic:
        near = what["vector"]
        assert near.keys() == {"vector", "k", "filter"}
        return cosine(near["vector"], document.get("vector")) if holds(near["filter"], document) else None
    if kind != "bool" or what.keys() != {"must", "filter"}:
        raise RefusedError(400, f"unknown query {body}")
    wanted = words(what["must"][0]["match"]["search"])
    found = words(f"{document['title']} {document['text']}")
    count = sum(found.count(word) for word in wanted) / (10 + len(found))
    return count if count and all(holds(part, document) for part in what["filter"]) else None


class SearchServer(Double):
    """Either engine.

    Args:
        elastic: Whether it is Elasticsearch.
        key: The header that it wants; None for an open one.
    """

    def __init__(self, *, elastic: bool, key: str | None = None) -> None:
        super().__init__(key)
        self.elastic = elastic
        self.indexes: dict[str, Index] = {}

    @override
    def reply(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Json:
        name, _, action = path.partition("/")
        return self.do(method, name, action, query, content)

    def do(self, method: str, name: str, action: str, query: dict[str, list[str]], content: bytes) -> Json:
        """Return the body of the reply. Raises RefusedError."""
        if (method, action) == ("PUT", ""):
            return self._create(name, orjson.loads(content))
        if name not in self.indexes:
            raise RefusedError(404, f"index_not_found_exception: {name}")
        index = self.indexes[name]
        if (method, action) == ("GET", "_mapping"):
            return {name: {"mappings": index.mappings}}
        if (method, action) == ("PUT", "_mapping"):
            index.mappings |= orjson.loads(content)
            return {"acknowledged": True}
        if (method, action) == ("POST", "_refresh"):
            index.visible = dict(index.documents)
            return {}
        if (method, action) == ("GET", "_count"):
            return {"count": len(index.visible)}
        if (method, action) == ("POST", "_mget"):
            assert query == {"_source": ["digest"]}
            return {"docs": [self._got(index, one) for one in orjson.loads(content)["ids"]]}
        if (method, action) == ("POST", "_bulk"):
            assert content.endswith(b"\n")
            return self._bulk(index, iter(content.splitlines()))
        if (method, action) == ("POST", "_search"):
            return self._search(index, orjson.loads(content))
        raise RefusedError(405, f"{method} {action}")

    def _create(self, name: str, body: Json) -> Json:
        if name in self.indexes:
            raise RefusedError(400, "resource_already_exists_exception")
        vector = body["mappings"]["properties"].get("vector")
        if vector is not None:
            kind = "dense_vector" if self.elastic else "knn_vector"
            if vector["type"] != kind or (not self.elastic and not body["settings"]["index"]["knn"]):
                raise RefusedError(400, f"no handler for type {vector}")
        self.indexes[name] = Index(body)
        return {"acknowledged": True}

    @staticmethod
    def _got(index: Index, name: str) -> Json:
        if name not in index.documents:
            return {"_id": name, "found": False}
        return {"_id": name, "found": True, "_source": {"digest": index.documents[name]["digest"]}}

    @staticmethod
    def _bulk(index: Index, lines: Iterator[bytes]) -> Json:
        items = []
        for line in lines:
            ((action, what),) = orjson.loads(line).items()
            item: Json = {"_id": what["_id"]}
            if action == "index":
                try:
                    index.put(what["_id"], orjson.loads(next(lines)))
                except RefusedError as error:
                    item["error"] = {"reason": str(error)}
            else:
                assert action == "delete"
                index.documents.pop(what["_id"], None)
            items.append({action: item})
        return {"errors": any("error" in one for item in items for one in item.values()), "items": items}

    def _search(self, index: Index, body: Json) -> Json:
        if "sort" in body:
            assert body["sort"] == [{"id": "asc"}]
            after = body.get("search_after", [""])[0]
            names = sorted(name for name in index.visible if name > after)[: body["size"]]
            return {"hits": {"hits": [{"_id": name, "sort": [name]} for name in names]}}
        assert body["_source"] == ["id", "title", "text", "metadata"]
        scores = {
            name: score
            for name, document in index.visible.items()
            if (score := scored(body, document, elastic=self.elastic)) is not None
        }
        best = sorted(scores, key=lambda name: -scores[name])[: body["size"]]
        hits = [
            {
                "_id": name,
                "_score": scores[name],
                "_source": {k: index.visible[name][k] for k in body["_source"]},
            }
            for name in best
        ]
        return {"hits": {"hits": hits}}
