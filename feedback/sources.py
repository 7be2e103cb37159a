"""Where a training log is read from: the database of a service, or an export.

source = LogSource(store, rule)
log = source.log(rule, Selection(since=yesterday))
for example in source.examples(): ...
"""

import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from math import inf
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from typing_extensions import override

from armwise.feedback.archived import resolved
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.dataset import (
    EVERYTHING,
    Categorical,
    Describe,
    DrawKey,
    ExampleBatch,
    Log,
    ProgressCallback,
    Selection,
    arm_categories,
    described,
    priced,
    rewards,
)
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import Cost, Example, Status
from armwise.feedback.jsonl import ExchangeError, Header, read_export, read_headers
from armwise.feedback.log import Limited, Store, loads
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.texts import value_of
from armwise.feedback.training_log import Settled, WaitingDecisions, read_examples, settled_at, waiting

_REPORTED = 4096
"""Examples between two calls of the progress callback."""


class TrainingLog(Protocol):
    """A training log, which can be read repeatedly: the same examples, in the same order."""

    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Return the decisions that can be evaluated, as arrays; features are computed on first access.

        Args:
            rule: The rule of their rewards.
            selection: Which decisions are selected; those whose rewards may still change are among them.
            on_progress: Called with the progress.

        Raises:
            EmptyLogError: No decision is left.
        """
        ...

    @property
    def settled(self) -> Settled:
        """Which part of it is settled; positions are of no use where it is a file."""
        ...

    def examples(self, after: int = 0) -> Iterator[Example]:
        """Yield examples in order, labels included; a row of the arrays has the `seq` of its example.

        Args:
            after: Position in the training log of the example before the first.
        """
        ...

    def waiting(self, since: float | None, most: int, canaries: Collection[int] = ()) -> WaitingDecisions:
        """Return the decisions that still wait for feedback.

        Args:
            since: Only decisions of then or later, seconds since the epoch; None for all.
            most: Number of decisions to return at most, the first ones.
            canaries: Only decisions in which one of these versions took part; empty for all.
        """
        ...

    def remarks(self, rule: RewardRule) -> list[str]:
        """Return remarks on the rewards under a rule; a sentence each."""
        ...


class LogSource(TrainingLog):
    """The training log of a rule in a database, up to where it was when this was first read.

    Args:
        store: The log, which may be written meanwhile.
        rule: Names the training log; `log` may be given another rule with the same join.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Also raises LogGapError; ValueError for a rule with another join."""
        if rule.join != self._join:
            raise ValueError("another rule may have other prices, weights and ranges, but must join alike")
        log = read_log(
            *(self._store, rule, selection, on_progress),
            upto=self._upto,
            describe=described(self.examples),
        )
        return replace(log, categorize=partial(arm_categories(self.examples), log.arms))

    @override
    def examples(self, after: int = 0) -> Iterator[Example]:
        """Raises LogGapError."""
        return read_examples(self._store, self._join, after, self._upto)

    @override
    def waiting(self, since: float | None, most: int, canaries: Collection[int] = ()) -> WaitingDecisions:
        return waiting(self._store, self._rule, self._upto, since, most, canaries)

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return []

    @property
    @override
    def settled(self) -> Settled:
        """As it was when this was first read. Raises LogUnavailableError."""
        return self._ends[1]

    @property
    def _upto(self) -> int:
        return self._ends[0]

    @cached_property
    def _ends(self) -> tuple[int, Settled]:
        with self._store.reading() as connection:
            return _length(connection, self._join), settled_at(connection, self._rule)


class ExportSource(TrainingLog):
    """A file that `armwise export` wrote; `armwise import` converts other layouts into one.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def applicable_rule(self, configured: RewardRule) -> RewardRule:
        """Return the configured rule, or that of the file where none of its metrics is configured.

        Raises:
            ExchangeError: It cannot be read.
        """
        rules = {header.reward.model_dump_json(): header.reward for header in self._headers}
        metrics = {name for rule in rules.values() for name in rule.metrics}
        if len(rules) > 1 or not metrics or metrics & configured.metrics.keys():
            return configured
        return self._headers[0].reward

    @override
    def log(
        self, rule: RewardRule, selection: Selection = EVERYTHING, on_progress: ProgressCallback | None = None
    ) -> Log:
        """Also raises ExchangeError, such as where the rule declares no metric of the file."""
        metrics = {name: metric for header in self._headers for name, metric in header.reward.metrics.items()}
        if metrics and rule.default is None and not metrics.keys() & rule.metrics.keys():
            document = {
                name: metric.model_dump(mode="json", exclude_defaults=True)
                for name, metric in metrics.items()
            }
            raise ExchangeError(
                f"{self._path} has the metrics {', '.join(metrics)}, none of which is configured; "
                f"declare them under reward: {json.dumps({'metrics': document})}"
            )
        examples = self.examples() if on_progress is None else _with_progress(self.examples(), on_progress)
        more = described(self.examples), arm_categories(self.examples)
        return Log.from_examples(examples, rule, selection, *more)

    @override
    def examples(self, after: int = 0) -> Iterator[Example]:
        """Raises ExchangeError."""
        return (example for example in read_export(self._path) if example.seq > after)

    @override
    def waiting(self, since: float | None, most: int, canaries: Collection[int] = ()) -> WaitingDecisions:
        """Returns none: which ones wait after the time that a file records is not on record."""
        return WaitingDecisions(settled=self.settled.before)

    @property
    @override
    def settled(self) -> Settled:
        """Raises ExchangeError."""
        return Settled(min(inf if header.settled is None else header.settled for header in self._headers))

    @override
    def remarks(self, rule: RewardRule) -> list[str]:
        return [remark for header in self._headers for remark in differences(header.reward, rule)]

    @cached_property
    def _headers(self) -> list[Header]:
        """Total over all exports in the file."""
        return list(read_headers(self._path))


