"""Parsing of the JSON response of a search API, of any shape, into passages."""

from collections.abc import Sequence
from math import isfinite
from reprlib import repr as shortened

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from arms.base import Passage


class UnreadableError(Exception):
    """A response lacks a part; the message shows what it has."""


class Fields(BaseModel):
    """Paths of the parts of a passage in a result, with dots, as in `_source.title`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(default="id", description="Path of the id, a string.")
    title: str = Field(default="title", description="Path of the title; a result may lack it.")
    text: str = Field(default="text", description="Path of the text.")
    score: str | None = Field(
        default=None,
        description="Path of the score, the more the better; null scores the n-th result 1 / n.",
    )


def read(content: bytes, path: str, fields: Fields) -> list[Passage]:
    """Return the passages of a response, in its order; of equal ids the first.

    Args:
        content: The response.
        path: Path of the list of results.
        fields: Paths of the parts of a passage within a result.

    Raises:
        UnreadableError: It is not JSON, lacks a list, or a result lacks a part.

    >>> read(b'{"found": [{"id": "a", "text": "one"}]}', "found", Fields())
    [Passage(id='a', title='', text='one', score=1.0, metadata={})]
    """
    return passages_of(results_at(loaded(content), path), fields)


def loaded(content: bytes | str) -> JsonValue:
    """Return a JSON document. Raises UnreadableError."""
    try:
        document: JsonValue = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"no JSON ({error})") from error
    return document


def results_at(document: JsonValue, path: str) -> list[JsonValue]:
    """Return the list of results at a path. Raises UnreadableError."""
    results = at(document, path)
    if not isinstance(results, list):
        raise UnreadableError(f"at {path!r} is {shortened(results)}, not a list")
    return results


def passages_of(results: Sequence[JsonValue], fields: Fields) -> list[Passage]:
    """Return results as passages, of equal ids the first. Raises UnreadableError."""
    passages: dict[str, Passage] = {}
    for number, result in enumerate(results, start=1):
        try:
            passage = Passage(
                string_at(result, fields.id),
                _title(result, fields.title),
                string_at(result, fields.text),
                1 / number if fields.score is None else _number(result, fields.score),
            )
        except UnreadableError as error:
            raise UnreadableError(f"result {number}: {error}") from error
        passages.setdefault(passage.id, passage)
    return list(passages.values())


def at(value: JsonValue, path: str) -> JsonValue:
    """Return the value at a path: names of fields and numbers of items, with dots between.

    A field whose own name has dots is found, too.

    >>> at({"hits": {"hits": [{"a": 1}, {"a": 2}]}}, "hits.hits.1.a")
    2
    >>> at({"@search.score": 1.5}, "@search.score")
    1.5

    Raises:
        UnreadableError: There is no such value.
    """
    if not path:
        return value
    if isinstance(value, dict) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    if isinstance(value, dict) and rest and head in value:
        return at(value[head], rest)
    if isinstance(value, list) and head.isdecimal() and int(head) < len(value):
        return at(value[int(head)], rest)
    raise UnreadableError(f"there is no {path!r} in {shortened(value)}")


def string_at(result: JsonValue, path: str) -> str:
    """Return the text at a path. Raises UnreadableError."""
    found = at(result, path)
    if not isinstance(found, str):
        raise UnreadableError(f"at {path!r} is {shortened(found)}, not a string")
    return found


def _title(result: JsonValue, path: str) -> str:
    """Return the title, empty if it is missing or null."""
    try:
        if at(result, path) is None:
            return ""
    except UnreadableError:
        return ""
    return string_at(result, path)


def _number(result: JsonValue, path: str) -> float:
    found = at(result, path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise UnreadableError(f"at {path!r} is {shortened(found)}, not a finite number")
    return float(found)
