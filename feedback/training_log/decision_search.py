"""Find decisions of the traffic, newest first, a page at a time and with a bound on what a page reads.

A rare match in a long log may be far back. Facts are read backwards in stretches; where a page is not full
after `FURTHEST` of them, the search says up to where it has looked, and goes on from there when asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from feedback.events import Cost, Status
from feedback.log import Store, listing
from feedback.log import rows as log_rows
from feedback.log import tables as t
from feedback.reward import NUMBERS, RewardRule

STRETCH = 5000
"""Facts that are looked through at a time."""

FURTHEST = 50_000
"""Facts that a page looks through at most."""

FURTHEST_BY_REWARD = 10_000
"""The same where rewards are computed, which no index has."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on a decision; None for any.

    Attributes:
        arm: The drawn arm.
        action: The id of the chosen action, where these came with the request.
        version: The version that gave the distribution, or was a canary then.
        status: How it ended; `listing.RUNNING` where it has not.
        metric: Metric of feedback on the decision itself, not on its episode.
        key: Public id of a key that sent feedback on it.
        episode_id: Id of the episode.
        text: Part of the question, ignoring case.
        since: Committed then or later, seconds since the epoch.
        until: Committed by then.
        least: Smallest reward; a decision that is not learned has none.
        most: Largest reward.
        project: Prefix of the id, `<project>~`; empty for ids without a project.
    """

    arm: str | None = None
    action: str | None = None
    version: int | None = None
    status: str | None = None
    metric: str | None = None
    key: str | None = None
    episode_id: str | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None
    least: float | None = None
    most: float | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class FoundDecision:
    """One decision of a page.

    Attributes:
        seq: Position in the log.
        id: Id in the log.
        decided_at: Seconds since the epoch.
        question: First 300 characters of the question.
        drawn: The drawn arm.
        served: The arm that answered; None where none did.
        passages: Ids of what was returned.
        propensity: Propensity of the drawn arm.
        mode: How it was chosen.
        version: That gave the distribution.
        status: How it ended; None where it has not.
        cost: The raw cost vector; None where it has not ended.
        reward: None where it is not learned, or has no reward.
    """

    seq: int
    id: str
    decided_at: float
    question: str
    drawn: str
    served: str | None
    passages: tuple[str, ...]
    propensity: float
    mode: str
    version: int
    status: str | None
    cost: Cost | None
    reward: float | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of decisions.

    Attributes:
        decisions: Newest first.
        following: Position before which the next page begins; None at the beginning of the log.
        looked_through: Facts that were looked through, if the page is not full and more are left; else None.
    """

    decisions: Sequence[FoundDecision]
    following: int | None
    looked_through: int | None


def search(
    store: Store, rule: RewardRule, filters: Filters, before: int | None = None, limit: int = 50
) -> Page:
    """Return the newest decisions that match.

    Args:
        store: The log.
        rule: Names the training log, and gives the rewards.
        filters: Conditions on them.
        before: Only decisions before this position of the log.
        limit: How many at most.

    Raises:
        LogUnavailableError: Try again later.
    """
    page: list[FoundDecision] = []
    with store.reading() as connection:
        head = int(connection.scalar(sa.select(t.log_head.c.seq)) or 0)
        last = head if filters.until is None else listing.position_at(connection, filters.until)
        start = end = min(head + 1 if before is None else before, last + 1)
        first = 0 if filters.since is None else listing.position_at(connection, filters.since, before=True)
        by_reward = filters.least is not None or filters.most is not None
        furthest = FURTHEST_BY_REWARD if by_reward else FURTHEST
        while end > first + 1 and start - end < furthest:
            # an index has the decisions of an episode, so that nothing else is read
            low = first if filters.episode_id is not None else max(first, end - 1 - STRETCH)
            query = _query(rule, filters, low, end)
            if not by_reward:
                query = query.limit(limit - len(page))
            for row in connection.execute(query).mappings():
                decision = _found(row, rule)
                if _rewarded_as(decision, filters):
                    page.append(decision)
                    if len(page) == limit:
                        return Page(page, decision.seq, None)
            end = low + 1
    more = end > first + 1
    return Page(page, end if more else None, start - end if more else None)


def _query(rule: RewardRule, filters: Filters, low: int, end: int) -> sa.Select[Any]:
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    query = (
        sa.select(
            *(d.seq, d.id, d.decided_at, sa.func.substr(d.question, 1, 300).label("question")),
            *(d.drawn, d.propensity, d.mode, d.version, d.cost_weight, e.served, e.status),
            *log_rows.COST,
            sa.cast(x.metrics, sa.Text).label("metrics"),
            sa.cast(e.passages, sa.Text).label("passages"),
        )
        .outerjoin_from(t.decisions, t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
        .where(d.seq > low, d.seq < end)
        .order_by(d.seq.desc())
    )
    wanted = listing.DecisionFilter(
        arm=filters.arm,
        action=filters.action,
        version=filters.version,
        status=filters.status,
        metric=filters.metric,
        episode=filters.episode_id,
        key=filters.key,
        prefix=filters.project or None,
        apart="~" if filters.project == "" else None,
    )
    query = query.where(*wanted.conditions())
    if filters.text is not None:
        query = query.where(sa.func.lower(d.question).contains(filters.text.lower(), autoescape=True))
    return query


def _found(row: Mapping[Any, Any], rule: RewardRule) -> FoundDecision:
    ended = row["status"] is not None
    cost = Cost(*(row[column.name] for column in log_rows.COST)) if ended else None
    reward = None
    if cost is not None and row["metrics"] is not None:
        failed = row["status"] in (Status.ARM_FAILED, Status.FELL_BACK)
        values, total = orjson.loads(row["metrics"]), rule.cost.total(cost)
        reward = rule.formula(values, total, row["cost_weight"], failed=failed, arithmetic=NUMBERS)
    passages = tuple(orjson.loads(row["passages"] or "[]"))
    named = {
        name: row[name] for name in FoundDecision.__slots__ if name not in ("cost", "reward", "passages")
    }
    return FoundDecision(**named, cost=cost, reward=reward, passages=passages)


def _rewarded_as(decision: FoundDecision, filters: Filters) -> bool:
    low, high = filters.least, filters.most
    if low is None and high is None:
        return True
    return (
        decision.reward is not None
        and (low is None or decision.reward >= low)
        and (high is None or decision.reward <= high)
    )