def differences(theirs: RewardRule, ours: RewardRule) -> Iterator[str]:
    """Yield how the metrics of a rule differ from those of a file.

    >>> from armwise.feedback.reward import Metric
    >>> [*differences(RewardRule(metrics={"right": Metric()}), RewardRule())]
    ['The metric right of the file is not declared here and has no effect on rewards.']
    """
    for name, metric in theirs.metrics.items():
        if name not in ours.metrics:
            yield f"The metric {name} of the file is not declared here and has no effect on rewards."
        elif (mine := ours.metrics[name]) != metric:
            there, here = metric.model_dump(mode="json"), mine.model_dump(mode="json")
            changed = ", ".join(
                f"{key} {here[key]} for {there[key]}" for key in there if there[key] != here[key]
            )
            yield f"The metric {name} is declared differently from the file: {changed}."


def _with_progress(examples: Iterator[Example], on_progress: ProgressCallback) -> Iterator[Example]:
    for done, example in enumerate(examples, start=1):
        if done % _REPORTED == 0:
            on_progress("reading the export", done, None)
        yield example


# -- in bulk ---------------------------------------------------------------------------------------
#
# Each transaction reads a range of positions, whose rows never change. The database joins no tables: an
# index of ids would send it to another page for every row. Facts that belong together were written at about
# the same time, so a range of each table is read in its own order and matched here; the few rows outside of
# the range are looked up by id.
#
# Rows bypass SQLAlchemy: SQLite returns tuples, PostgreSQL one JSON array a column. Readers such as
# connectorx and ADBC bring an SQLite of their own, and two of them in one process break each other's locks
# on the file.


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
        return _length(connection, join)


def _length(connection: sa.Connection, join: str) -> int:
    last = sa.select(sa.func.max(t.examples.c.seq)).where(t.examples.c.join == join)
    return int(connection.scalar(last) or 0)


