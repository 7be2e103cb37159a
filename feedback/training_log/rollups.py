"""Sums of the log by time and arm, which the learner maintains so that any window is read in milliseconds.

A fact is added once, to the stretch of time in which its decision was made: sums and positions are written
together, unless another process has moved the positions meanwhile. Sums of another reward rule are dropped.
Minutes are kept for two days, hours for ever. Rewards are added once decisions are settled (`settled`), in
the order of the decisions, so that a sum is never biased towards quick feedback.

A fact is also added to the stretch of the log that holds its decision. Stretches are short where the log
begins and grow with it, so that a curve from the first decision on has few points however long the log is.
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from orjson import loads

from armwise.feedback.arrays import Flags, Floats, Integers
from armwise.feedback.events import ARM_FAILURES, ELSEWHERE, LABELS, UNRECOVERED, Mode, Status
from armwise.feedback.log import Store, avoid_index, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.position import read_head, read_position
from armwise.feedback.training_log.settled import find_settled

rollups = t.rollups

COUNTS, SUMS = t.ROLLUP_COUNTS, t.ROLLUP_SUMS

NOT_SERVED = (LABELS, *ELSEWHERE)
"""Policies of decisions that are left out: the sums compare arms that were served here, above the floor."""

MINUTE, HOUR = 60, 3600
"""Widths of the stretches of time, in seconds."""

LOG = 0
"""Value of the column `width` for stretches of the log, whose lengths follow from where they start."""

SHORTEST = 16
"""Length in positions of the first stretches of the log."""

DOUBLING = 32
"""Number of stretches of the log for each doubling of its length."""

MINUTES_FOR_S = 2 * 24 * HOUR
"""Seconds for which minutes are kept, by the time of the log."""

BATCH = 5000
"""Positions that are read at a time."""

Key = tuple[int, int, str]
"""Start of a minute, start of a stretch of the log, drawn arm."""


def find_stretch(position: int) -> tuple[int, int]:
    """Return the start and the length of the stretch of the log that holds a position.

    >>> find_stretch(1), find_stretch(100), find_stretch(1024), find_stretch(1_000_000)
    ((0, 16), (96, 16), (1024, 32), (999424, 16384))
    """
    width = max(SHORTEST, ((1 << position.bit_length()) >> 1) // DOUBLING)
    return position // width * width, width


@dataclass(frozen=True, slots=True)
class Read:
    """How far the sums have read.

    Attributes:
        log_seq: Position up to which facts are counted.
        examples_seq: Position of the training log up to which rewards are counted.
        rewarded_seq: Position up to which decisions were settled, so that their rewards are counted.
        left: Number of facts, examples and settled positions that are still to be counted.
    """

    log_seq: int
    examples_seq: int
    rewarded_seq: int
    left: int


def digest_rule(rule: RewardRule) -> str:
    """Return the digest of the rule that determines the sums."""
    return hashlib.sha256(rule.model_dump_json().encode()).hexdigest()


def progress(store: Store, rule: RewardRule) -> Read:
    """Return how far the sums have read. Raises LogUnavailableError."""
    with store.reading() as connection:
        position = _position(connection, digest_rule(rule))
        return Read(*position, _count_left(position, _end(connection, rule)))


def advance(store: Store, rule: RewardRule, batch: int = BATCH) -> Read:
    """Add the next facts and rewards to the sums; return how far they have read.

    Args:
        store: The log.
        rule: Gives the rewards.
        batch: Largest number of positions to read.

    Raises:
        LogUnavailableError: Try again later; a fact is never added twice.
    """
    sums: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    digest = digest_rule(rule)
    with store.reading() as connection:
        before = log_seq, examples_seq, rewarded_seq = _position(connection, digest)
        end = head, n_examples, settled = _end(connection, rule)
        after = (
            min(head, log_seq + batch),
            min(n_examples, examples_seq + batch),
            max(rewarded_seq, min(settled, rewarded_seq + batch)),
        )
        if after == before:
            return Read(*after, _count_left(after, end))
        oldest = (connection.scalar(_AT) or 0.0) - MINUTES_FOR_S
        _add(sums, _decisions(connection, log_seq, after[0]))
        _add(sums, _executions(connection, log_seq, after[0]))
        _add(sums, _rewards(connection, rule, before, after))
    with store.writing() as connection:
        if before == (0, 0, 0) == _position(connection, digest):
            _clear(connection)
            connection.execute(_BEGIN, {"reader": digest, **dict.fromkeys(_POSITION, 0)})
        moved = {**_name_position("before", before), **_name_position("after", after)}
        if connection.execute(_MOVE, {"of": digest, **moved}).rowcount:  # else another has counted these
            rows = [*_rows(sums, MINUTE, oldest), *_rows(sums, HOUR, -math.inf), *_rows(sums, LOG, -math.inf)]
            if rows:
                connection.execute(_UPSERT, rows)
            connection.execute(_DROP_MINUTES, {"oldest": oldest})
    return Read(*after, _count_left(after, end))


def clear(store: Store) -> None:
    """Drop the sums; `advance` adds them up again from the first fact. Raises LogUnavailableError."""
    with store.writing() as connection:
        _clear(connection)


def count_decided_elsewhere(store: Store, since: float) -> int:
    """Return the number of decisions of the tap since a time, which the sums leave out.

    Args:
        store: The log.
        since: Seconds since the epoch, by the time of the log.
    """
    d = t.decisions.c
    query = sa.select(sa.func.count()).where(d.logged_at >= since, d.policy.in_(ELSEWHERE))
    with store.reading() as connection:
        return int(connection.scalar(query) or 0)


def first_start(store: Store) -> int | None:
    """Return the time of the first decision, seconds since the epoch; None: the log is empty.

    It is rounded down to the minute while minutes are kept, and to the hour later.
    """
    first = sa.select(rollups.c.width, sa.func.min(rollups.c.start)).where(
        rollups.c.width.in_((MINUTE, HOUR))
    )
    with store.reading() as connection:
        begins = {row[0]: int(row[1]) for row in connection.execute(first.group_by(rollups.c.width))}
    if HOUR not in begins:
        return begins.get(MINUTE)
    hour = begins[HOUR]
    return begins[MINUTE] if hour <= begins.get(MINUTE, 0) < hour + HOUR else hour


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of a window by slot and arm.

    Attributes:
        slot: Number of the slot from the start of the window, from 0; shape (n,).
        arm: Names of the arms, shape (n,).
        columns: Columns of `COUNTS` and `SUMS`, shape (n,), by name.
    """

    slot: Integers
    arm: NDArray[np.object_]
    columns: Mapping[str, Floats]

    def where(self, rows: Flags) -> "Sums":
        """Return the rows selected by flags of shape (n,)."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Sums(self.slot[rows], self.arm[rows], columns)

    def total(self) -> dict[str, float]:
        """Return the sum of each column."""
        return {name: float(values.sum()) for name, values in self.columns.items()}


def read(store: Store, since: int, until: int, step: int) -> Sums:
    """Return the sums of a window.

    Args:
        store: The log.
        since: Start of the window, seconds since the epoch; a multiple of the width.
        until: End of the window, exclusive.
        step: Seconds of a slot: a multiple of an hour, or of a minute within the last two days.

    Raises:
        LogUnavailableError: Try again later.
    """
    r = rollups.c
    slot = ((r.start - since) // step).label("slot")
    totals = (sa.func.sum(sa.cast(r[name], sa.Double)).label(name) for name in (*COUNTS, *SUMS))
    query = (
        sa.select(r.arm, slot, *totals)
        .where(r.width == (HOUR if step % HOUR == 0 else MINUTE), r.start >= since, r.start < until)
        .group_by(slot, r.arm)
        .order_by(slot, r.arm)
    )
    with store.reading() as connection:
        return _read_sums(connection.execute(query).all())


def _read_sums(rows: Sequence[sa.Row[Any]]) -> Sums:
    """Return the sums in rows of arm, slot, and all columns."""
    arm = np.array([row[0] for row in rows], dtype=np.object_)
    width = 1 + len(COUNTS) + len(SUMS)
    numbers = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), width).T
    return Sums(numbers[0].astype(np.int64), arm, dict(zip((*COUNTS, *SUMS), numbers[1:], strict=True)))


def by_position(store: Store) -> Sums:
    """Return the sums of the entire log by stretch; the slot of a row is the start of its stretch.

    Raises:
        LogUnavailableError: Try again later.
    """
    r = rollups.c
    query = (
        sa.select(r.arm, r.start, *(r[name] for name in (*COUNTS, *SUMS)))
        .where(r.width == LOG)
        .order_by(r.start, r.arm)
    )
    with store.reading() as connection:
        return _read_sums(connection.execute(query).all())


def newest_seconds(store: Store, limit: int) -> dict[str, list[float]]:
    """Return the seconds that the newest turns spent in the arm, and in the language model if it answered."""
    d, e = t.decisions.c, t.executions.c
    elsewhere = sa.exists().where(d.id == e.decision_id, d.policy.in_(ELSEWHERE))
    query = sa.select(e.retrieval_s, e.llm_s, e.answered).where(~elsewhere)
    query = query.order_by(e.seq.desc()).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    return {"arm": [row[0] for row in rows], "language model": [row[1] for row in rows if row[2]]}


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A decision with its reward.

    Attributes:
        arm: The drawn arm.
        propensity: With which probability it was drawn.
        reward: The reward.
        arms: The eligible arms.
        features: Named features of its question.
        seq: Position in the log.
    """

    arm: str
    propensity: float
    reward: float
    arms: Sequence[str]
    features: Mapping[str, float]
    seq: int = 0


