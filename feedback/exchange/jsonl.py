"""A training log as JSON lines: what `armwise export` writes and `armwise replay --from` reads.

    {"format":"armwise-log","schema":1,"written_at":1767225600.0,"arms":["bm25","dense"],"reward":{...}}
    {"seq":1,"decision":{...},"cost":{...},"metrics":{"right":1.0},"failed":false}
    ...
    {"end":1}

The first line is a header, the last one has the number of examples: without it the file is
truncated. A line between is an `Example`, field by field, with every digit. Where only the
probability of the drawn arm is known, as in imported logs, that arm is the first of
`decision.arms`, and its probability the only one of `decision.probabilities`.

Concatenated files, plain or compressed, are one log: positions of a later part continue those of the
earlier one where they would not rise.
"""

import gzip
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from feedback.events import Example
from feedback.exchange.validation import problems
from feedback.reward import RewardRule

SCHEMA = 1
"""Version of the schema of a line."""

FORMAT = "armwise-log"

UNFINISHED = ".unfinished"

LONGEST_LINE = 64 << 20
"""Bytes of a line, unpacked: a small compressed file may hold a line that no memory does."""


class ExchangeError(ValueError):
    """A file cannot be read in its format; the message names the file, the line and the value."""


class Header(BaseModel):
    """The first line of an export."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    format: Literal["armwise-log"] = Field(
        default="armwise-log", description="Distinguishes it from other files."
    )
    number: int = Field(default=SCHEMA, alias="schema", description="Shape of the lines.")
    written_at: float = Field(description="Seconds since the epoch, UTC.")
    arms: tuple[str, ...] = Field(default=(), description="Arms that were live; lines may have others.")
    reward: RewardRule = Field(description="How rewards were made of what follows.")
    settled: float | None = Field(
        default=None,
        description="When the first decision was made that still waited for feedback, seconds since the "
        "epoch; null for none.",
    )


_EXAMPLE = TypeAdapter(Example)


def export_lines(examples: Iterable[Example], header: Header) -> Iterator[bytes]:
    """Yield the lines of an export, each with its end."""
    yield header.model_dump_json(by_alias=True).encode() + b"\n"
    count = 0
    for example in examples:
        yield orjson.dumps(example, default=dict, option=orjson.OPT_APPEND_NEWLINE)
        count += 1
    yield orjson.dumps({"end": count}, option=orjson.OPT_APPEND_NEWLINE)


def write_export(examples: Iterable[Example], file: BinaryIO, header: Header) -> None:
    """Write a training log, one example after another."""
    file.writelines(export_lines(examples, header))


def read_header(path: Path) -> Header:
    """Return the header of an export; of several in one file, the first.

    Raises:
        ExchangeError: It is not an export, or one of another schema.
    """
    return next(read_headers(path))


def read_headers(path: Path) -> Iterator[Header]:
    """Yield the header of each export in a file; there is at least one.

    Raises:
        ExchangeError: The file begins with no export, or has one of another schema.
    """
    schema: int | None = None
    for number, line in read_lines(path):
        if schema is None or line.startswith(b'{"format"'):
            header = _header(line, f"{path}, line {number}", schema)
            schema = header.number
            yield header
    if schema is None:
        raise ExchangeError(f"{path} is empty: the first line of an export was expected")


def read_export(path: Path) -> Iterator[Example]:
    """Yield the examples of an export, or of several in one file, in order, one in memory at a time.

    Args:
        path: The file; it is unpacked when its name ends in .gz.

    Raises:
        ExchangeError: The file cannot be read, was cut off, has a line that is not an example, or is of
            a schema that this Armwise does not know, or of two.
    """
    schema: int | None = None
    inside, last = False, 0
    where = str(path)
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        if not inside:
            schema = _header(line, where, schema).number
            inside, count = True, 0
        elif line.startswith(b'{"end"'):
            _confirm_end(line, count, where)
            inside = False
        elif line.startswith(b'{"format"'):
            raise ExchangeError(f"{where}: an export begins before the one above has ended: that was cut off")
        else:
            example = _example(line, where)
            if count == 0:
                shift = last if example.seq <= last else 0
            count += 1
            if example.seq + shift <= last:
                raise ExchangeError(f"{where}: seq {example.seq} does not rise: {last - shift} stands above")
            last = example.seq + shift
            yield replace(example, seq=last) if shift else example
    if schema is None:
        raise ExchangeError(f"{path} is empty: the first line of an export was expected")
    if inside:
        raise ExchangeError(f'{where}: the file was cut off: a last line {{"end": {count}}} was expected')


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not empty, with their numbers; .gz is unpacked.

    Raises:
        ExchangeError: The file cannot be read.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise ExchangeError(f"{path}, line {number}: it has more than {LONGEST_LINE:,} bytes")
                if not line.isspace():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        after = f" after line {number}" if number else ""
        raise ExchangeError(f"{path} cannot be read{after}: {error}") from error


@contextmanager
def appearing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete; .gz is compressed.

    It replaces a file of that name. Nothing is left when writing fails.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        packed = path.suffix == ".gz"
        with gzip.open(unfinished, "wb", compresslevel=6) if packed else unfinished.open("wb") as file:
            yield cast(BinaryIO, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _header(line: bytes, where: str, before: int | None) -> Header:
    """Return the header in a line; `before` is the schema of the part above it."""
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        shown = line[:30].decode(errors="replace").strip()
        raise ExchangeError(f'{where}: {shown!r} begins no export, {{"format": "{FORMAT}", ...}} does')
    schema = document.get("schema")
    if before is not None and schema != before:
        raise ExchangeError(
            f"{where}: schema {schema} follows schema {before}: all parts of a file must have the same one"
        )
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = ": it was written by a newer Armwise" if newer else ""
        raise ExchangeError(f"{where}: schema {schema!r} is not known here, {SCHEMA} is{hint}")
    try:
        return Header.model_validate(document)
    except ValidationError as error:
        raise ExchangeError(f"{where}: {explain(error)}") from None


def _confirm_end(line: bytes, count: int, where: str) -> None:
    try:
        document = orjson.loads(line)["end"]
    except orjson.JSONDecodeError as error:
        raise ExchangeError(f"{where}: no JSON: {error}") from None
    if document != count:
        raise ExchangeError(f"{where}: {document!r} examples were written, and {count} stand above")


def _example(line: bytes, where: str) -> Example:
    try:
        example = _EXAMPLE.validate_json(line, strict=True)
    except ValidationError as error:
        raise ExchangeError(f"{where}: {explain(error)}") from None
    for wrong in problems(example):
        raise ExchangeError(f"{where}: {wrong}")
    return example


@contextmanager
def appearing_folder(path: Path) -> Iterator[Path]:
    """Make a folder that gets its name when it is complete.

    Raises:
        ExchangeError: Something has the name already.
    """
    if path.exists():
        raise ExchangeError(f"{path} is already there: name a folder that is not")
    unfinished = path.with_name(path.name + UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def explain(error: ValidationError) -> str:
    """Return the first problem as text."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "it"
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "json_invalid":
        return f"no JSON: {first['ctx']['error']}"
    shown, message = repr(first["input"]), first["msg"].removeprefix("Value error, ")
    return f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}: {message}"