def _batches(
    store: Store, rule: RewardRule, selection: Selection, progress: ProgressCallback | None, end: int
) -> Iterator[ExampleBatch]:
    for after in range(selection.after, end, CHUNK):
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
    here = x.join == rule.join, x.seq > after, x.seq <= last
    joined = sa.select(x.decision_id, _text(x.metrics).label("metrics"))
    columns = _fetched(connection, joined.where(*here).order_by(x.seq))
    ids = columns["decision_id"].tolist()
    if len(ids) != last - after:
        raise LogGapError(f"{last - after - len(ids)} rows of the training log after {after} are missing")
    # Every returned value costs as much as its row, so texts with few distinct values are concatenated.
    few = reduce(lambda text, other: text + _APART + other, (d.mode, d.policy, _text(d.arms), d.drawn))
    decided: list[sa.ColumnElement[Any]] = [few.label("few"), _text(d.probabilities).label("probabilities")]
    # rows that were erased are taken for different questions
    decided.append(sa.case((d.erased.is_(None), d.question), else_=d.id).label("question"))
    decided.append(sa.func.coalesce(d.episode_id, d.id).label("episode"))
    decided.append(sa.func.coalesce(d.user_digest, d.id).label("user"))
    if selection.features:
        decided.append(_text(d.features).label("features"))
    decided += [d.decided_at, d.version, d.propensity, d.cost_weight]
    columns |= _matched(connection, d.id, decided, ids)
    executed: list[sa.ColumnElement[Any]] = [e.status, *(e[name] for name in priced(rule.cost))]
    if rule.prices_tokens:
        executed.append(sa.func.coalesce(_text(e.tokens_by_model), "{}").label("tokens_by_model"))
    columns |= _matched(connection, e.decision_id, executed, ids)
    columns["turns"] = np.full(len(ids), None, dtype=np.object_)
    for seq, turns in connection.execute(sa.select(x.seq, x.turns).where(*here, x.turns.is_not(None))):
        columns["turns"][seq - after - 1] = turns
    return columns


def _costs(columns: Columns, rule: RewardRule) -> dict[str, NDArray[np.float64]]:
    """Return the parts of the raw cost of a turn that have a price, tokens at the prices of today."""
    costs = {name: columns[name].astype(np.float64) for name in priced(rule.cost)}
    if rule.prices_tokens:
        rows = zip(costs["usd"].tolist(), _parsed(columns["tokens_by_model"]), strict=True)
        costs["usd"] = np.array([rule.usd_today(paid, tokens) for paid, tokens in rows])
    for i in np.flatnonzero(columns["turns"] != None):  # noqa: E711 - of an array
        cost, tokens, n = log_rows.spent_by(columns["turns"][i], Cost(), None)
        if rule.prices_tokens:
            cost = replace(cost, usd=rule.usd_today(cost.usd, tokens))
        for name, values in costs.items():
            values[i] = getattr(cost, name) / n
    return costs


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.cast(column, sa.Text)


