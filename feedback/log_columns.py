"""Decisions of a database in bulk, as columns.

    read_learned(store, rule, selection, after, last)    a part of the training log
    read_decisions(store, rule, since, until)            all decisions of a time, learned or not

Each transaction reads a range of positions, whose rows never change.

Rows bypass SQLAlchemy: SQLite returns tuples, PostgreSQL one JSON array a column. Readers such as
connectorx and ADBC bring an SQLite of their own, and two of them in one process break each other's locks
on the file.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import inf, nan
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from orjson import loads

from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.decisions import (
    EVERYTHING,
    Categorical,
    Decisions,
    DrawKey,
    ProgressCallback,
    Selection,
    list_priced,
    rewards,
)
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import ELSEWHERE, LABELS, Cost, Mode
from armwise.feedback.log import Store, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.texts import find_value
from armwise.feedback.training_log import read_examples, settled

CHUNK = 1 << 14
"""Positions of the training log that are read at a time."""

CHECKED = 50_000
"""Draws that an audit reads of a longer log."""

STRETCH = 128
"""Draws of a longer log that are read in a row: few, so that the stretches are many."""

PAGE = 1 << 12
"""Positions of the log that are read at a time."""

_FEW = 256
"""Rows that are processed at a time, few enough for the cache of the processor."""

_SPENT = ("retrieval_s", "llm_s", "usd")
"""Attributes of `Cost` that are read for every decision."""

_APART = "\x1f"
"""Separates texts; JSON has it in escapes only."""

Columns = dict[str, NDArray[Any]]
"""Values by column: numbers, or texts as objects."""


def read_learned(store: Store, rule: RewardRule, selection: Selection, after: int, last: int) -> Decisions:
    """Return the decisions of a training log after a position, up to another one. Raises LogGapError."""
    x, d = t.examples.c, t.decisions.c
    features = [_text(d.features).label("features")] if selection.features else []
    query = _select(rule, list_priced(rule.cost), _text(d.probabilities).label("probabilities"), *features)
    with store.reading() as connection:
        columns = _fetch(connection, query.where(x.seq > after, x.seq <= last).order_by(x.seq))
    if len(columns["seq"]) != last - after or not columns["status"].all():
        for _ in read_examples(store, rule.join, after, last):  # its error names the position
            pass
        raise LogGapError(f"rows of the training log after {after}, or of their facts, are missing")
    columns["seq"] = np.arange(after + 1, last + 1)
    return _build_readable(columns, partial(_decisions, rule=rule, selection=selection))


def read_length(connection: sa.Connection, join: str) -> int:
    """Return the last position of a training log; 0: it is empty."""
    last = sa.select(sa.func.max(t.examples.c.seq)).where(t.examples.c.join == join)
    return int(connection.scalar(last) or 0)


LATE_S = 3600.0
"""Largest time from a decision to its commit, the difference of clocks included."""


def read_decisions(
    store: Store,
    rule: RewardRule,
    since: float | None = None,
    until: float | None = None,
    *,
    without: Collection[str] = (LABELS,),
    audited: bool = False,
    distributions: bool = False,
    sampled: Selection | None = None,
    on_progress: ProgressCallback | None = None,
) -> Iterator[Decisions]:
    """Yield all decisions of a time, learned or not, in the order of the log.

    Args:
        store: The log, which may be written meanwhile.
        rule: Names the training log, and gives the rewards.
        since: Earliest time of the decisions, seconds since the epoch.
        until: Time before which they were made.
        without: Policies whose decisions are left out.
        audited: Whether to read the columns of an audit too: distributions, floors and contexts.
        distributions: Whether to read the distributions alone.
        sampled: Selection of draws; only the stretches of these are read. None: everything is.
        on_progress: Called with the progress.
    """
    d, more = t.decisions.c, list[sa.ColumnElement[Any]]()
    if audited or distributions:
        more.append(_text(d.probabilities).label("probabilities"))
    if audited:
        more += [
            *(_text(d.features).label("features"), log_rows.select_texts(t.decisions)),
            sa.func.coalesce(log_rows.StepNumber("floor", "least"), sa.literal_column("0.0")).label("floor"),
            sa.case(
                (d.policy.in_(ELSEWHERE), sa.literal_column("1.0")),
                else_=sa.func.coalesce(log_rows.StepNumber("canary", "share"), sa.literal_column("0.0")),
            ).label("share"),
        ]
    query = (
        _select(rule, tuple(dict.fromkeys((*list_priced(rule.cost), *_SPENT))), *more)
        .where(d.policy.not_in(without), d.decided_at >= (since or 0.0), d.decided_at < (until or inf))
        .order_by(d.seq)
    )
    final, done = settled.read(store, rule).position, 0
    pages: Iterable[tuple[int, int]] = [*_pages(store, since, until)]
    if sampled is not None and sum(end - begin for begin, end in pages) > CHECKED:
        stretches = spread_stretches(_find_draws(store, sampled, pages))
        if stretches is not None:
            pages = (page for first, last in stretches for page in _split(first - 1, last))
    selection = sampled or EVERYTHING
    read = partial(_read_settled, rule=rule, selection=selection, final=final, audited=audited)
    for begin, end in pages:
        if done and on_progress is not None:
            on_progress("decisions", done, None)
        with store.reading() as connection:
            columns = _fetch(connection, query.where(d.seq > begin, d.seq <= end))
        part = _build_readable(columns, read)
        done += len(part)
        yield part
    if on_progress is not None:
        on_progress("decisions", done, done)


def spread_stretches(positions: Integers) -> list[tuple[int, int]] | None:
    """Return the stretches that an audit reads of many draws, evenly spread; None: few, which it reads all.

    Args:
        positions: Positions of the draws, rising.

    Returns:
        The first and the last position of each stretch of `STRETCH` draws, of `CHECKED` in all.
    """
    if len(positions) <= CHECKED:
        return None
    n, most = -(-len(positions) // STRETCH), CHECKED // STRETCH
    starts = (STRETCH * at for at in range(n) if at * most % n < most)
    return [
        (int(positions[start]), int(positions[min(start + STRETCH, len(positions)) - 1])) for start in starts
    ]


def _find_draws(store: Store, selection: Selection, pages: Iterable[tuple[int, int]]) -> Integers:
    """Return the positions of the selected draws in ranges of positions."""
    d = t.decisions.c
    by_id = bool(selection.prefix or selection.excluded_id_part)
    query = sa.select(
        d.seq,
        *([d.id.label("decision_id")] if by_id else []),
        *([_text(d.features).label("features")] if selection.features else []),
    ).where(
        d.mode == Mode.EXPLORE.value,
        d.policy != LABELS,
        d.decided_at >= (selection.since or 0.0),
        d.decided_at < (inf if selection.until is None else selection.until),
        *([d.version.in_(selection.versions)] if selection.versions else []),
    )
    found = [np.zeros(0, dtype=np.int64)]
    for begin, end in pages:
        with store.reading() as connection:
            columns = _fetch(connection, query.where(d.seq > begin, d.seq <= end).order_by(d.seq))
        kept = np.ones(len(columns["seq"]), dtype=np.bool_)
        if by_id:
            kept &= np.fromiter(map(selection.has_id, columns["decision_id"]), np.bool_, len(kept))
        if selection.features:
            stored = (features["sparse"] for features in _parse(columns["features"]))
            values = _numbers(stored, tuple(selection.features), 0.0)
            for name, value in selection.features.items():
                kept &= values[name] == value
        found.append(columns["seq"][kept])
    return np.concatenate(found)


def _read_settled(
    columns: Columns, rule: RewardRule, selection: Selection, final: int, *, audited: bool
) -> Decisions:
    answered = columns["status"] != ""
    learned = (columns["metrics"] != None) & answered  # noqa: E711 - of an array
    metrics = np.where(learned, columns["metrics"], "{}")
    part = _decisions({**columns, "metrics": metrics}, rule, selection)
    return replace(
        part,
        reward=np.where(learned, part.reward, nan),
        settled=part.seq <= final,
        usd=np.where(answered, columns["usd"], nan),
        seconds=np.where(answered, columns["retrieval_s"] + columns["llm_s"], nan),
        **(_read_audited(columns) if audited else {}),
    )


def any_elsewhere(store: Store, since: float, until: float) -> bool:
    """Return whether the tap has decisions of a time: made, or taken part in, by another system."""
    d = t.decisions.c
    after, last = listing.positions_at(store, [since - LATE_S, until + LATE_S])
    query = sa.exists().where(
        d.policy.in_(ELSEWHERE), d.seq > after, d.seq <= last, d.decided_at >= since, d.decided_at < until
    )
    with store.reading() as connection:
        return bool(connection.scalar(sa.select(query)))


def _pages(store: Store, since: float | None, until: float | None) -> Iterator[tuple[int, int]]:
    """Yield the ranges of positions, (after, upto), in which decisions of a time are read."""
    with store.reading() as connection:
        after = 0 if since is None else listing.position_at(connection, since - LATE_S)
        newest = sa.select(sa.func.max(t.decisions.c.seq))
        end = connection.scalar(newest) if until is None else listing.position_at(connection, until + LATE_S)
    yield from _split(after, end or 0)


def _split(after: int, upto: int) -> Iterator[tuple[int, int]]:
    """Yield a range of positions, (after, upto), as ranges of at most `PAGE`."""
    for begin in range(after, upto, PAGE):
        yield begin, min(begin + PAGE, upto)


def _read_audited(columns: Columns) -> dict[str, Any]:
    """Return the columns of an audit."""
    stored = _parse(columns["features"])
    return {
        "floor": np.where((columns["floor"] != 0.0) & (columns["share"] == 0.0), columns["floor"], nan),
        "context": [
            log_rows.read_context(texts, features)
            for texts, features in zip(columns["texts"], stored, strict=True)
        ],
    }


def _select(rule: RewardRule, spent: Sequence[str], *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the query of decisions, with these attributes of their cost, and with more columns."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    # Every returned value costs as much as its row, so texts with few distinct values are concatenated.
    few = reduce(lambda text, other: text + _APART + other, (d.mode, d.policy, _text(d.arms), d.drawn))
    tokens = sa.func.coalesce(_text(e.tokens_by_model), "{}").label("tokens_by_model")
    return (
        sa.select(
            *(d.seq, d.id.label("decision_id"), few.label("few")),
            # rows that were erased are taken for different questions
            sa.func.coalesce(d.question_digest, d.id).label("question"),
            sa.func.coalesce(d.episode_id, d.id).label("episode"),
            sa.func.coalesce(d.user_digest, d.id).label("user"),
            *(d.decided_at, d.version, d.propensity),
            *(sa.func.coalesce(e.status, "").label("status"), _text(x.metrics).label("metrics")),
            _text(x.turns).label("turns"),
            *([tokens] if rule.prices_tokens else ()),
            *(sa.func.coalesce(e[name], 0).label(name) for name in spent),
            *more,
        )
        .outerjoin(t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
    )


def _costs(columns: Columns, rule: RewardRule) -> dict[str, NDArray[np.float64]]:
    """Return the priced parts of the raw cost of a turn, tokens at today's prices."""
    costs = {name: columns[name].astype(np.float64) for name in list_priced(rule.cost)}
    if rule.prices_tokens:
        rows = zip(costs["usd"].tolist(), _parse(columns["tokens_by_model"]), strict=True)
        costs["usd"] = np.array([rule.usd_today(paid, tokens) for paid, tokens in rows])
    for i in np.flatnonzero(columns["turns"] != None):  # noqa: E711 - of an array
        cost, tokens, n = log_rows.read_spending(loads(columns["turns"][i]), Cost(), None)
        if rule.prices_tokens:
            cost = replace(cost, usd=rule.usd_today(cost.usd, tokens))
        for name, values in costs.items():
            values[i] = getattr(cost, name) / n
    return costs


