"""Bandit feedback as arrays in one .npz: obp's dictionary, both ways.

    feedback = {name: array[()] for name, array in numpy.load("bandit_feedback.npz").items()}

    n_rounds, n_actions         how many decisions, and arms
    action (n,), position (n,)  the arm that was drawn, from 0; its place in a list, from 0
    reward (n,), pscore (n,)    what it earned; the probability with which it was drawn
    context (n, d)              features of the question
    action_context (n_arms, f)  features of the arms
    pi_b (n, n_arms, 1)         the whole distributions, where they are known
    arms (n_arms,)              the names of the arms, which obp passes over

Source: the keys of `BanditFeedback` in obp 0.5.
"""

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from feedback.arrays import TOLERANCE
from feedback.events import Context, Cost, Decision, Example
from feedback.exchange.imported import IMPORTED, LeftOut, possible, sound, worth
from feedback.exchange.jsonl import ExchangeError
from feedback.exchange.obp_columns import Columns

NEEDED = ("action", "reward", "pscore")

READ = (*NEEDED, "arms", "n_actions", "position", "context", "pi_b")

KINDS = {
    **dict.fromkeys(("action", "n_actions", "position"), "iu"),
    **dict.fromkeys(("reward", "pscore", "context", "pi_b"), "iufb"),
    "arms": "USiu",
}
"""Kinds of the types of arrays, as numpy calls them."""

MOST_BYTES = 4 << 30
"""Bytes of all arrays together, which are read into memory: a packed file may be a thousand times smaller."""

MOST_ARMS = 100_000

_DAMAGED = (zipfile.BadZipFile, zlib.error, SyntaxError, TypeError, KeyError)
"""What damaged archives and headers of arrays raise."""

Array = NDArray[Any]


class ArrayWriter:
    """Writes decisions as arrays, on disk all the while, so that a log may be larger than memory.

    Args:
        columns: Columns of the log.
        folder: Where the arrays grow.
    """

    def __init__(self, columns: Columns, folder: Path) -> None:
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


def read_arrays(
    path: Path, metric: str, scale: tuple[float, float], left_out: Counter[str]
) -> Iterator[Example]:
    """Yield the decisions of bandit feedback in order, numbered from 1.

    The context becomes the embedding of a question that no other decision asks.

    Args:
        path: An .npz file.
        metric: What the reward is called.
        scale: Smallest and largest reward.
        left_out: Counts by reason the rows that no evaluation can use.

    Raises:
        ExchangeError: The file cannot be read, or its arrays do not fit each other.
    """
    arrays = _load(path)
    arms, n = _arms(arrays, path), arrays["action"].size
    _confirm(arrays, n, len(arms), path)
    context = arrays.get("context", np.zeros((n, 0)))
    seq = 0
    for row in range(n):
        try:
            drawn, p, whole = _draw(arrays, arms, row)
            earned = worth(float(arrays["reward"][row]), scale)
        except LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        seq += 1
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
        yield sound(Example(seq, decision, Cost(), {metric: earned}), f"{path}, row {row}")


def _draw(arrays: dict[str, Array], arms: tuple[str, ...], row: int) -> tuple[str, float, tuple[float, ...]]:
    """Return the arm that a row drew, its probability, and the whole distribution where that is known.

    Raises:
        LeftOut: It cannot have been drawn so.
    """
    action, p = int(arrays["action"][row]), possible(float(arrays["pscore"][row]))
    if "pi_b" not in arrays:
        return arms[action], p, ()
    pi_b = arrays["pi_b"]
    place = int(arrays["position"][row]) if pi_b.shape[2] > 1 and "position" in arrays else 0
    if not 0 <= place < pi_b.shape[2]:
        raise LeftOut("no distribution")
    whole = pi_b[row, :, place]
    if not ((whole >= 0.0).all() and abs(whole.sum() - 1.0) <= TOLERANCE):
        raise LeftOut("no distribution")
    if abs(whole[action] - p) > TOLERANCE:
        raise LeftOut("propensity not that of the distribution")
    return arms[action], p, tuple(whole.tolist())


def _load(path: Path) -> dict[str, Array]:
    """Return what is there of the arrays that are read."""
    arrays: dict[str, Array] = {}
    left = MOST_BYTES
    try:
        with zipfile.ZipFile(path) as packed:
            there = {one.filename: one for one in packed.infolist()}
            for name in READ:
                if (member := there.get(f"{name}.npy")) is None:
                    continue
                with packed.open(member) as file:
                    dtype, size = _header(file, member.file_size)
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


def _header(file: IO[bytes], stored: int) -> tuple[np.dtype[Any], int]:
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
    """Return the names of the arms: as the file has them, else their numbers."""
    if "arms" in arrays:
        if arrays["arms"].ndim != 1 or len(arrays["arms"]) > MOST_ARMS:
            shape = arrays["arms"].shape
            raise ExchangeError(f"{path}: arms has the shape {shape}; at most ({MOST_ARMS},) was expected")
        return tuple(map(str, arrays["arms"]))
    action = arrays["action"]
    known: Any = arrays.get("n_actions", 1 + int(action.max(initial=0)))
    if np.ndim(known) or not 1 <= known <= MOST_ARMS:
        raise ExchangeError(f"{path}: n_actions is {known}; a number from 1 to {MOST_ARMS:,} was expected")
    return tuple(str(number) for number in range(int(known)))


def _confirm(arrays: dict[str, Array], n: int, n_arms: int, path: Path) -> None:
    """Raise ExchangeError unless the arrays fit each other."""
    rows = dict.fromkeys((*NEEDED, "position"), ((n,), 1))  # how the shape begins, and its length
    shapes: dict[str, tuple[tuple[int, ...], int]] = {**rows, "context": ((n,), 2), "pi_b": ((n, n_arms), 3)}
    for name, (begins, ndim) in shapes.items():
        if name in arrays and (arrays[name].ndim != ndim or arrays[name].shape[: len(begins)] != begins):
            right = ", ".join([*map(str, begins), *["k"] * (ndim - len(begins))])
            raise ExchangeError(f"{path}: {name} has the shape {arrays[name].shape}; ({right}) was expected")
    action = arrays["action"]
    if n and not 0 <= action.min() <= action.max() < n_arms:
        raise ExchangeError(f"{path}: action is in [{action.min()}, {action.max()}]; there are {n_arms} arms")
