"""Read the logs that the Open Bandit Pipeline reads: a folder of tables, or a file of arrays.

    men/men.csv             one decision per row: time, item, position, reward, propensity, user features
    men/item_context.csv    the items
    feedback.npz            decisions as arrays

An item is an arm, by its number. It was shown at a position, which becomes the feature `position`.

Source: the columns of the Open Bandit Dataset; the keys of `BanditFeedback` in obp 0.5.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from armwise.feedback.events import IMPORTED, Context, Cost, Decision, Example
from armwise.feedback.exchange.delimited import Cells, read_rows
from armwise.feedback.exchange.identity import Ids
from armwise.feedback.exchange.imported import (
    BadValue,
    Faults,
    check_agreement,
    cut,
    distribution,
    possible,
    sound,
    worth,
)
from armwise.feedback.exchange.table import UNDECODED, seconds, writable
from armwise.feedback.jsonl import ExchangeError

# -- tables ----------------------------------------------------------------------------------------
#
# A user feature that is a number in every row becomes a named feature, and any other one
# `user_feature_0=<text>`. The position becomes the feature `position`, an affinity the feature `affinity` of
# its arm. A feature that is 0 is left out, and so is what `item_context.csv` has on an arm: it is the same in
# each row, and implied by the arm's name.


POSITION = "position"
"""The feature with the position of an arm in a list, from 1."""

ITEMS = "item_context.csv"

USER, AFFINITY = "user_feature_", "user-item_affinity_"

COLUMNS = ("timestamp", "item_id", "position", "click", "propensity_score")
"""The columns of a decision besides those of the user."""


@dataclass(frozen=True, slots=True)
class Table:
    """The decisions of a campaign.

    Attributes:
        path: Path of the table.
        column: Index of each column, by name.
        items: The number of each item, as a text.
        texts: User features with other values than numbers.
    """

    path: Path
    column: Mapping[str, int]
    items: tuple[str, ...]
    texts: frozenset[str]

    @classmethod
    def open(cls, folder: Path) -> "Table":
        """Open the tables of a folder. Raises ExchangeError."""
        plain, packed = (folder / f"{folder.name}{end}" for end in (".csv", ".csv.gz"))
        path = plain if plain.is_file() else packed
        if not path.is_file():
            raise ExchangeError(f"{folder}: expected a file {plain.name} or {packed.name}")
        column = _header(path, COLUMNS)
        item = _header(folder / ITEMS, ("item_id",))["item_id"]
        ids = []
        for row in _rows(folder / ITEMS):
            if row.fault:
                raise ExchangeError(f"{folder / ITEMS}, line {row.number}: {row.fault}")
            ids.append(row.cells[item])
        if len(set(ids)) != len(ids):
            raise ExchangeError(f"{folder / ITEMS} lists an item twice")
        users = {name: at for name, at in column.items() if name.startswith(USER)}
        return cls(path, column, tuple(ids), _texts(path, users))

    def number(self, row: Sequence[str], name: str) -> float:
        """Return the number in a column. Raises BadValue."""
        value = row[self.column[name]]
        try:
            return float(value)
        except ValueError:
            raise BadValue(f"{name} is not a number", f"{name} is {cut(value)}; expected a number") from None

    def decision(self, line: Cells) -> Decision:
        """Return the decision of a row. Raises BadValue."""
        if line.fault:
            raise BadValue("row cannot be read", line.fault)
        row = line.cells
        item = row[self.column["item_id"]]
        if item not in self.items:
            raise BadValue("no arm", f"item_id {cut(item)} is not one of {ITEMS}")
        value = row[self.column["timestamp"]]
        try:
            at = seconds(value)
        except ValueError:
            raise BadValue("no time", f"timestamp is {cut(value)}; expected a date and a time") from None
        p = possible("propensity_score", self.number(row, "propensity_score"))
        folder = self.path.parent
        place = line.number if next(iter(self.column)) in COLUMNS else row[0]
        name = f"{folder.parent.name}/{folder.name}/{place}"
        return Decision(
            id=name,
            context=self._context(row, name),
            arms=(item, *(other for other in self.items if other != item)),
            probabilities=(p,),
            drawn=item,
            policy=IMPORTED,
            version=0,
            decided_at=at,
            deadline=at,
        )

    def _context(self, row: Sequence[str], question: str) -> Context:
        features = {POSITION: self.number(row, "position")}
        for name, at in self.column.items():
            if name in self.texts:
                features[f"{name}={writable(name, row[at], UNDECODED)}"] = 1.0
            elif name.startswith(USER):
                features[name] = self.number(row, name)
        features = {name: value for name, value in features.items() if value}
        return Context(question, features, arms=self._affinities(row))

    def _affinities(self, row: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the affinity of each arm that has one other than 0."""
        affinities = {
            item: self.number(row, name)
            for item in self.items
            if (name := f"{AFFINITY}{item}") in self.column
        }
        return {item: {"affinity": value} for item, value in affinities.items() if value}


