"""The first and the newest rated answers of a training log, to show what has changed since."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import NOT_SERVED, Mode
from armwise.feedback.log import Store, listing
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule

GROUP = 50
"""Most answers of the first and of the newest ones."""

READ = 10_000
"""Most rows at each end of the training log that are searched for rated answers."""


@dataclass(frozen=True, slots=True)
class Rated:
    """Some rated answers, each by an arm that was drawn.

    Attributes:
        arms: How many of them each arm has written, the most frequent first.
        good: How many have a rating in the better half of the range.
    """

    arms: Mapping[str, int]
    good: int

    @property
    def total(self) -> int:
        """How many answers there are."""
        return sum(self.arms.values())


def first_and_newest(
    store: Store, rule: RewardRule, metric: str, criteria: listing.DecisionFilter
) -> tuple[Rated, Rated]:
    """Return the first and the newest rated answers: `GROUP` each, or half of all if there are fewer."""
    x, d = t.examples.c, t.decisions.c
    rated = sa.cast(x.metrics, sa.Text).contains(f'"{metric}":', autoescape=True)
    query = (
        sa.select(d.drawn, sa.cast(x.metrics, sa.Text))
        .join_from(t.examples, t.decisions, d.id == x.decision_id)
        .where(x.join == rule.join, rated, d.mode == Mode.EXPLORE, d.policy.not_in(NOT_SERVED))
        .where(*criteria.conditions())
        .limit(2 * GROUP)
    )
    last = sa.select(sa.func.max(x.seq)).where(x.join == rule.join).scalar_subquery()
    with store.reading() as connection:
        first = connection.execute(query.where(x.seq <= READ).order_by(x.seq)).all()
        newest = connection.execute(query.where(x.seq > last - READ).order_by(x.seq.desc())).all()
    size = min(GROUP, len(first) // 2, len(newest) // 2)
    halfway = rule.metric(metric).value_at(0.5)
    best = rule.metric(metric).value_at(1.0)

    def read(rows: Sequence[Any]) -> Rated:
        values = [loads(metrics)[metric] for _, metrics in rows]
        good = sum((value - halfway) * (best - halfway) > 0 for value in values)
        return Rated(dict(Counter(arm for arm, _ in rows).most_common()), good)

    return read(first[:size]), read(newest[:size])
