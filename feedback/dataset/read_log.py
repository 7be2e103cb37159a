"""Read a training log in bulk: columns instead of facts, some thousands of rows in memory at a time.

Each transaction reads a range of positions, whose rows never change. The database joins no tables: an
index of ids would send it to another page for every row. Facts that belong together were written at about
the same time, so a range of each table is read in its own order and matched here; the few rows outside of
the range are looked up by id.

Rows bypass SQLAlchemy: SQLite returns tuples, PostgreSQL one JSON array a column. Readers such as
connectorx and ADBC bring an SQLite of their own, and two of them in one process break each other's locks
on the file.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa
from numpy.typing import NDArray

from feedback.archived import resolved
from feedback.arrays import Floats, Integers
from feedback.dataset.batches import Batch, Categorical, DrawKey
from feedback.dataset.log import EVERYTHING, Describe, Log
from feedback.dataset.rewards import priced, rewards
from feedback.dataset.selection import Selection
from feedback.errors import LogGapError
from feedback.events import Status
from feedback.log import Store
from feedback.log import tables as t
from feedback.reward import RewardRule
from feedback.texts import value_of
from feedback.training_log import read_examples

CHUNK = 1 << 14
"""Positions of the training log that are read at a time."""

_FEW = 256
"""Rows that are processed at a time, few enough for the cache of the processor."""

_SAMPLE = 64
"""Rows of a chunk whose positions give the range of the others."""

_SPREAD = 16
"""Positions a wanted row: in a sparser range, rows are looked up by id instead."""

_MAX_IDS = 1000
"""Ids that are looked up at a time."""

_APART = "\x1f"
"""Separates texts; JSON has it in escapes only."""

Columns = dict[str, NDArray[Any]]
"""Values by column: numbers, or texts as objects."""

ProgressCallback = Callable[[str, int, int | None], None]


def read_log(
    store: Store,
    rule: RewardRule,
    selection: Selection = EVERYTHING,
    progress: ProgressCallback | None = None,
    *,
    upto: int | None = None,
    describe: Describe | None = None,
) -> Log:
    """Return what `Log.from_examples` makes of the training log of a rule, in a fraction of the time.

    Args:
        store: The log, which may be written meanwhile.
        rule: Names the training log, and gives the rewards.
        selection: Which decisions are selected.
        progress: Called with the progress.
        upto: Last position to read; None for the last one there is.
        describe: Returns features of the rows.

    Raises:
        EmptyLogError: No decision is left.
        LogGapError: Rows of the training log are missing, or of the facts that it is made of.
    """
    end = length(store, rule.join) if upto is None else upto
    return Log.from_batches(_batches(store, rule, selection, progress, end), selection, describe)


def length(store: Store, join: str) -> int:
    """Return the last position of a training log; 0 for none."""
    with store.reading() as connection:
        found = connection.scalar(sa.select(sa.func.max(t.examples.c.seq)).where(t.examples.c.join == join))
    return found or 0


def _batches(
    store: Store, rule: RewardRule, selection: Selection, progress: ProgressCallback | None, end: int
) -> Iterator[Batch]:
    for after in range(0, end, CHUNK):
        last = min(after + CHUNK, end)
        try:
            with store.reading() as connection:
                columns = _read(connection, rule, selection, after, last)
        except LogGapError:
            for _ in read_examples(store, rule.join, after, last):  # its error names the position
                pass
            raise
        yield _batch(columns, rule, selection, after)
        if progress:
            progress("reading the log", last, end)


def _read(
    connection: sa.Connection, rule: RewardRule, selection: Selection, after: int, last: int
) -> Columns:
    """Return the columns of a range of positions, in order. Raises LogGapError."""
    x, d, e = t.examples.c, t.decisions.c, t.executions.c
    here = sa.select(x.decision_id, _text(x.metrics).label("metrics"))
    columns = _fetched(
        connection, here.where(x.join == rule.join, x.seq > after, x.seq <= last).order_by(x.seq)
    )
    ids = columns["decision_id"].tolist()
    if len(ids) != last - after:
        raise LogGapError(f"{last - after - len(ids)} rows of the training log after {after} are missing")
    # Every returned value costs as much as its row, so texts with few distinct values are concatenated.
    few = reduce(lambda one, other: one + _APART + other, (d.mode, d.policy, _text(d.arms), d.drawn))
    known: list[sa.ColumnElement[Any]] = [few.label("few"), _text(d.probabilities).label("probabilities")]
    # rows that were erased are taken for different questions
    known.append(sa.case((d.erased.is_(None), d.question), else_=d.id).label("question"))
    if selection.features:
        known.append(_text(d.features).label("features"))
    known += [d.decided_at, d.version, d.propensity, d.cost_weight]
    columns |= _matched(connection, d.id, known, ids)
    columns |= _matched(connection, e.decision_id, [e.status, *(e[name] for name in priced(rule.cost))], ids)
    return columns


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.cast(column, sa.Text)


def _matched(
    connection: sa.Connection,
    key: sa.Column[str],
    wanted: Sequence[sa.ColumnElement[Any]],
    ids: Sequence[str],
) -> Columns:
    """Return columns of the rows of a table that have some ids, in the order of these. Raises LogGapError."""
    seq, query = key.table.c.seq, sa.select(key.label("id"), *wanted)
    sample = [*ids[:: max(1, len(ids) // _SAMPLE)], ids[-1]]
    bounds = sa.select(sa.func.min(seq), sa.func.max(seq)).where(key.in_(sample))
    first, last = connection.execute(bounds).one()
    dense = first is not None and last - first <= _SPREAD * len(ids)
    parts = [_fetched(connection, query.where(seq.between(first, last) if dense else sa.false()))]
    near = set(parts[0]["id"])
    away = [one for one in ids if one not in near]
    for start in range(0, len(away), _MAX_IDS):
        parts += [_fetched(connection, query.where(key.in_(away[start : start + _MAX_IDS])))]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    row = {one: i for i, one in enumerate(found.pop("id"))}
    try:
        rows = np.fromiter(map(row.__getitem__, ids), np.int64, len(ids))
    except KeyError as error:
        raise LogGapError(f"decision {error} of the training log is not among the {key.table.name}") from None
    return {name: values[rows] for name, values in found.items()}


def _batch(columns: Columns, rule: RewardRule, selection: Selection, after: int) -> Batch:
    n = len(columns["metrics"])
    few = Categorical.of(list(columns["status"] + _APART + columns["few"]))
    draw = Categorical([_draw(text) for text in few.values], few.codes)
    p, n_p = _shares(columns["probabilities"])
    return Batch(
        seq=np.arange(after + 1, after + 1 + n),
        at=columns["decided_at"],
        version=columns["version"],
        draw=draw,
        question=np.fromiter(map(hash, columns["question"]), np.int64, n),
        propensity=columns["propensity"],
        p=p,
        n_p=n_p,
        reward=rewards(
            rule,
            _numbers(_parsed(columns["metrics"]), tuple(rule.metrics), np.nan),
            {name: columns[name].astype(np.float64) for name in priced(rule.cost)},
            columns["cost_weight"],
            draw.each(lambda one: one.failed),
        ),
        features=_numbers(
            (resolved(seen)["sparse"] for seen in _parsed(columns["features"])),
            tuple(selection.features),
            0.0,
        )
        if selection.features
        else {},
    )


def _parsed(texts: NDArray[Any]) -> Iterator[Any]:
    """Yield parsed JSON."""
    for start in range(0, len(texts), _FEW):
        yield from orjson.loads(f"[{','.join(texts[start : start + _FEW])}]")


def _shares(texts: NDArray[Any]) -> tuple[Floats, Integers]:
    """Return the probabilities of all rows, and how many each has."""
    p, n_p = array("d"), array("q")
    for shares in _parsed(texts):
        p.extend(shares or ())
        n_p.append(len(shares or ()))
    return np.array(p), np.array(n_p)


def _numbers(
    seen: Iterable[Mapping[str, float]], names: Sequence[str], otherwise: float
) -> dict[str, Floats]:
    """Return columns of the numbers that have these names, in each row or not."""
    numbers = np.fromiter((value_of(one, name, otherwise) for one in seen for name in names), np.float64)
    return {name: numbers[i :: len(names)] for i, name in enumerate(names)}


def _draw(text: str) -> DrawKey:
    status, mode, policy, arms, drawn = text.split(_APART, 4)
    return DrawKey(mode, policy, tuple(orjson.loads(arms) or ()), drawn, failed=status != Status.OK)


def _fetched(connection: sa.Connection, query: sa.Select[Any]) -> Columns:
    """Return the columns of a query by name, bypassing the rows of SQLAlchemy."""
    kinds = {column.name: _kind(column.type) for column in query.selected_columns}
    read = _aggregated if connection.dialect.name == "postgresql" else _iterated
    columns = zip(kinds, read(connection, query), strict=True)
    return {name: np.array(values, dtype=kinds[name]) for name, values in columns}


def _kind(of: sa.types.TypeEngine[Any]) -> type:
    return np.int64 if isinstance(of, sa.Integer) else np.float64 if isinstance(of, sa.Float) else np.object_


def _aggregated(connection: sa.Connection, query: sa.Select[Any]) -> Iterable[list[Any]]:
    """Have PostgreSQL return one JSON array a column, as its driver is slow for each row."""
    arrays = (_text(sa.func.json_agg(column)) for column in query.subquery().c)
    return [orjson.loads(array or "[]") for array in connection.execute(sa.select(*arrays)).one()]


def _iterated(connection: sa.Connection, query: sa.Select[Any]) -> Iterable[list[Any]]:
    """Fetch the tuples of SQLite, some at a time."""
    compiled = query.compile(connection, compile_kwargs={"render_postcompile": True})
    driver: Any = connection.connection.driver_connection
    columns: list[list[Any]] = [[] for _ in query.selected_columns]
    cursor = driver.execute(str(compiled), compiled.params)
    while rows := cursor.fetchmany(_FEW):
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
    return columns
