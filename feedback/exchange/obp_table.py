"""Read the tables of one campaign of the Open Bandit Dataset.

A user feature that is a number in every row becomes a named feature, and any other one
`user_feature_0=<text>`, unless `armwise.json` names the columns. The position becomes the feature
`position`, an affinity the feature `affinity` of its arm. A feature that is 0 is left out, as is what
`item_context.csv` has on an arm: it is the same in each row, and implied by the arm's name.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from pydantic import BaseModel, ValidationError

from feedback.events import Context, Decision
from feedback.exchange.imported import IMPORTED, possible
from feedback.exchange.jsonl import ExchangeError, explain
from feedback.exchange.obp_columns import POSITION

ITEMS = "item_context.csv"

NAMES = "armwise.json"

USER, AFFINITY = "user_feature_", "user-item_affinity_"

LONGEST = 64 << 20
"""Characters of a field and of a line, where csv stops at 131,072: a question may be a document."""

LARGEST_VERSION = 2**53
"""Above, a number of a table is not exact."""

FIRST = ("", "timestamp", "item_id", "position", "click", "propensity_score")
"""The columns before those of the user."""

OURS = ("decision_id", "question", "version")
"""The columns behind them in a table of Armwise."""


@dataclass(frozen=True, slots=True)
class Table:
    """The decisions of a campaign.

    Attributes:
        path: Path of the table.
        column: The place of each column.
        arms: The name of each item, by its number as it is written.
        names: Contents of `armwise.json`; empty where there is none.
        texts: User features that are not numbers.
    """

    path: Path
    column: Mapping[str, int]
    arms: Mapping[str, str]
    names: Mapping[str, Any]
    texts: frozenset[str]

    @classmethod
    def open(cls, folder: Path) -> "Table":
        """Open the tables of a folder. Raises ExchangeError."""
        plain, packed = (folder / f"{folder.name}{end}" for end in (".csv", ".csv.gz"))
        path = plain if plain.is_file() else packed
        if not path.is_file():
            raise ExchangeError(f"{folder}: {plain.name} or {packed.name} was expected")
        names = _names(folder / NAMES) if (folder / NAMES).exists() else {}
        column = _header(path, FIRST[1:])
        item = _header(folder / ITEMS, ("item_id",))["item_id"]
        ids = [row[item] for _, row in _rows(folder / ITEMS)]
        if len(set(ids)) != len(ids):
            raise ExchangeError(f"{folder / ITEMS} has an item twice")
        if len(arms := names.get("arms", ids)) != len(ids):
            raise ExchangeError(f"{folder / ITEMS} has {len(ids)} items, and {NAMES} names {len(arms)} arms")
        users = {name: at for name, at in column.items() if name.startswith(USER)}
        texts = frozenset() if names else _texts(path, users)
        return cls(path, column, dict(zip(ids, arms, strict=True)), names, texts)

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows with the numbers of their lines. Raises ExchangeError."""
        for line, row in _rows(self.path):
            if len(row) != len(self.column):
                raise self._error(line, f"{len(row)} columns instead of {len(self.column)}: it was cut off")
            yield line, row

    def number(self, line: int, row: list[str], name: str) -> float:
        """Return the number in a column. Raises ExchangeError."""
        value = row[self.column[name]]
        try:
            return float(value)
        except ValueError:
            raise self._error(line, f"{name} is {value!r}, which is not a number") from None

    def decision(self, line: int, row: list[str]) -> Decision:
        """Return the decision of a row. Raises LeftOut, ExchangeError."""
        item = row[self.column["item_id"]]
        if item not in self.arms:
            raise self._error(line, f"item_id {item!r} is none of {ITEMS}")
        value = row[self.column["timestamp"]]
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise self._error(line, f"timestamp is {value!r}; a date and a time were expected") from None
        at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        p = possible(self.number(line, row, "propensity_score"))
        drawn = self.arms[item]
        folder = self.path.parent
        name = self._text(row, "decision_id") or f"{folder.parent.name}/{folder.name}/{row[0]}"
        return Decision(
            id=name,
            context=self._context(line, row, self._text(row, "question") or name),
            arms=(drawn, *(arm for arm in self.arms.values() if arm != drawn)),
            probabilities=(p,),
            drawn=drawn,
            policy=IMPORTED,
            version=self._version(line, row) if "version" in self.column else 0,
            decided_at=at,
            deadline=at,
            floor=None,
        )

    def _version(self, line: int, row: list[str]) -> int:
        """Return the number of a version. Raises ExchangeError."""
        number = self.number(line, row, "version")
        if not 0 <= number <= LARGEST_VERSION:
            raise self._error(line, f"version is {number:g}, which is the number of none")
        return int(number)

    def _text(self, row: list[str], name: str) -> str:
        return row[self.column[name]] if name in self.column else ""

    def _context(self, line: int, row: list[str], question: str) -> Context:
        users = [name for name in self.column if name.startswith(USER)]
        features: dict[str, float] = {}
        for name in users:
            if name in self.texts:
                features[f"{name}={row[self.column[name]]}"] = 1.0
            else:
                features[name] = self.number(line, row, name)
        embedding: tuple[float, ...] = ()
        if self.names:
            values = [features[name] for name in users]
            names = self.names["features"]
            features = dict(zip(names, values, strict=False))
            embedding = tuple(values[len(names) :])
        if self.names.get("positions", True):
            features[POSITION] = self.number(line, row, "position")
        features = {name: value for name, value in features.items() if value}
        return Context(question, features, embedding, self._affinities(line, row))

    def _affinities(self, line: int, row: list[str]) -> dict[str, dict[str, float]]:
        """Return the affinity of each arm, where it is given and not 0."""
        found = {
            arm: self.number(line, row, name)
            for item, arm in self.arms.items()
            if (name := f"{AFFINITY}{item}") in self.column
        }
        return {arm: {"affinity": value} for arm, value in found.items() if value}

    def _error(self, line: int, message: str) -> ExchangeError:
        return ExchangeError(f"{self.path}, line {line}: {message}")


