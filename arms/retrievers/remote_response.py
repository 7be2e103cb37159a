"""What a search API answered: from JSON, whatever its shape, to passages."""

from math import isfinite
from reprlib import repr as shortened

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from arms.base import Passage


class UnreadableError(Exception):
    """An answer does not hold what it should; the message names what came."""


class Fields(BaseModel):
    """Where a result keeps what a passage is made of; dots lead inwards, as in `_source.title`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(default="id", description="Path of the id, a string.")
    title: str = Field(default="title", description="Path of the title; a result may lack it.")
    text: str = Field(default="text", description="Path of the text.")
    score: str | None = Field(
        default=None,
        description="Path of the score, the more the better; null scores the n-th result 1 / n.",
    )


def read(content: bytes, path: str, fields: Fields) -> list[Passage]:
    """Return the passages of an answer, in its order; of equal ids the first.

    Args:
        content: The answer.
        path: Where in it the results are.
        fields: Where in a result the parts of a passage are.

    Raises:
        UnreadableError: It is no JSON, or lacks a list, or a result lacks a part.

    >>> read(b'{"found": [{"id": "a", "text": "one"}]}', "found", Fields())
    [Passage(id='a', title='', text='one', score=1.0)]
    """
    try:
        results = at(orjson.loads(content), path)
    except orjson.JSONDecodeError as error:
        raise UnreadableError(f"no JSON ({error})") from error
    if not isinstance(results, list):
        raise UnreadableError(f"at {path!r} is {shortened(results)}, not a list")
    passages: dict[str, Passage] = {}
    for number, result in enumerate(results, start=1):
        try:
            passage = Passage(
                _string(result, fields.id),
                _title(result, fields.title),
                _string(result, fields.text),
                1 / number if fields.score is None else _number(result, fields.score),
            )
        except UnreadableError as error:
            raise UnreadableError(f"result {number}: {error}") from error
        passages.setdefault(passage.id, passage)
    return list(passages.values())


def at(value: JsonValue, path: str) -> JsonValue:
    """Return what lies at a path: names of fields and numbers of items, with dots between.

    A name may hold dots itself, where there is a field of that very name.

    >>> at({"hits": {"hits": [{"a": 1}, {"a": 2}]}}, "hits.hits.1.a")
    2
    >>> at({"@search.score": 1.5}, "@search.score")
    1.5

    Raises:
        UnreadableError: There is nothing.
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


def _string(result: JsonValue, path: str) -> str:
    found = at(result, path)
    if not isinstance(found, str):
        raise UnreadableError(f"at {path!r} is {shortened(found)}, not a string")
    return found


def _title(result: JsonValue, path: str) -> str:
    """Return the title; an empty one where there is none, or null."""
    try:
        if at(result, path) is None:
            return ""
    except UnreadableError:
        return ""
    return _string(result, path)


def _number(result: JsonValue, path: str) -> float:
    found = at(result, path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not isfinite(found):
        raise UnreadableError(f"at {path!r} is {shortened(found)}, not a finite number")
    return float(found)
