"""Passages of CSV files: a row is one.

The first row names the columns; `,`, `;`, tab or `|` is what separates most of its names. Columns named `id`
(or `_id`), `title` and `text` are those of the passage, as in JSON lines. Without `text`, all columns are its
text, each as a line `name: value`. All other columns are metadata, of which `allowed_groups` has names that
commas separate.
"""

import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from armwise.arms.base import Passage
from armwise.arms.corpus.chunking import Chunking, chunks
from armwise.arms.corpus.records import (
    MAX_NAMES,
    CorpusError,
    CorpusRecord,
    check_metadata,
    find_problem,
    short,
)
from armwise.arms.filters import GROUPS, Metadata, Scalar
from armwise.row_lines import DELIMITERS, SEPARATOR_LINE, RowLines

SUFFIXES = (".csv", ".tsv")

MAX_LINE = 1 << 20
"""Characters of a line."""

MAX_CELL = 1 << 17
"""Characters of a cell, which may have several lines."""

MAX_SWALLOWED = 1 << 24
"""Characters behind a quote that is not closed, which are read before that is known."""

BROKEN = re.compile("[\0\ud800-\udfff]")
"""NUL, and what stands for bytes that are not UTF-8."""

MAX_COLUMNS = 1_000

OWN = ("id", "_id", "title", "text")

NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?")


def read_table(
    path: Path, where: str, about: Metadata, before: int, chunking: Chunking
) -> Iterator[CorpusRecord]:
    """Yield a record for each row; one that cannot be read has its reason, and the next is read.

    Where rows cannot be separated any more, a last record has the reason: without names of columns, after a
    cell without an end, and where quotes do not fit in a table with groups, whose cells nobody else may see.

    Args:
        path: The file: UTF-8 or UTF-16.
        where: Name from which ids are made: `prices.csv#7` is the row on line 7, or that of id 7.
        about: Metadata of all passages.
        before: Progress before it; a record adds the bytes that have been read.
        chunking: How a long text of a row is cut into passages.
    """
    csv.field_size_limit(MAX_SWALLOWED)  # another library may have raised it
    with path.open("rb") as stored, _open_text(stored) as text:
        lines, names, rows = RowLines(text, MAX_LINE), list[str](), iter(list[list[str]]())
        while True:
            begin = lines.begin_row()
            place, last = f"{where}:{begin}", False
            try:
                if not names:
                    rows = csv.reader(lines, delimiter=_separator(lines), strict=True)
                cells = next(rows)
                if names:
                    passages = tuple(_passages(names, cells, where, begin, about, chunking))
                    yield CorpusRecord(place, before + stored.tell(), passages)
                elif any(cells):
                    names = _names(cells)
                continue
            except StopIteration:
                return
            except CorpusError as error:
                problem, last = str(error), not names
            except csv.Error as error:
                problem, last = str(error), not names or GROUPS in names or "field limit" in str(error)
                lines.give_back(1)  # a quote that is not closed swallows the lines below
            except UnicodeDecodeError as error:
                problem, last = f"not UTF-16 ({error})", True
            yield CorpusRecord(
                place, before + stored.tell(), problem=problem + ("; the rest is not read" * last)
            )
            if last:
                return


def _open_text(stored: BinaryIO) -> io.TextIOWrapper:
    """Return the text of a file, with lone surrogates for bytes that are not UTF-8."""
    encoding = json.detect_encoding(stored.read(4))
    stored.seek(0)
    return io.TextIOWrapper(stored, encoding, errors="surrogateescape", newline="")


def _separator(lines: RowLines) -> str:
    """Return what separates cells, and pass over a line `sep=;` that says so."""
    first = next((line for line in lines if line.strip()), "")
    if named := SEPARATOR_LINE.fullmatch(first):
        return named[1]
    lines.give_back(0)
    return _delimiter(first)


