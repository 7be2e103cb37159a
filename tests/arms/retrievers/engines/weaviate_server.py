"""A double of Weaviate: the part of its documented API that the arms use.

It refuses what they do not know, as the real one does: another path, property, operator or argument. Words
are compared without stemming, and scored by how many of them a passage has.
"""

import re
from typing import Any

import numpy as np
import orjson
from typing_extensions import override

from arms.tokenizer import words
from tests.arms.retrievers.engines.double import Double, RefusedError

Json = dict[str, Any]

TOKEN = re.compile(
    r'[\s,]*("(?:[^"\\\x00-\x1f]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|[{}()\[\]:])'
)


class GraphQL:
    """The one query of a request, as (name, arguments, selected) triples."""

    def __init__(self, text: str) -> None:
        self.tokens, place = [], 0
        while place < len(text):
            token = TOKEN.match(text, place)
            if token is None:
                raise RefusedError(422, f"Syntax Error GraphQL at {text[place:]!r}")
            self.tokens.append(token[1])
            place = token.end()
        self.at = 0
        self.selected = self.selection()
        if self.at != len(self.tokens):
            raise RefusedError(422, f"Syntax Error GraphQL: unexpected {self.tokens[self.at]}")

    def next(self, expected: str = "") -> str:
        found = self.tokens[self.at]
        if expected and found != expected:
            raise RefusedError(422, f"Syntax Error GraphQL: expected {expected}, got {found}")
        self.at += 1
        return found

    def selection(self) -> list[Any]:
        self.next("{")
        found = []
        while self.tokens[self.at] != "}":
            name, arguments, inner = self.next(), {}, []
            if self.tokens[self.at] == "(":
                arguments = self.pairs("(", ")")
            if self.tokens[self.at] == "{":
                inner = self.selection()
            found.append((name, arguments, inner))
        self.next("}")
        return found

    def pairs(self, begin: str, end: str) -> Json:
        self.next(begin)
        found: Json = {}
        while self.tokens[self.at] != end:
            name = self.next()
            self.next(":")
            found[name] = self.value()
        self.next(end)
        return found

    def value(self) -> Any:
        token = self.tokens[self.at]
        if token == "{":
            return self.pairs("{", "}")
        if token == "[":
            self.next()
            found = []
            while self.tokens[self.at] != "]":
                found.append(self.value())
            self.next()
            return found
        self.next()
        return token if re.fullmatch(r"[A-Za-z_]\w*", token) else orjson.loads(token)


def holds(where: Json, properties: Json) -> bool:
    operator = where["operator"]
    if operator == "ContainsAny":
        assert where.keys() == {"path", "operator", "valueText"}
        if where["path"] != ["facts"] or not where["valueText"]:
            raise RefusedError(500, f"invalid filter {where}")
        return not set(properties["facts"]).isdisjoint(where["valueText"])
    assert where.keys() == {"operator", "operands"}
    parts = [holds(part, properties) for part in where["operands"]]
    if operator == "Not":
        (part,) = parts
        return not part
    if not parts:
        raise RefusedError(500, "no operands")
    return {"And": all, "Or": any}[operator](parts)


class WeaviateServer(Double):
    """Weaviate with GraphQL and without modules."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__(key)
        self.schema: dict[str, Json] = {}
        self.objects: dict[str, dict[str, Json]] = {}

    @override
    def reply(self, method: str, path: str, query: dict[str, list[str]], content: bytes) -> Any:
        version, what, *rest = path.split("/")
        assert version == "v1"
        if what == "schema":
            return self._schema(method, rest, content)
        if (method, what) == ("POST", "graphql"):
            return self._graphql(GraphQL(orjson.loads(content)["query"]))
        if (method, what, rest) == ("POST", "batch", ["objects"]):
            return [self._put(one) for one in orjson.loads(content)["objects"]]
        if what != "objects":
            raise RefusedError(404, f"nothing at {path}")
        if not rest:
            (name,), (limit,) = query["class"], query["limit"]
            found = self.objects[name]
            keys = sorted(key for key in found if key > query.get("after", [""])[0])
            return {"objects": [found[key] for key in keys[: int(limit)]]}
        name, key = rest
        if key not in self.objects[name]:
            raise RefusedError(404, "not found")
        if method == "DELETE":
            del self.objects[name][key]
            return {}
        return self.objects[name][key]

    def _schema(self, method: str, rest: list[str], content: bytes) -> Json:
        if method == "POST":
            made = orjson.loads(content)
            assert made["vectorizer"] == "none"
            if not re.fullmatch(r"[A-Z][_0-9A-Za-z]*", made["class"]) or made["class"] in self.schema:
                raise RefusedError(422, f"{made['class']} is no valid class name, or is there")
            self.schema[made["class"]] = made
            self.objects[made["class"]] = {}
            return made
        (name,) = rest
        if name not in self.schema:
            raise RefusedError(404, "")
        return self.schema[name]

    def _put(self, one: Json) -> Json:
        known = {each["name"] for each in self.schema[one["class"]]["properties"]}
        if unknown := one["properties"].keys() - known:
            error = [{"message": f"no such prop {unknown}"}]
            return {**one, "result": {"status": "FAILED", "errors": {"error": error}}}
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one["id"])
        self.objects[one["class"]][one["id"]] = one
        return {**one, "result": {"status": "SUCCESS"}}

    def _graphql(self, query: GraphQL) -> Json:
        ((function, _, ((name, arguments, selected),)),) = query.selected
        if name not in self.schema:
            return {"errors": [{"message": f'Cannot query field "{name}" on type "{function}ObjectsObj".'}]}
        found = list(self.objects[name].values())
        if function == "Aggregate":
            return {"data": {"Aggregate": {name: [{"meta": {"count": len(found)}}]}}}
        found = [one for one in found if holds(arguments["where"], one["properties"])]
        if "bm25" in arguments:
            assert arguments["bm25"]["properties"] == ["title", "text"]
            wanted = words(arguments["bm25"]["query"])
            scored = [(one, self._overlap(wanted, one)) for one in found]
            shown = [(one, "score", str(score)) for one, score in scored if score > 0]
            shown.sort(key=lambda each: -float(each[2]))
        else:
            vector = np.asarray(arguments["nearVector"]["vector"])
            near = [(one, np.asarray(one["vector"])) for one in found if "vector" in one]
            scale = np.linalg.norm(vector)
            shown = [(o, "distance", float(1 - vector @ v / scale / np.linalg.norm(v))) for o, v in near]
            shown.sort(key=lambda each: each[2])
        wanted_properties = [each for each, _, _ in selected if each != "_additional"]
        return {
            "data": {
                "Get": {
                    name: [
                        {
                            **{p: one["properties"][p] for p in wanted_properties},
                            "_additional": {measure: value},
                        }
                        for one, measure, value in shown[: arguments["limit"]]
                    ]
                }
            }
        }

    @staticmethod
    def _overlap(wanted: list[str], one: Json) -> float:
        found = words(f"{one['properties']['title']} {one['properties']['text']}")
        return sum(found.count(word) for word in wanted) / (10 + len(found))
