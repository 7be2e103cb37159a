"""Files of tables and documents as records: CSV, JSON lines, JSON, Parquet, one record in memory at a time.

    for record in read_records(Path("log.csv")):
        value_at(record.values, "metadata.route")

A record that cannot be read has a `fault`, so that the reader of a log can leave it out and name it.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson

from armwise.feedback.exchange.jsonl import LONGEST_LINE, ExchangeError, read_lines

TABLES = (".csv", ".tsv")

DOCUMENTS = (".jsonl", ".ndjson", ".json")

PARQUET = ".parquet"

SUFFIXES = (*TABLES, *DOCUMENTS, PARQUET)
"""Ends of names of files that are read; tables and documents also with .gz behind."""

PICKLES = (".pkl", ".pickle", ".p")

LARGEST_DOCUMENT = 1 << 30
"""Bytes of a file that is one JSON document, unpacked: it is read as a whole."""

BATCH = 1024
"""Rows of a Parquet file that are read at a time."""

ITEMS = "data"
"""Key of the rows in a page of an HTTP API."""


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a table, or one JSON object.

    Attributes:
        where: File, and the line or row.
        values: Values by column; of JSON also objects and lists.
        fault: Why it cannot be read; empty where it can.
        reason: What kind of fault that is, by which faults are counted.
    """

    where: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    reason: str = "row cannot be read"


