"""Read rows of CSV and TSV files; an unreadable line leaves the others readable.

The first row has the names of the columns. It shows the separator, unless a line `sep=;` above names it, as
spreadsheets write it. Text is UTF-8 or UTF-16. Other bytes stay in their cell as lone surrogates, which no
encoding writes, so that they matter only if the cell is used.
"""

import csv
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from armwise.feedback.jsonl import ExchangeError
from armwise.row_lines import DELIMITERS, SEPARATOR_LINE, RowLines

LONGEST = 64 << 20
"""Largest number of characters of a cell and of a line (131,072 in csv): a question may be a document."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a row.

    Attributes:
        number: The line where it begins, from 1.
        cells: The cells, as many as in the first row; empty if the row is unreadable.
        fault: Why it is unreadable; empty if it is readable.
    """

    number: int
    cells: Sequence[str] = field(default_factory=list)
    fault: str = ""


def read_rows(path: Path) -> Iterator[Cells]:
    """Yield the first row of a file, with different names of columns, then the others that are not blank.

    Args:
        path: The file; it is unpacked when its name ends in .gz.

    Raises:
        ExchangeError: The file cannot be read, is empty, or has an unclosed cell.
    """
    number, width = 0, 0
    csv.field_size_limit(LONGEST)
    try:
        with (
            closing(_open_file(path)) as stored,
            TextIOWrapper(stored, _encoding(stored), errors="surrogateescape", newline="") as text,
        ):
            lines = RowLines(text, LONGEST)
            delimiter, spaced = _separation(lines, path)
            rows = csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=spaced)
            while True:
                number = lines.begin_row()
                try:
                    cells = next(rows)
                except StopIteration:
                    break
                except csv.Error as error:
                    if not width or "field limit" in str(error):
                        raise
                    lines.give_back(1)  # a quote that is not closed swallows the lines below
                    yield Cells(number, fault=str(error))
                    continue
                if len(cells) < 2 and not "".join(cells).strip():
                    continue
                if not width:
                    cells, width = _names(cells), len(cells)
                if len(cells) == width:
                    yield Cells(number, cells)
                else:
                    yield Cells(number, fault=f"it has {len(cells)} cells, and the first line has {width}")
    except (OSError, EOFError, zlib.error, UnicodeError, csv.Error) as error:
        raise ExchangeError(f"{path} cannot be read at line {number}: {error}") from error
    if not width:
        raise ExchangeError(f"{path} is empty: the first line must have the column names")


def _open_file(path: Path) -> IO[bytes]:
    packed = path.name.lower().endswith(".gz")
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def _encoding(stored: IO[bytes]) -> str:
    """Return the encoding that the first bytes show, and go back before them."""
    begin = stored.read(4)
    stored.seek(0)
    return json.detect_encoding(begin)


def _separation(lines: RowLines, path: Path) -> tuple[str, bool]:
    """Return the separator of cells, and whether a space follows it; skip a line that only names it."""
    first = next((line for line in lines if line.strip()), "")
    named = SEPARATOR_LINE.fullmatch(first)
    if named:
        lines.begin_row()
        first = next(lines, "")
    lines.give_back(0)
    delimiter = named[1] if named else "\t" if ".tsv" in path.suffixes else separator(first)
    names = first.split(delimiter)
    return delimiter, len(names) > 1 and all(name.startswith(" ") for name in names[1:])


def separator(first: str) -> str:
    r"""Return the mark that separates most names; `|`, which is part of some names, only as a last resort.

    >>> separator("id;name, full;price"), separator("id,a|usd|total,b|usd|total"), separator("id|arm")
    (';', ',', '|')
    """
    counts = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in DELIMITERS}
    return max(DELIMITERS, key=lambda mark: (counts[mark] > 1 and mark != "|", counts[mark]))


def _names(cells: Sequence[str]) -> list[str]:
    """Return the names of columns; repeated names get the number of their column, from 1.

    >>> _names(["id", "reward", "reward"])
    ['id', 'reward (column 2)', 'reward (column 3)']
    """
    names = [
        cell.strip().encode(errors="surrogateescape").decode(errors="backslashreplace") for cell in cells
    ]
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} (column {n})" for n, name in enumerate(names, start=1)]
