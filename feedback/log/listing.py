"""Pages of the decisions that match a filter, newest first, with a bound on the rows that a page scans.

A rare match in a long log may be far back: a page that is not full says how far it has scanned, and the next
page continues there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import ARM_FAILURES, LABELS, Cost, Decision, FeedbackKind, Status
from armwise.feedback.log import tables as t
from armwise.feedback.log.rows import (
    CANDIDATE,
    COST,
    WITHOUT_FEATURES,
    compute_reward,
    finite_cost,
    read_decision,
    read_tokens,
    readable,
    select_text,
)
from armwise.feedback.log.store import Store
from armwise.feedback.reward import RewardRule

ANSWER_CHARS = 240
"""Characters of an answer on a page of decisions."""

WINDOW = 100_000
"""Positions of the log that a page scans: a rare match takes more pages, each of them fast."""

WINDOW_BY_REWARD = 10_000
"""Positions that a page scans where rewards are compared: these are computed row by row."""

RUNNING = "running"
"""Status of a decision that has no execution yet."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Conditions on decisions; None: any value.

    Attributes:
        since: Earliest time of the decision, seconds since the epoch.
        until: Time before which it was made.
        logged_since: Earliest time of the commit; unlike `since`, it bounds the rows that are scanned.
        logged_until: Latest time of the commit; it bounds the rows that are scanned.
        arm: The drawn arm.
        version: The version that decided, or was the canary of the decision.
        status: How the execution ended, or `RUNNING`.
        metric: Metric of which feedback on the decision itself, rather than on its episode, has a value.
        episode: Id of the episode.
        key: Public id of a key that sent feedback on the decision.
        text: Part of the question, ignoring case.
        least: Smallest reward; only learned decisions have a reward.
        most: Largest reward.
        prefix: Prefix of the ids.
        excluded_id_part: Text whose presence in an id leaves the decision out.
    """

    since: float | None = None
    until: float | None = None
    logged_since: float | None = None
    logged_until: float | None = None
    arm: str | None = None
    version: int | None = None
    status: str | None = None
    metric: str | None = None
    episode: str | None = None
    key: str | None = None
    text: str | None = None
    least: float | None = None
    most: float | None = None
    prefix: str | None = None
    excluded_id_part: str | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        """Return the conditions of a query over decisions and executions: all except those on rewards."""
        d, e, f = t.decisions.c, t.executions.c, t.feedback.c
        fed = sa.exists().where(f.decision_id == d.id, f.kind == FeedbackKind.VALUE.value)
        conditions: dict[str, Callable[[Any], sa.ColumnElement[bool]]] = {
            "since": lambda at: d.decided_at >= at,
            "until": lambda at: d.decided_at < at,
            "logged_since": lambda at: d.logged_at >= at,
            "logged_until": lambda at: d.logged_at <= at,
            "arm": lambda arm: d.drawn == arm,
            "version": lambda number: (d.version == number) | (number == CANDIDATE),
            "status": lambda status: e.status.is_(None) if status == RUNNING else e.status == status,
            "metric": lambda name: fed.where(f.metric == name),
            "episode": lambda name: d.episode_id == name,
            "key": lambda key: fed.where(f.key == key),
            "text": lambda text: sa.func.lower(select_text(t.decisions, "question")).contains(
                text.lower(), autoescape=True
            ),
            "prefix": lambda prefix: d.id.startswith(prefix, autoescape=True),
            "excluded_id_part": lambda separator: ~d.id.contains(separator, autoescape=True),
        }
        given = {name: getattr(self, name) for name in conditions}
        return [
            d.policy != LABELS,
            *(conditions[name](value) for name, value in given.items() if value is not None),
        ]

    @property
    def by_reward(self) -> bool:
        """Whether rewards have to be computed."""
        return self.least is not None or self.most is not None

    def rewards(self, reward: float | None) -> bool:
        """Return whether a reward matches; a decision may have none.

        >>> one = DecisionFilter(least=0.5)
        >>> one.rewards(0.5), one.rewards(0.4), one.rewards(None), DecisionFilter().rewards(None)
        (True, False, False, True)
        """
        low, high = self.least, self.most
        if reward is None:
            return not self.by_reward
        return (low is None or reward >= low) and (high is None or reward <= high)


@dataclass(frozen=True, slots=True)
class ListedDecision:
    """A decision of a page; its features are left out.

    Attributes:
        decision: The decision.
        seq: Position in the log.
        served: The arm that answered, if one did.
        status: How its execution ended; None: it is running.
        cost: The priced sum of its cost, once it has ended.
        reward: The reward, once it is learned.
        raw_cost: The cost vector before prices, once it has ended.
        models: Language models that were asked, by the names of the configuration.
        answer: The first `ANSWER_CHARS` characters of the answer; empty: none was written, or it was erased.
    """

    decision: Decision
    seq: int
    served: str | None
    status: Status | None
    cost: float | None
    reward: float | None
    raw_cost: Cost | None
    models: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of decisions.

    Attributes:
        decisions: Newest first.
        following: Position before which the next page begins; None: this is the last page.
        looked_through: Positions that were scanned; None: the page is full, or the last.
    """

    decisions: Sequence[ListedDecision]
    following: int | None
    looked_through: int | None


