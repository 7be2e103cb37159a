"""A double of Vespa: the part of its documented API that the arms use, on schemas that have been deployed.

It refuses what they do not know, as the real one does: another path, field, operator or rank profile. Words
are compared without stemming, and scored by how many of them a passage has.
"""

import re
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import orjson
from typing_extensions import override

from arms.retrievers.engines.vespa import Documents, VespaParams
from arms.tokenizer import words
from tests.arms.retrievers.engines.double import Double, RefusedError

Json = dict[str, Any]

FIELDS = {"passage", "title", "text", "metadata", "facts", "digest", "vector"}

QUERY = re.compile(r"select ([a-z, ]+) from (\w+) where (.*)", re.DOTALL)

TOKEN = re.compile(r"\s*('(?:[^'\\]|\\.)*'|\w+|@\w+|[(){}:,!])")


class Yql:
    """A condition of YQL, parsed and evaluated: raises RefusedError for what the schema does not have."""

    def __init__(self, text: str, params: Json) -> None:
        self.tokens, place = [], 0
        while place < len(text.rstrip()):
            token = TOKEN.match(text, place)
            if token is None:
                raise RefusedError(400, f"no viable alternative at {text[place:]!r}")
            self.tokens.append(token[1])
            place = token.end()
        self.params = params
        self.at = 0
        self.tree = self.either()
        if self.at != len(self.tokens):
            raise RefusedError(400, f"unexpected {self.tokens[self.at]!r}")

    def next(self, *expected: str) -> str:
        if self.at == len(self.tokens):
            raise RefusedError(400, "unexpected end")
        found = self.tokens[self.at]
        if expected and found not in expected:
            raise RefusedError(400, f"expected {expected}, got {found!r}")
        self.at += 1
        return found

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def either(self) -> Any:
        parts = [self.both()]
        while self.peek() == "or":
            self.next()
            parts.append(self.both())
        return ("or", *parts) if len(parts) > 1 else parts[0]

    def both(self) -> Any:
        parts = [self.one()]
        while self.peek() == "and":
            self.next()
            parts.append(self.one())
        return ("and", *parts) if len(parts) > 1 else parts[0]

    def one(self) -> Any:
        token = self.next()
        if token == "!":
            return ("not", self.one())
        if token == "(" and self.peek() == "{":
            return self.annotated()
        if token == "(":
            inner = self.either()
            self.next(")")
            return inner
        if token == "true":
            return ("true",)
        if token == "facts":
            return self.facts()
        if token == "default":
            self.next("contains")
            self.next("(")
            return self.annotated()
        raise RefusedError(400, f"no field {token!r}")

    def facts(self) -> Any:
        self.next("in")
        self.next("(")
        values = [self.next()[1:-1]]
        while self.next(",", ")") == ",":
            values.append(self.next()[1:-1])
        return ("facts", values)

    def annotated(self) -> Any:
        for expected in ("{", "targetHits", ":"):
            self.next(expected)
        n = int(self.next())
        self.next("}")
        what = self.next("text", "nearestNeighbor")
        self.next("(")
        if what == "text":
            value = self.params[self.next().removeprefix("@")]
        else:
            for expected in ("vector", ","):
                self.next(expected)
            value = self.params[f"input.query({self.next()})"]
        self.next(")")
        self.next(")")
        return (what, n, value)


def holds(tree: Any, document: Json) -> bool:
    kind, *parts = tree
    if kind == "and":
        if all(part[0] == "not" for part in parts):
            raise RefusedError(400, "only negative conditions")
        return all(holds(part, document) for part in parts)
    if kind == "or":
        return any(holds(part, document) for part in parts)
    if kind == "not":
        return not holds(parts[0], document)
    if kind == "facts":
        return not set(document.get("facts", [])).isdisjoint(parts[0])
    if kind == "text":
        return overlap(parts[1], document) > 0
    if kind == "nearestNeighbor":
        return "vector" in document
    return kind == "true"


def overlap(question: str, document: Json) -> float:
    found = words(f"{document.get('title', '')} {document.get('text', '')}")
    return sum(found.count(word) for word in words(question)) / (10 + len(found))


def leaves(tree: Any) -> list[Any]:
    kind, *parts = tree
    return [one for part in parts for one in leaves(part)] if kind in ("and", "or", "not") else [tree]