def _delimiter(first: str) -> str:
    """Return what separates most columns of a first line.

    >>> _delimiter("id;name, full;price")
    ';'
    """
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _names(row: Sequence[str]) -> list[str]:
    """Return the names of columns. Raises CorpusError.

    >>> _names(["ID", "", "Unit  price", "Unit price"])
    ['id', 'column 2', 'Unit price', 'Unit price (column 4)']
    """
    if len(row) > MAX_COLUMNS:
        raise CorpusError(f"has {len(row):,} columns; at most {MAX_COLUMNS:,} are allowed")
    names: list[str] = []
    for n, cell in enumerate(row, start=1):
        name = _name(" ".join(_readable(f"column {n}", cell).split())) or f"column {n}"
        if name in names and name in (*OWN, GROUPS):
            raise CorpusError(f"two columns are named {short(name)}")
        names.append(f"{name} (column {n})" if name in names else name)
    return names


def _readable(name: str, cell: str) -> str:
    """Return a cell. Raises CorpusError where it is too long, or has what no text has."""
    if len(cell) > MAX_CELL:
        raise CorpusError(f"{name} has more than {MAX_CELL:,} characters")
    if broken := BROKEN.search(cell):
        wrong = "a NUL" if broken[0] == "\0" else "bytes that are neither UTF-8 nor UTF-16"
        raise CorpusError(f"{name} has {wrong} at character {broken.start() + 1}")
    return cell


def _name(name: str) -> str:
    """Return the name of a column; those with a meaning have it in any case.

    >>> _name("Title"), _name("Year"), _name("ALLOWED_GROUPS")
    ('title', 'Year', 'allowed_groups')
    """
    return name.lower() if name.lower() in (*OWN, GROUPS) else name


def _passages(
    names: Sequence[str], cells: Sequence[str], where: str, line: int, about: Metadata, chunking: Chunking
) -> Iterator[Passage]:
    """Yield the passages of a row: several where its text is long. Raises CorpusError."""
    if len(cells) > len(names):
        raise CorpusError(f"has {len(cells)} cells, but the first row names {len(names)} columns")
    row = {
        name: _readable(name, cell).strip()
        for name, cell in itertools.zip_longest(names, cells, fillvalue="")
    }
    if "text" in names and not row["text"] and any(row.values()):
        raise CorpusError("needs a non-empty 'text'")
    row_id = row.get("id") or row.get("_id") or str(line)
    text = row["text"] if "text" in names else _format_row(row)
    metadata = {**_metadata(f"{where}#{row_id}", row), **about, "row": line}
    for n, piece in enumerate(chunks(text, chunking), start=1):
        name = f"{where}#{row_id}" if n == 1 else f"{where}#{row_id}-{n}"
        yield Passage(name, row.get("title") or Path(where).stem, piece, metadata=metadata)


def _format_row(row: Mapping[str, str]) -> str:
    r"""Return the columns of a row as lines.

    >>> _format_row({"id": "7", "name": "Bolt", "price": "", "allowed_groups": "staff"})
    'id: 7\nname: Bolt'
    """
    return "\n".join(f"{name}: {cell}" for name, cell in row.items() if cell and name != GROUPS)


def _metadata(passage: str, row: Mapping[str, str]) -> Metadata:
    """Return the metadata of a row: what fits of it, and its groups in any case. Raises CorpusError."""
    metadata: dict[str, Scalar | list[str]] = {}
    if GROUPS in row:
        metadata[GROUPS] = [group.strip() for group in row[GROUPS].split(",") if group.strip()]
    for name, cell in row.items():
        if name not in (*OWN, GROUPS) and cell and not find_problem(name, cell):
            metadata[name] = _value(cell)
    return check_metadata(passage, dict(list(metadata.items())[: MAX_NAMES - 2]))


def _value(cell: str) -> Scalar:
    """Return a cell as a number where it is one in plain digits, or else as it is.

    >>> _value("12"), _value("-0.5"), _value("007"), _value("1e5")
    (12, -0.5, '007', '1e5')
    """
    if not NUMBER.fullmatch(cell):
        return cell
    return float(cell) if "." in cell else int(cell)
