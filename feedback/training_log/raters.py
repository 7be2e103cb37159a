"""What one rater may teach: no more of what is learned, at once, than twice its share of what came before.

A key or an address that has rated little so far teaches at most a quarter of the newest decisions with a
rating. One whose share grows may at most double it. A decision of which that leaves no value waits for its
deadline, and is left out if there is still no room. Which ones are follows from the order of the training
log and from who rated, never from values.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule

NEWEST = 20
"""Newest rated decisions among which a rater has at most its share."""

BEFORE = 1000
"""Learned ones before these, of which a rater's usual share is taken."""

GROWTH = 2.0
"""By which factor a rater may exceed its usual share."""

UNLIMITED = ""
"""Rater of what judges and operators rate, and of what came without a key from an unknown address."""


class RaterShares:
    """Shares of raters in the newest rated decisions of a training log, and in those learned before.

    Args:
        most: Share of the newest ones that a rater may teach, in (0, 1], whatever its usual share is. With 1,
            none is limited.
        rated: The last rated decisions, oldest first: the rater of each, and whether it was learned.
    """

    def __init__(self, most: float, rated: Iterable[tuple[str, bool]] = ()) -> None:
        self._most = most
        self._newest = deque[tuple[str, bool]]()
        self._before = deque[str]()
        self._learned, self._usual = Counter[str](), Counter[str]()
        for rater, learned in rated:
            self.add(rater, learned=learned)

    def has_room(self, rater: str) -> bool:
        """Return whether one more decision that this rater rated may be learned.

        Nobody is limited before `NEWEST` decisions are behind the newest ones: shares are not known yet.

        >>> shares = RaterShares(0.25, [("app", True)] * 50)
        >>> for _ in range(10):
        ...     shares.add("guest", learned=shares.has_room("guest"))
        >>> shares.has_room("guest"), shares.has_room("app")
        (False, True)
        """
        if rater == UNLIMITED or self._most >= 1.0 or len(self._before) < NEWEST:
            return True
        usual = self._usual[rater] / len(self._before)
        return self._learned[rater] + 1 <= NEWEST * max(self._most, GROWTH * usual)

    def add(self, rater: str, *, learned: bool) -> None:
        """Add the next rated decision; the oldest of the newest is of those before, if it was learned."""
        self._newest.append((rater, learned))
        if learned:
            self._learned[rater] += 1
        if len(self._newest) == NEWEST:
            oldest, was_learned = self._newest.popleft()
            if was_learned:
                _less(self._learned, oldest)
                self._before.append(oldest)
                self._usual[oldest] += 1
        if len(self._before) > BEFORE:
            _less(self._usual, self._before.popleft())


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def read_newest(connection: sa.Connection, join: str) -> tuple[list[tuple[str, bool]], int]:
    """Return the rated decisions that decide the shares, oldest first, and the number of the last one."""
    r = t.raters.c
    query = sa.select(r.seq, r.rater, r.learned).where(r.join == join).order_by(r.seq.desc())
    newest = connection.execute(query.limit(NEWEST - 1)).all()
    if not newest:
        return [], 0
    learned = query.where(r.seq < newest[-1].seq, r.learned)
    before = connection.execute(learned.limit(BEFORE)).all()
    return [(row.rater, row.learned) for row in (*before[::-1], *newest[::-1])], newest[0].seq


@dataclass(frozen=True, slots=True)
class RaterCount:
    """What of the newest rated decisions is of one rater.

    Attributes:
        rater: Public id of a key, or `address-` and a digest; empty for all that are not limited.
        rated: Decisions that it rated and that are learned or left out.
        left_out: Those of them that were not learned, since it had taught its share.
    """

    rater: str
    rated: int
    left_out: int


def newest_counts(store: Store, join: str) -> Sequence[RaterCount]:
    """Return who gave the newest ratings of a training log, who gave most first.

    Raises:
        LogUnavailableError: Try again later.
    """
    r = t.raters.c
    query = sa.select(r.rater, r.learned).where(r.join == join).order_by(r.seq.desc())
    with store.reading() as connection:
        newest = connection.execute(query.limit(BEFORE)).all()
    rated = Counter(rater for rater, _ in newest)
    left_out = Counter(rater for rater, learned in newest if not learned)
    return [RaterCount(name, n, left_out[name]) for name, n in rated.most_common()]


def foremost(store: Store, rule: RewardRule) -> str | None:
    """Return the rater who gave more of the newest ratings than it may teach; None for nobody.

    Raises:
        LogUnavailableError: Try again later.
    """
    with store.reading() as connection:
        rated, _ = read_newest(connection, rule.join)
    shares = RaterShares(rule.rater_share, ((rater, True) for rater, _ in rated))
    newest = Counter(rater for rater, _ in rated[1 - NEWEST :])
    return next((rater for rater, _ in newest.most_common() if not shares.has_room(rater)), None)
