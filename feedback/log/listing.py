"""Pages of decisions, newest first, by what is asked of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from feedback.events import LABELS, Decision, Kind, Status
from feedback.log import tables as t
from feedback.log.database import dumps
from feedback.log.rows import DECISION, decision_of
from feedback.log.store import Store

WINDOW = 100_000
"""Positions of the log that one page looks at: a rare condition takes several pages, and none takes long."""

RUNNING = "running"
"""In the place of a status: there is no execution yet."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Conditions on decisions; None for any.

    Attributes:
        since: Decided then or later, seconds since the epoch.
        until: Decided before then.
        arm: The arm that was drawn.
        action: The id of the action that was chosen, where these came with the request.
        version: The version that decided, or was a canary then.
        status: How the execution ended, or `RUNNING`.
        metric: Feedback on the decision has a value of it.
        episode: The episode.
        key: Public id of a key that sent feedback on the decision.
        prefix: What ids begin with.
        apart: What ids do not contain.
    """

    since: float | None = None
    until: float | None = None
    arm: str | None = None
    action: str | None = None
    version: int | None = None
    status: str | None = None
    metric: str | None = None
    episode: str | None = None
    key: str | None = None
    prefix: str | None = None
    apart: str | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of a query over decisions and their executions."""
        d, e, f = t.decisions.c, t.executions.c, t.feedback.c
        fed = sa.exists().where(f.decision_id == d.id, f.kind == Kind.VALUE.value)
        asked: dict[str, Callable[[Any], sa.ColumnElement[bool]]] = {
            "since": lambda at: d.decided_at >= at,
            "until": lambda at: d.decided_at < at,
            "arm": lambda arm: d.drawn == arm,
            # as the databases keep a list of one id
            "action": lambda name: sa.cast(e.passages, sa.Text) == dumps([name]),
            "version": lambda number: (d.version == number) | (d.candidate == number),
            "status": lambda status: e.status.is_(None) if status == RUNNING else e.status == status,
            "metric": lambda name: fed.where(f.metric == name),
            "episode": lambda name: d.episode_id == name,
            "key": lambda key: fed.where(f.key == key),
            "prefix": lambda prefix: d.id.startswith(prefix, autoescape=True),
            "apart": lambda separator: ~d.id.contains(separator, autoescape=True),
        }
        given = {name: getattr(self, name) for name in asked}
        return [d.policy != LABELS, *(asked[name](one) for name, one in given.items() if one is not None)]


@dataclass(frozen=True, slots=True)
class Listed:
    """A decision of a page, without its features.

    Attributes:
        decision: The decision.
        seq: Position in the log.
        served: The arm that answered; None where none did.
        status: How its execution ended; None where it has none.
    """

    decision: Decision
    seq: int
    served: str | None
    status: Status | None


def decisions(
    store: Store, wanted: Wanted, limit: int, before: int | None = None
) -> tuple[list[Listed], int]:
    """Return decisions, newest first, and where the next page begins.

    Args:
        store: The log.
        wanted: Conditions.
        limit: Most decisions.
        before: Position that all are before; None for the newest.

    Returns:
        At most `limit` decisions, and the `before` of the next page; 0 where there is none.
    """
    d, e = t.decisions.c, t.executions.c
    ident, question, _, *rest = DECISION
    no_features = sa.literal('{"sparse": {}, "embedding": [], "arms": {}}')  # features are most of a row
    query = (
        sa.select(ident, question, no_features, *rest, d.seq, e.served, e.status)
        .outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
        .where(*wanted.conditions())
        .order_by(d.seq.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        head = connection.scalar(sa.select(t.log_head.c.seq)) or 0
        end = head + 1 if before is None else min(before, head + 1)
        first = max(1, end - WINDOW)
        rows = connection.execute(query.where(d.seq < end, d.seq >= first)).all()
    found = [_listed(row) for row in rows]
    if len(found) == limit:
        first = found[-1].seq
    return found, first if first > 1 else 0


def span(store: Store) -> tuple[float, float] | None:
    """Return when the first and the last decision were made, seconds since the epoch; None without any."""
    d = t.decisions.c
    ends = [sa.select(d.decided_at).order_by(order).limit(1) for order in (d.seq, d.seq.desc())]
    with store.reading() as connection:
        first, last = (connection.scalar(end) for end in ends)
    return None if first is None or last is None else (first, last)


def _listed(row: sa.Row[Any]) -> Listed:
    columns = tuple(row)
    seq, served, status = columns[-3:]
    return Listed(decision_of(columns[:-3]), seq, served, None if status is None else Status(status))
