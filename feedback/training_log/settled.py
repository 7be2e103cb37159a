"""Which decisions of a log are settled: their rewards are final.

An estimate must not depend on when it is made. Soon after a decision only quick feedback has arrived: if good
feedback is quicker than bad, or silence is a reward, the decisions that have a reward are selected by what
they earned. So estimates select decisions by age instead: those whose wait time has passed. Where of many
decisions up to some position hardly any still waits, as after a simulation, these are settled at once.

The gate assumes the worst of decisions that wait (`armwise.feedback.ope.gate`): it reads `waiting`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import LABELS, Decision, Mode
from armwise.feedback.log import Store, counting, rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.joiner import Position, read_head, read_position

TOGETHER, STRAGGLERS = 50, 0.01
"""Decisions within one wait time that count as settled together, and the share of them that may be open.

The minimum guards against a bias: a few decisions may all be closed because their feedback was quick, and
quick feedback may be all good or all bad. Of many, the open ones move an estimate by at most their share.
"""


@dataclass(frozen=True, slots=True)
class Settled:
    """The part of a log that is settled, by the time of the log.

    Attributes:
        before: Time before which all decisions are settled, seconds since the epoch; infinite: all are.
        position: Position of the log up to which all decisions are settled.
        n_open: Number of explored decisions that are open.
    """

    before: float = inf
    position: int = 0
    n_open: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the entire log is settled."""
        return self.before == inf


def read(store: Store, rule: RewardRule) -> Settled:
    """Return the settled part of a log under a rule. Raises LogUnavailableError."""
    with store.reading() as connection:
        return find_settled(connection, rule)


def find_settled(connection: sa.Connection, rule: RewardRule) -> Settled:
    """Return the settled part of a log under a rule, as far as its join has read."""
    position = read_position(connection, rule.join)
    values = {**_open_at(position, rule), "join": rule.join, "statuses": rule.learned_statuses}
    before, first, n_open = connection.execute(_EARLIEST, values).one()
    return Settled(before, first - 1, n_open) if n_open else Settled(position=read_head(connection))


@dataclass(frozen=True, slots=True)
class WaitingDecisions:
    """Decisions that wait for feedback, as read from a log.

    Attributes:
        decisions: The first that wait, in the order in which they were made.
        settled: Time of the first decision that waits beyond these, seconds since the epoch; infinite: these
            are all.
    """

    decisions: tuple[Decision, ...] = ()
    settled: float = inf


def waiting(
    store: Store,
    rule: RewardRule,
    upto: int,
    since: float | None,
    most: int,
    canaries: Collection[int] = (),
) -> WaitingDecisions:
    """Return the decisions that wait for feedback, as seen from position `upto` of the training log.

    A decision waits until it is learned, its arm has failed, or the log is past its deadline. One that was
    learned after `upto` still waits there.

    Args:
        store: The log, which may be written meanwhile.
        rule: Defines when feedback is complete, and the wait time.
        upto: Position of the training log of the rule that was read last.
        since: Time of the first decision to return, seconds since the epoch; None: all are returned.
        most: Largest number of decisions to return; the first are.
        canaries: Versions of which at least one took part in the decision; empty: any decision.
    """
    decision_by_id = dict[str, Decision]()
    with store.reading() as connection:
        values = _open_at(read_position(connection, rule.join), rule)
        for query in _waiting(rule, upto, since):
            if canaries:
                query = query.where(rows.CANDIDATE.in_(canaries))
            first = connection.execute(query.order_by(t.decisions.c.decided_at).limit(most + 1), values)
            decision_by_id |= {row[0]: rows.read_decision(row) for row in first}
    decisions = sorted(decision_by_id.values(), key=lambda decision: decision.decided_at)
    if len(decisions) <= most:
        return WaitingDecisions(tuple(decisions))
    settled = decisions[most].decided_at
    return WaitingDecisions(
        tuple(decision for decision in decisions[:most] if decision.decided_at < settled), settled
    )


def _waiting(rule: RewardRule, upto: int, since: float | None) -> tuple[sa.Select[Any], ...]:
    """Return three queries of decisions: learned after a position, open, and continued.

    The third is of draws that a turn continues which can still get feedback.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    some = sa.select(*rows.DECISION).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    if since is not None:
        some = some.where(d.decided_at >= since)
    learned = sa.exists().where(x.decision_id == d.id, x.join == rule.join)
    later = some.join_from(t.decisions, t.examples, x.decision_id == d.id)
    never = some.outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
    never = never.where(~learned, sa.or_(e.status.is_(None), e.status.in_(rule.learned_statuses)))
    return (
        later.where(x.join == rule.join, x.seq > upto),
        never.where(*_is_open(d)),
        never.where(*_CONTINUED),
    )


def _open_at(position: Position, rule: RewardRule) -> dict[str, Any]:
    """Return the values of the conditions of `_is_open` as far as a join has read."""
    at = {"at": position.log_at, "wait_s": rule.wait_s}
    return at | counting.bind_since(position.log_at, rule.wait_s)


_AT, _WAIT_S = (sa.bindparam(name, type_=sa.Double) for name in ("at", "wait_s"))


def _is_open(c: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions on the columns of a decision that its wait time is still running."""
    # The first is implied by the second, but this column has an index.
    return c.logged_at >= counting.LOGGED_SINCE, counting.is_open(c.decided_at + _WAIT_S, c.logged_at, _AT)


def _is_continued() -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions that a decision is a draw of which a turn can still get feedback."""
    d, turn = t.decisions.c, t.decisions.alias("turn").c
    draws = sa.select(turn.draw_id).where(turn.mode == Mode.CONTINUED, *_is_open(turn))
    return d.draw_id == d.id, d.id.in_(draws)


_CONTINUED = _is_continued()


def _find_earliest() -> sa.Select[Any, Any, int]:
    """Return the query of the earliest time and position of open decisions, and of their number.

    Decisions up to the last position at which at most `STRAGGLERS` of at least `TOGETHER` wait are left out.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    some = sa.select(d.decided_at, d.seq, d.id).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    first = counting.FIRST_OPEN.scalar_subquery()
    within = sa.union(some.where(d.seq >= first, *_is_open(d)), some.where(*_CONTINUED)).subquery()
    learned = sa.exists().where(x.decision_id == within.c.id, x.join == sa.bindparam("join"))
    failed = sa.exists().where(
        e.decision_id == within.c.id, e.status.not_in(sa.bindparam("statuses", expanding=True))
    )
    waits = sa.case((learned | failed, 0), else_=1)
    seq = within.c.seq
    counted = sa.select(
        within.c.decided_at,
        seq,
        sa.func.row_number().over(order_by=seq).label("n"),
        sa.func.sum(waits).over(order_by=seq).label("n_waiting"),
    ).cte()
    together = (counted.c.n >= TOGETHER) & (counted.c.n_waiting <= STRAGGLERS * counted.c.n)
    last = sa.select(sa.func.coalesce(sa.func.max(counted.c.seq), 0)).where(together).scalar_subquery()
    return sa.select(sa.func.min(counted.c.decided_at), sa.func.min(counted.c.seq), sa.func.count()).where(
        counted.c.seq > last
    )


_EARLIEST = _find_earliest()
