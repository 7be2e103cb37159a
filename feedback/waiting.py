"""Which decisions still wait for feedback, so that nobody knows yet whether they will be learned."""

from math import inf

import sqlalchemy as sa

from feedback import tables as t
from feedback.events import LABELS, Mode, Status
from feedback.fold import GRACE_S
from feedback.joins import position_of
from feedback.reward import RewardRule
from feedback.store import Store


def first_waiting(store: Store, rule: RewardRule, upto: int, since: float | None = None) -> float:
    """Return when the first decision was made that still waits for feedback; infinite where none does.

    A decision waits until it is learned, its arm has failed, or the log is past its deadline: then it will
    never be learned, and is no longer waited for. What was learned after `upto` was waiting there.

    Args:
        store: The log, which may be written meanwhile.
        rule: Says when feedback is complete, and for how long one waits.
        upto: Position of the training log of the rule that was read last.
        since: Only decisions of then or later, seconds since the epoch.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    first = sa.select(sa.func.min(d.decided_at)).where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    if since is not None:
        first = first.where(d.decided_at >= since)
    learned = sa.exists().where(x.decision_id == d.id, x.join == rule.join)
    teaching = [Status.OK] if rule.failed is None else [Status.OK, Status.ARM_FAILED, Status.FELL_BACK]
    with store.reading() as connection:
        now = position_of(connection, rule.join).log_at - GRACE_S
        later = first.join(t.examples, x.decision_id == d.id).where(x.join == rule.join, x.seq > upto)
        waiting = first.outerjoin(t.executions, e.decision_id == d.id).where(
            ~learned,
            # Says no more than the next line: but there is an index.
            d.logged_at >= now - rule.wait_s - GRACE_S,
            sa.or_(d.decided_at + rule.wait_s >= now, d.logged_at >= now),
            sa.or_(e.status.is_(None), e.status.in_(teaching)),
        )
        found = [connection.scalar(query) for query in (later, waiting)]
    return min((float(at) for at in found if at is not None), default=inf)


__all__ = ["first_waiting"]