def newest_rewards(
    store: Store, rule: RewardRule, limit: int, criteria: listing.DecisionFilter
) -> list[Rewarded]:
    """Return the settled ones of the newest examples that meet criteria.

    Args:
        store: The log.
        rule: Names the training log, and gives the rewards.
        limit: Number of the newest examples to read.
        criteria: Conditions on their decisions.

    Raises:
        LogUnavailableError: Try again later.
    """
    documents = (sa.cast(column, sa.Text) for column in (t.decisions.c.arms, t.decisions.c.features))
    about = *documents, log_rows.select_texts(t.decisions)
    query = _with_reward(*about).where(*criteria.conditions())
    with store.reading() as connection:
        query = query.where(
            t.examples.c.join == rule.join,
            t.examples.c.seq > read_position(connection, rule.join).examples_seq - limit,
            t.decisions.c.seq <= find_settled(connection, rule).position,
        )
        found = _iterate_rewarded(connection, rule, query)
        return [*log_rows.readable(found, _read_rewarded, lambda row: f"at {row[0][1]}")]


def _read_rewarded(row: tuple[tuple[Any, ...], float, float, list[Any]]) -> Rewarded:
    (_, seq, arm), propensity, reward, (arms, features, texts) = row
    seen = log_rows.read_context(texts, loads(features)).features
    return Rewarded(arm, propensity, reward, loads(arms), seen, seq)


