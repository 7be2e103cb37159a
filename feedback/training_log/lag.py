"""The lag of learning behind the log.

A version has learned the training log up to some example. The facts of the log before the one that completed
the next example, which it has not learned, count as applied; without a next example, all that were joined.
A rating that can still be corrected, or could until that fact, does not, and neither does what follows it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.join import find_correctable
from armwise.feedback.training_log.joiner import newest_epoch
from armwise.feedback.training_log.position import read_head, read_position

ABANDONED_S = 60.0
"""Time without progress after which a learner with unread facts counts as gone."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How much of the log a version has learned.

    Attributes:
        log_seq: Position of the newest fact.
        applied_seq: Position up to which facts are applied.
        since: When the first fact after that was written, seconds since the epoch; None: all are applied.
    """

    log_seq: int
    applied_seq: int
    since: float | None

    @property
    def facts(self) -> int:
        """Number of facts that wait to be applied.

        >>> Lag(log_seq=41, applied_seq=40, since=100.0).facts
        1
        """
        return self.log_seq - self.applied_seq

    def seconds(self, now: float) -> float:
        """Return the age of the oldest fact that waits to be applied, in seconds; 0: all are applied.

        >>> Lag(41, 40, 100.0).seconds(102.5), Lag(40, 40, None).seconds(102.5)
        (2.5, 0.0)
        """
        return 0.0 if self.since is None else max(0.0, now - self.since)


def find_applied(connection: sa.Connection, rule: RewardRule, examples_seq: int) -> int:
    """Return the position up to which facts are applied by a version that learned `examples_seq` examples."""
    joined_by = connection.scalar(_JOINED_BY, {"join": rule.join, "seq": examples_seq + 1})
    position = read_position(connection, rule.join)
    applied, log_at = position.log_seq, position.log_at
    if joined_by is not None:
        # as before that fact, which may come after the ratings that it makes final
        applied = int(joined_by) - 1
        log_at = connection.scalar(_LOG_AT, {"before": joined_by}) or 0.0
    correctable = find_correctable(connection, rule, log_at, examples_seq)
    return applied if correctable is None else min(applied, correctable - 1)


def measure_lag(store: Store, rule: RewardRule, examples_seq: int | None) -> Lag:
    """Return the lag of a version.

    Args:
        store: The log.
        rule: How its training log is joined.
        examples_seq: Examples that it has learned; None: before the first version.
    """
    with store.reading() as connection:
        head = read_head(connection)
        applied = 0 if examples_seq is None else find_applied(connection, rule, examples_seq)
        oldest = None if applied == head else connection.execute(_OLDEST, {"after": applied}).first()
    return Lag(head, applied, None if oldest is None else oldest.at)


class SuccessorCheck:
    """Checks from another process, such as a superseded learner, that the learner makes progress.

    Args:
        store: The log.
        timer: Returns monotonic seconds.
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
                unread = read_head(connection) - furthest
        except LogUnavailableError:
            self._seen = None  # no learner can read it
            return
        if not unread:
            self._seen = None
        elif self._seen != (epoch, total):
            self._seen, self._since = (epoch, total), self._timer()
        elif (for_s := self._timer() - self._since) > ABANDONED_S:
            raise SupersededError(
                f"{unread} facts are waiting for epoch {epoch} of {holder}, which has read none for "
                f"{for_s:.0f} s: "
                "restart a learner"
            )


def count_undecided(store: Store, wait_s: float) -> tuple[int, int]:
    """Return how much feedback waits for its decision to be logged, and how much has done so in vain.

    Args:
        store: The log.
        wait_s: Seconds within which the decision has to follow.
    """
    with store.reading() as connection:
        waiting, dangling = (
            connection.scalar(query, {"wait_s": wait_s}) or 0 for query in (_WAITING, _DANGLING)
        )
    return waiting, dangling


_JOINED_BY = sa.select(t.examples.c.joined_by).where(
    t.examples.c.join == sa.bindparam("join"), t.examples.c.seq == sa.bindparam("seq")
)

_LOG_AT = sa.select(
    sa.func.max(
        sa.union_all(
            *(
                sa.select(at.label("at")).where(
                    seq == sa.select(sa.func.max(seq)).where(seq < sa.bindparam("before")).scalar_subquery()
                )
                for seq, at in (
                    (t.decisions.c.seq, t.decisions.c.logged_at),
                    (t.executions.c.seq, t.executions.c.finished_at),
                    (t.feedback.c.seq, t.feedback.c.logged_at),
                    (t.observations.c.seq, t.observations.c.observed_at),
                    (t.ticks.c.seq, t.ticks.c.at),
                )
            )
        )
        .subquery()
        .c.at
    )
)
"""The time of the log before a position, by the last fact of each kind."""


def _find_first(seq: sa.ColumnElement[int], at: sa.ColumnElement[float]) -> sa.Select[tuple[int, float]]:
    first = sa.select(seq.label("seq"), at.label("at")).where(seq > sa.bindparam("after"))
    return sa.select(first.order_by(seq).limit(1).subquery())


_OLDEST = (
    sa.union_all(
        _find_first(t.decisions.c.seq, t.decisions.c.decided_at),
        _find_first(t.executions.c.seq, t.executions.c.finished_at),
        _find_first(t.feedback.c.seq, t.feedback.c.received_at),
        _find_first(t.observations.c.seq, t.observations.c.observed_at),
        _find_first(t.ticks.c.seq, t.ticks.c.at),
    )
    .order_by("seq")
    .limit(1)
)

_READ = sa.select(
    sa.func.coalesce(sa.func.sum(t.progress.c.log_seq), 0),
    sa.func.coalesce(sa.func.max(t.progress.c.log_seq), 0),
)

_UNDECIDED = sa.select(sa.func.count()).where(
    sa.text(
        "feedback.early"
    ),  # as the index says it; SQLAlchemy writes `early = 1`, which SQLite finds in no index
    ~sa.exists().where(t.decisions.c.id == t.feedback.c.decision_id),
)

_COUNTS_UNTIL = t.feedback.c.received_at + sa.bindparam("wait_s", type_=sa.Double)

_DANGLING = _UNDECIDED.where(t.log.c.at > _COUNTS_UNTIL)

_WAITING = _UNDECIDED.where(t.log.c.at <= _COUNTS_UNTIL)
