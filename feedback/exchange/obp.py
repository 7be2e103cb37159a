"""A training log as the Open Bandit Pipeline reads it: a folder of tables, with the arrays beside it.

    bts/all/all.csv             a decision a row: time, item, position, reward, propensity, user features
    bts/all/item_context.csv    the features of each arm
    bts/all/armwise.json        what items and columns are called here
    bandit_feedback.npz         the same decisions as arrays

obp knows the policies `random` and `bts` and the campaigns `all`, `men` and `women`, and opens no
folder of another name. An item is an arm by number; it was shown at a position, which is the
feature `position` here, or 1. Columns that obp ignores hold what only Armwise reads. obp knows dense contexts
only, so of the named features those that most decisions have become columns, and the embedding follows them.

Source: what `OpenBanditDataset` of obp 0.5 reads; the columns of the Open Bandit Dataset; the keys of
`BanditFeedback` in obp 0.5.
"""

import csv
import json
import math
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from armwise.feedback.events import IMPORTED, Context, Cost, Decision, Example
from armwise.feedback.exchange.delimited import Cells, read_rows
from armwise.feedback.exchange.identity import Ids
from armwise.feedback.exchange.imported import (
    BadValue,
    Faults,
    agreed,
    cut,
    distribution,
    possible,
    rewarded,
    sound,
    worth,
)
from armwise.feedback.exchange.table import UNDECODED, seconds, writable
from armwise.feedback.jsonl import ExchangeError, explain

POSITION = "position"
"""The feature with the position of an arm in a list, from 1."""

MOST_FEATURES = 256
"""Largest number of named features that become columns."""


@dataclass(frozen=True, slots=True)
class ObpColumns:
    """The columns of a log.

    Attributes:
        rows: Number of decisions.
        arms: Names of the arms; an item is an index into these.
        features: Named features of the question, the most frequent first.
        dims: Length of the embedding, which follows the features.
        arm_features: Names of the features of arms.
        items: The features of each arm in its first decision, in the order of `arms`.
        positions: Whether every decision has a position.
        whole: Whether every decision has a complete distribution.
        lost: Number of named features without a column.
    """

    rows: int
    arms: tuple[str, ...]
    features: tuple[str, ...]
    dims: int
    arm_features: tuple[str, ...]
    items: tuple[tuple[float, ...], ...]
    positions: bool
    whole: bool
    lost: int = 0
    item: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "item", {arm: at for at, arm in enumerate(self.arms)})

    def context(self, context: Context) -> list[float]:
        """Return a row of the context, shape (n_features + dims,)."""
        row = [float(context.features.get(name, 0.0)) for name in self.features]
        return [*row, *context.embedding, *([0.0] * (self.dims - len(context.embedding)))]

    def position(self, context: Context) -> int:
        """Return the position of a row, from 1."""
        return int(context.features[POSITION]) if self.positions else 1

    def distribution(self, decision: Decision) -> list[float]:
        """Return the whole distribution of a row, shape (n_arms,); 0 where an arm was not eligible."""
        row = [0.0] * len(self.arms)
        for arm, p in zip(decision.arms, decision.probabilities, strict=True):
            row[self.item[arm]] = p
        return row


def survey(examples: Iterable[Example], most: int = MOST_FEATURES) -> ObpColumns:
    """Return the columns that a log needs.

    Args:
        examples: The examples to write, in order.
        most: Largest number of named features that become columns.

    Raises:
        ExchangeError: There are no examples.
    """
    rows, dims, positions, whole = 0, 0, True, True
    arms: dict[str, dict[str, float]] = {}
    features: Counter[str] = Counter()
    for example in examples:
        decision, context = example.decision, example.decision.context
        rows += 1
        dims = max(dims, len(context.embedding))
        features.update(context.features)
        place = context.features.get(POSITION, 0.0)
        positions = positions and place >= 1 and place == int(place)
        whole = whole and len(decision.probabilities) == len(decision.arms)
        for arm in decision.arms:
            if arm not in arms:
                arms[arm] = dict(context.arms.get(arm, {}))
    if not rows:
        raise ExchangeError("no decision has a reward and was drawn by a policy: there is nothing to write")
    if positions:
        del features[POSITION]
    arm_features = tuple(dict.fromkeys(name for values in arms.values() for name in values))
    # The most frequent first; a name decides between equals, so that the order of the log does not.
    ordered = sorted(features, key=lambda name: (-features[name], name))
    return ObpColumns(
        rows=rows,
        arms=tuple(arms),
        features=tuple(ordered[:most]),
        dims=dims,
        arm_features=arm_features,
        items=tuple(tuple(values.get(name, 0.0) for name in arm_features) for values in arms.values()),
        positions=positions,
        whole=whole,
        lost=len(ordered[most:]),
    )