class NewestDraw(NamedTuple):
    """An explored decision.

    Attributes:
        seq: Position in the log.
        arm: The drawn arm.
        features: Named features of the question.
        question: The question; empty if its text was erased.
        embedding: Dense features of the question; empty if the policy has none.
        id: Id of the decision.
    """

    seq: int
    arm: str
    features: Mapping[str, float]
    question: str = ""
    embedding: Sequence[float] = ()
    id: str = ""


def newest_draws(
    store: Store,
    limit: int,
    criteria: listing.DecisionFilter,
    upto: int | None = None,
    *,
    oldest: bool = False,
) -> list[NewestDraw]:
    """Return the newest explored decisions, with the features of their questions, the newest first.

    Args:
        store: The log.
        limit: Largest length of the list.
        criteria: Conditions on the decisions; the newest `listing.WINDOW_BY_REWARD` positions are read.
        upto: Position of the newest that counts; None: the end of the log.
        oldest: Whether to return the oldest of the log, the oldest first, in place of the newest.

    Raises:
        LogUnavailableError: Try again later.
    """
    d = t.decisions.c
    query = (
        sa.select(d.id, d.seq, d.drawn, sa.cast(d.features, sa.Text).label("features"))
        .add_columns(log_rows.select_texts(t.decisions))
        .where(d.mode == Mode.EXPLORE, d.policy.not_in(NOT_SERVED), *criteria.conditions())
        .order_by(d.seq if oldest else d.seq.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        last = read_head(connection) if upto is None else upto
        first = 0 if oldest else last - listing.WINDOW_BY_REWARD
        here = d.seq > first, d.seq <= min(last, first + listing.WINDOW_BY_REWARD)
        rows = connection.execute(query.where(*here)).all()

    def read(row: Any) -> NewestDraw:
        seen = log_rows.read_context(row.texts, loads(row.features))
        return NewestDraw(row.seq, row.drawn, seen.features, seen.question, seen.embedding, row.id)

    return [*log_rows.readable(rows, read)]


_KEY = ("width", "start", "arm")

_NAMES = (*_KEY, *COUNTS, *SUMS)

_UPSERT = sa.text(
    f"INSERT INTO rollups ({', '.join(_NAMES)}) VALUES ({', '.join(':' + name for name in _NAMES)}) "
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET "
    + ", ".join(f"{name} = rollups.{name} + excluded.{name}" for name in (*COUNTS, *SUMS))
)

_DRAW = (
    t.decisions.c.decided_at,
    t.decisions.c.seq,
    t.decisions.c.drawn,
)


_POSITION = ("log_seq", "examples_seq", "rewarded_seq")

Positions = tuple[int, int, int]
"""The first three attributes of `Read`."""


_p = t.progress.c

_READ = sa.select(*(_p[name] for name in _POSITION)).where(_p.reader == sa.bindparam("rule"))

_BEGIN = sa.insert(t.progress)

_MOVE = (
    sa.update(t.progress)
    .where(
        _p.reader == sa.bindparam("of"),
        *(_p[name] == sa.bindparam(f"{name}_before") for name in _POSITION),
    )
    .values({name: sa.bindparam(f"{name}_after") for name in _POSITION})
)

_DROP_MINUTES = sa.delete(rollups).where(
    rollups.c.width == MINUTE, rollups.c.start < sa.bindparam("oldest", type_=sa.Double)
)

_AT = sa.select(t.log.c.at)


def _name_position(when: str, position: Positions) -> dict[str, int]:
    """Return a position as parameters of `_MOVE`."""
    return {f"{name}_{when}": seq for name, seq in zip(_POSITION, position, strict=True)}


def _position(connection: sa.Connection, digest: str) -> Positions:
    row = connection.execute(_READ, {"rule": digest}).first()
    return (0, 0, 0) if row is None else (row.log_seq, row.examples_seq, row.rewarded_seq)


def _end(connection: sa.Connection, rule: RewardRule) -> Positions:
    """Return the last position of the log, that of the training log, and the last settled one."""
    examples_seq = read_position(connection, rule.join).examples_seq
    return read_head(connection), examples_seq, find_settled(connection, rule).position


def _count_left(position: Positions, end: Positions) -> int:
    """Return the number of facts, examples and settled positions that are still to be counted."""
    facts, examples, settled = (last - seq for last, seq in zip(end, position, strict=True))
    return facts + examples + max(0, settled)


def _clear(connection: sa.Connection) -> None:
    connection.execute(sa.delete(rollups))
    connection.execute(sa.delete(t.progress).where(_p.rewarded_seq.is_not(None)))


Addition = tuple[tuple[Any, ...], dict[str, float]]
"""The draw that a fact belongs to, and its contribution to the sums."""


_DECISIONS = sa.select(*_DRAW, t.decisions.c.mode).where(
    t.decisions.c.seq > sa.bindparam("after"),
    t.decisions.c.seq <= sa.bindparam("upto"),
    t.decisions.c.policy.not_in(NOT_SERVED),
)

_EXECUTIONS = (
    sa.select(
        *(t.decisions.c.id, t.executions.c.status, t.executions.c.answered),
        *(*log_rows.COST, *_DRAW),
    )
    .join_from(t.executions, t.decisions, t.decisions.c.id == t.executions.c.decision_id)
    .where(
        t.executions.c.seq > sa.bindparam("after"),
        t.executions.c.seq <= sa.bindparam("upto"),
        t.decisions.c.policy.not_in(NOT_SERVED),
    )
)


def _decisions(connection: sa.Connection, after: int, upto: int) -> Iterator[Addition]:
    for *draw, mode in connection.execute(_DECISIONS, {"after": after, "upto": upto}):
        yield tuple(draw), {"decisions": 1, "explored": mode == Mode.EXPLORE}


def _executions(connection: sa.Connection, after: int, upto: int) -> Iterator[Addition]:
    rows = connection.execute(_EXECUTIONS, {"after": after, "upto": upto})
    return log_rows.readable(rows, _read_execution)


def _read_execution(row: Any) -> Addition:
    _, status, answered, *rest = row
    costs = len(log_rows.COST)
    cost = log_rows.finite_cost(*rest[:costs])
    return tuple(rest[costs:]), {
        "finished": 1,
        "fell_back": status == Status.FELL_BACK,
        "failed": status in UNRECOVERED,
        "cancelled": status == Status.CANCELLED,
        "answers": bool(answered),
        "steps": cost.steps,
        "tokens": cost.prompt_tokens + cost.completion_tokens,
        "retrieval_s": cost.retrieval_s,
        "llm_s": cost.llm_s,
        "usd": cost.usd,
    }


def _rewards(
    connection: sa.Connection, rule: RewardRule, before: Positions, after: Positions
) -> Iterator[Addition]:
    """Yield the rewards between two positions: examples of newly settled decisions, and late examples."""
    (_, examples_before, settled_before), (_, examples_after, settled_after) = before, after
    upto = {"join": rule.join, "examples_upto": examples_after}
    if settled_after > settled_before:
        newly_settled = {"settled_after": settled_before, "settled_upto": settled_after, **upto}
        yield from _add_rewards(_iterate_rewarded(connection, rule, _NEWLY_SETTLED, newly_settled))
    if examples_after > examples_before:
        late = {"examples_after": examples_before, "settled_upto": settled_before, **upto}
        yield from _add_rewards(_iterate_rewarded(connection, rule, _LATE, late))


def _add_rewards(found: Iterable[tuple[tuple[Any, ...], float, float, list[Any]]]) -> Iterator[Addition]:
    for draw, _, reward, _ in found:
        yield draw, {"rewarded": 1, "reward": reward, "reward2": reward * reward}


def _with_reward(*more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the query of examples served here, for `_iterate_rewarded`, with the columns `more`."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    documents = (sa.cast(column, sa.Text) for column in (x.metrics, x.turns, e.tokens_by_model))
    return (
        sa.select(
            *(d.id, *_DRAW, d.propensity, d.cost_weight, e.status, *documents),
            *(*log_rows.COST, *more),
        )
        .join_from(t.examples, t.decisions, d.id == x.decision_id)
        .join(t.executions, e.decision_id == x.decision_id)
        .where(d.policy.not_in(NOT_SERVED))
    )


_JOIN = sa.bindparam("join", type_=sa.String)

_NEWLY_SETTLED = _with_reward().where(
    avoid_index(t.examples.c.join) == _JOIN,
    avoid_index(t.examples.c.seq) <= sa.bindparam("examples_upto"),
    t.decisions.c.seq > sa.bindparam("settled_after"),
    t.decisions.c.seq <= sa.bindparam("settled_upto"),
)

_LATE = _with_reward().where(
    t.examples.c.join == _JOIN,
    t.examples.c.seq > sa.bindparam("examples_after"),
    t.examples.c.seq <= sa.bindparam("examples_upto"),
    t.decisions.c.seq <= sa.bindparam("settled_upto"),
)


def _iterate_rewarded(
    connection: sa.Connection, rule: RewardRule, query: sa.Select[Any], part: Mapping[str, Any] = {}
) -> Iterator[tuple[tuple[Any, ...], float, float, list[Any]]]:
    """Yield the draw of examples that have a reward, its propensity, the reward, and the columns added."""

    def read(row: Any) -> tuple[tuple[Any, ...], float | None, float | None, list[Any]]:
        draw, outcome = row[1 : 1 + len(_DRAW)], row[1 + len(_DRAW) :]
        propensity, weight, status, values, turns, tokens, *rest = outcome
        cost, more = log_rows.finite_cost(*rest[: len(log_rows.COST)]), rest[len(log_rows.COST) :]
        spent = loads(turns or "null"), cost, loads(tokens or "null")
        r = log_rows.compute_reward(rule, *spent, values, weight, failed=status in ARM_FAILURES)
        return draw, propensity, r, more

    for draw, propensity, r, more in log_rows.readable(connection.execute(query, part), read):
        if r is not None and propensity is not None:
            yield tuple(draw), propensity, r, more


def _add(sums: dict[Key, dict[str, float]], additions: Iterable[Addition]) -> None:
    for (decided_at, seq, arm), added in additions:
        totals = sums[int(decided_at // MINUTE) * MINUTE, find_stretch(seq)[0], arm]
        for name, value in added.items():
            totals[name] += value


def _rows(sums: Mapping[Key, Mapping[str, float]], width: int, oldest: float) -> list[dict[str, Any]]:
    """Return the rows to add to the stretches of a width that began at `oldest` or later."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for (minute, stretch, arm), added in sums.items():
        if minute < oldest:
            continue
        key = stretch if width == LOG else minute // width * width, arm
        row = rows.setdefault(key, {**dict(zip(_KEY, (width, *key), strict=True)), **_ZERO})
        for name, value in added.items():
            row[name] += int(value) if name in COUNTS else value
    return [rows[key] for key in sorted(rows)]


_ZERO: dict[str, float] = {**dict.fromkeys(COUNTS, 0), **dict.fromkeys(SUMS, 0.0)}
