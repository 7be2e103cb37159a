"""Which decisions of a log are settled: their rewards are final.

An estimate must not depend on when it is made. Soon after a decision only quick feedback has arrived: if good
feedback is quicker than bad, or silence is a reward, the decisions that have a reward are selected by what
they earned. So estimates select decisions by age instead: those whose wait time has passed. Where hardly any
of many consecutive decisions still waits, as after a simulation, these are settled together, at once; the
join records how far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import LABELS, Mode
from armwise.feedback.log import Store, avoid_index, counting, listing
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.position import Position, read_head, read_position

TOGETHER, STRAGGLERS = 50, 0.01
"""Consecutive open decisions that may be settled together, and the share of them that may wait.

The minimum guards against a bias: a few decisions may all have been learned because their feedback was
quick, and quick feedback may be all good or all bad. Of many, those that wait move an estimate by at most
their share.
"""

LOOK_BACK, LOOK_AHEAD = 2 * TOGETHER, 1000
"""Open decisions before the next ones that count with them, and after them for whose feedback to hope."""

PAGE = 200
"""Decisions that are read at once."""

_EXPLORED = t.decisions.c.mode == Mode.EXPLORE, t.decisions.c.policy != LABELS


@dataclass(frozen=True, slots=True)
class Settled:
    """The part of a log that is settled, by the time of the log.

    Attributes:
        before: Time before which all decisions are settled, seconds since the epoch; infinite: all are.
        position: Position of the log up to which all decisions are settled.
        n_open: Number of explored decisions that are open; 0 also where they were not counted.
    """

    before: float = inf
    position: int = 0
    n_open: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the entire log is settled."""
        return self.before == inf


def read(store: Store, rule: RewardRule, *, counted: bool = False) -> Settled:
    """Return the settled part of a log as `find_settled`."""
    with store.reading() as connection:
        return find_settled(connection, rule, counted=counted)


def find_settled(connection: sa.Connection, rule: RewardRule, *, counted: bool = False) -> Settled:
    """Return the settled part of a log under a rule, as far as its join has read.

    Args:
        connection: A snapshot.
        rule: Defines the wait time.
        counted: Whether to count the open decisions, which takes about a microsecond for each.
    """
    position = read_position(connection, rule.join)
    values = _open_at(position, rule)
    values |= _bind_after(position.settled_seq, _find_closed(connection, values))
    before, first = connection.execute(_FIRST, values).one()
    if first is None:
        return Settled(position=read_head(connection))
    return Settled(before, first - 1, connection.scalar(_COUNT, values) or 0 if counted else 0)


def find_settled_together(connection: sa.Connection, rule: RewardRule, position: Position) -> int:
    """Return the position up to which decisions are settled together after a step of a join.

    Args:
        connection: The transaction of the step, which has written its examples.
        rule: How the log is joined.
        position: Where the join is, with the position up to which they were settled together before.
    """
    values = _open_at(position, rule) | {"join": rule.join, "statuses": rule.learned_statuses, "page": PAGE}
    settled, n, n_waiting = position.settled_seq, 0, 0
    closed = _find_closed(connection, values)
    before_last = connection.scalar(_LOOK_BACK, values | {"closed": closed, "upto": settled})
    after = settled if before_last is None else before_last
    while page := connection.execute(_PAGE, values | _bind_after(after, closed)).all():
        for seq, waits in page:
            n, n_waiting = n + 1, n_waiting + waits
            if n_waiting <= STRAGGLERS * n and n >= TOGETHER:
                settled = max(settled, seq)
        after = page[-1].seq
        if n_waiting > STRAGGLERS * (n + LOOK_AHEAD):
            break
    return settled


def _open_at(position: Position, rule: RewardRule) -> dict[str, Any]:
    """Return the values of the conditions of `_is_open` as far as a join has read."""
    at = {"at": position.log_at, "wait_s": rule.wait_s}
    return at | {"logged_since": counting.find_open_since(position.log_at, rule.wait_s)}


_AT, _WAIT_S, _LOGGED_SINCE = (
    sa.bindparam(name, type_=sa.Double) for name in ("at", "wait_s", "logged_since")
)