# -- tables ----------------------------------------------------------------------------------------
#
# A user feature that is a number in every row becomes a named feature, and any other one
# `user_feature_0=<text>`, unless `armwise.json` names the columns. The position becomes the feature
# `position`, an affinity the feature `affinity` of its arm. A feature that is 0 is left out, as is what
# `item_context.csv` has on an arm: it is the same in each row, and implied by the arm's name.


ITEMS = "item_context.csv"

NAMES = "armwise.json"

USER, AFFINITY = "user_feature_", "user-item_affinity_"

LARGEST_VERSION = 2**53
"""Largest version: larger numbers of a table are inexact."""

FIRST = ("", "timestamp", "item_id", "position", "click", "propensity_score")
"""The columns before those of the user."""

OURS = ("decision_id", "question", "version")
"""The columns after those of the user in a table of Armwise."""


@dataclass(frozen=True, slots=True)
class Table:
    """The decisions of a campaign.

    Attributes:
        path: Path of the table.
        column: Index of each column, by name.
        arms: The name of each item, by its number as a text.
        names: Contents of `armwise.json`; empty without the file.
        texts: User features with other values than numbers.
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
        ids = []
        for row in _rows(folder / ITEMS):
            if row.fault:
                raise ExchangeError(f"{folder / ITEMS}, line {row.number}: {row.fault}")
            ids.append(row.cells[item])
        if len(set(ids)) != len(ids):
            raise ExchangeError(f"{folder / ITEMS} has an item twice")
        if len(arms := names.get("arms", ids)) != len(ids):
            raise ExchangeError(f"{folder / ITEMS} has {len(ids)} items, and {NAMES} names {len(arms)} arms")
        users = {name: at for name, at in column.items() if name.startswith(USER)}
        texts = frozenset() if names else _texts(path, users)
        return cls(path, column, dict(zip(ids, arms, strict=True)), names, texts)

    def number(self, row: Sequence[str], name: str) -> float:
        """Return the number in a column. Raises BadValue."""
        value = row[self.column[name]]
        try:
            return float(value)
        except ValueError:
            raise BadValue(f"{name} is no number", f"{name} is {cut(value)}; a number was expected") from None

    def decision(self, line: Cells) -> Decision:
        """Return the decision of a row. Raises BadValue."""
        if line.fault:
            raise BadValue("row cannot be read", line.fault)
        row = line.cells
        item = row[self.column["item_id"]]
        if item not in self.arms:
            raise BadValue("no arm", f"item_id {cut(item)} is not one of {ITEMS}")
        value = row[self.column["timestamp"]]
        try:
            at = seconds(value)
        except ValueError:
            raise BadValue("no time", f"timestamp is {cut(value)}; a date and a time were expected") from None
        p = possible("propensity_score", self.number(row, "propensity_score"))
        drawn = self.arms[item]
        folder = self.path.parent
        place = line.number if next(iter(self.column)) in FIRST[1:] else row[0]
        name = self._text(row, "decision_id") or f"{folder.parent.name}/{folder.name}/{place}"
        return Decision(
            id=name,
            context=self._context(row, self._text(row, "question") or name),
            arms=(drawn, *(arm for arm in self.arms.values() if arm != drawn)),
            probabilities=(p,),
            drawn=drawn,
            policy=IMPORTED,
            version=self._version(row) if "version" in self.column else 0,
            decided_at=at,
            deadline=at,
            floor=None,
        )

    def _version(self, row: Sequence[str]) -> int:
        """Return the number of a version. Raises BadValue."""
        number = self.number(row, "version")
        if not 0 <= number <= LARGEST_VERSION:
            raise BadValue("no version", f"version is {number:g}, which is the number of none")
        return int(number)

    def _text(self, row: Sequence[str], name: str) -> str:
        return writable(name, row[self.column[name]], UNDECODED) if name in self.column else ""

    def _context(self, row: Sequence[str], question: str) -> Context:
        users = [name for name in self.column if name.startswith(USER)]
        features: dict[str, float] = {}
        for name in users:
            if name in self.texts:
                features[f"{name}={self._text(row, name)}"] = 1.0
            else:
                features[name] = self.number(row, name)
        embedding: tuple[float, ...] = ()
        if self.names:
            values = [features[name] for name in users]
            names = self.names["features"]
            features = dict(zip(names, values, strict=False))
            embedding = tuple(values[len(names) :])
        if self.names.get("positions", True):
            features[POSITION] = self.number(row, "position")
        features = {name: value for name, value in features.items() if value}
        return Context(question, features, embedding, self._affinities(row))

    def _affinities(self, row: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the affinity of each arm that has one other than 0."""
        affinities = {
            arm: self.number(row, name)
            for item, arm in self.arms.items()
            if (name := f"{AFFINITY}{item}") in self.column
        }
        return {arm: {"affinity": value} for arm, value in affinities.items() if value}


