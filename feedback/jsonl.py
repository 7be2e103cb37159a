"""A training log as JSON lines: what `armwise log export` writes and `armwise replay` reads.

    {"format":"armwise-log","schema":1,"written_at":1767225600.0,"arms":["bm25","dense"],"reward":{...}}
    {"seq":1,"decision":{...},"cost":{...},"metrics":{"right":1.0},"failed":false}
    ...
    {"end":1}

The first line is a header, the last one has the number of examples: a file without it is truncated. A line
between is an `Example`, field by field, with every digit. If only the probability of the drawn arm is
known, as in imported logs, that arm is the first of `decision.arms`, and its probability the only one of
`decision.probabilities`; if even that is unknown, the latter is empty.

Concatenated files, plain or compressed, are one log: where the positions of a later part do not rise, they
continue those of the earlier one.
"""

import gzip
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from armwise.feedback.arrays import TOLERANCE
from armwise.feedback.clock import require_date
from armwise.feedback.events import INCUMBENT, LABELS, LEAST_PROPENSITY, Decision, Example, Mode
from armwise.feedback.reward import RewardRule

SCHEMA = 1
"""Version of the schema of a line."""

FORMAT = "armwise-log"

UNFINISHED = ".unfinished"

LONGEST_LINE = 64 << 20
"""Largest length of a line in bytes, unpacked: a small compressed file may hold a line larger than memory."""


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
        description="When the first decision was made that could still get feedback, seconds since the "
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


def read_headers(path: Path) -> Iterator[Header]:
    """Yield the header of each export in a file; there is at least one.

    Raises:
        ExchangeError: The file does not begin with an export, or has one of another schema.
    """
    schema: int | None = None
    for number, line in read_lines(path):
        if schema is None or line.startswith(b'{"format"'):
            header = _header(line, f"{path}, line {number}", schema)
            schema = header.number
            yield header
    if schema is None:
        raise ExchangeError(f"{path} is empty: expected the first line of an export")


def read_export(path: Path) -> Iterator[Example]:
    """Yield the examples of the exports in a file, in order; see `number_export`. Raises ExchangeError."""
    return (example for _, example in number_export(path))