def _matched(
    connection: sa.Connection,
    key: sa.Column[str],
    columns: Sequence[sa.ColumnElement[Any]],
    ids: Sequence[str],
) -> Columns:
    """Return columns of the rows of a table that have some ids, in the order of these. Raises LogGapError."""
    seq, query = key.table.c.seq, sa.select(key.label("id"), *columns)
    sample = [*ids[:: max(1, len(ids) // _SAMPLE)], ids[-1]]
    bounds = sa.select(sa.func.min(seq), sa.func.max(seq)).where(key.in_(sample))
    first, last = connection.execute(bounds).one()
    dense = first is not None and last - first <= _SPREAD * len(ids)
    parts = [_fetched(connection, query.where(seq.between(first, last) if dense else sa.false()))]
    near = set(parts[0]["id"])
    away = [row_id for row_id in ids if row_id not in near]
    for start in range(0, len(away), _MAX_IDS):
        parts += [_fetched(connection, query.where(key.in_(away[start : start + _MAX_IDS])))]
    values_of = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    row = {row_id: i for i, row_id in enumerate(values_of.pop("id"))}
    try:
        rows = np.fromiter(map(row.__getitem__, ids), np.int64, len(ids))
    except KeyError as error:
        raise LogGapError(f"decision {error} of the training log is not among the {key.table.name}") from None
    return {name: values[rows] for name, values in values_of.items()}


def _batch(columns: Columns, rule: RewardRule, selection: Selection, after: int) -> ExampleBatch:
    n = len(columns["metrics"])
    few = Categorical.of(list(columns["status"] + _APART + columns["few"]))
    draw = Categorical([_draw(text) for text in few.values], few.codes)
    p, n_p = _shares(columns["probabilities"], columns["propensity"])
    return ExampleBatch(
        seq=np.arange(after + 1, after + 1 + n),
        at=columns["decided_at"],
        version=columns["version"],
        draw=draw,
        question=np.fromiter(map(hash, columns["question"]), np.int64, n),
        episode=np.fromiter(map(hash, columns["episode"]), np.int64, n),
        user=np.fromiter(map(hash, columns["user"]), np.int64, n),
        propensity=columns["propensity"],
        p=p,
        n_p=n_p,
        reward=rewards(
            rule,
            _numbers(_parsed(columns["metrics"]), tuple(rule.metrics), np.nan),
            _costs(columns, rule),
            columns["cost_weight"],
            draw.each(lambda key: key.failed),
        ),
        has_id=np.fromiter(map(selection.has_id, columns["decision_id"]), np.bool_, n),
        features=_numbers(
            (resolved(stored)["sparse"] for stored in _parsed(columns["features"])),
            tuple(selection.features),
            0.0,
        )
        if selection.features
        else {},
    )


def _parsed(texts: NDArray[Any]) -> Iterator[Any]:
    """Yield parsed JSON."""
    for start in range(0, len(texts), _FEW):
        yield from loads(f"[{','.join(texts[start : start + _FEW])}]")


def _shares(texts: NDArray[Any], propensity: Floats) -> tuple[Floats, Integers]:
    """Return the probabilities of all rows, and how many each has: none where the propensity is not known."""
    p, n_p = array("d"), array("q")
    for shares, unknown in zip(_parsed(texts), np.isnan(propensity).tolist(), strict=True):
        shares = () if unknown else shares or ()
        p.extend(shares)
        n_p.append(len(shares))
    return np.array(p), np.array(n_p)


def _numbers(
    mappings: Iterable[Mapping[str, float]], names: Sequence[str], otherwise: float
) -> dict[str, Floats]:
    """Return columns of the numbers that have these names, in each row or not."""
    numbers = np.fromiter(
        (value_of(mapping, name, otherwise) for mapping in mappings for name in names), np.float64
    )
    return {name: numbers[i :: len(names)] for i, name in enumerate(names)}


def _draw(text: str) -> DrawKey:
    status, mode, policy, arms, drawn = text.split(_APART, 4)
    return DrawKey(mode, policy, tuple(loads(arms) or ()), drawn, failed=status != Status.OK)


def _fetched(connection: sa.Connection, query: sa.Select[Any]) -> Columns:
    """Return the columns of a query by name, bypassing the rows of SQLAlchemy."""
    read = _aggregated if connection.dialect.name == "postgresql" else _iterated
    columns = zip(query.selected_columns, read(connection, query), strict=True)
    return {column.name: _array(values, column.type) for column, values in columns}


def _array(values: list[Any], of: sa.types.TypeEngine[Any]) -> NDArray[Any]:
    if isinstance(of, Limited):
        return of.all_within(values)
    return np.array(values, dtype=np.int64 if isinstance(of, sa.Integer) else np.object_)


def _aggregated(connection: sa.Connection, query: sa.Select[Any]) -> Iterable[list[Any]]:
    """Have PostgreSQL return one JSON array a column, as its driver is slow for each row."""
    arrays = (_text(sa.func.json_agg(column)) for column in query.subquery().c)
    return [loads(array or "[]") for array in connection.execute(sa.select(*arrays)).one()]


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