def _header(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each column. Raises ExchangeError if one is missing."""
    names = next(read_rows(path)).cells
    if missing := [name for name in needed if name not in names]:
        raise ExchangeError(f"{path}: there is no column {', '.join(missing)}")
    return {name: at for at, name in enumerate(names)}


def _rows(path: Path) -> Iterator[Cells]:
    """Yield the rows below the first. Raises ExchangeError."""
    return islice(read_rows(path), 1, None)


class _Names(BaseModel):
    """Contents of `armwise.json`."""

    arms: tuple[str, ...]
    features: tuple[str, ...]
    positions: bool = True


def _names(path: Path) -> Mapping[str, Any]:
    """Return the names of items and columns. Raises ExchangeError."""
    try:
        return _Names.model_validate_json(path.read_bytes()).model_dump()
    except ValidationError as error:
        raise ExchangeError(f"{path}: {explain(error)}") from None
    except OSError as error:
        raise ExchangeError(f"{path} cannot be read: {error}") from error


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
#     feedback = {name: array[()] for name, array in numpy.load("bandit_feedback.npz").items()}
#
#     n_rounds, n_actions         how many decisions, and arms
#     action (n,), position (n,)  the arm that was drawn, from 0; its place in a list, from 0
#     reward (n,), pscore (n,)    what it earned; the probability with which it was drawn
#     context (n, d)              features of the question
#     action_context (n_arms, f)  features of the arms
#     pi_b (n, n_arms, 1)         the whole distributions, where they are known
#     arms (n_arms,)              the names of the arms, which obp passes over


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


class ArrayWriter:
    """Writes decisions as arrays on disk, so that a log may be larger than memory.

    Args:
        columns: Columns of the log.
        folder: Folder of the arrays until they are packed.
    """

    def __init__(self, columns: ObpColumns, folder: Path) -> None:
        n, n_arms = columns.rows, len(columns.arms)
        self._columns, self._folder, self._at = columns, folder, 0
        shapes: dict[str, tuple[type, tuple[int, ...]]] = {
            "action": (np.int64, (n,)),
            "position": (np.int64, (n,)),
            "reward": (np.float64, (n,)),
            "pscore": (np.float64, (n,)),
            "context": (np.float64, (n, len(columns.features) + columns.dims)),
        }
        if columns.whole and not columns.positions:  # obp wants one distribution a position
            shapes["pi_b"] = (np.float64, (n, n_arms, 1))
        self._arrays = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
            for name, (dtype, shape) in shapes.items()
        }

    def add(self, decision: Decision, reward: float) -> None:
        """Write the next row."""
        columns, at = self._columns, self._at
        row = {
            "action": columns.item[decision.drawn],
            "position": columns.position(decision.context) - 1,
            "reward": reward,
            "pscore": decision.propensity,
            "context": columns.context(decision.context),
        }
        if "pi_b" in self._arrays:
            row["pi_b"] = np.array(columns.distribution(decision))[:, np.newaxis]
        for name, value in row.items():
            self._arrays[name][at] = value
        self._at += 1

    def finish(self, path: Path) -> None:
        """Pack the arrays into one file."""
        columns = self._columns
        rest = {
            "n_rounds": np.array(columns.rows),
            "n_actions": np.array(len(columns.arms)),
            "action_context": np.array(columns.items, dtype=np.float64).reshape(len(columns.arms), -1),
            "arms": np.array(columns.arms, dtype=np.str_),
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
            for name, array in (self._arrays | rest).items():
                with packed.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


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
                floor=None,
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
    agreed("pscore", p, printed[action], printed)
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
        raise ValueError(f"an array of format {version} was found; {', '.join(map(str, readers))} are read")
    shape, _, dtype = readers[version](file)
    size, there = math.prod(shape) * dtype.itemsize, stored - file.tell()
    if min(shape, default=0) < 0 or (size > there and not dtype.hasobject):
        raise ValueError(f"an array of shape {shape} was declared, and {there:,} bytes are there")
    return dtype, size


def _arms(arrays: dict[str, Array], path: Path) -> tuple[str, ...]:
    """Return the names of the arms in the file, or else their numbers."""
    if "arms" in arrays:
        if arrays["arms"].ndim != 1 or len(arrays["arms"]) > MOST_ARMS:
            shape = arrays["arms"].shape
            raise ExchangeError(f"{path}: arms has the shape {shape}; at most ({MOST_ARMS},) was expected")
        return tuple(map(str, arrays["arms"]))
    action = arrays["action"]
    n_actions: Any = arrays.get("n_actions", 1 + int(action.max(initial=0)))
    if np.ndim(n_actions) or not 1 <= n_actions <= MOST_ARMS:
        raise ExchangeError(
            f"{path}: n_actions is {n_actions}; a number from 1 to {MOST_ARMS:,} was expected"
        )
    return tuple(str(number) for number in range(int(n_actions)))


def _confirm(arrays: dict[str, Array], n: int, n_arms: int, path: Path) -> None:
    """Check that the shapes of the arrays agree. Raises ExchangeError."""
    rows = dict.fromkeys((*NEEDED, "position"), ((n,), 1))  # how the shape begins, and its length
    shapes: dict[str, tuple[tuple[int, ...], int]] = {**rows, "context": ((n,), 2), "pi_b": ((n, n_arms), 3)}
    for name, (begins, ndim) in shapes.items():
        if name in arrays and (arrays[name].ndim != ndim or arrays[name].shape[: len(begins)] != begins):
            right = ", ".join([*map(str, begins), *["k"] * (ndim - len(begins))])
            raise ExchangeError(f"{path}: {name} has the shape {arrays[name].shape}; ({right}) was expected")


# -- the folder ------------------------------------------------------------------------------------


FOLDER = Path("bts", "all")
"""Folder of a log of Armwise: `bts` is obp's learned policy, `all` its campaign of all items."""

ARRAYS = "bandit_feedback.npz"


def write_obp(
    folder: Path,
    read: Callable[[], Iterable[Example]],
    reward: Callable[[Example], float | None],
    left_out: Counter[str],
) -> ObpColumns:
    """Write a training log into a folder, and return its columns.

    Args:
        folder: Existing folder, in which `bts/` and the arrays are put.
        read: Yields the training log in order; it is read twice, and must yield the same.
        reward: Returns the reward of an example, if it has one.
        left_out: Counts by reason the examples that were not drawn by a policy, or lack a reward.

    Raises:
        ExchangeError: All examples are left out.
    """
    columns = survey(example for example, _ in rewarded(read(), reward, left_out))
    here = folder / FOLDER
    here.mkdir(parents=True)
    _write_items(here / ITEMS, columns)
    names = {
        "arms": columns.arms,
        "features": columns.features,
        "dims": columns.dims,
        "positions": columns.positions,
    }
    (here / NAMES).write_text(json.dumps(names, indent=1), encoding="utf-8")
    with (
        tempfile.TemporaryDirectory(dir=folder) as growing,
        (here / f"{FOLDER.name}.csv").open("w", encoding="utf-8", newline="") as file,
    ):
        arrays, table = ArrayWriter(columns, Path(growing)), csv.writer(file)
        width = len(columns.features) + columns.dims
        table.writerow([*FIRST, *(f"{USER}{at}" for at in range(width)), *OURS])
        for row, (example, earned) in enumerate(rewarded(read(), reward, Counter())):
            table.writerow(_row(row, example, earned, columns))
            arrays.add(example.decision, earned)
        arrays.finish(folder / ARRAYS)
    return columns


def _row(row: int, example: Example, reward: float, columns: ObpColumns) -> list[Any]:
    d = example.decision
    at = datetime.fromtimestamp(d.decided_at, UTC).isoformat(" ", "microseconds")
    first = [row, at, columns.item[d.drawn], columns.position(d.context), reward, d.propensity]
    return [*first, *columns.context(d.context), d.id, d.context.question, d.version]


def _write_items(path: Path, columns: ObpColumns) -> None:
    """Write the features of the arms; obp needs at least one."""
    width = max(1, len(columns.arm_features))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "item_id", *(f"item_feature_{at}" for at in range(width))])
        for item, features in enumerate(columns.items):
            table.writerow([item, item, *(features or (0.0,))])


def read_obp(path: Path, metric: str, scale: tuple[float, float], faults: Faults) -> Iterator[Example]:
    """Yield the decisions of a folder of tables, or of a file of arrays, in order, numbered from 1.

    In tables only the probability of the drawn arm is known of a distribution. The questions of decisions
    are distinct, unless there is a column of questions.

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
            f"{path}: a dictionary in an .npy file is a pickle, which runs code when it is loaded, so it is "
            "never read; write numpy.savez('feedback.npz', **bandit_feedback)"
        )
    places = ", ".join(map(str, folders)) or "none is there"
    raise ExchangeError(f"{path}: one folder with {ITEMS} was expected, or an .npz file; found: {places}")
