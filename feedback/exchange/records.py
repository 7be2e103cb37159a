"""Files of tables and documents as records: CSV, JSON lines, JSON, Parquet, one record in memory at a time.

    for record in read_records(Path("log.csv")):
        value_at(record.values, "metadata.route")

An unreadable record has a `fault`, so that the reader of a log can leave it out and report it.
"""

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson

from armwise.feedback.exchange.delimited import read_rows
from armwise.feedback.jsonl import ExchangeError, read_lines

TABLES = (".csv", ".tsv")

DOCUMENTS = (".jsonl", ".ndjson", ".json")

PARQUET = ".parquet"

SUFFIXES = (*TABLES, *DOCUMENTS, PARQUET)
"""Suffixes of files that are read; tables and documents may have .gz appended."""

PICKLES = (".pkl", ".pickle", ".p")

LARGEST_DOCUMENT = 1 << 30
"""Largest size in bytes of a file that is a single JSON document, unpacked: it is read into memory."""

NULL = r"\N"
"""Missing value in a cell of a table, as MySQL and PostgreSQL write it."""

BATCH = 1024
"""Rows of a Parquet file that are read at a time."""

LARGEST_BATCH = 1 << 30
"""Largest size in bytes of these rows, unpacked: a small file may hold more than memory."""

ITEMS = "data"
"""Key of the rows in a page of an HTTP API."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A row of a table, or a JSON object.

    Attributes:
        where: File, and the line or row.
        values: Values by column; in JSON also objects and lists.
        fault: Why it is unreadable; empty if it is readable.
        reason: Kind of the fault, by which faults are counted.
        wrong: Whether the fault is an error, rather than a row of another kind.
    """

    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    reason: str = "row cannot be read"
    wrong: bool = True


def list_files(path: Path) -> list[Path]:
    """Return the files of a path: itself, or the files of readable kinds below a folder, sorted.

    Raises:
        ExchangeError: The path does not exist, or the folder has no such file.
    """
    if not path.exists():
        raise ExchangeError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in SUFFIXES)
    if not files:
        raise ExchangeError(f"{path}: expected a folder with files {', '.join(SUFFIXES)}")
    return files


def read_records(path: Path, skipped: Collection[str] = ()) -> Iterator[FileRecord]:
    """Yield the records of a file, or of all files below a folder.

    Args:
        path: CSV, TSV, JSON lines, JSON (a list, or an object whose list is `data`), or Parquet.
        skipped: Columns that the records need not have: those of a Parquet file are not unpacked.

    Raises:
        ExchangeError: A file cannot be read, or is of another kind.
    """
    for file in list_files(path):
        kind = _kind(file)
        if kind in PICKLES:
            raise ExchangeError(
                f"{file}: a pickle runs code when loaded, so it is never read; if you trust it, "
                f"convert it once: python -c \"import pandas; pandas.read_pickle('{file.name}')"
                f".to_parquet('{file.stem}.parquet')\""
            )
        if kind in TABLES:
            yield from _table(file)
        elif kind == PARQUET:
            yield from _parquet(file, skipped)
        elif kind in DOCUMENTS:
            yield from _documents(file)
        else:
            raise ExchangeError(f"{file}: expected a file {', '.join(SUFFIXES)}, plain or .gz")


def _kind(file: Path) -> str:
    """Return the end of a name without .gz, in lower case.

    >>> _kind(Path("log.CSV.gz")), _kind(Path("log.parquet"))
    ('.csv', '.parquet')
    """
    name = file.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _table(file: Path) -> Iterator[FileRecord]:
    rows = read_rows(file)
    names = next(rows).cells
    for row in rows:
        values = (None if cell == NULL else cell for cell in row.cells)
        yield FileRecord(f"{file}, line {row.number}", dict(zip(names, values, strict=False)), row.fault)


def _parquet(file: Path, skipped: Collection[str]) -> Iterator[FileRecord]:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(file) as table:
            kept = [name for name in table.schema_arrow.names if name not in skipped] if skipped else None
            for batch in table.iter_batches(batch_size=BATCH, columns=kept):
                if batch.nbytes > LARGEST_BATCH:
                    raise ExchangeError(
                        f"{file}: the {len(batch):,} rows after row {row} have more than {LARGEST_BATCH:,} "
                        "bytes, unpacked; leave out the columns of long texts"
                    )
                columns = [_column_values(column) for column in batch.columns]
                for cells in zip(*columns, strict=True):
                    row += 1
                    yield FileRecord(f"{file}, row {row}", dict(zip(batch.schema.names, cells, strict=True)))
    except (pa.ArrowException, OSError) as error:
        raise ExchangeError(f"{file} cannot be read after row {row}: {error}") from error


def _column_values(column: Any) -> list[Any]:
    """Return the values of a column of Parquet; values that Python cannot represent become a text."""
    if hasattr(column, "dictionary"):  # equal values are one object, however long it is
        words = _column_values(column.dictionary)
        return [None if code is None else words[code] for code in column.indices.to_pylist()]
    try:
        values = column.cast(_python_type(column.type), safe=False).to_pylist(maps_as_pydicts="lossy")
    except (ArithmeticError, TypeError, ValueError, NotImplementedError, LookupError):
        values = [_scalar_value(scalar) for scalar in column]
    return [_without_bytes(value) for value in values] if "binary" in str(column.type) else values


def _scalar_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ArithmeticError, TypeError, ValueError, NotImplementedError, LookupError):
        return f"a {scalar.type} that cannot be read"