def files_of(path: Path) -> list[Path]:
    """Return the files that a path names: itself, or those below a folder that can be read, sorted.

    Raises:
        ExchangeError: It does not exist, or no such file is below it.
    """
    if not path.exists():
        raise ExchangeError(f"{path} does not exist")
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in SUFFIXES)
    if not files:
        raise ExchangeError(f"{path}: a folder with files {', '.join(SUFFIXES)} was expected")
    return files


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file, or of all files below a folder.

    Args:
        path: CSV, TSV, JSON lines, JSON (a list, or an object whose list is `data`), or Parquet.

    Raises:
        ExchangeError: A file cannot be read, or is of another kind.
    """
    for file in files_of(path):
        kind = _kind(file)
        if kind in PICKLES:
            raise ExchangeError(
                f"{file}: a pickle runs code when it is loaded, so it is never read; where you trust it, "
                f"convert it once: python -c \"import pandas; pandas.read_pickle('{file.name}')"
                f".to_parquet('{file.stem}.parquet')\""
            )
        if kind in TABLES:
            yield from _table(file, "," if kind == ".csv" else "\t")
        elif kind == PARQUET:
            yield from _parquet(file)
        elif kind in DOCUMENTS:
            yield from _documents(file)
        else:
            raise ExchangeError(f"{file}: a file {', '.join(SUFFIXES)} was expected, plain or .gz")


def _kind(file: Path) -> str:
    """Return the end of a name without .gz, in lower case.

    >>> _kind(Path("log.CSV.gz")), _kind(Path("log.parquet"))
    ('.csv', '.parquet')
    """
    name = file.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _opened(file: Path) -> IO[str]:
    if file.name.lower().endswith(".gz"):
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _table(file: Path, delimiter: str) -> Iterator[Record]:
    line = 0
    try:
        csv.field_size_limit(LONGEST_LINE)
        with closing(_opened(file)) as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            header = next(rows, None)
            if not header:
                raise ExchangeError(f"{file} is empty: a first line with the names of columns was expected")
            if twice := [name for at, name in enumerate(header) if name in header[:at]]:
                raise ExchangeError(f"{file}: column {twice[0]!r} occurs twice in the first line")
            while True:
                line = rows.line_num + 1
                row = next(rows, None)
                if row is None:
                    return
                if not row:
                    continue
                where = f"{file}, line {line}"
                if len(row) != len(header):
                    yield Record(
                        where, fault=f"it has {len(row)} cells, and the first line has {len(header)}"
                    )
                else:
                    yield Record(where, dict(zip(header, row, strict=True)))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise ExchangeError(f"{file} cannot be read after line {line}: {error}") from error


def _parquet(file: Path) -> Iterator[Record]:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=BATCH):
                for values in batch.to_pylist():
                    row += 1
                    yield Record(f"{file}, row {row}", values)
    except (pa.ArrowException, OSError) as error:
        raise ExchangeError(f"{file} cannot be read after row {row}: {error}") from error


def _documents(file: Path) -> Iterator[Record]:
    """Yield JSON lines; where the first line is no object by itself, the items of one document."""
    lines = read_lines(file)
    first = next(lines, None)
    if first is None:
        raise ExchangeError(f"{file} is empty: a JSON object a line was expected")
    opening = first[1].lstrip(b"\xef\xbb\xbf \t\r\n")
    alone = _parsed(first[1])
    if opening[:1] == b"[" or (opening[:1] == b"{" and isinstance(alone, str) and opening.strip() == b"{"):
        yield from _items(file)
        return
    if isinstance(alone, dict) and isinstance(alone.get(ITEMS), list):
        yield from _items(file)
        return
    yield _line(file, *first)
    for number, line in lines:
        yield _line(file, number, line)


def _line(file: Path, number: int, line: bytes) -> Record:
    where, document = f"{file}, line {number}", _parsed(line)
    if isinstance(document, dict):
        return Record(where, document)
    return Record(where, fault=document if isinstance(document, str) else "a JSON object was expected")


def _parsed(line: bytes) -> Any:
    """Return parsed JSON; a text that says why it is none."""
    try:
        document = orjson.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        return f"no JSON: {error}"
    return "a JSON object was expected" if isinstance(document, str) else document


def _items(file: Path) -> Iterator[Record]:
    content = b"".join(_chunks(file))
    try:
        document = orjson.loads(content.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise ExchangeError(f"{file}: no JSON: {error}") from None
    rows = document.get(ITEMS, [document]) if isinstance(document, dict) else document
    for number, row in enumerate(rows, start=1):
        where = f"{file}, item {number}"
        yield (
            Record(where, row) if isinstance(row, dict) else Record(where, fault="a JSON object was expected")
        )


def _chunks(file: Path) -> Iterator[bytes]:
    size = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as content:
            for chunk in iter(partial(content.read, 1 << 20), b""):
                if (size := size + len(chunk)) > LARGEST_DOCUMENT:
                    raise ExchangeError(
                        f"{file}: one JSON document of more than {LARGEST_DOCUMENT:,} bytes; write JSON "
                        "lines, as `jq -c '.[]'` does, which are read one by one"
                    )
                yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise ExchangeError(f"{file} cannot be read: {error}") from error


# -- values by name --------------------------------------------------------------------------------


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column; None where it is missing.

    A dotted path enters objects, lists by position, and texts that are JSON. A name that has dots itself
    comes first.

    >>> value_at({"a.b": 1, "c": '{"d": [5, 6]}'}, "a.b"), value_at({"c": '{"d": [5, 6]}'}, "c.d.1")
    (1, 6)
    """
    if path in values:
        return values[path]
    end = len(path)
    while (end := path.rfind(".", 0, end)) > 0:
        if path[:end] in values:
            inner = opened_up(values[path[:end]])
            if isinstance(inner, Mapping):
                return value_at(inner, path[end + 1 :])
            name, _, rest = path[end + 1 :].partition(".")
            if isinstance(inner, list) and name.isdecimal() and int(name) < len(inner):
                item = opened_up(inner[int(name)])
                if not rest:
                    return item
                return value_at(item, rest) if isinstance(item, Mapping) else None
            return None
    return None


def opened_up(value: Any) -> Any:
    """Return what a text holds as JSON; other values, and other texts, as they are.

    >>> opened_up('{"a": 1}'), opened_up("{a}"), opened_up(3)
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
        inner = opened_up(value)
        if depth < DEEPEST and isinstance(inner, Mapping):
            yield from names_in(inner, f"{prefix}{name}.", depth + 1)
