"""JSON documents: how they are read, with bounds, and written, and what is in them."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

Document = dict[str, Any]
"""A JSON object. Documents are never changed in place: parts of them are shared."""

DEEPEST = 128
"""Most levels of a document."""

MOST_MEMBERS = 100_000
"""Most fields and items of all objects and lists of a document: what is read in a third of a second."""

MOST_DIGITS, LONGEST_NUMBER = 100, 1000
"""Most digits of an integer in a document, and of any number in the body of a request.

The time to read an integer grows with the square of its digits.
"""

_DIGITS = bytes(ord("0") if ord("0") <= byte <= ord("9") else ord(" ") for byte in range(256))
"""Makes all digits the same, and everything else a blank: a search for a run of them is quick then."""

_LONG_NUMBER, _LONGEST_NUMBER = b"0" * 19, b"0" * (LONGEST_NUMBER + 1)

_PROBE = 32
"""Digits beside a place that a long number may cover."""

_STRING, _BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL), re.compile(r"[\[\]{}]")

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class DocumentError(ValueError):
    """A document cannot be read: it is no JSON, or breaks a bound."""


def read_document(text: bytes) -> Document:
    """Return a JSON object, with integers beyond 64 bits; halves of surrogate pairs become U+FFFD.

    Raises:
        DocumentError: It is none, is deeper than `DEEPEST`, or has a number that no float holds or with more
            than `MOST_DIGITS`.
    """
    try:
        # orjson is the fastest, and refuses halves of pairs, and rounds integers of more than 64 bits
        document = _read_any(text) if _LONG_NUMBER in text.translate(_DIGITS) else orjson.loads(text)
    except orjson.JSONDecodeError:
        document = _read_any(text)
    if not isinstance(document, dict):
        raise DocumentError("an object was expected")
    _check_depth(document)
    return document


def check_levels(text: bytes) -> None:
    """Refuse JSON of more than `DEEPEST` levels before Python's own parser reads it.

    That parser descends until Python refuses. A finalizer that the garbage collector calls down there, of an
    object that has nothing to do with this text, fails as well.

    Raises:
        DocumentError: It is deeper.
        UnicodeDecodeError: It is no text.
    """
    decoded = text.decode(json.detect_encoding(text), "surrogatepass")
    level = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", decoded)):
        level += 1 if bracket in "[{" else -1
        if level > DEEPEST:
            raise DocumentError(f"expected at most {DEEPEST} levels")


def _read_any(text: bytes) -> Any:
    try:
        check_levels(text)
        document = json.loads(
            text, parse_constant=_refuse_number, parse_float=_read_float, parse_int=read_integer
        )
        may_have_halves = b"\\ud" in text or b"\\uD" in text or not text.isascii()
        rewritten = may_have_halves and isinstance(document, dict)
        return json.loads(write_document(document)) if rewritten else document
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError(str(error)) from None


def _refuse_number(name: str) -> float:
    raise DocumentError(f"expected a number, not {name}")


def read_integer(text: str) -> int:
    """Return an integer of JSON, as a parser finds it. Raises DocumentError where it is too long."""
    if (digits := len(text) - text.startswith("-")) > MOST_DIGITS:
        named = f"{text[:40]}... is an integer of {digits} digits"
        raise DocumentError(f"{named}; at most {MOST_DIGITS} are read")
    return int(text)


def _read_float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise DocumentError(f"{text[:40]} is larger than any number that can be stored")
    return number


def _check_depth(document: Document) -> None:
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            inner += value.values() if isinstance(value, dict) else value
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise DocumentError(f"expected at most {DEEPEST} levels")


def write_document(document: Mapping[str, Any] | Sequence[Any]) -> bytes:
    r"""Return a document as JSON; halves of surrogate pairs become U+FFFD.

    >>> write_document({"n": 2**70, "half": "\ud83d"}).decode()
    '{"n":1180591620717411303424,"half":"\ufffd"}'
    """
    try:
        return orjson.dumps(document)
    except TypeError:  # an integer of more than 64 bits, half a pair, or more levels than orjson writes
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _HALF_PAIR.sub("\ufffd", text).encode()


def count_members(text: bytes) -> int:
    """Count the fields and items of all objects and lists of JSON, an empty one as 1, without parsing it.

    Parsing takes a hundred times as long, and much memory, where there are millions.

    >>> count_members(b'{"a": ["[,", 2], "b": {}}')
    5
    """
    if b"\0" in text:  # not UTF-8: what is in texts is counted, too
        outside = text
    else:
        unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
        if (least := unescaped.count(b'"') // 4) > MOST_MEMBERS:  # a member has a name and a text at most
            return least
        outside = b"".join(unescaped.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{")))


def has_long_number(text: bytes) -> bool:
    """Return whether JSON has a number with more than `LONGEST_NUMBER` digits in a row, without parsing it.

    >>> has_long_number(b"[" + b"1" * 1001 + b"]"), has_long_number(b'["' + b"1" * 1001 + b'"]')
    (True, False)
    """
    one_by_one = text.replace(b"\0", b"")  # also UTF-16
    places = range(0, len(one_by_one), LONGEST_NUMBER)  # it covers at least one, with enough on one side
    if not any(
        one_by_one[place : place + _PROBE].isdigit() or one_by_one[place - _PROBE : place].isdigit()
        for place in places
    ):
        return False
    return _LONGEST_NUMBER in _outside_texts(one_by_one).translate(_DIGITS)


def _outside_texts(text: bytes) -> bytes:
    return b" ".join(text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])


def storable(text: str) -> str:
    r"""Return a text that a database can store: NUL and halves of surrogate pairs become U+FFFD.

    >>> storable("a\0b\ud83d")
    'a\ufffdb\ufffd'
    """
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, which may be anything.

    >>> [*objects([{"a": 1}, "b"])], [*objects("c")]
    ([{'a': 1}], [])
    """
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item


def text_at(document: Mapping[str, Any], name: str) -> str:
    """Return a text of an object; empty where it is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def object_at(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an object of an object; empty where it is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def without(document: Mapping[str, Any], *names: str) -> Document:
    """Return an object without some fields."""
    return {name: value for name, value in document.items() if name not in names}


def without_nulls(document: Mapping[str, Any]) -> Document:
    """Return an object without the fields that are null."""
    return {name: value for name, value in document.items() if value is not None}
