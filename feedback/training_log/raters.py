"""Limit the share of each rater in the newest rated decisions that are learned.

A key or an address that has rated little so far may have at most `RewardRule.rater_share` of them; others at
most twice their share of the decisions learned before. The raters of a project together have the same limit,
so that several keys of one tenant teach no more than one. A decision whose values all exceed these limits
waits for its deadline, and is left out if they still do. Which ones are left out depends on the order of the
training log and on the raters, never on the values.

An example has its rater, and the raters of the decisions that were left out since the last rated example, in
order. Those that no rated example follows yet are part of the position of the join.
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

Rated = tuple[str, bool]
"""The rater of a decision, and whether the decision was learned."""


class RaterShares:
    """Shares of raters in the newest rated decisions of a training log, and in those learned before.

    Args:
        most: Share of the newest that every rater may have, in (0, 1]; with 1, raters are unlimited.
        rated: The last rated decisions, oldest first.
    """

    def __init__(self, most: float, rated: Iterable[Rated] = ()) -> None:
        self._most = most
        self._newest = deque[Rated]()
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


def read_shares(
    connection: sa.Connection, rule: RewardRule, examples_seq: int, left_out: Sequence[str]
) -> RaterShares:
    """Return the shares of raters at a position of a training log.

    Args:
        connection: A snapshot.
        rule: How the log is joined.
        examples_seq: Number of examples.
        left_out: Raters of the decisions that were left out since the last rated example.
    """
    return RaterShares(rule.rater_share, _read_rated(connection, rule.join, examples_seq, left_out))


def _read_rated(
    connection: sa.Connection, join: str, examples_seq: int, left_out: Sequence[str]
) -> list[Rated]:
    """Return at least the newest rated decisions that determine the shares, oldest first."""
    x = t.examples.c
    query = sa.select(x.rater, x.left_out).where(x.join == join, x.seq <= examples_seq, x.rater.is_not(None))
    rated = [(rater, False) for rater in reversed(left_out)]
    for rater, before in connection.execute(query.order_by(x.seq.desc()).limit(NEWEST + BEFORE)):
        rated += [(rater, True), *((each, False) for each in reversed(before or ()))]
    return rated[::-1]


def read_rated(store: Store, join: str) -> list[Rated]:
    """Return at least the newest `BEFORE` rated decisions of a training log, oldest first."""
    p = t.progress.c
    with store.reading() as connection:
        row = connection.execute(sa.select(p.examples_seq, p.left_out).where(p.reader == join)).first()
        return [] if row is None else _read_rated(connection, join, *row)


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
    """Return the counts of the newest rated decisions of a training log by rater, largest first."""
    newest = read_rated(store, join)[-BEFORE:]
    rated = Counter(rater for rater, _ in newest)
    left_out = Counter(rater for rater, learned in newest if not learned)
    return [RaterCount(name, n, left_out[name]) for name, n in rated.most_common()]


def foremost(store: Store, rule: RewardRule) -> str | None:
    """Return the most frequent rater among those that have used up their share, if any."""
    rated = read_rated(store, rule.join)
    newest = [rater for rater, _ in rated[1 - NEWEST :]]
    before = [rater for rater, learned in rated[: 1 - NEWEST] if learned]
    shares = RaterShares(rule.rater_share, ((rater, True) for rater in before + newest))
    return next((rater for rater, _ in Counter(newest).most_common() if not shares.has_room(rater)), None)
