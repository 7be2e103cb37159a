"""Which decisions of a log are settled: their rewards are final.

An estimate must not depend on when it is made. Soon after a decision only quick feedback has arrived: if good
feedback is quicker than bad, or silence is a reward, the decisions that have a reward are selected by what
they earned. So estimates select decisions by age instead: those whose wait time has passed. Where of many
decisions hardly any still waits, as after a simulation, all are settled at once, and stay so.

The gate assumes the worst of decisions that wait (`armwise.feedback.ope.gate`): it reads `waiting`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import GRACE_S
from armwise.feedback.events import LABELS, Decision, Mode
from armwise.feedback.log import Store, rows, unindexed
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import Position, read_head, read_position


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
        return settled_at(connection, rule)


def settled_at(connection: sa.Connection, rule: RewardRule) -> Settled:
    """Return the settled part of a log under a rule, as far as its join has read."""
    position = read_position(connection, rule.join)
    values = {"idle_seq": position.idle_seq, **_open_at(position, rule)}
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


def _open_at(position: Position, rule: RewardRule) -> dict[str, float]:
    """Return the values of the conditions of `_is_open` as far as a join has read."""
    now = position.log_at - GRACE_S
    return {"now": now, "wait_s": rule.wait_s, "logged_since": now - rule.wait_s - GRACE_S}


_IDLE_SEQ = sa.bindparam("idle_seq", type_=sa.BigInteger)

_NOW, _WAIT_S, _LOGGED_SINCE = (
    sa.bindparam(name, type_=sa.Double) for name in ("now", "wait_s", "logged_since")
)


def _is_open(c: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions on the columns of a decision that its wait time is still running."""
    # The first is implied by the second, but this column has an index.
    return c.logged_at >= _LOGGED_SINCE, sa.or_(c.decided_at + _WAIT_S >= _NOW, c.logged_at >= _NOW)


def _continued() -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions that a decision is a draw of which a turn can still get feedback."""
    d, turn = t.decisions.c, t.decisions.alias("turn").c
    draws = sa.select(turn.draw_id).where(turn.mode == Mode.CONTINUED, *_is_open(turn))
    return d.draw_id == d.id, d.id.in_(draws)


_CONTINUED = _continued()


def _find_earliest() -> sa.Select[Any, Any, int]:
    """Return the query of the earliest time and position of open decisions, and of their number."""
    d, logged = t.decisions.c, t.decisions.alias("logged").c
    some = sa.select(d.decided_at, d.seq).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    # times and positions grow alike, except where a row is damaged
    first = sa.select(logged.seq).where(logged.logged_at >= _LOGGED_SINCE)
    first = first.order_by(logged.logged_at, logged.seq).limit(1)
    recent = d.seq >= first.scalar_subquery(), unindexed(d.seq) > _IDLE_SEQ
    still_open = sa.union(
        some.where(*recent, *_is_open(d)), some.where(d.seq > _IDLE_SEQ, *_CONTINUED)
    ).subquery()
    return sa.select(sa.func.min(still_open.c.decided_at), sa.func.min(still_open.c.seq), sa.func.count())


_EARLIEST = _find_earliest()