def _python_type(kind: Any) -> Any:
    """Return the nearest type that Python can represent: microseconds for nanoseconds, UTC for a zone."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(kind):
        return pa.timestamp("us" if kind.unit == "ns" else kind.unit, kind.tz and "UTC")
    if types.is_struct(kind):
        return pa.struct([field.with_type(_python_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_python_type(kind.value_type)))
    return kind


def _without_bytes(value: Any) -> Any:
    r"""Return bytes as text: printable bytes unchanged, 16 bytes as a UUID, others as hexadecimal digits.

    >>> _without_bytes([b"small", bytes(15) + b"\1", b"\xff\0"])
    ['small', '00000000-0000-0000-0000-000000000001', 'ff00']
    """
    match value:
        case bytes():
            text = value.decode(errors="replace")
            if "\ufffd" not in text and "".join(text.split()).isprintable():
                return text
            return str(UUID(bytes=value)) if len(value) == 16 else value.hex()
        case list():
            return [_without_bytes(item) for item in value]
        case dict():
            return {_without_bytes(name): _without_bytes(item) for name, item in value.items()}
    return value


def _documents(file: Path) -> Iterator[FileRecord]:
    """Yield JSON lines, or the items of a single document if the first line is not an object."""
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise ExchangeError(f"{file} is empty: expected one JSON object per line")
    opening = first[1].lstrip(b"\xef\xbb\xbf \t\r\n")
    alone = _parse_line(first[1])
    if opening[:1] == b"[" or (opening[:1] == b"{" and isinstance(alone, str) and opening.strip() == b"{"):
        yield from _items(file)
        return
    if isinstance(alone, dict) and isinstance(alone.get(ITEMS), list):
        yield from _items(file)
        return
    yield _line(file, *first)
    for number, line in lines:
        yield _line(file, number, line)


def _line(file: Path, number: int, line: bytes) -> FileRecord:
    where, document = f"{file}, line {number}", _parse_line(line)
    if isinstance(document, dict):
        return FileRecord(where, document)
    return FileRecord(where, fault=document if isinstance(document, str) else "a JSON object was expected")


def _parse_line(line: bytes) -> Any:
    """Return parsed JSON, or a text on why it is not JSON."""
    try:
        document = _load_json(line)
    except ValueError as error:
        return f"not JSON: {error}"
    return "a JSON object was expected" if isinstance(document, str) else document


def _load_json(content: bytes) -> Any:
    """Return parsed JSON, also with NaN, as Python writes it. Raises ValueError."""
    content = content.removeprefix(BOM_UTF8)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        if b"NaN" not in content and b"Infinity" not in content:
            raise
        try:
            return json.loads(content)
        except RecursionError as error:
            raise ValueError(str(error)) from None


def _items(file: Path) -> Iterator[FileRecord]:
    content = b"".join(_chunks(file))
    try:
        document = _load_json(content)
    except ValueError as error:
        raise ExchangeError(f"{file} is not JSON: {error}") from None
    rows = document.get(ITEMS, [document]) if isinstance(document, dict) else document
    for number, row in enumerate(rows, start=1):
        where = f"{file}, item {number}"
        yield (
            FileRecord(where, row)
            if isinstance(row, dict)
            else FileRecord(where, fault="a JSON object was expected")
        )


def _chunks(file: Path) -> Iterator[bytes]:
    size = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as content:
            for chunk in iter(partial(content.read, 1 << 20), b""):
                if (size := size + len(chunk)) > LARGEST_DOCUMENT:
                    raise ExchangeError(
                        f"{file}: one JSON document of more than {LARGEST_DOCUMENT:,} bytes; convert it to "
                        "JSON lines, which are read one by one, for example with `jq -c '.[]'`"
                    )
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise ExchangeError(f"{file} cannot be read: {error}") from error


# -- values by name --------------------------------------------------------------------------------


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, if it is there.

    A dotted path enters objects, lists by position, and texts that are JSON. A name that contains the dots
    has precedence.

    >>> value_at({"a.b": 1, "c": '{"d": [5, 6]}'}, "a.b"), value_at({"c": '{"d": [5, 6]}'}, "c.d.1")
    (1, 6)
    """
    if path in values:
        return values[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in values:
            return _value_within(open_up(values[path[:end]]), path[end + 1 :])
    return None


def occurs(values: Mapping[str, Any], path: str) -> bool:
    """Return whether a record has a column, though it may be null."""
    return path in values or value_at(values, path) is not None


def _value_within(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return value_at(value, path)
    name, _, rest = path.partition(".")
    if not isinstance(value, list) or not name.isdecimal() or int(name) >= len(value):
        return None
    item = open_up(value[int(name)])
    return _value_within(item, rest) if rest else item


def open_up(value: Any) -> Any:
    """Return the JSON in a text; other values and texts are returned unchanged.

    >>> open_up('{"a": 1}'), open_up("{a}"), open_up(3)
    ({'a': 1}, '{a}', 3)
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


DEEPEST = 3
"""Levels of objects whose keys are named as columns."""


def names_in(values: Mapping[str, Any], prefix: str = "", depth: int = 1) -> Iterator[str]:
    """Yield the columns of a record, with the dotted paths into its objects.

    >>> list(names_in({"id": 1, "metadata": {"route": "a"}}))
    ['id', 'metadata', 'metadata.route']
    """
    for name, value in values.items():
        yield prefix + name
        inner = open_up(value)
        if depth < DEEPEST and isinstance(inner, Mapping):
            yield from names_in(inner, f"{prefix}{name}.", depth + 1)
