"""Read a training log in bulk: columns instead of facts, some thousands of rows in memory at a time.

Each look at the database asks for a range of positions, and sees one moment of the log; nothing that
stands at a position ever changes. What is read is never a row of SQLAlchemy: SQLite hands out tuples,
PostgreSQL copies tables as text, which Arrow parses. Readers such as connectorx and ADBC bring an SQLite
of their own, and two of them in one process undo each other's locks on the file.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import chain
from typing import Any

import numpy as np
import orjson
import sqlalchemy as sa

from feedback import tables as t
from feedback.coded import Batch, Coded, Draw
from feedback.errors import LogGapError
from feedback.events import Status
from feedback.joins import read_examples
from feedback.logged import EVERYTHING, Describe, Log, Selection
from feedback.reward import RewardRule
from feedback.rewards import priced, rewards
from feedback.sample import Floats
from feedback.store import Store

CHUNK = 1 << 14
"""Positions that are read at a time: few enough that a database looks them up instead of reading it all."""

_FEW = 256
"""Rows of SQLite that are turned into columns while they are in the cache of the processor."""

_APART = "\x1f"
"""Stands between texts; JSON has it in escapes only."""

Columns = dict[str, Any]
"""Values by column: lists, or arrays of numbers."""
Tell = Callable[[str, int, int | None], None]


def read_log(
    store: Store,
    rule: RewardRule,
    selection: Selection = EVERYTHING,
    progress: Tell | None = None,
    *,
    upto: int | None = None,
    describe: Describe | None = None,
) -> Log:
    """Return what `Log.from_examples` makes of the training log of a rule, in a fraction of the time.

    Args:
        store: The log, which may be written meanwhile.
        rule: Says which training log, and what its decisions are worth.
        selection: Which decisions are looked at.
        progress: Told how far it is.
        upto: Position that is read last; None for the last one there is.
        describe: Makes features of the rows.

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
    store: Store, rule: RewardRule, selection: Selection, progress: Tell | None, end: int
) -> Iterator[Batch]:
    for after in range(0, end, CHUNK):
        last = min(after + CHUNK, end)
        with store.reading() as connection:
            columns = _fetched(connection, _query(rule, selection, after, last))
        if (found := len(columns["few"])) != last - after:
            for _ in read_examples(store, rule.join, after, last):  # which says where
                pass
            raise LogGapError(f"{last - after - found} rows of the training log after {after} were missing")
        yield _batch(columns, rule, selection, after)
        if progress:
            progress("reading the log", last, end)


def _query(rule: RewardRule, selection: Selection, after: int, last: int) -> sa.Select[Any]:
    """Return the query for a range of positions; whether one is missing tells the number of rows.

    Every value that comes back costs as much as the search for its row, so texts come together.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    few = (_text(e.status), _text(d.mode), _text(d.policy), _text(d.arms), _text(d.drawn))
    columns: list[sa.ColumnElement[Any]] = [
        reduce(lambda one, other: one + _APART + other, few).label("few"),
        (_text(x.metrics) + "," + _text(d.probabilities)).label("many"),
        d.question,
        d.decided_at,
        d.version,
        d.propensity,
        *(e[name] for name in priced(rule.cost)),
    ]
    if selection.features:
        columns.append(_text(d.features).label("features"))
    return (
        sa.select(*columns)
        .join_from(t.examples, t.decisions, d.id == x.decision_id)
        .join(t.executions, e.decision_id == x.decision_id)
        .where(x.join == rule.join, x.seq > after, x.seq <= last)
        .order_by(x.seq)
    )


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.cast(column, sa.Text)


def _batch(columns: Columns, rule: RewardRule, selection: Selection, after: int) -> Batch:
    n = len(columns["few"])
    few = Coded.of(columns["few"])
    parsed = orjson.loads(f"[{','.join(columns['many'])}]")
    values, p = parsed[::2], [shares or () for shares in parsed[1::2]]
    metrics = {
        name: np.array([said.get(name, np.nan) for said in values], dtype=np.float64) for name in rule.metrics
    }
    cost = {name: np.array(columns[name], dtype=np.float64) for name in priced(rule.cost)}
    draw = Coded([_draw(text) for text in few.values], few.codes)
    failed = draw.each(lambda one: one.failed)
    return Batch(
        seq=np.arange(after + 1, after + 1 + n),
        at=np.array(columns["decided_at"], dtype=np.float64),
        version=np.array(columns["version"], dtype=np.int64),
        draw=draw,
        question=np.fromiter(map(hash, columns["question"]), np.int64, n),
        propensity=np.array(columns["propensity"], dtype=np.float64),
        p=np.fromiter(chain.from_iterable(p), np.float64),
        n_p=np.fromiter(map(len, p), np.int64, n),
        reward=rewards(rule, metrics, cost, failed),
        features=_features(columns, selection),
    )


def _features(columns: Columns, selection: Selection) -> dict[str, Floats]:
    if not selection.features:
        return {}
    seen = [orjson.loads(text)["sparse"] for text in columns["features"]]
    return {
        name: np.array([sparse.get(name, 0.0) for sparse in seen], dtype=np.float64)
        for name in selection.features
    }


def _draw(text: str) -> Draw:
    status, mode, policy, arms, drawn = text.split(_APART, 4)
    return Draw(mode, policy, tuple(orjson.loads(arms) or ()), drawn, failed=status != Status.OK)


def _fetched(connection: sa.Connection, query: sa.Select[Any]) -> Columns:
    """Return the columns of a query by name, past SQLAlchemy's rows."""
    sql = str(query.compile(connection, compile_kwargs={"literal_binds": True}))
    driver: Any = connection.connection.driver_connection
    names = [column.name for column in query.selected_columns]
    if connection.dialect.name == "postgresql":
        return _copied(driver, sql, {column.name: column.type for column in query.selected_columns})
    columns: Columns = {name: [] for name in names}
    cursor = driver.execute(sql)
    while rows := cursor.fetchmany(_FEW):
        for column, values in zip(columns.values(), zip(*rows, strict=True), strict=True):
            column.extend(values)
    return columns


def _copied(driver: Any, sql: str, types: dict[str, sa.types.TypeEngine[Any]]) -> Columns:
    """Let PostgreSQL copy the rows of a query as CSV, and Arrow parse it."""
    import pyarrow as pa
    from pyarrow import csv

    with driver.cursor() as cursor, cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)") as copy:
        text = b"".join(copy)
    if not text:
        return {name: [] for name in types}
    arrow = {sa.Integer: pa.int64(), sa.Float: pa.float64()}
    kinds = {
        name: next((to for of, to in arrow.items() if isinstance(kind, of)), pa.string())
        for name, kind in types.items()
    }
    table = csv.read_csv(
        pa.BufferReader(text),
        read_options=csv.ReadOptions(column_names=list(types), block_size=len(text)),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=kinds),
    )
    return {
        name: table[name].to_pylist() if kinds[name] == pa.string() else table[name].to_numpy()
        for name in types
    }
