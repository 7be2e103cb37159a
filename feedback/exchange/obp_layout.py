"""A training log as the Open Bandit Pipeline reads it: a folder of tables, with the arrays beside it.

    bts/all/all.csv             a decision a row: time, item, position, reward, propensity, user features
    bts/all/item_context.csv    the features of each arm
    bts/all/armwise.json        what items and columns are called here
    bandit_feedback.npz         the same decisions as arrays, see `feedback.exchange.obp_arrays`

obp knows the policies `random` and `bts` and the campaigns `all`, `men` and `women`, and opens no
folder of another name. An item is an arm by number; it was shown at a position, which is the
feature `position` here, or 1. Columns that obp ignores hold what only Armwise reads.

Source: what `OpenBanditDataset` of obp 0.5 reads; the columns of the Open Bandit Dataset.
"""

import csv
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feedback.events import Cost, Example
from feedback.exchange.imported import LeftOut, rewarded, sound, worth
from feedback.exchange.jsonl import ExchangeError
from feedback.exchange.obp_arrays import ArrayWriter, read_arrays
from feedback.exchange.obp_columns import Columns, survey
from feedback.exchange.obp_table import FIRST, ITEMS, NAMES, OURS, USER, Table

FOLDER = Path("bts", "all")
"""Folder of a log of Armwise: `bts` is obp's learned policy, `all` its campaign of all items."""

ARRAYS = "bandit_feedback.npz"


def write_obp(
    folder: Path,
    read: Callable[[], Iterable[Example]],
    reward: Callable[[Example], float | None],
    left_out: Counter[str],
) -> Columns:
    """Write a training log into a folder, and return its columns.

    Args:
        folder: Where `bts/` and the arrays are put; it is there.
        read: Yields the training log in order; it is read twice, and must yield the same.
        reward: Returns the reward of an example; None where there is none.
        left_out: Counts by reason the examples that no policy drew, or that have no reward.

    Raises:
        ExchangeError: Nothing is left to write.
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


def _row(row: int, example: Example, reward: float, columns: Columns) -> list[Any]:
    d = example.decision
    at = datetime.fromtimestamp(d.decided_at, UTC).isoformat(" ", "microseconds")
    first = [row, at, columns.item[d.drawn], columns.position(d.context), reward, d.propensity]
    return [*first, *columns.context(d.context), d.id, d.context.question, d.version]


def _write_items(path: Path, columns: Columns) -> None:
    """Write the features of the arms; obp needs one of them at least."""
    width = max(1, len(columns.arm_features))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "item_id", *(f"item_feature_{at}" for at in range(width))])
        for item, features in enumerate(columns.items):
            table.writerow([item, item, *(features or (0.0,))])


def read_obp(
    path: Path, metric: str, scale: tuple[float, float], left_out: Counter[str]
) -> Iterator[Example]:
    """Yield the decisions of a folder of tables, or of a file of arrays, in order, numbered from 1.

    In tables no more is known of a distribution than the probability of the drawn arm. A decision
    asks a question of its own, unless there is a column of questions.

    Args:
        path: A folder with `item_context.csv` and the table of decisions, or above one such folder;
            or an .npz file.
        metric: What the reward is called.
        scale: Smallest and largest reward.
        left_out: Counts by reason the rows that no evaluation can use.

    Raises:
        ExchangeError: Something cannot be read, is missing, or is not a number.
    """
    if path.suffix == ".npz":
        yield from read_arrays(path, metric, scale, left_out)
        return
    table = Table.open(_folder(path))
    seq = 0
    for line, row in table.rows():
        try:
            decision = table.decision(line, row)
            earned = worth(table.number(line, row, "click"), scale)
        except LeftOut as reason:
            left_out[str(reason)] += 1
            continue
        seq += 1
        yield sound(Example(seq, decision, Cost(), {metric: earned}), f"{table.path}, line {line}")


def _folder(path: Path) -> Path:
    """Return the folder of a campaign. Raises ExchangeError."""
    if (path / ITEMS).is_file():
        return path
    found = sorted(items.parent for items in path.glob(f"**/{ITEMS}"))
    if len(found) == 1:
        return found[0]
    places = ", ".join(map(str, found)) or "none is there"
    raise ExchangeError(f"{path}: one folder with {ITEMS} was expected, or an .npz file; found: {places}")
