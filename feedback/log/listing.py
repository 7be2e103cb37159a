"""Pages of the decisions that match a filter, newest first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from feedback.events import LABELS, Decision, Kind, Status
from feedback.log import tables as t
from feedback.log.backend import dumps
from feedback.log.rows import WITHOUT_FEATURES, decision_of
from feedback.log.store import Store

WINDOW = 100_000
"""Positions of the log that one page looks at: a rare condition takes several pages, and none takes long."""

RUNNING = "running"
"""Status of a decision that has no execution yet."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
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
        prefix: Prefix of the ids.
        apart: Text that ids must not contain.
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
        conditions: dict[str, Callable[[Any], sa.ColumnElement[bool]]] = {
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
        given = {name: getattr(self, name) for name in conditions}
        return [
            d.policy != LABELS,
            *(conditions[name](value) for name, value in given.items() if value is not None),
        ]


@dataclass(frozen=True, slots=True)
class ListedDecision:
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
    store: Store, wanted: DecisionFilter, limit: int, before: int | None = None
) -> tuple[list[ListedDecision], int]:
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
    query = (
        sa.select(*WITHOUT_FEATURES, d.seq, e.served, e.status)
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
    page = [_listed(row) for row in rows]
    if len(page) == limit:
        first = page[-1].seq
    return page, first if first > 1 else 0


def position_at(connection: sa.Connection, at: float, *, before: bool = False) -> int:
    """Return the position of the last decision that was committed by a time, or before it; 0 for none."""
    d = t.decisions.c
    until = d.logged_at < at if before else d.logged_at <= at
    query = sa.select(d.seq).where(until).order_by(d.logged_at.desc(), d.seq.desc()).limit(1)
    return int(connection.scalar(query) or 0)


def span(store: Store) -> tuple[float, float] | None:
    """Return when the first and the last decision were made, seconds since the epoch; None without any."""
    d = t.decisions.c
    ends = [sa.select(d.decided_at).order_by(order).limit(1) for order in (d.seq, d.seq.desc())]
    with store.reading() as connection:
        first, last = (connection.scalar(end) for end in ends)
    return None if first is None or last is None else (first, last)


def _listed(row: Sequence[Any]) -> ListedDecision:
    columns = tuple(row)
    seq, served, status = columns[-3:]
    return ListedDecision(decision_of(columns[:-3]), seq, served, None if status is None else Status(status))
