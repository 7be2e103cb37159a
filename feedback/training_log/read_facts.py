"""Read facts for the fold: those between two positions, and the open decisions at one."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import sqlalchemy as sa

from feedback.events import LABELS, Feedback, Kind, Mode, Status
from feedback.fold import DecisionFact, Executed, Fact, FeedbackFact, TickFact
from feedback.log import tables as t

Row = sa.Row[*tuple[Any, ...]]

_Numbered = list[tuple[int, Feedback]]
"""Feedback with its positions."""

LOOKED_UP = 10_000
"""Ids in one statement: databases limit the number of parameters."""

_DECIDED = (
    t.decisions.c.seq,
    t.decisions.c.id,
    t.decisions.c.decided_at,
    t.decisions.c.logged_at,
    t.decisions.c.mode,
    t.decisions.c.episode_id,
    t.decisions.c.deferred,
    t.decisions.c.policy,
)

_FEEDBACK = (
    t.feedback.c.seq,
    t.feedback.c.more,
    t.feedback.c.id,
    t.feedback.c.decision_id,
    t.feedback.c.metric,
    t.feedback.c.value,
    t.feedback.c.received_at,
    t.feedback.c.episode_id,
    t.feedback.c.kind,
)


def read_facts(connection: sa.Connection, after: int, upto: int) -> Iterator[Fact]:
    """Read the rows from position `after` + 1 to `upto`, and yield their facts in order."""
    e = t.executions.c

    def between(*columns: sa.ColumnElement[Any]) -> Sequence[Row]:
        seq = columns[0]
        query = sa.select(*columns).where(seq > after, seq <= upto).order_by(seq)
        return connection.execute(query).all()

    decided = between(*_DECIDED)
    earlier = _earlier(connection, decided, after, upto)
    executed = between(e.seq, e.decision_id, e.finished_at, e.status)
    feedback = between(*_FEEDBACK)
    observed = between(t.observations.c.seq, t.observations.c.observed_at)
    ticked = between(t.ticks.c.seq, t.ticks.c.at)
    # Facts are created lazily: thousands at once would take twice as long.
    return heapq.merge(
        (_decided(row, earlier.get(row[1], ())) for row in decided),
        (Executed(seq, name, at, Status(status)) for seq, name, at, status in executed),
        (FeedbackFact(row[0], _feedback(row), row[1]) for row in feedback),
        (TickFact(seq, at) for seq, at in observed),  # the join learns only the time from it
        (TickFact(seq, at) for seq, at in ticked),
        key=attrgetter("seq"),
    )


def read_unlearned(
    connection: sa.Connection, join: str, since: float, upto: int
) -> Iterator[tuple[DecisionFact, Status | None]]:
    """Read the explored decisions up to a position that are not in a training log, in any order.

    Args:
        connection: A snapshot.
        join: Digest of the training log.
        since: Only decisions committed at this time of the log or later.
        upto: The position.

    Yields:
        Each with its feedback up to the position, and its status if it was executed by then; an execution
        before its decision is ignored, as the fold does.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    learned = sa.exists().where(x.decision_id == d.id, x.join == join)
    query = (
        sa.select(*_DECIDED, e.status)
        .outerjoin(t.executions, (e.decision_id == d.id) & (e.seq > d.seq) & (e.seq <= upto))
        .where(d.logged_at >= since, d.seq <= upto, d.mode == Mode.EXPLORE, ~learned)
    )
    rows = connection.execute(query).all()
    feedback = _feedback_on(connection, rows, upto)
    for row in rows:
        status = None if row.status is None else Status(row.status)
        yield _decided(row, feedback.get(row.id, [])), status


def _decided(row: Row, earlier: Sequence[Feedback] = ()) -> DecisionFact:
    seq, name, at, logged_at, mode, episode_id, deferred, policy, *_ = row
    return DecisionFact(seq, name, at, logged_at, Mode(mode), episode_id, deferred, policy == LABELS, earlier)


def _feedback(row: Row) -> Feedback:
    """Return feedback without tags and event time, which the fold does not use."""
    _, _, name, decision_id, metric, value, received_at, episode_id, kind, *_ = row
    return Feedback(name, decision_id, metric, value, received_at, episode_id=episode_id, kind=Kind(kind))


def _feedback_on(connection: sa.Connection, decisions: Sequence[Row], upto: int) -> dict[str, list[Feedback]]:
    """Return the feedback up to a position that may count for each decision, in order."""
    f = t.feedback.c
    found: defaultdict[str, _Numbered] = defaultdict(list)
    for some in _chunks([row.id for row in decisions]):
        query = sa.select(*_FEEDBACK).where(f.decision_id.in_(some), f.seq <= upto)
        for row in connection.execute(query):
            found[row.decision_id].append((row.seq, _feedback(row)))
    episodes: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in decisions:
        if row.episode_id is not None:
            episodes[row.episode_id].append((row.id, row.decided_at))
    for some in _chunks(list(episodes)):
        query = sa.select(*_FEEDBACK).where(f.episode_id.in_(some), f.seq <= upto)
        for row in connection.execute(query):
            item = row.seq, _feedback(row)  # one for all: a long episode has many decisions
            always, received_at = row.kind != Kind.VALUE, row.received_at
            for decision_id, decided_at in episodes[row.episode_id]:
                if always or received_at >= decided_at:
                    found[decision_id].append(item)
    return _in_order(found)


def _in_order(found: Mapping[str, _Numbered]) -> dict[str, list[Feedback]]:
    return {name: [item for _, item in sorted(items, key=itemgetter(0))] for name, items in found.items()}


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + LOOKED_UP] for first in range(0, len(ids), LOOKED_UP))


def _earlier(
    connection: sa.Connection, decided: Sequence[Row], after: int, upto: int
) -> dict[str, list[Feedback]]:
    """Return the feedback that precedes its decision in the log and may count for it.

    That is for decisions between two positions. A value on an episode from before a decision belongs to
    earlier decisions, so that a conversation of many turns with many values is read in linear time.
    """
    if not decided:
        return {}
    d, f = t.decisions.c, t.feedback.c
    found: defaultdict[str, _Numbered] = defaultdict(list)
    ways: list[sa.ColumnElement[bool]] = [f.early & (f.decision_id == d.id)]
    if any(row.episode_id is not None for row in decided):
        counts = (f.kind != Kind.VALUE) | (f.received_at >= d.decided_at)
        ways.append((f.episode_id == d.episode_id) & counts)
    for way in ways:
        query = (
            sa.select(*_FEEDBACK, d.id.label("about"))
            .join_from(t.decisions, t.feedback, way)
            .where(d.seq > after, d.seq <= upto, f.seq < d.seq)
        )
        for row in connection.execute(query):
            found[row.about].append((row.seq, _feedback(row)))
    return _in_order(found)
