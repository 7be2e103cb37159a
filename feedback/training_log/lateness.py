"""Ratings that came too late to count, next to those in time: what they say may differ."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
import sqlalchemy as sa

from armwise.feedback.arrays import Flags, Floats
from armwise.feedback.events import LABELS, FeedbackKind, Mode
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule

ENOUGH = 20
"""Fewest late ratings that are compared."""

LEAST_SHIFT = 0.001
"""Part of the range of ratings by which a mean moves at least if late ones count too, to be worth saying."""

DIFFER_Z = 3.0
"""Standard errors by which late ratings differ from the others at least."""


@dataclass(frozen=True, slots=True, eq=False)
class RatingTimes:
    """The ratings of explored decisions, late ones too; each column has the shape (n,).

    Attributes:
        decided_at: Time of the decision, seconds since the epoch.
        received_at: Time of the rating, seconds since the epoch.
        late: Whether it came after the wait time.
        value: The rating, from 0, the worst, to 1.
    """

    decided_at: Floats
    received_at: Floats
    late: Flags
    value: Floats

    def differ(self, before: float) -> bool:
        """Return whether late ratings are better or worse than those in time, so that the mean would move.

        Args:
            before: Decisions and ratings before this time count, seconds since the epoch; so the answer
                stays the same when the log goes on.
        """
        kept = (self.decided_at < before) & (self.received_at < before)
        value, late = self.value[kept], self.late[kept]
        n, n_late = len(value), int(late.sum())
        if n_late < ENOUGH or n_late == n:
            return False
        apart = abs(float(value[late].mean() - value[~late].mean()))
        error = sqrt(float(value.var()) * (1.0 / n_late + 1.0 / (n - n_late)))
        return apart > DIFFER_Z * error and apart * n_late / n >= LEAST_SHIFT


def read(
    store: Store, rule: RewardRule, since: float | None = None, until: float | None = None
) -> RatingTimes | None:
    """Return the ratings of explored decisions of a time; None: too few of them came late to compare."""
    d, f = t.decisions.c, t.feedback.c
    query = (
        sa.select(d.decided_at, f.received_at, _LATE, f.metric, f.value)
        .join_from(t.feedback, t.decisions, f.decision_id == d.id)
        .where(f.kind == FeedbackKind.VALUE, f.metric.in_(rule.metrics), f.value.is_not(None))
        .where(d.mode == Mode.EXPLORE, d.policy != LABELS)
    )
    if since is not None:
        query = query.where(d.decided_at >= since)
    if until is not None:
        query = query.where(d.decided_at < until)
    late_ones = query.where(_LATE).with_only_columns(sa.literal(1)).limit(ENOUGH)
    with store.reading() as connection:
        # takes a ninth of the time of the rest
        if len(connection.execute(late_ones).all()) < ENOUGH:
            return None
        rows = connection.execute(query).all()
    decided_at, received_at, late, metrics, values = zip(*rows, strict=True)
    scaled = [rule.metrics[name].scale(value) for name, value in zip(metrics, values, strict=True)]
    decided, received, scaled_values = (
        np.array(column, dtype=np.float64) for column in (decided_at, received_at, scaled)
    )
    return RatingTimes(decided, received, np.array(late, dtype=np.bool_), scaled_values)


_LATE = t.feedback.c.received_at > t.decisions.c.deadline
