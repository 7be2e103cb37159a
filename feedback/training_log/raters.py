"""Limit the share of each rater in the newest rated decisions that are learned.

A key or an address that has rated little so far may have at most `RewardRule.rater_share` of them; others at
most twice their share of the decisions learned before. The raters of a project together have the same limit,
so that several keys of one tenant teach no more than one. A decision whose values all exceed these limits
waits for its deadline, and is left out if they still do. Which ones are left out depends on the order of the
training log and on the raters, never on the values.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule

NEWEST = 20
"""Number of the newest rated decisions in which the share of a rater is limited."""

BEFORE = 1000
"""Number of learned decisions before these, over which the usual share of a rater is computed."""

GROWTH = 2.0
"""Factor by which a rater may exceed its usual share."""

PROJECT_END = "~"
"""End of the project with which a rater begins, if it is one of a project other than the default one."""

UNLIMITED = ""
"""Rater of judges, operators and checks."""


class RaterShares:
    """Shares of raters in the newest rated decisions of a training log, and in those learned before.

    Args:
        most: Share of the newest that every rater may have, in (0, 1]; with 1, raters are unlimited.
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
        """Return whether another decision of this rater may be learned.

        Limits begin once `NEWEST` decisions precede the newest ones: before, shares are unknown.

        >>> shares = RaterShares(0.25, [("app", True)] * 50)
        >>> for _ in range(10):
        ...     shares.add("guest", learned=shares.has_room("guest"))
        >>> shares.has_room("guest"), shares.has_room("app")
        (False, True)

        Keys of one project have the share of one rater, too:

        >>> shares = RaterShares(0.25, [("app", True)] * 50)
        >>> for n in range(10):
        ...     shares.add(f"acme~{n}", learned=shares.has_room(f"acme~{n}"))
        >>> shares.has_room("acme~new"), shares.has_room("other~new")
        (False, True)
        """
        if rater == UNLIMITED or self._most >= 1.0 or len(self._before) < NEWEST:
            return True
        return all(
            self._learned[name] + 1
            <= NEWEST * max(self._most, GROWTH * self._usual[name] / len(self._before))
            for name in _list_limited(rater)
        )

    def add(self, rater: str, *, learned: bool) -> None:
        """Add the next rated decision; the oldest of the newest moves to those before, if it was learned."""
        self._newest.append((rater, learned))
        if learned:
            self._learned.update(_list_limited(rater))
        if len(self._newest) == NEWEST:
            oldest, was_learned = self._newest.popleft()
            if was_learned:
                _less(self._learned, oldest)
                self._before.append(oldest)
                self._usual.update(_list_limited(oldest))
        if len(self._before) > BEFORE:
            _less(self._usual, self._before.popleft())


def _list_limited(rater: str) -> tuple[str, ...]:
    """Return what is limited of a rater: itself, and its project if it has one."""
    project, end, _ = rater.partition(PROJECT_END)
    return (rater, project + end) if end else (rater,)


def _less(counts: Counter[str], rater: str) -> None:
    for name in _list_limited(rater):
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


def count_rated(connection: sa.Connection, join: str) -> int:
    """Return the number of the ready decisions of a training log that have a rater."""
    last = sa.select(sa.func.max(t.raters.c.seq)).where(t.raters.c.join == join)
    return int(connection.scalar(last) or 0)


def read_shares(connection: sa.Connection, rule: RewardRule, n_rated: int) -> RaterShares:
    """Return the shares of raters after the first `n_rated` rated decisions of a training log."""
    return RaterShares(rule.rater_share, _read_newest(connection, rule.join, n_rated))


def _read_newest(connection: sa.Connection, join: str, n_rated: int) -> list[tuple[str, bool]]:
    """Return the rated decisions that determine the shares, oldest first."""
    r = t.raters.c
    query = sa.select(r.seq, r.rater, r.learned).where(r.join == join, r.seq <= n_rated)
    newest = connection.execute(query.order_by(r.seq.desc()).limit(NEWEST - 1)).all()
    if not newest:
        return []
    learned = query.where(r.seq < newest[-1].seq, r.learned).order_by(r.seq.desc())
    before = connection.execute(learned.limit(BEFORE)).all()
    return [(row.rater, row.learned) for row in (*before[::-1], *newest[::-1])]


@dataclass(frozen=True, slots=True)
class RaterCount:
    """Counts of a rater among the newest rated decisions.

    Attributes:
        rater: As in `Feedback.rater`; empty for unlimited raters.
        rated: Decisions that it rated, learned or left out.
        left_out: Decisions among these that were left out, since its share was used up.
    """

    rater: str
    rated: int
    left_out: int


def newest_counts(store: Store, join: str) -> Sequence[RaterCount]:
    """Return the counts of the newest rated decisions of a training log by rater, largest first.

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
    """Return the most frequent rater among those that have used up their share, if any.

    Raises:
        LogUnavailableError: Try again later.
    """
    with store.reading() as connection:
        rated = _read_newest(connection, rule.join, count_rated(connection, rule.join))
    shares = RaterShares(rule.rater_share, ((rater, True) for rater, _ in rated))
    newest = Counter(rater for rater, _ in rated[1 - NEWEST :])
    return next((rater for rater, _ in newest.most_common() if not shares.has_room(rater)), None)