class VespaServer(Double):
    """Vespa with schemas, each with a fieldset `default` and rank profiles `words`, `near`, `unranked`."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__(key)
        self.schemas: dict[str, dict[str, Json]] = {}

    @override
    def reply(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Json:
        if (method, path) == ("POST", "deploy"):
            self.schemas.setdefault(orjson.loads(content)["schema"], {})
            return {}
        if (method, path) == ("POST", "search/"):
            return self._search(orjson.loads(content))
        api, version, namespace, name, docid, *rest = path.split("/")
        if (api, version, namespace, docid) != ("document", "v1", "armwise", "docid"):
            raise RefusedError(404, f"nothing at {path}")
        if name not in self.schemas:
            raise RefusedError(400, f"Document type {name} does not exist")
        documents = self.schemas[name]
        if not rest:
            return self._visit(documents, query, name)
        return self._document(method, documents, unquote(rest[0]), content)

    @staticmethod
    def _document(method: str, documents: dict[str, Json], key: str, content: bytes) -> Json:
        if method == "POST":
            fields = orjson.loads(content)["fields"]
            if unknown := fields.keys() - FIELDS:
                raise RefusedError(400, f"no field {unknown}")
            if "vector" in fields:
                fields["vector"] = fields["vector"]["values"]
            documents[key] = fields
            return {"id": key}
        if method == "DELETE":
            documents.pop(key, None)
            return {"id": key}
        assert method == "GET"
        if key not in documents:
            raise RefusedError(404, "not found")
        return {"id": key, "fields": documents[key]}

    @staticmethod
    def _visit(documents: dict[str, Json], query: dict[str, list[str]], name: str) -> Json:
        assert query["fieldSet"] == [f"{name}:passage"]
        n, after = int(query["wantedDocumentCount"][0]), query.get("continuation", [""])[0]
        keys = sorted(key for key in documents if key > after)
        page = [
            {"id": key, "fields": {k: v for k, v in documents[key].items() if k == "passage"}}
            for key in keys[:n]
        ]
        return {"documents": page, **({"continuation": keys[n - 1]} if len(keys) > n else {})}

    def _search(self, body: Json) -> Json:
        asked = QUERY.fullmatch(body["yql"])
        if asked is None or asked[2] not in self.schemas:
            raise RefusedError(400, f"Could not resolve source ref in {body['yql']!r}")
        if body["hits"] > 400:
            raise RefusedError(400, "hits is above the limit of 400")
        fields, tree = asked[1].split(", "), Yql(asked[3], body).tree
        assert set(fields) <= FIELDS
        found = [one for one in self.schemas[asked[2]].values() if holds(tree, one)]
        kinds = {leaf[0]: leaf for leaf in leaves(tree)}
        if body["ranking"] not in ("words", "near", "unranked"):
            raise RefusedError(400, f"no rank profile {body['ranking']}")

        def relevance(document: Json) -> float:
            if body["ranking"] == "words":
                return overlap(kinds["text"][2], document)
            if body["ranking"] == "near":
                left, right = np.asarray(kinds["nearestNeighbor"][2]), np.asarray(document["vector"])
                cosine = left @ right / np.linalg.norm(left) / np.linalg.norm(right)
                return float(1 / (1 + np.arccos(np.clip(cosine, -1, 1))))
            return 0.0

        ranked = sorted(found, key=relevance, reverse=True)[: body["hits"]]
        children = [
            {"relevance": relevance(one), "fields": {k: v for k, v in one.items() if k in fields and v != ""}}
            for one in ranked
        ]
        return {
            "root": {"fields": {"totalCount": len(found)}, "coverage": {"full": True}, "children": children}
        }


class DeployedDocuments(Documents):
    """Documents whose schema is deployed with the first of them, as an operator would have done."""

    def __init__(self, params: VespaParams) -> None:
        super().__init__(params)
        self._params = params

    @override
    def create(self, dim: int | None) -> None:
        asked = {"schema": self._params.collection}
        headers = {"Authorization": self._params.key or ""}
        httpx.post(f"{self._params.url}/deploy", json=asked, headers=headers).raise_for_status()
        super().create(dim)
