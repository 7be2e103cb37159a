"""Every draw of a log with what came of it: what an audit of propensities reads.

The training log has the decisions that teach something. Which those are may depend on the drawn arm (one that
fails teaches nothing without a reward for failures), so draws are compared with their propensities on all
decisions instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan

import orjson
import sqlalchemy as sa

from feedback.events import LABELS, Cost, Decision, Kind, Mode, Status
from feedback.log import Store, listing
from feedback.log import rows as log_rows
from feedback.log import tables as t
from feedback.reward import NUMBERS, RewardRule
from feedback.training_log.served_turns import BATCH, LATE_S


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """One decision and what came of it.

    Attributes:
        decision: The decision; those that were forced, greedy or labels too.
        reward: Reward by the rule; None without one.
        failed: Whether the drawn arm or the language model failed.
        rewarded_at: When the first value for it was received, seconds since the epoch; NaN without one.
        user: Digest of the caller's user; None without one.
    """

    decision: Decision
    reward: float | None
    failed: bool
    rewarded_at: float = nan
    user: str | None = None


def read(
    store: Store, rule: RewardRule, since: float | None = None, until: float | None = None
) -> Iterator[DrawnTurn]:
    """Yield the decisions of a log in order, labels left out.

    Args:
        store: The log.
        rule: Names the training log, and gives the rewards.
        since: Only decisions of then or later, seconds since the epoch.
        until: Only decisions before then.

    Raises:
        LogUnavailableError: Try again later.
    """
    d, e, x, f = t.decisions.c, t.executions.c, t.examples.c, t.feedback.c
    # one look-up a decision, by the index of `decision_id`
    received = (
        sa.select(sa.func.min(f.received_at))
        .where(f.decision_id == d.id, f.kind == Kind.VALUE)
        .scalar_subquery()
    )
    query = (
        sa.select(
            *(*log_rows.DECISION, e.status, e.tokens_by_model, sa.cast(x.metrics, sa.Text), *log_rows.COST),
            *(received, d.user_digest, d.seq),
        )
        .outerjoin(t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
        .where(d.policy != LABELS, d.decided_at >= (since or 0.0), d.decided_at < (until or inf))
        .order_by(d.seq)
        .limit(BATCH)
    )
    first = -inf if since is None else since - LATE_S
    after = 0 if since is None else listing.positions_at(store, [first])[0]
    while True:
        # by position, so that a page of a long log is read no slower than the first one
        with store.reading() as connection:
            page = connection.execute(query.where(d.seq > after)).all()
        for row in page:
            yield _turn_of(tuple(row), rule)
        if len(page) < BATCH:
            return
        after = page[-1][-1]


def _turn_of(row: tuple[object, ...], rule: RewardRule) -> DrawnTurn:
    width = len(log_rows.DECISION)
    decision = log_rows.decision_of(row[:width])
    status, tokens, metrics, *rest = row[width:]
    *raw, received, user, _ = rest
    reward = None
    if status is not None and metrics is not None:
        cost = Cost(*raw)  # type: ignore[arg-type]
        total, values = rule.priced(cost, log_rows.tokens_of(tokens)), orjson.loads(str(metrics))  # type: ignore[arg-type]
        weight = decision.cost_weight
        reward = rule.formula(values, total, weight, failed=status != Status.OK, arithmetic=NUMBERS)
    failed = status not in (None, Status.OK, Status.CANCELLED)
    return DrawnTurn(
        decision,
        reward,
        failed,
        nan if received is None else float(received),  # type: ignore[arg-type]
        None if user is None else str(user),
    )


def explored(turn: DrawnTurn) -> bool:
    """Return whether the arm was drawn from a distribution."""
    return turn.decision.mode is Mode.EXPLORE and turn.decision.policy != LABELS