def _header(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each column. Raises ExchangeError if one is missing."""
    names = next(read_rows(path)).cells
    if missing := [name for name in needed if name not in names]:
        raise ExchangeError(f"{path}: there is no column {', '.join(missing)}")
    return {name: at for at, name in enumerate(names)}


def _rows(path: Path) -> Iterator[Cells]:
    """Yield the rows below the first. Raises ExchangeError."""
    return islice(read_rows(path), 1, None)


def _texts(path: Path, columns: Mapping[str, int]) -> frozenset[str]:
    """Return the columns that hold other values than numbers in any row."""
    numbers = dict(columns)
    for row in _rows(path):
        for name, at in list(numbers.items()):
            if row.cells and not _is_number(row.cells[at]):
                del numbers[name]
        if not numbers:
            break
    return frozenset(columns) - frozenset(numbers)


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False


# -- arrays ----------------------------------------------------------------------------------------
#
#     numpy.savez("feedback.npz", **bandit_feedback)
#
#     n_actions                   number of arms; optional
#     action (n,), position (n,)  the arm that was drawn, from 0; its place in a list, from 0
#     reward (n,), pscore (n,)    what it earned; the probability with which it was drawn
#     context (n, d)              features of the question
#     pi_b (n, n_arms, 1)         the whole distributions, if they are known
#     arms (n_arms,)              the names of the arms, which obp ignores; optional


NEEDED = ("action", "reward", "pscore")

READ = (*NEEDED, "arms", "n_actions", "position", "context", "pi_b")

KINDS = {
    **dict.fromkeys(("action", "n_actions", "position"), "iu"),
    **dict.fromkeys(("reward", "pscore", "context", "pi_b"), "iufb"),
    "arms": "USiu",
}
"""Kinds of the types of arrays, as numpy calls them."""

MOST_BYTES = 4 << 30
"""Largest size of all arrays in bytes, read into memory: a packed file may be a thousand times smaller."""

MOST_ARMS = 100_000

_DAMAGED = (zipfile.BadZipFile, zlib.error, SyntaxError, TypeError, KeyError)
"""Errors that damaged archives and headers of arrays raise."""

Array = NDArray[Any]


def read_arrays(path: Path, metric: str, scale: tuple[float, float], faults: Faults) -> Iterator[Example]:
    """Yield the decisions of bandit feedback in order, numbered from 1.

    The context becomes the embedding of a question that is distinct for each decision.

    Args:
        path: An .npz file.
        metric: Name of the metric that holds the reward.
        scale: Smallest and largest reward.
        faults: Notes the rows that no evaluation can use.

    Raises:
        ExchangeError: The file cannot be read, or the shapes of its arrays conflict.
    """
    arrays = _load(path)
    if "pi_b" in arrays and arrays["pi_b"].ndim == 2:
        arrays["pi_b"] = arrays["pi_b"][:, :, np.newaxis]
    arms, n = _arms(arrays, path), arrays["action"].size
    _confirm(arrays, n, len(arms), path)
    context = arrays.get("context", np.zeros((n, 0)))
    seq = 0
    for row in range(n):
        try:
            drawn, p, whole = _draw(arrays, arms, row)
            earned = worth("reward", float(arrays["reward"][row]), scale)
            name = f"{path.stem}/{row}"
            decision = Decision(
                id=name,
                context=Context(name, embedding=tuple(context[row].tolist())),
                arms=arms if whole else (drawn, *(arm for arm in arms if arm != drawn)),
                probabilities=whole or (p,),
                drawn=drawn,
                policy=IMPORTED,
                version=0,
            )
            example = sound(Example(seq + 1, decision, Cost(), {metric: earned}))
        except BadValue as bad:
            faults.add(f"{path}, row {row}", bad)
            continue
        seq += 1
        yield example


def _draw(arrays: dict[str, Array], arms: tuple[str, ...], row: int) -> tuple[str, float, tuple[float, ...]]:
    """Return the arm that a row drew, its probability, and the complete distribution if known.

    Raises:
        BadValue: Such a draw is impossible.
    """
    action, p = int(arrays["action"][row]), possible("pscore", float(arrays["pscore"][row]))
    if not 0 <= action < len(arms):
        raise BadValue("no arm", f"action is {action}; there are {len(arms)} arms, from 0")
    if "pi_b" not in arrays:
        return arms[action], p, ()
    pi_b = arrays["pi_b"]
    places = pi_b.shape[2]
    place = int(arrays["position"][row]) if places > 1 and "position" in arrays else 0
    if not 0 <= place < places:
        raise BadValue("no distribution", f"position is {place}; pi_b has {places}, from 0")
    printed = tuple(pi_b[row, :, place].tolist())
    whole = distribution("pi_b", printed)
    check_agreement("pscore", p, printed[action], printed)
    return arms[action], p, whole


def _load(path: Path) -> dict[str, Array]:
    """Return the arrays of `READ` that the file has."""
    arrays: dict[str, Array] = {}
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(path) as packed:
            there = {info.filename: info for info in packed.infolist()}
            for name in READ:
                if (member := there.get(f"{name}.npy")) is None:
                    continue
                with packed.open(member) as file:
                    dtype, size = _array_header(file, member.file_size)
                if dtype.hasobject and name == "position":  # obp writes None where there is but one position
                    continue
                if dtype.kind not in KINDS[name]:
                    right = (
                        "whole numbers"
                        if KINDS[name] == "iu"
                        else "texts"
                        if "U" in KINDS[name]
                        else "numbers"
                    )
                    raise ExchangeError(f"{path}: {name} must be {right}, got {dtype}")
                if (left := left - size) < 0:
                    raise ExchangeError(f"{path}: its arrays have more than {MOST_BYTES:,} bytes")
                with packed.open(member) as file:
                    arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, NotImplementedError, RuntimeError, *_DAMAGED) as error:
        if isinstance(error, ExchangeError):
            raise
        raise ExchangeError(f"{path} cannot be read: {error}") from error
    if missing := [name for name in NEEDED if name not in arrays]:
        raise ExchangeError(f"{path}: {', '.join(missing)} is missing; found: {', '.join(arrays)}")
    return arrays


def _array_header(file: IO[bytes], stored: int) -> tuple[np.dtype[Any], int]:
    """Return the type of an array and its bytes, before they are read. Raises ValueError.

    Args:
        file: The array in the format of numpy.
        stored: Bytes of the file, unpacked.
    """
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"unknown array format {version}; supported: {', '.join(map(str, readers))}")
    shape, _, dtype = readers[version](file)
    size, there = math.prod(shape) * dtype.itemsize, stored - file.tell()
    if min(shape, default=0) < 0 or (size > there and not dtype.hasobject):
        raise ValueError(f"the array's header declares the shape {shape}, but {there:,} bytes follow")
    return dtype, size


def _arms(arrays: dict[str, Array], path: Path) -> tuple[str, ...]:
    """Return the names of the arms in the file, or else their numbers."""
    if "arms" in arrays:
        if arrays["arms"].ndim != 1 or len(arrays["arms"]) > MOST_ARMS:
            shape = arrays["arms"].shape
            raise ExchangeError(f"{path}: arms has the shape {shape}; expected at most ({MOST_ARMS},)")
        return tuple(map(str, arrays["arms"]))
    action = arrays["action"]
    n_actions: Any = arrays.get("n_actions", 1 + int(action.max(initial=0)))
    if np.ndim(n_actions) or not 1 <= n_actions <= MOST_ARMS:
        raise ExchangeError(f"{path}: n_actions is {n_actions}; expected a number from 1 to {MOST_ARMS:,}")
    return tuple(str(number) for number in range(int(n_actions)))


def _confirm(arrays: dict[str, Array], n: int, n_arms: int, path: Path) -> None:
    """Check that the shapes of the arrays agree. Raises ExchangeError."""
    rows = dict.fromkeys((*NEEDED, "position"), ((n,), 1))  # how the shape begins, and its length
    shapes: dict[str, tuple[tuple[int, ...], int]] = {**rows, "context": ((n,), 2), "pi_b": ((n, n_arms), 3)}
    for name, (begins, ndim) in shapes.items():
        if name in arrays and (arrays[name].ndim != ndim or arrays[name].shape[: len(begins)] != begins):
            right = ", ".join([*map(str, begins), *["k"] * (ndim - len(begins))])
            raise ExchangeError(f"{path}: {name} has the shape {arrays[name].shape}; expected ({right})")


def read_obp(path: Path, metric: str, scale: tuple[float, float], faults: Faults) -> Iterator[Example]:
    """Yield the decisions of a folder of tables, or of a file of arrays, in order, numbered from 1.

    Tables have only the probability of the drawn arm. Every decision is a question of its own.

    Args:
        path: A folder with `item_context.csv` and the table of decisions, or above one such folder;
            or an .npz file.
        metric: Name of the metric that holds the reward.
        scale: Smallest and largest reward.
        faults: Notes the rows that no evaluation can use.

    Raises:
        ExchangeError: A file is unreadable or missing, or a row is wrong and `faults` is strict.
    """
    if path.suffix == ".npz":
        yield from read_arrays(path, metric, scale, faults)
        return
    table = Table.open(_folder(path))
    seq, ids = 0, Ids()
    for row in _rows(table.path):
        try:
            decision = table.decision(row)
            earned = worth("click", table.number(row.cells, "click"), scale)
            example = sound(Example(seq + 1, decision, Cost(), {metric: earned}))
            ids.require_new(decision.id)
        except BadValue as bad:
            faults.add(f"{table.path}, line {row.number}", bad)
            continue
        seq += 1
        yield example


def _folder(path: Path) -> Path:
    """Return the folder of a campaign. Raises ExchangeError."""
    if (path / ITEMS).is_file():
        return path
    folders = sorted(items.parent for items in path.glob(f"**/{ITEMS}"))
    if len(folders) == 1:
        return folders[0]
    if path.suffix == ".npy":
        raise ExchangeError(
            f"{path}: a dictionary in an .npy file is a pickle, which runs code when loaded, so it is "
            "never read; instead, write numpy.savez('feedback.npz', **bandit_feedback)"
        )
    places = ", ".join(map(str, folders)) or "none is there"
    raise ExchangeError(f"{path}: expected one folder with {ITEMS}, or an .npz file; found: {places}")
