"""The lag: how far learning is behind the log.

A version has learned the first examples of a training log. Facts between two completed examples carry no
reward, so they count as applied.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import GRACE_S
from armwise.feedback.errors import LogUnavailableError, SupersededError
from armwise.feedback.events import LABELS, Decision, Mode, Status
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import head_of, newest_epoch, position_of

ABANDONED_S = 60.0
"""Time without progress after which a learner with unread facts counts as gone."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How much of the log a version has learned.

    Attributes:
        log_seq: Position of the newest fact.
        applied_seq: Facts up to this position are applied.
        since: When the first fact after that was written, seconds since the epoch; None if there is none.
    """

    log_seq: int
    applied_seq: int
    since: float | None

    @property
    def facts(self) -> int:
        """Number of facts that are not applied.

        >>> Lag(log_seq=41, applied_seq=40, since=100.0).facts
        1
        """
        return self.log_seq - self.applied_seq

    def seconds(self, now: float) -> float:
        """Return the age of the oldest fact that is not applied; 0 if there is none.

        >>> Lag(41, 40, 100.0).seconds(102.5), Lag(40, 40, None).seconds(102.5)
        (2.5, 0.0)
        """
        return 0.0 if self.since is None else max(0.0, now - self.since)


def applied_by(connection: sa.Connection, join: str, examples_seq: int) -> int:
    """Return the position of the log up to which a version with so many examples of a join is applied."""
    x = t.examples.c
    following = sa.select(x.joined_by).where(x.join == join, x.seq == examples_seq + 1)
    joined_by = connection.scalar(following)
    return position_of(connection, join).log_seq if joined_by is None else int(joined_by) - 1


def lag_of(store: Store, join: str, examples_seq: int | None) -> Lag:
    """Return how far a version is behind.

    Args:
        store: The log.
        join: Digest of the rule by which its training log is joined.
        examples_seq: Examples that it has learned; None if there is no version yet.

    Raises:
        LogUnavailableError: Try again later.
    """
    with store.reading() as connection:
        head = head_of(connection)
        applied = 0 if examples_seq is None else applied_by(connection, join, examples_seq)
        oldest = connection.execute(_OLDEST, {"after": applied}).first()
    return Lag(head, applied, None if oldest is None else oldest.at)


class SuccessorCheck:
    """A health check of a superseded learner: does its successor make progress?

    Args:
        store: The log.
        timer: Monotonic seconds.
    """

    def __init__(self, store: Store, timer: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._timer = timer
        self._seen: tuple[int, int] | None = None  # the newest epoch, and facts read by all joins
        self._since = 0.0

    def check(self) -> None:
        """Check that a learner reads the log, with any join; call this every few seconds.

        Raises:
            SupersededError: Facts are unread, and no learner has read any for `ABANDONED_S`.
        """
        try:
            with self._store.reading() as connection:
                epoch, holder = newest_epoch(connection)
                total, furthest = connection.execute(_READ).one()
                unread = head_of(connection) - furthest
        except LogUnavailableError:
            self._seen = None  # no learner can read it
            return
        if not unread:
            self._seen = None
        elif self._seen != (epoch, total):
            self._seen, self._since = (epoch, total), self._timer()
        elif (for_s := self._timer() - self._since) > ABANDONED_S:
            raise SupersededError(
                f"{unread} facts wait for epoch {epoch} of {holder}, which has read none for {for_s:.0f} s: "
                "restart a learner"
            )


def dangling(store: Store, wait_s: float) -> int:
    """Return how many items of feedback refer to a decision that was not logged within the wait time.

    Raises:
        LogUnavailableError: Try again later.
    """
    with store.reading() as connection:
        return int(connection.scalar(_DANGLING, {"wait_s": wait_s}) or 0)


def _first_of(seq: sa.ColumnElement[int], at: sa.ColumnElement[float]) -> sa.Select[tuple[int, float]]:
    first = sa.select(seq.label("seq"), at.label("at")).where(seq > sa.bindparam("after"))
    return sa.select(first.order_by(seq).limit(1).subquery())


_OLDEST = (
    sa.union_all(
        _first_of(t.decisions.c.seq, t.decisions.c.decided_at),
        _first_of(t.executions.c.seq, t.executions.c.finished_at),
        _first_of(t.feedback.c.seq, t.feedback.c.received_at),
        _first_of(t.observations.c.seq, t.observations.c.observed_at),
        _first_of(t.ticks.c.seq, t.ticks.c.at),
    )
    .order_by("seq")
    .limit(1)
)

_READ = sa.select(
    sa.func.coalesce(sa.func.sum(t.progress.c.log_seq), 0),
    sa.func.coalesce(sa.func.max(t.progress.c.log_seq), 0),
)

_DANGLING = sa.select(sa.func.count()).where(
    sa.text(
        "feedback.early"
    ),  # as the index says it; SQLAlchemy writes `early = 1`, which SQLite finds in no index
    t.feedback.c.received_at + sa.bindparam("wait_s", type_=sa.Double) < t.log_head.c.at,
    ~sa.exists().where(t.decisions.c.id == t.feedback.c.decision_id),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Decisions that wait for feedback.

    Attributes:
        decisions: In the order in which they were made.
        settled: When the first one was made that waits and is not among them, seconds since the epoch;
            infinite where there is none.
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
) -> Waiting:
    """Return the decisions that still wait for feedback, as `first_waiting` finds them.

    Args:
        store: The log, which may be written meanwhile.
        rule: Defines when feedback is complete, and the wait time.
        upto: Position of the training log of the rule that was read last.
        since: Only decisions since this time, seconds since the epoch; None for all.
        most: Number of decisions to return at most, the first ones.
        canaries: Only decisions in which one of these versions took part; empty for all.
    """
    decision_by_id = dict[str, Decision]()
    with store.reading() as connection:
        for query in _waiting(connection, rule, upto, since):
            if canaries:
                query = query.where(t.decisions.c.candidate.in_(canaries))
            first = connection.execute(query.order_by(t.decisions.c.decided_at).limit(most + 1))
            decision_by_id |= {row[0]: rows.decision_of(row) for row in first}
    decisions = sorted(decision_by_id.values(), key=lambda decision: decision.decided_at)
    if len(decisions) <= most:
        return Waiting(tuple(decisions))
    settled = decisions[most].decided_at
    return Waiting(tuple(decision for decision in decisions[:most] if decision.decided_at < settled), settled)


def first_waiting(store: Store, rule: RewardRule, upto: int, since: float | None = None) -> float:
    """Return when the first decision was made that still waits for feedback; infinity if none does.

    A decision waits until it is learned, its arm has failed, or the log is past its deadline. One that was
    learned after `upto` was waiting there.

    Args:
        store: The log, which may be written meanwhile.
        rule: Defines when feedback is complete, and the wait time.
        upto: Position of the training log of the rule that was read last.
        since: Only decisions since this time, seconds since the epoch.
    """
    return waiting(store, rule, upto, since, most=0).settled


def _waiting(
    connection: sa.Connection, rule: RewardRule, upto: int, since: float | None
) -> tuple[sa.Select[Any], ...]:
    """Return queries of decisions that were learned after a position, and of those not learned yet.

    The last one is of draws that a turn continues which can still get feedback.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    some = sa.select(*rows.DECISION).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    if since is not None:
        some = some.where(d.decided_at >= since)
    learned = sa.exists().where(x.decision_id == d.id, x.join == rule.join)
    teaching = [Status.OK] if rule.failed is None else [Status.OK, Status.ARM_FAILED, Status.FELL_BACK]
    now = position_of(connection, rule.join).log_at - GRACE_S
    later = some.join_from(t.decisions, t.examples, x.decision_id == d.id)
    never = some.outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
    never = never.where(~learned, sa.or_(e.status.is_(None), e.status.in_(teaching)))

    def is_open(c: Any) -> Sequence[sa.ColumnElement[bool]]:
        # The first is implied by the second, but this column has an index.
        in_time = sa.or_(c.decided_at + rule.wait_s >= now, c.logged_at >= now)
        return c.logged_at >= now - rule.wait_s - GRACE_S, in_time

    turn = t.decisions.alias("turn").c
    continued = sa.select(turn.draw_id).where(turn.mode == Mode.CONTINUED, *is_open(turn))
    return (
        later.where(x.join == rule.join, x.seq > upto),
        never.where(*is_open(d)),
        never.where(d.draw_id == d.id, d.id.in_(continued)),
    )