def _text(column: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    return sa.cast(column, sa.Text)


def _decisions(columns: Columns, rule: RewardRule, selection: Selection) -> Decisions:
    n = len(columns["seq"])
    few = Categorical.from_column(list(columns["status"] + _APART + columns["few"]))
    draws = (text.split(_APART, 4) for text in few.values)
    draw = Categorical(
        [
            DrawKey(mode, policy, tuple(loads(arms) or ()), drawn, status)
            for status, mode, policy, arms, drawn in draws
        ],
        few.codes,
    )
    p, n_p = np.zeros(0), np.zeros(n, dtype=np.int64)
    if "probabilities" in columns:
        p, n_p = _shares(columns["probabilities"], columns["propensity"])
    not_read = np.broadcast_to(nan, n)

    def hash_column(name: str) -> Integers:
        return np.fromiter(map(hash, columns[name]), np.int64, n)

    return Decisions(
        seq=columns["seq"],
        at=columns["decided_at"],
        version=columns["version"],
        draw=draw,
        id=hash_column("decision_id"),
        question=hash_column("question"),
        episode=hash_column("episode"),
        user=hash_column("user"),
        propensity=columns["propensity"],
        p=p,
        n_p=n_p,
        reward=rewards(
            rule,
            _numbers(_parse(columns["metrics"]), tuple(rule.metrics), np.nan),
            _costs(columns, rule),
            draw.each(lambda key: key.failed),
        ),
        has_id=np.fromiter(map(selection.has_id, columns["decision_id"]), np.bool_, n),
        features=_numbers(
            (stored["sparse"] for stored in _parse(columns["features"])),
            tuple(selection.features),
            0.0,
        )
        if selection.features
        else {},
        settled=np.broadcast_to(np.True_, n),
        usd=not_read,
        seconds=not_read,
        floor=not_read,
    )


def _build_readable(columns: Columns, build: Callable[[Columns], Decisions]) -> Decisions:
    """Build decisions of columns, without the rows that cannot be read, which it counts."""
    documents = [columns[name] for name in _DOCUMENTS if name in columns]
    spent = [columns[name] for name in _SPENT if name in columns]
    try:
        if all(np.isfinite(numbers).all() for numbers in spent):
            return build(columns)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        pass  # each row is tried alone
    names = columns["decision_id"]

    def check(row: int) -> int:
        for texts in documents:
            loads(texts[row] or "null")
        if not all(np.isfinite(numbers[row]) for numbers in spent):
            raise ValueError("its cost is not finite")
        build({name: values[row : row + 1] for name, values in columns.items()})
        return row

    kept = [*log_rows.readable(range(len(names)), check, names.__getitem__)]
    found = build({name: values[kept] for name, values in columns.items()})
    return replace(found, unreadable=len(names) - len(kept))


_DOCUMENTS = ("metrics", "turns", "probabilities", "features", "texts", "tokens_by_model")
"""Columns of JSON that are read as texts."""


def _parse(texts: NDArray[Any]) -> Iterator[Any]:
    """Yield parsed JSON."""
    for start in range(0, len(texts), _FEW):
        yield from loads(f"[{','.join(texts[start : start + _FEW])}]")


def _shares(texts: NDArray[Any], propensity: Floats) -> tuple[Floats, Integers]:
    """Return the probabilities of all rows, and their number in each: 0 if the propensity is unknown."""
    p, n_p = array("d"), array("q")
    for shares, unknown in zip(_parse(texts), np.isnan(propensity).tolist(), strict=True):
        shares = () if unknown else shares
        p.extend(shares)
        n_p.append(len(shares))
    return np.array(p), np.array(n_p)


def _numbers(
    mappings: Iterable[Mapping[str, float]], names: Sequence[str], otherwise: float
) -> dict[str, Floats]:
    """Return a column of the numbers with each name; `otherwise` in rows that lack the name."""
    numbers = np.fromiter(
        (find_value(mapping, name, otherwise) for mapping in mappings for name in names), np.float64
    )
    return {name: numbers[i :: len(names)] for i, name in enumerate(names)}


def _fetch(connection: sa.Connection, query: sa.Select[Any]) -> Columns:
    """Return the columns of a query by name, bypassing the rows of SQLAlchemy."""
    read = _aggregate if connection.dialect.name == "postgresql" else _iterate
    found: Columns = {}
    for column, values in zip(query.selected_columns, read(connection, query), strict=True):
        is_number = isinstance(column.type, sa.Integer | sa.Double)
        found[column.name] = np.array(values, dtype=column.type.python_type if is_number else np.object_)
    return found


def _aggregate(connection: sa.Connection, query: sa.Select[Any]) -> Iterable[list[Any]]:
    """Have PostgreSQL return a JSON array for each column: its driver is slow for each row."""
    arrays = (_text(sa.func.json_agg(column)) for column in query.subquery().c)
    return [loads(array or "[]") for array in connection.execute(sa.select(*arrays)).one()]


def _iterate(connection: sa.Connection, query: sa.Select[Any]) -> Iterable[list[Any]]:
    """Fetch the tuples of SQLite in batches."""
    compiled = query.compile(connection, compile_kwargs={"render_postcompile": True})
    driver: Any = connection.connection.driver_connection
    columns: list[list[Any]] = [[] for _ in query.selected_columns]
    parameters = [compiled.params[name] for name in compiled.positiontup or ()]
    cursor = driver.execute(str(compiled), parameters)
    while rows := cursor.fetchmany(_FEW):
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.extend(values)
    return columns