def decisions(
    store: Store, rule: RewardRule, criteria: DecisionFilter, limit: int, before: int | None = None
) -> Page:
    """Return the newest decisions that match.

    Args:
        store: The log.
        rule: Names the training log, and prices costs and rewards.
        criteria: Conditions.
        limit: Largest length of the page.
        before: Position that all must be before.
    """
    d = t.decisions.c
    query = _outcomes(rule, criteria)
    if not criteria.by_reward:
        query = query.limit(limit)
    with store.reading() as connection:
        head = connection.scalar(sa.select(t.log.c.seq)) or 0
        last = head if criteria.logged_until is None else position_at(connection, criteria.logged_until)
        first = 1
        if criteria.logged_since is not None:
            first += position_at(connection, criteria.logged_since, before=True)
        end = last + 1 if before is None else min(before, last + 1)
        low = max(first, end - (WINDOW_BY_REWARD if criteria.by_reward else WINDOW))
        if criteria.episode is not None:  # an index has the decisions of an episode: nothing else is read
            low = first
        outcomes = dict[int, tuple[Any, ...]]()
        found = connection.execute(query.where(d.seq < end, d.seq >= low))
        for seq, reward, outcome in readable(found, partial(_read_outcome, rule=rule)):
            if criteria.rewards(reward):
                outcomes[seq] = outcome
            if len(outcomes) == limit:
                break
        full = len(outcomes) == limit
        if full:
            low = min(outcomes)
        rows = connection.execute(
            sa.select(
                *WITHOUT_FEATURES, d.seq, sa.func.substr(select_text(t.executions, "answer"), 1, ANSWER_CHARS)
            )
            .outerjoin_from(t.decisions, t.executions, t.executions.c.decision_id == d.id)
            .where(d.seq.in_(outcomes))
            .order_by(d.seq.desc())
        )

        def read_listed(row: Any) -> ListedDecision:
            *decision, seq, answer = row
            return ListedDecision(read_decision(decision), seq, *(*outcomes[seq], answer or ""))

        page = [*readable(rows, read_listed)]
    more = low > first
    return Page(page, low if more else None, end - low if more and not full else None)


def _outcomes(rule: RewardRule, criteria: DecisionFilter) -> sa.Select[Any]:
    """Return the query of the outcomes of the decisions that match, newest first."""
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    return (
        sa.select(
            *(d.id, d.seq, e.served, e.status, *COST),
            *(sa.cast(c, sa.Text).label(c.name) for c in (e.tokens_by_model, x.metrics, x.turns)),
        )
        .outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
        .where(*criteria.conditions())
        .order_by(d.seq.desc())
    )


def _read_outcome(row: Any, rule: RewardRule) -> tuple[int, float | None, tuple[Any, ...]]:
    """Return the position of a decision, its reward, and the fields of its outcome from `served` on."""
    if row.status is None:
        return row.seq, None, (row.served, None, None, None, None, ())
    cost = finite_cost(*(getattr(row, column.name) for column in COST))
    tokens_by_model, reward = read_tokens(loads(row.tokens_by_model or "null")), None
    if row.metrics is not None:
        spent, failed = (loads(row.turns or "null"), cost, tokens_by_model), row.status in ARM_FAILURES
        reward = compute_reward(rule, *spent, row.metrics, failed=failed)
    priced = rule.price(cost, tokens_by_model)
    return row.seq, reward, (row.served, Status(row.status), priced, reward, cost, tuple(tokens_by_model))


def position_at(connection: sa.Connection, at: float, *, before: bool = False) -> int:
    """Return the position of the last decision that was committed by a time, or `before` it; 0: none was."""
    return int(connection.scalar(_BEFORE if before else _UNTIL, {"at": at}) or 0)


_d = t.decisions.c

_at: sa.BindParameter[float] = sa.bindparam("at")

_BEFORE, _UNTIL = (
    # the log's time never falls, so that this is the order of the positions
    sa.select(_d.seq).where(condition).order_by(_d.logged_at.desc(), _d.seq.desc()).limit(1)
    for condition in (_d.logged_at < _at, _d.logged_at <= _at)
)


def positions_at(store: Store, times: Sequence[float]) -> list[int]:
    """Return for each time the position of the last decision that was committed by then; 0: none was."""
    with store.reading() as connection:
        return [position_at(connection, at) for at in times]


def span(store: Store) -> tuple[float, float] | None:
    """Return the times of the first and the last decision, seconds since the epoch, if there are any."""
    d = t.decisions.c
    ends = [sa.select(d.decided_at).order_by(order).limit(1) for order in (d.seq, d.seq.desc())]
    with store.reading() as connection:
        first, last = (connection.scalar(end) for end in ends)
    return None if first is None or last is None else (first, last)


STAGES_AT_ONCE = 2000
"""Executions of `stages` that are read at once."""


def stages(store: Store, served: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the id of each decision that an arm answered in stages, and these, in the order of the log."""
    e, after = t.executions.c, 0
    while True:
        query = sa.select(e.seq, e.decision_id, t.texts.c.document).join(t.texts, t.texts.c.seq == e.seq)
        query = query.where(e.seq > after, e.served == served)
        with store.reading() as connection:
            rows = connection.execute(query.order_by(e.seq).limit(STAGES_AT_ONCE)).all()
        if not rows:
            return
        yield from (
            (row.decision_id, tuple(row.document["stages"])) for row in rows if "stages" in row.document
        )
        after = rows[-1].seq


def find_time(store: Store, position: int) -> float | None:
    """Return when the first decision at a position or after it was made; None: there is none."""
    d = t.decisions.c
    query = sa.select(d.decided_at).where(d.seq >= position).order_by(d.seq).limit(1)
    with store.reading() as connection:
        found = connection.scalar(query)
    return None if found is None else float(found)


def has_rating(store: Store) -> bool:
    """Return whether any value of feedback was ever received."""
    query = sa.select(t.feedback.c.seq).where(t.feedback.c.kind == FeedbackKind.VALUE.value).limit(1)
    with store.reading() as connection:
        return connection.scalar(query) is not None
