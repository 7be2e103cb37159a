"""Statements that look up which decision of an episode awaits feedback.

Feedback on an episode needs the oldest decision that is open: neither learned nor closed. Decisions before it
are settled for good, since facts are final and the log's time only grows. A process remembers up to which
position they are, and passes over a settled decision once.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import Feedback
from armwise.feedback.log import counting
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import Database, Statement, compile_statements, dumps

REMEMBERED = 10_000
"""Episodes whose settled decisions are remembered."""

_ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
_ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)


class Episodes:
    """The statements about the episodes of a log, and how far each is settled. Thread-safe.

    Args:
        database: The database of the log.
        join: Digest of the training log in which decisions are looked up.
    """

    def __init__(self, database: Database, join: str) -> None:
        self._join = join
        self._settled: dict[str, int] = {}
        self._lock = threading.Lock()
        self._sql = compile_statements(database, _episode_statements)

    def oldest(self, names: Iterable[str]) -> Statement:
        """Return the statement that looks up episodes.

        A row is: name, position of the head of the log, 1 if the episode has a decision; then position,
        `decided_at`, `deadline` and `logged_at` of its oldest open decision; the erasure of its newest. NULL
        stands for what is missing.
        """
        positions = [[name, self._settled.get(name, 0)] for name in sorted(names)]
        return self._sql["oldest"], {"numbered": dumps(positions), "join": self._join}

    def remember(self, rows: Iterable[Sequence[Any]]) -> None:
        """Remember up to which position each episode is settled, from the rows of `oldest`."""
        with self._lock:
            for name, head, _, seq, *_ in rows:
                self._settled.pop(name, None)
                self._settled[name] = head if seq is None else seq - 1
            while len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]

    def awaiting(self, item: Feedback, oldest: int, at: float) -> Statement:
        """Return the statement that finds a row if a decision after the oldest open one awaits feedback.

        Args:
            item: Feedback on the episode.
            oldest: Position of the oldest open decision of the episode.
            at: The log's time at which the feedback is committed.
        """
        return self._sql["awaiting"], {
            "episode": item.episode_id,
            "oldest": oldest,
            "made_by": counting.find_latest(item),
            "received_at": item.received_at,
            "at": at,
            "join": self._join,
        }


def _episode_statements(database: Database) -> dict[str, sa.ClauseElement]:
    return {"oldest": _oldest(*database.read_numbered()), "awaiting": _awaiting()}


def _open(at: sa.ColumnElement[float]) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions that a decision is neither closed at a time of the log nor learned."""
    d, x = t.decisions.c, t.examples.c
    learned = (x.decision_id == d.id) & (x.join == sa.bindparam("join", type_=sa.String))
    # PostgreSQL expects this to be true of half of the rows, so it goes through them in order; for NOT EXISTS
    # it may read the entire table, and for IS NULL sort the entire episode
    false = sa.select(sa.false()).where(learned).correlate(t.decisions).scalar_subquery()
    return counting.is_open(d.deadline, d.logged_at, at), sa.func.coalesce(false, sa.true())


def _oldest(
    pairs: sa.FromClause, name: sa.ColumnElement[str], settled: sa.ColumnElement[int]
) -> sa.Select[Any]:
    d = t.decisions.c
    head, at = (sa.select(column).scalar_subquery() for column in (t.log.c.seq, t.log.c.at))
    of_episode = d.episode_id == name
    after = sa.case((settled <= head, settled), else_=_ZERO)  # an older log was restored
    any_decision = _first(sa.select(_ONE).where(of_episode))
    oldest = _first(sa.select(d.seq).where(of_episode, d.seq > after, *_open(at)).order_by(d.seq))
    newest = _first(sa.select(d.erased).where(of_episode).order_by(d.seq.desc()))
    looked_up = sa.select(
        name.label("name"),
        head.label("head"),
        any_decision.correlate(pairs).scalar_subquery().label("any_decision"),
        oldest.correlate(pairs).scalar_subquery().label("oldest"),
        newest.correlate(pairs).scalar_subquery().label("erased"),
    )
    f = looked_up.select_from(pairs).subquery()
    columns = f.c.name, f.c.head, f.c.any_decision, d.seq, d.decided_at, d.deadline, d.logged_at, f.c.erased
    return sa.select(*columns).outerjoin_from(f, t.decisions, d.seq == f.c.oldest)


def _awaiting() -> sa.Select[Any]:
    """Return the query that compares as `CommitBatch` does with the decisions that it has in memory."""
    d = t.decisions.c
    made_by, received_at, at = (
        sa.bindparam(key, type_=sa.Double) for key in ("made_by", "received_at", "at")
    )
    conditions = (
        d.episode_id == sa.bindparam("episode", type_=sa.String),
        d.seq > sa.bindparam("oldest", type_=sa.BigInteger),
        d.decided_at <= made_by,
        d.deadline >= received_at,
        *_open(at),
    )
    return _first(sa.select(_ONE).select_from(t.decisions).where(*conditions).order_by(d.seq))


def _first(query: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query of the first row; both numbers are literals, since the driver gets compiled text."""
    return query.limit(_ONE).offset(_ZERO)
