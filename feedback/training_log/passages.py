"""Ratings of single passages as labels: for the arms that found them, on decisions that are not learned."""

from collections import defaultdict
from collections.abc import Iterator
from math import fsum

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.events import PASSAGE, Example, FeedbackKind, Mode, Status
from armwise.feedback.log import Store, rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.raters import RaterShares

CHUNK = 1000
"""Decisions in one query."""


def read_rated_passages(store: Store, rule: RewardRule) -> Iterator[Example]:
    """Yield the decisions of which only passages were rated, with the mean of each metric over these.

    Ratings of passages that the decision did not find are left out: they may come before it.

    A rating of a passage says how well the arm has searched, and not how good the answer was. So a policy
    does not learn it; a router does, whose labels are read from the log. Raters have the shares that they
    have in a training log, see `armwise.feedback.training_log.raters`.
    """
    d, e, f, x = t.decisions.c, t.executions.c, t.feedback.c, t.examples.c
    learned = sa.exists().where(x.decision_id == d.id, x.join == rule.join)
    back = t.feedback.alias("back").c
    taken_back = sa.exists().where(back.id == f.id, back.kind == FeedbackKind.RETRACTION)
    query = (
        sa.select(f.seq, f.decision_id, f.metric, f.value, f.rater, rows.select_texts(t.feedback))
        .join(t.decisions, d.id == f.decision_id)
        .join(t.executions, e.decision_id == d.id)
        .where(f.kind == FeedbackKind.PASSAGE, f.metric.in_(rule.metrics), ~taken_back)
        .where(d.mode == Mode.EXPLORE, e.status == Status.OK, ~learned)
        .order_by(f.seq)
    )
    values: defaultdict[str, list[tuple[str, str | None, float]]] = defaultdict(list)
    shares, known = RaterShares(rule.rater_share), set[tuple[str, str | None]]()
    with store.reading() as connection:
        for row in connection.execute(query):
            is_within = row.rater is None or shares.has_room(row.rater)
            if row.rater is not None and (row.decision_id, row.rater) not in known:
                known.add((row.decision_id, row.rater))
                shares.add(row.rater, learned=is_within)
            if is_within:
                passage = loads(row.texts or "{}").get("content", {}).get(PASSAGE)  # None: it was erased
                values[row.decision_id].append((row.metric, passage, row.value))
    names = [*values]
    for first in range(0, len(names), CHUNK):
        some = names[first : first + CHUNK]
        with store.reading() as connection:
            decisions = rows.load_decisions(connection, some)
            executions = rows.load_executions(connection, some)
        for name in some:
            done, found = executions[name], defaultdict[str, list[float]](list)
            for metric, passage, value in values[name]:
                if passage in (None, *done.passages):
                    found[metric].append(value)
            means = {metric: fsum(numbers) / len(numbers) for metric, numbers in found.items()}
            if means:
                yield Example(0, decisions[name], done.cost, means, tokens_by_model=done.tokens_by_model)
