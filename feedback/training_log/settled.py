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
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import read_head, read_position


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
    position, d = read_position(connection, rule.join), t.decisions.c
    some = sa.select(d.decided_at, d.seq).where(
        d.mode == Mode.EXPLORE, d.policy != LABELS, d.seq > position.idle_seq
    )
    now = position.log_at - GRACE_S
    still_open = sa.union(
        some.where(*_is_open(d, rule, now)),
        some.where(d.draw_id == d.id, d.id.in_(_continued(rule, now))),
    ).subquery()
    earliest = sa.select(sa.func.min(still_open.c.decided_at), sa.func.min(still_open.c.seq), sa.func.count())
    before, first, n_open = connection.execute(earliest).one()
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
        for query in _waiting(connection, rule, upto, since):
            if canaries:
                query = query.where(t.decisions.c.candidate.in_(canaries))
            first = connection.execute(query.order_by(t.decisions.c.decided_at).limit(most + 1))
            decision_by_id |= {row[0]: rows.read_decision(row) for row in first}
    decisions = sorted(decision_by_id.values(), key=lambda decision: decision.decided_at)
    if len(decisions) <= most:
        return WaitingDecisions(tuple(decisions))
    settled = decisions[most].decided_at
    return WaitingDecisions(
        tuple(decision for decision in decisions[:most] if decision.decided_at < settled), settled
    )


def _waiting(
    connection: sa.Connection, rule: RewardRule, upto: int, since: float | None
) -> tuple[sa.Select[Any], ...]:
    """Return three queries of decisions: learned after a position, open, and continued.

    The third is of draws that a turn continues which can still get feedback.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    some = sa.select(*rows.DECISION).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    if since is not None:
        some = some.where(d.decided_at >= since)
    learned = sa.exists().where(x.decision_id == d.id, x.join == rule.join)
    now = read_position(connection, rule.join).log_at - GRACE_S
    later = some.join_from(t.decisions, t.examples, x.decision_id == d.id)
    never = some.outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
    never = never.where(~learned, sa.or_(e.status.is_(None), e.status.in_(rule.learned_statuses)))
    return (
        later.where(x.join == rule.join, x.seq > upto),
        never.where(*_is_open(d, rule, now)),
        never.where(d.draw_id == d.id, d.id.in_(_continued(rule, now))),
    )


def _is_open(c: Any, rule: RewardRule, now: float) -> Sequence[sa.ColumnElement[bool]]:
    """Return conditions on the columns of a decision that its wait time is still running."""
    # The first is implied by the second, but this column has an index.
    in_time = sa.or_(c.decided_at + rule.wait_s >= now, c.logged_at >= now)
    return c.logged_at >= now - rule.wait_s - GRACE_S, in_time


def _continued(rule: RewardRule, now: float) -> sa.Select[Any]:
    """Return a query of the draws of which a turn can still get feedback."""
    turn = t.decisions.alias("turn").c
    return sa.select(turn.draw_id).where(turn.mode == Mode.CONTINUED, *_is_open(turn, rule, now))
