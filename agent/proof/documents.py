"""The documents of `armwise prove`, receipts and verdicts: their parts, their files, how figures differ."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from armwise.feedback.jsonl import ExchangeError, appearing, explain

DIGITS = 1e-9
"""Relative difference up to which two figures are the same: processors round sums differently."""

FORMAT = re.compile(rb'\s*\{\s*"format":\s*"(armwise-(?:receipt|verdict|refusal))"')
"""Begin of a document, with its format."""

Finite = Annotated[float, Field(allow_inf_nan=False)]

Name = Annotated[str, Field(max_length=1000)]

Number = Annotated[int, Field(ge=0, le=1 << 53)]


class Stated(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProofDocument(Stated):
    """What `armwise prove` writes: a statement, and all that is needed to compute it again."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self.model_dump(mode="json", by_alias=True)


D = TypeVar("D", bound=ProofDocument)


def read_document(path: Path, kind: type[D], name: str, most: int) -> D:
    """Read what `armwise prove` has written.

    Args:
        path: The file.
        kind: What it holds.
        name: What people call that.
        most: Most bytes.

    Raises:
        ExchangeError: It cannot be read; the message names the file and the value.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most:
        raise ExchangeError(f"{path} has more than {most:,} bytes: no {name} has")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise ExchangeError(f"{path} is no {name} of `armwise prove`: {explain(error)}") from None


def find_format(path: Path) -> str:
    """Return the format that a file begins with as a document of `armwise prove`; empty: it is none.

    Args:
        path: Any file, or a name that no file has.
    """
    try:
        with path.open("rb") as file:
            found = FORMAT.match(file.read(1000))
    except OSError:
        return ""
    return found[1].decode() if found else ""


def write_document(document: ProofDocument, path: Path, indent: int) -> None:
    """Write a receipt or a verdict as JSON."""
    with appearing(path) as file:
        file.write((json.dumps(document.as_json(), indent=indent) + "\n").encode())


def list_differences(
    stated: Mapping[str, Any],
    found: Mapping[str, Any],
    places: tuple[str, str] = ("on the receipt", "from the log"),
) -> Iterator[str]:
    """Yield how the figures of a document differ from those that were computed again, a sentence each.

    Args:
        stated: The figures of the document.
        found: The same, computed again.
        places: What to call the places of both.
    """
    for name, value in stated.items():
        if not _same(value, found[name]):
            yield f"{name}: {_format_value(value)} {places[0]}, {_format_value(found[name])} {places[1]}"


def _same(one: Any, other: Any) -> bool:
    """Return whether two figures are the same.

    >>> _same((1.0, 2.0), (1.0 + 1e-12, 2.0)), _same(1.0, None), _same("a", "b"), _same(1, 2)
    (True, False, False, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=DIGITS, abs_tol=1e-12)
    return bool(one == other)


def _format_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(_format_value, value)) + ")"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(one)}" for name, one in value.items())
    return f"{value:.9g}" if isinstance(value, float) else "nothing" if value is None else str(value)
