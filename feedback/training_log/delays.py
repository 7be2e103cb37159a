"""Delays of the feedback in a log, and the wait time that they suggest."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from armwise.feedback.arrays import Floats
from armwise.feedback.events import LABELS, FeedbackKind
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.settled import find_settled

NEWEST = 5000
"""Newest settled decisions whose values are read."""

ENOUGH = 100
"""Fewest values from which a wait time is suggested."""

COVERED = 0.99
"""Share of the values that come within the suggested wait time."""

WAIT_TIMES = {
    60.0: "PT1M",
    120.0: "PT2M",
    300.0: "PT5M",
    600.0: "PT10M",
    1800.0: "PT30M",
    3600.0: "PT1H",
    7200.0: "PT2H",
    21600.0: "PT6H",
    86400.0: "P1D",
    259200.0: "P3D",
    604800.0: "P7D",
    2592000.0: "P30D",
}
"""Wait times that are suggested, by seconds, as ISO 8601 durations."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays between decisions and the receipt of their feedback.

    Attributes:
        n: Number of values.
        median_s: Median delay in seconds; NaN without values.
        p99_s: 99th percentile of the delay in seconds; NaN without values.
        late: Share of the values that came after the wait time and are ignored, in [0, 1].
    """

    n: int
    median_s: float
    p99_s: float
    late: float

    @classmethod
    def from_seconds(cls, delays_s: Floats, wait_s: float) -> "Delays":
        """Return the statistics of delays in seconds, shape (n,).

        >>> Delays.from_seconds(np.array([1.0, 2.0, 90.0]), wait_s=60.0)
        Delays(n=3, median_s=2.0, p99_s=90.0, late=0.3333333333333333)
        """
        if not len(delays_s):
            return cls(0, np.nan, np.nan, 0.0)
        median, most = np.quantile(delays_s, (0.5, COVERED), method="inverted_cdf").tolist()
        return cls(len(delays_s), median, most, float((delays_s > wait_s).mean()))

    def suggest(self, beyond_s: float = 0.0) -> str | None:
        """Return the shortest of `WAIT_TIMES` that 99 % of the values meet, ISO 8601; None: too few values.

        Args:
            beyond_s: Seconds that a wait time has to exceed, such as the longest turn.

        >>> Delays(n=200, median_s=4.0, p99_s=61.0, late=0.0).suggest()
        'PT2M'
        """
        if self.n < ENOUGH:
            return None
        seconds: Sequence[float] = tuple(WAIT_TIMES)
        at = max(bisect_left(seconds, self.p99_s), bisect_right(seconds, beyond_s))
        return WAIT_TIMES[seconds[min(at, len(seconds) - 1)]]


def read(store: Store, rule: RewardRule, newest: int = NEWEST) -> Delays:
    """Return the delays of values on the newest settled decisions; of younger ones only quick values exist.

    Args:
        store: The log.
        rule: Declares the metrics, and the wait time.
        newest: Number of the newest settled decisions whose values are read.
    """
    d, f = t.decisions.c, t.feedback.c
    with store.reading() as connection:
        final = find_settled(connection, rule).position
        some = (
            sa.select(d.id, d.decided_at)
            .where(d.seq <= final, d.policy != LABELS)
            .order_by(d.seq.desc())
            .limit(newest)
            .subquery()
        )
        query = (
            sa.select(f.received_at - some.c.decided_at)
            .join_from(some, t.feedback, f.decision_id == some.c.id)
            .where(f.kind == FeedbackKind.VALUE, f.metric.in_(rule.metrics))
        )
        delays = np.array(connection.scalars(query).all(), dtype=np.float64)
    return Delays.from_seconds(np.maximum(delays, 0.0), rule.wait_s)
