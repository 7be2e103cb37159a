"""The summary of a log: one document that the learner writes now and then, and that every page reads.

facts --add_up--> sums by arm, and the course of the log; they continue from the last document
write_document    replaces the document; the caller adds what it computes anew, such as comparisons
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from armwise.feedback.events import ELSEWHERE, NOT_SERVED, UNRECOVERED, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.training_log.position import read_head, read_position

SHORTEST = 16
"""Positions in a stretch of the course of a short log; a power of two."""

MOST_STRETCHES = 200
"""Most stretches of the course: once there are more, each two become one."""

BATCH = 250_000
"""Positions that one query adds up."""

LARGEST = 1e15
"""Largest part of a cost that is added up: a row beyond it is damaged, and would hide all others."""

_d, _e, _f, _s = t.decisions.c, t.executions.c, t.feedback.c, t.summary.c

Sums = Mapping[str, float]
"""Sums of an arm: of its decisions as `decisions` and `explored`, of those that have ended as in `ENDED`."""


def _amount(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    return sa.case((column.between(0.0, LARGEST), sa.cast(column, sa.Double)), else_=0.0)


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[float]:
    return sa.case((condition, 1.0), else_=0.0)


ENDED: Mapping[str, sa.ColumnElement[float]] = {
    "finished": sa.literal(1.0, sa.Double),
    "fell_back": _count(_e.status == Status.FELL_BACK),
    "failed": _count(_e.status.in_(UNRECOVERED)),
    "cancelled": _count(_e.status == Status.CANCELLED),
    "answers": _count(_e.answered),
    "steps": _amount(_e.steps),
    "tokens": _amount(_e.prompt_tokens) + _amount(_e.completion_tokens),
    "retrieval_s": _amount(_e.retrieval_s),
    "llm_s": _amount(_e.llm_s),
    "usd": _amount(_e.usd),
}
"""What is added up over the turns that have ended."""


@dataclass(frozen=True, slots=True)
class LogSums:
    """Sums over the decisions that were made here, from the first one on.

    Attributes:
        log_seq: Position up to which facts are counted.
        arms: Sums of each arm by its name, by the arm that was drawn.
        width: Positions in a stretch of the course.
        course: In each stretch, the decisions of each arm, and how many of these were explored.
        elsewhere: Decisions that another system made or took part in, which nothing else counts.
    """

    log_seq: int = 0
    arms: Mapping[str, Sums] = field(default_factory=dict)
    width: int = SHORTEST
    course: Sequence[Mapping[str, tuple[int, int]]] = ()
    elsewhere: int = 0


def total(several: Iterable[Sums]) -> dict[str, float]:
    """Add up sums of several arms.

    >>> total([{"usd": 1.0}, {"usd": 0.5}])["usd"]
    1.5
    """
    found = defaultdict[str, float](float)
    for sums in several:
        for name, value in sums.items():
            found[name] += value
    return found


def add_up(store: Store, sums: LogSums) -> LogSums:
    """Continue sums up to the end of the log."""
    while True:
        with store.reading() as connection:
            head = read_head(connection)
            if sums.log_seq >= head:
                return sums
            sums = _add_batch(connection, sums, min(head, sums.log_seq + BATCH))


def _add_batch(connection: sa.Connection, sums: LogSums, upto: int) -> LogSums:
    arms = defaultdict[str, dict[str, float]](dict, {arm: dict(some) for arm, some in sums.arms.items()})
    width, course = sums.width, [dict(stretch) for stretch in sums.course]
    while (upto - 1) // width >= MOST_STRETCHES:
        width, course = 2 * width, [_merge(course[i : i + 2]) for i in range(0, len(course), 2)]
    course += [{} for _ in range((upto - 1) // width + 1 - len(course))]
    part = {"after": sums.log_seq, "upto": upto}
    for stretch, arm, n, explored in connection.execute(_DECISIONS, {**part, "width": width}):
        course[stretch] = _merge([course[stretch], {arm: (n, explored)}])
        arms[arm] = total([arms[arm], {"decisions": n, "explored": explored}])
    for arm, *values in connection.execute(_EXECUTIONS, part):
        arms[arm] = total([arms[arm], dict(zip(ENDED, values, strict=True))])
    elsewhere = sums.elsewhere + (connection.scalar(_ELSEWHERE, part) or 0)
    return LogSums(upto, arms, width, course, elsewhere)


def _merge(stretches: Sequence[Mapping[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    merged = dict[str, tuple[int, int]]()
    for stretch in stretches:
        for arm, (n, explored) in stretch.items():
            before = merged.get(arm, (0, 0))
            merged[arm] = before[0] + n, before[1] + explored
    return merged


def _between(seq: sa.Column[int]) -> sa.ColumnElement[bool]:
    return (seq > sa.bindparam("after")) & (seq <= sa.bindparam("upto"))


_STRETCH = ((_d.seq - 1) // sa.bindparam("width", type_=sa.BigInteger)).label("stretch")

_DECISIONS = (
    sa.select(
        _STRETCH, _d.drawn, sa.func.count(), sa.func.sum(sa.case((_d.mode == Mode.EXPLORE, 1), else_=0))
    )
    .where(_between(_d.seq), _d.policy.not_in(NOT_SERVED))
    .group_by("stretch", _d.drawn)
)

_EXECUTIONS = (
    sa.select(_d.drawn, *(sa.func.sum(value) for value in ENDED.values()))
    .join_from(t.executions, t.decisions, _d.id == _e.decision_id)
    .where(_between(_e.seq), _d.policy.not_in(NOT_SERVED))
    .group_by(_d.drawn)
)

_ELSEWHERE = sa.select(sa.func.count()).where(_between(_d.seq), _d.policy.in_(ELSEWHERE))


@dataclass(frozen=True, slots=True)
class NewestTurns:
    """The newest turns that have ended.

    Attributes:
        arms: Sums of each arm by its name, without `decisions` and `explored`.
        seconds: Median, 95th and 99th percentile of the seconds in a stage, by its name.
    """

    arms: Mapping[str, Sums] = field(default_factory=dict)
    seconds: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


def read_newest(store: Store, limit: int) -> NewestTurns:
    """Return sums and latencies of the newest turns that have ended."""
    query = (
        sa.select(_d.drawn, *ENDED.values())
        .join_from(t.executions, t.decisions, _d.id == _e.decision_id)
        .where(_d.policy.not_in(NOT_SERVED))
        .order_by(_e.seq.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        turns = [(arm, dict(zip(ENDED, values, strict=True))) for arm, *values in connection.execute(query)]
    arms = {name: total(turn for arm, turn in turns if arm == name) for name in {arm for arm, _ in turns}}
    seconds = {
        "arm": [turn["retrieval_s"] for _, turn in turns],
        "language model": [turn["llm_s"] for _, turn in turns if turn["answers"]],
    }
    shares = (0.5, 0.95, 0.99)
    return NewestTurns(
        arms, {stage: tuple(np.quantile(some, shares).tolist()) for stage, some in seconds.items() if some}
    )


# -- the document ----------------------------------------------------------------------------------


def read_document(store: Store) -> Mapping[str, Any] | None:
    """Return the newest summary; None: the learner has written none yet."""
    with store.reading() as connection:
        document: Mapping[str, Any] | None = connection.scalar(sa.select(_s.document))
    return document


def write_document(store: Store, document: Mapping[str, Any]) -> None:
    """Replace the summary."""
    with store.writing() as connection:
        connection.execute(sa.delete(t.summary))
        connection.execute(sa.insert(t.summary), {"number": 1, "document": document})


def clear(store: Store) -> None:
    """Drop the summary: the learner begins anew with the first fact."""
    with store.writing() as connection:
        connection.execute(sa.delete(t.summary))


def read_ends(store: Store, join: str) -> tuple[int, ...]:
    """Return the positions of the last feedback and the last fact, and how far a join has come."""
    with store.reading() as connection:
        position = read_position(connection, join)
        fed = connection.scalar(sa.select(sa.func.max(_f.seq))) or 0
        return fed, read_head(connection), position.log_seq, position.settled_seq
