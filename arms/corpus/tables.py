"""Passages of CSV files: a row is one.

The first row names the columns; `,`, `;`, tab or `|` is what separates most of its names. Columns named `id`
(or `_id`), `title` and `text` are those of the passage, as in JSON lines. Without `text`, all columns are its
text, each as a line `name: value`. All other columns are metadata, of which `allowed_groups` has names that
commas separate.
"""

import codecs
import contextlib
import csv
import io
import itertools
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import AnyStr, BinaryIO

from armwise.arms.base import Passage
from armwise.arms.corpus.chunking import chunks
from armwise.arms.corpus.records import MAX_NAMES, CorpusError, Record, checked, problem_of, short
from armwise.arms.filters import GROUPS, Metadata, Scalar

SUFFIXES = (".csv", ".tsv")

DELIMITERS = ",;\t|"

MAX_LINE = 1 << 20
"""Characters of a line."""

MAX_CELL = 1 << 17
"""Characters of a cell, which may have several lines: the default of `csv`, one for a whole process."""

MAX_COLUMNS = 1_000

OWN = ("id", "_id", "title", "text")

NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?")


def read_table(path: Path, where: str, about: Metadata, before: int) -> Iterator[Record]:
    """Yield a record for each row; where rows cannot be separated any more, a last one with the reason.

    Args:
        path: The file: UTF-8, or UTF-16 with a byte order mark.
        where: Name from which ids are made: `prices.csv#7` is the row on line 7, or that of id 7.
        about: Metadata of all passages.
        before: Progress before it; a record adds the bytes that have been read.
    """
    with path.open("rb") as stored, contextlib.closing(_lines(stored)) as lines:
        line = 0
        csv.field_size_limit(MAX_CELL)  # another library may have raised it
        try:
            first = next(lines, "")
            rows = csv.reader(itertools.chain([first], lines), delimiter=_delimiter(first), strict=True)
            names = _names(next(rows, []))
            line = rows.line_num
            for cells in rows:
                begin, line = line + 1, rows.line_num
                place, done = f"{where}:{begin}", before + stored.tell()
                try:
                    yield Record(place, done, tuple(_passages(names, cells, where, begin, about)))
                except CorpusError as error:
                    yield Record(place, done, problem=str(error))
        except (CorpusError, csv.Error, UnicodeDecodeError) as error:
            decodes = isinstance(error, UnicodeDecodeError)
            reason = f"not UTF-8, nor UTF-16 with a byte order mark ({error})" if decodes else str(error)
            after = before + stored.tell()
            yield Record(f"{where}:{line + 1}", after, problem=f"{reason}; the rest is not read")


def _lines(stored: BinaryIO) -> Generator[str]:
    """Yield the lines of a file. Raises CorpusError, UnicodeDecodeError."""
    mark = stored.read(3)
    stored.seek(len(mark) if mark == codecs.BOM_UTF8 else 0)
    if not mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while line := _short(stored.readline(MAX_LINE + 1)):
            yield line.decode()
        return
    wide = io.TextIOWrapper(stored, "utf-16", newline="")
    try:
        while text := _short(wide.readline(MAX_LINE + 1)):
            yield text
    finally:
        wide.detach()


def _short(line: AnyStr) -> AnyStr:
    """Return a line. Raises CorpusError where it is too long."""
    if len(line) > MAX_LINE:
        raise CorpusError(f"a line has more than {MAX_LINE:,} characters")
    return line


def _delimiter(first: str) -> str:
    """Return what separates most columns of a first line.

    >>> _delimiter("id;name, full;price")
    ';'
    """
    return max(DELIMITERS, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _names(row: Sequence[str]) -> list[str]:
    """Return the names of columns. Raises CorpusError.

    >>> _names(["ID", "", "Unit  price"])
    ['id', 'column 2', 'Unit price']
    """
    if len(row) > MAX_COLUMNS:
        raise CorpusError(f"has {len(row):,} columns: at most {MAX_COLUMNS:,} are read")
    names = [_name(" ".join(name.split())) or f"column {n}" for n, name in enumerate(row, start=1)]
    twice = [name for n, name in enumerate(names) if name in names[:n]]
    if twice:
        raise CorpusError(f"two columns are named {short(twice[0])}")
    return names


def _name(name: str) -> str:
    """Return the name of a column; those with a meaning have it in any case.

    >>> _name("Title"), _name("Year"), _name("ALLOWED_GROUPS")
    ('title', 'Year', 'allowed_groups')
    """
    return name.lower() if name.lower() in (*OWN, GROUPS) else name


def _passages(
    names: Sequence[str], cells: Sequence[str], where: str, line: int, about: Metadata
) -> Iterator[Passage]:
    """Yield the passages of a row: several where its text is long. Raises CorpusError."""
    if len(cells) > len(names):
        raise CorpusError(f"has {len(cells)} cells, but the first row names {len(names)} columns")
    row = {
        name: cell.replace("\0", "").strip()
        for name, cell in itertools.zip_longest(names, cells, fillvalue="")
    }
    row_id = row.get("id") or row.get("_id") or str(line)
    text = row["text"] if "text" in names else _shown(row)
    metadata = {**_metadata(f"{where}#{row_id}", row), **about, "row": line}
    for n, piece in enumerate(chunks(text), start=1):
        name = f"{where}#{row_id}" if n == 1 else f"{where}#{row_id}-{n}"
        yield Passage(name, row.get("title") or Path(where).stem, piece, metadata=metadata)


def _shown(row: Mapping[str, str]) -> str:
    r"""Return the columns of a row as lines.

    >>> _shown({"id": "7", "name": "Bolt", "price": "", "allowed_groups": "staff"})
    'id: 7\nname: Bolt'
    """
    return "\n".join(f"{name}: {cell}" for name, cell in row.items() if cell and name != GROUPS)


def _metadata(passage: str, row: Mapping[str, str]) -> Metadata:
    """Return the metadata of a row: what fits of it, and its groups in any case. Raises CorpusError."""
    metadata: dict[str, Scalar | list[str]] = {}
    if GROUPS in row:
        metadata[GROUPS] = [group.strip() for group in row[GROUPS].split(",") if group.strip()]
    for name, cell in row.items():
        if name not in (*OWN, GROUPS) and cell and not problem_of(name, cell):
            metadata[name] = _value(cell)
    return checked(passage, dict(list(metadata.items())[: MAX_NAMES - 2]))


def _value(cell: str) -> Scalar:
    """Return a cell as a number where it is one in plain digits, or else as it is.

    >>> _value("12"), _value("-0.5"), _value("007"), _value("1e5")
    (12, -0.5, '007', '1e5')
    """
    if not NUMBER.fullmatch(cell):
        return cell
    return float(cell) if "." in cell else int(cell)
