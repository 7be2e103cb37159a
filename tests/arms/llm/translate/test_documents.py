"""Documents: what is read of bytes, and what is written again."""

import json
import re
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from armwise.arms.llm.translate.documents import (
    DEEPEST,
    DocumentError,
    check_levels,
    has_long_number,
    object_at,
    objects,
    read_document,
    storable,
    text_at,
    write_document,
)

TEXTS = st.text(st.characters(), max_size=6)
"""Texts of any characters, with halves of surrogate pairs."""

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def whole(document: Any) -> Any:
    """Return what JSON has of a document, with U+FFFD in the place of each half of a pair."""
    text = json.dumps(json.loads(json.dumps(document)), ensure_ascii=False)
    return json.loads(re.sub("[\ud800-\udfff]", "\ufffd", text))


def same(first: Any, second: Any) -> bool:
    """Return whether two documents are the same, down to the order of keys and the types of numbers."""
    return json.dumps(first) == json.dumps(second)


@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.booleans())
def test_a_document_is_written_as_it_was_read(document: dict[str, Any], escaped: bool) -> None:
    text = json.dumps(document) if escaped else json.dumps(whole(document), ensure_ascii=False)
    read = read_document(text.encode())
    assert same(read, whole(document))
    assert same(json.loads(write_document(read)), read)
    assert same(json.loads(write_document(json.loads(json.dumps(document)))), read), "also what was not read"


@pytest.mark.parametrize("digits", [18, 19, 20, 25, 100])
def test_integers_keep_their_digits(digits: int) -> None:
    text = b'{"n":-%b,"f":0.5}' % (b"9" * digits)
    assert write_document(read_document(text)) == text


@pytest.mark.parametrize("digits", [101, 641, 4300, 5000])
@pytest.mark.parametrize("text", [b'{"n":-%b}', b'{"n":[0.5,%b]}', b'{"n":%b,"half":"\\ud83d"}'])
def test_a_longer_integer_is_refused_before_it_is_converted(text: bytes, digits: int) -> None:
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)  # Python raises an error of its own for what it has to convert
    try:
        with pytest.raises(DocumentError, match=f"of {digits} digits; at most 100 are read"):
            read_document(text % (b"9" * digits))
    finally:
        sys.set_int_max_str_digits(most)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize(
    ("value", "is_long"),
    [
        ("[%s]", True),
        ('{"a":"\\"","b":-%s.5}', True),
        ('["%s"]', False),
        ('["\\"%s"]', False),
        ('{"%s":1}', False),
        ("[0.5, %.999s, 1]", False),
    ],
)
def test_a_long_number_is_found_outside_texts_alone(value: str, is_long: bool, encoding: str) -> None:
    assert has_long_number((value % ("9" * 1001)).encode(encoding)) is is_long


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"n": NaN}', "expected a number, not NaN"),
        (b'{"n": [-Infinity]}', "expected a number, not -Infinity"),
        (b'{"n": 1e400}', "1e400 is larger than any number"),
        (b'{"n": -1e400, "s": "\\ud83d"}', "-1e400 is larger than any number"),
        (b'{"n": 1e400, "i": 12345678901234567890}', "1e400 is larger than any number"),
        (b'{"n": %b.0}' % (b"9" * 400), f"^{'9' * 40} is larger than any number"),
        (b"[1]", "an object was expected"),
        (b'"text"', "an object was expected"),
        (b"12345678901234567890", "an object was expected"),
        (b'"\\ud83d"', "an object was expected"),
        (b"", "Expecting value"),
        (b'{"a": 1', "delimiter"),
        (b"{} {}", "Extra data"),
        (b'{"a": "\xff"}', "utf-8"),
    ],
)
def test_what_is_no_document_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read_document(text)


def nested(levels: int, bottom: str) -> bytes:
    """Return a document of so many levels, of objects and lists in turn."""
    opening = "".join('{"a":' if level % 2 == 0 else "[" for level in range(levels))
    closing = "".join("}" if level % 2 == 0 else "]" for level in reversed(range(levels)))
    return f"{opening}{bottom}{closing}".encode()


@pytest.mark.parametrize("bottom", ["1", '"\\ud83d"', "12345678901234567890", "[]", "{}"])
def test_a_document_has_at_most_128_levels(bottom: str) -> None:
    levels = DEEPEST - (bottom in ("[]", "{}"))
    assert write_document(read_document(nested(levels, bottom))).count(b"[") >= DEEPEST // 2 - 1
    with pytest.raises(DocumentError, match="at most 128 levels"):
        read_document(nested(levels + 1, bottom))


@pytest.mark.parametrize("bottom", ["1", '"\\ud83d"', "12345678901234567890"])
@pytest.mark.parametrize("levels", [1_000, 100_000])
def test_a_document_of_very_many_levels_is_refused(levels: int, bottom: str) -> None:
    with pytest.raises(DocumentError):
        read_document(nested(levels, bottom))
    with pytest.raises(DocumentError):
        read_document(b'{"a":' * levels)


@pytest.mark.parametrize("text", [nested(900, "NaN"), nested(900, "NaN").decode().encode("utf-16")])
def test_what_pythons_parser_reads_is_bounded_before_it_descends(text: bytes) -> None:
    for read in (check_levels, read_document):
        with pytest.raises(DocumentError, match="at most 128 levels"):
            read(text)


@given(VALUES, st.sampled_from(["utf-8", "utf-16"]), st.integers(1, 4))
@example(["[[[["], "utf-8", 1)
@example({'"[': '\\"['}, "utf-8", 1)
def test_levels_are_those_of_objects_and_lists(value: Any, encoding: str, most: int) -> None:
    def levels(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(levels, inner), default=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("armwise.arms.llm.translate.documents.DEEPEST", most)
        text = json.dumps(value, ensure_ascii=False).encode(encoding, "surrogatepass")
        with nullcontext() if levels(value) <= most else pytest.raises(DocumentError, match="levels"):
            check_levels(text)


@pytest.mark.parametrize("text", [b'"' + rb"\"" * 500_000 + b"[" * 900, b'"[]' * 500_000, b'"\\'])
def test_brackets_in_a_string_that_nothing_ends_are_no_levels(text: bytes) -> None:
    check_levels(text)


@given(st.text(st.characters()))
def test_a_storable_text_differs_in_halves_and_nul_alone(text: str) -> None:
    stored = storable(text)
    assert "\0" not in stored
    assert stored.encode().decode() == stored
    assert all(a == b or b == "\ufffd" for a, b in zip(text, stored, strict=True))
    assert storable(stored) == stored


@given(VALUES)
def test_reading_a_value_of_any_type_is_no_error(value: Any) -> None:
    assert all(isinstance(item, dict) for item in objects(value))
    assert isinstance(text_at({"a": value}, "a"), str)
    assert isinstance(object_at({"a": value}, "a"), dict)
    assert (text_at({}, "a"), object_at({}, "a")) == ("", {})