def number_export(path: Path, wanted: Callable[[int], object] = bool) -> Iterator[tuple[int, Example]]:
    """Yield the examples of the exports in a file with the numbers of their lines, one in memory at a time.

    Args:
        path: The file; it is unpacked when its name ends in .gz.
        wanted: Whether the line of a number, from 1 on, is read; others but the first of each export are
            skipped. By default all are read.

    Raises:
        ExchangeError: The file cannot be read, is truncated, has a line that is not an example, is of a
            schema that this Armwise does not know, or mixes schemas.
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
            raise ExchangeError(
                f"{where}: an export begins here, but the one above has not ended: it was cut off"
            )
        elif count and not wanted(number):
            count += 1
        else:
            example = _example(line, where)
            if count == 0:
                shift = last if example.seq <= last else 0
            count += 1
            if example.seq + shift <= last:
                raise ExchangeError(f"{where}: seq must rise, but {example.seq} follows {last - shift}")
            last = example.seq + shift
            yield number, (replace(example, seq=last) if shift else example)
    if schema is None:
        raise ExchangeError(f"{path} is empty: expected the first line of an export")
    if inside:
        raise ExchangeError(f'{where}: the file was cut off: its last line must be {{"end": {count}}}')


def find_examples(path: Path, wanted: Callable[[Decision], bool], *, plainly: bool) -> Iterator[int]:
    """Yield the numbers of the lines of an export whose decision is wanted, most of them without reading it.

    Args:
        path: The file.
        wanted: Whether a decision is wanted.
        plainly: Whether any draw by a policy is wanted: a line without the names of other modes is one.

    Raises:
        ExchangeError: A line that had to be read is not an example.
    """
    for number, line in read_lines(path):
        if line.startswith((b'{"format"', b'{"end"')):
            continue
        is_draw = plainly and not any(name in line for name in _NOT_DRAWN)
        if is_draw or wanted(_example(line, f"{path}, line {number}").decision):
            yield number


_NOT_DRAWN = (b"\\", *(f'"{name}"'.encode() for name in (LABELS, *Mode) if name != Mode.EXPLORE))
"""What stands in a line whose decision was not drawn, or whose names are written with escapes."""


def count_lines(path: Path) -> int:
    """Return the number of the last line of a file. Raises ExchangeError."""
    number = 0
    for number, _ in read_lines(path):  # noqa: B007 - the last one
        pass
    return number


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the nonempty lines of a file, with their numbers; .gz is unpacked.

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

    It replaces a file of that name. When writing fails, it is removed.
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
        raise ExchangeError(
            f'{where}: {shown!r} does not begin an export; expected {{"format": "{FORMAT}", ...}}. Convert '
            "the log of another system first: armwise import FILE -o log.jsonl.gz"
        )
    schema = document.get("schema")
    if before is not None and schema != before:
        raise ExchangeError(
            f"{where}: schema {schema} follows schema {before}: all parts of a file must have the same one"
        )
    if schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = ": it was written by a newer Armwise" if newer else ""
        raise ExchangeError(f"{where}: unknown schema {schema!r}; this version reads {SCHEMA}{hint}")
    try:
        return Header.model_validate(document)
    except ValidationError as error:
        raise ExchangeError(f"{where}: {explain(error)}") from None


def _confirm_end(line: bytes, count: int, where: str) -> None:
    try:
        document = orjson.loads(line)["end"]
    except orjson.JSONDecodeError as error:
        raise ExchangeError(f"{where}: not JSON: {error}") from None
    if document != count:
        raise ExchangeError(f"{where}: the export has {count} examples, but its last line says {document!r}")


def _example(line: bytes, where: str) -> Example:
    try:
        example = _EXAMPLE.validate_json(line, strict=True)
    except ValidationError as error:
        raise ExchangeError(f"{where}: {explain(error)}") from None
    for wrong in problems(example):
        raise ExchangeError(f"{where}: {wrong}")
    return example


def explain(error: ValidationError) -> str:
    """Return the first problem as text."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or "it"
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "json_invalid":
        return f"not JSON: {first['ctx']['error']}"
    shown, message = repr(first["input"]), first["msg"].removeprefix("Value error, ")
    return f"{place} is {shown if len(shown) <= 80 else shown[:77] + '...'}: {message}"


Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Floor(TypedDict, total=False):
    least: Share


class _Canary(TypedDict, total=False):
    version: Annotated[int, Field(ge=0)]
    share: Annotated[float, Field(ge=0.0, lt=1.0)]
    scores: dict[str, float]


class _Incumbent(TypedDict, total=False):
    share: Share
    pmf: dict[str, Share]
    shadow: dict[str, Share]


class _Cache(TypedDict, total=False):
    usd_weight: Annotated[float, Field(ge=0.0)]
    usd: dict[str, Annotated[float, Field(ge=0.0)]]


class _Budget(TypedDict, total=False):
    price: Annotated[float, Field(ge=0.0)]
    costs: dict[str, Annotated[float, Field(ge=0.0)]]


class _Guard(TypedDict, total=False):
    reference: str
    share: Share


class _StepRecords(TypedDict, total=False):
    """The records of steps that evaluations read; others may have any fields."""

    floor: _Floor
    canary: _Canary
    incumbent: _Incumbent
    cache: _Cache
    budget: _Budget
    guard: _Guard


_STEPS = TypeAdapter(_StepRecords)


# -- checks of examples whose fields have the right types ------------------------------------------


def problems(example: Example) -> Iterator[str]:
    """Yield the problems of an example, the worst first; each names the field and the value."""
    if example.seq < 1:
        yield f"seq is {example.seq}; positions begin with 1"
    if example.decision.steps:
        try:
            _STEPS.validate_python(example.decision.steps, strict=True)
        except ValidationError as error:
            yield f"decision.steps.{explain(error)}"
    yield from _misfits(example.decision)
    yield from unlikely(example.decision)
    yield from _out_of_range(example)
    yield from _not_finite(example)
    try:
        require_date(example.decision.decided_at)
    except ValueError as error:
        yield f"decision.decided_at is {example.decision.decided_at}: {error}"