def _is_open(c: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions on the columns of a decision that its wait time is still running."""
    # The first is implied by the second, but this column has an index.
    return c.logged_at >= _LOGGED_SINCE, counting.is_open(c.decided_at + _WAIT_S, c.logged_at, _AT)


def _is_continued() -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions that a decision is a draw of which a turn can still get feedback."""
    d, turn = t.decisions.c, t.decisions.alias("turn").c
    continues = turn.mode == sa.literal_column(f"'{Mode.CONTINUED.value}'")  # as its index says it
    draws = sa.select(turn.draw_id).where(continues, *_is_open(turn))
    return d.draw_id == d.id, d.id.in_(draws)


_CONTINUED = _is_continued()


_PAGE_SIZE = sa.bindparam("page", type_=sa.Integer)


def _find_closed(connection: sa.Connection, values: Mapping[str, Any]) -> int:
    """Return the position up to which decisions were committed so long ago that all are closed."""
    return listing.position_at(connection, values["logged_since"], before=True)


def _bind_after(after: int, closed: int) -> dict[str, int]:
    """Return the positions in `_select_open`: those that open turns continue may be among the closed ones."""
    return {"after": max(after, closed), "continued_after": after}


def _select_open(*columns: sa.ColumnElement[Any]) -> tuple[sa.Select[Any], sa.Select[Any]]:
    """Return the explored decisions after a position that are open, and those that open turns continue."""
    d, some = t.decisions.c, sa.select(*columns).where(*_EXPLORED)
    after, continued_after = (
        sa.bindparam(name, type_=sa.BigInteger) for name in ("after", "continued_after")
    )
    continued = some.where(*_CONTINUED, avoid_index(d.seq) > continued_after)
    return some.where(d.seq > after, *_is_open(d)), continued


def _unite(*parts: sa.Select[Any]) -> sa.CTE:
    """Return the rows of queries that are each ordered and limited, so that none is read to its end."""
    return sa.union(*(sa.select(part.subquery()) for part in parts)).cte()


def _find_first() -> sa.Select[Any]:
    """Return the query of the least time and of the first position of open decisions after a position.

    The least time is found by its index, except among those that were committed in the last seconds: only
    these may have been made long before.
    """
    d = t.decisions.c
    after = avoid_index(d.seq) > sa.bindparam("after", type_=sa.BigInteger)
    some = sa.select(d.decided_at).where(*_EXPLORED, after)
    some = some.where(counting.is_open(d.decided_at + _WAIT_S, avoid_index(d.logged_at), _AT))
    by_time = some.where(d.decided_at >= _LOGGED_SINCE)
    late = some.where(d.logged_at >= _LOGGED_SINCE + _WAIT_S)
    _, continued = _select_open(d.decided_at)
    late = late.order_by(avoid_index(d.decided_at)).limit(1)
    times = _unite(late, *(part.order_by(d.decided_at).limit(1) for part in (by_time, continued)))
    seqs = _unite(*(part.order_by(d.seq).limit(1) for part in _select_open(d.seq)))
    return sa.select(*(sa.select(sa.func.min(found.c[0])).scalar_subquery() for found in (times, seqs)))


def _find_page() -> sa.Select[Any, Any]:
    """Return the query of the next open decisions, and whether each waits: 1, or 0."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    some = _unite(*(part.order_by(d.seq).limit(_PAGE_SIZE) for part in _select_open(d.seq, d.id)))
    learned = sa.exists().where(x.decision_id == some.c.id, x.join == sa.bindparam("join"))
    failed = sa.exists().where(
        e.decision_id == some.c.id, e.status.not_in(sa.bindparam("statuses", expanding=True))
    )
    waits = sa.case((learned | failed, 0), else_=1)
    return sa.select(some.c.seq, waits).order_by(some.c.seq).limit(_PAGE_SIZE)


def _find_look_back() -> sa.Select[Any]:
    """Return the query of the position before the last open decisions up to a position."""
    d = t.decisions.c
    closed, upto = (sa.bindparam(name, type_=sa.BigInteger) for name in ("closed", "upto"))
    is_open = counting.is_open(d.decided_at + _WAIT_S, avoid_index(d.logged_at), _AT)
    some = sa.select(d.seq).where(*_EXPLORED, d.seq > closed, d.seq <= upto, is_open)
    last = some.order_by(d.seq.desc()).limit(LOOK_BACK).subquery()
    return sa.select(sa.func.min(last.c.seq) - 1)


_FIRST, _PAGE, _LOOK_BACK = _find_first(), _find_page(), _find_look_back()

_COUNT = sa.select(sa.func.count()).select_from(sa.union(*_select_open(t.decisions.c.seq)).subquery())