def _header(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """Return the place of each column. Raises ExchangeError where one is missing."""
    first = next(_read(path), (1, []))[1]
    if missing := [name for name in needed if name not in first]:
        raise ExchangeError(f"{path}: there is no column {', '.join(missing)}")
    return {name: at for at, name in enumerate(first)}


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the first with the numbers of their lines. Raises ExchangeError."""
    lines = _read(path)
    next(lines, None)
    yield from lines


def _read(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        packed = path.suffix == ".gz"
        with (
            gzip.open(path, "rt", encoding="utf-8", newline="")
            if packed
            else path.open(encoding="utf-8", newline="") as file
        ):
            csv.field_size_limit(LONGEST)
            table = csv.reader(_lines(cast(TextIO, file), path))
            for row in table:
                yield table.line_num, row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise ExchangeError(f"{path} cannot be read: {error}") from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a file. Raises ExchangeError where one is too long."""
    for line in iter(partial(file.readline, LONGEST + 1), ""):
        if len(line) > LONGEST:
            raise ExchangeError(f"{path} cannot be read: a line has more than {LONGEST:,} characters")
        yield line


class _Names(BaseModel):
    """Contents of `armwise.json`."""

    arms: tuple[str, ...]
    features: tuple[str, ...]
    positions: bool = True


def _names(path: Path) -> Mapping[str, Any]:
    """Return what items and columns are called. Raises ExchangeError."""
    try:
        return _Names.model_validate_json(path.read_bytes()).model_dump()
    except ValidationError as error:
        raise ExchangeError(f"{path}: {explain(error)}") from None
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read: {error}") from error


def _texts(path: Path, columns: Mapping[str, int]) -> frozenset[str]:
    """Return the columns that hold something else than numbers in some row."""
    numbers = dict(columns)
    for _, row in _rows(path):
        for name, at in list(numbers.items()):
            if at < len(row) and not _is_number(row[at]):
                del numbers[name]
        if not numbers:
            break
    return frozenset(columns) - frozenset(numbers)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