def unlikely(d: Decision) -> Iterator[str]:
    """Yield the problems of the probabilities of a decision: of all arms, of the drawn arm alone, or none.

    >>> from armwise.feedback.events import Context
    >>> next(unlikely(Decision("d", Context(""), ("a", "b"), (0.5, 0.4), "a", "uniform", 1)))
    'the probabilities sum to 0.9 and not to 1'
    """
    for arm, p in zip(d.arms, d.probabilities, strict=False):
        if not 0.0 <= p <= 1.0:
            yield f"the probability of arm {arm!r} is {p}; it must be in [0, 1]"
    if d.probabilities and not d.propensity >= LEAST_PROPENSITY:
        least = f"at least {LEAST_PROPENSITY:g}"
        yield f"the probability of the drawn arm {d.drawn!r} is {d.propensity}; it must be {least}"
    total = math.fsum(d.probabilities)
    if d.probabilities and abs(total - 1.0) > TOLERANCE and len(d.probabilities) == len(d.arms):
        yield f"the probabilities sum to {total:.9g} and not to 1"


def _misfits(d: Decision) -> Iterator[str]:
    if len(set(d.arms)) != len(d.arms):
        yield f"an arm occurs twice among {', '.join(d.arms)}"
    if d.drawn not in d.arms:
        yield f"decision.drawn {d.drawn!r} is not one of the arms {', '.join(d.arms)}"
    alone = len(d.probabilities) == 1 and d.arms[:1] == (d.drawn,)
    if len(d.probabilities) not in (0, len(d.arms)) and not alone:
        yield (
            f"decision.probabilities has {len(d.probabilities)} numbers for {len(d.arms)} arms; expected "
            "one per arm, one if the drawn arm is first, or none if they are unknown"
        )
    for name in ("shadow", "pmf") if INCUMBENT in d.steps else ():
        named = d.steps[INCUMBENT].get(name, {})
        if named and named.keys() != {*d.arms}:
            yield f"decision.steps.incumbent.{name} has other arms than decision.arms: {', '.join(named)}"


def _list_numbers(document: Any) -> Iterator[float]:
    """Yield the numbers in a JSON document."""
    if isinstance(document, float):
        yield document
    elif isinstance(document, dict | list | tuple):
        for part in document.values() if isinstance(document, dict) else document:
            yield from _list_numbers(part)


def _out_of_range(example: Example) -> Iterator[str]:
    cost = example.cost
    spent = (cost.steps, cost.prompt_tokens, cost.completion_tokens, cost.retrieval_s, cost.llm_s, cost.usd)
    for name, amount in zip(cost.__slots__, spent, strict=True):
        if not 0.0 <= amount < math.inf:
            yield f"cost.{name} is {amount}; it must be finite and not below 0"
    for model, tokens in example.tokens_by_model.items():
        if wrong := [number for number in tokens if not 0.0 <= number < math.inf]:
            yield f"tokens_by_model of {model!r} has {wrong[0]}; it must be finite and not below 0"


def _not_finite(example: Example) -> Iterator[str]:
    d, context = example.decision, example.decision.context
    numbers: list[tuple[str, Collection[float]]] = [
        ("metrics", example.metrics.values()),
        ("decision.decided_at and deadline", (d.decided_at, d.deadline)),
        ("decision.steps", [*_list_numbers(d.steps)]),
        ("decision.context.features", context.features.values()),
        ("decision.context.embedding", context.embedding),
        *((f"decision.context.arms.{arm}", features.values()) for arm, features in context.arms.items()),
    ]
    for name, values in numbers:
        if math.isfinite(sum(values)):  # which is fast, and not finite if a number is not
            continue
        for value in [value for value in values if not math.isfinite(value)][:1]:
            yield f"{name} must be finite, got {value}"
