"""Every draw of a log with what came of it: what an audit of propensities reads.

The training log has the decisions that teach something. Which those are may depend on the drawn arm (one that
fails teaches nothing without a reward for failures), so draws are compared with their propensities on all
decisions instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import LABELS, Cost, Decision, FeedbackKind, Mode, Status
from armwise.feedback.log import Store, listing
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.served_turns import BATCH, LATE_S, pages


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
    """Return the decisions of a log in order, labels left out.

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
        .where(f.decision_id == d.id, f.kind == FeedbackKind.VALUE)
        .scalar_subquery()
    )
    query = (
        sa.select(
            *(*log_rows.DECISION, e.status, e.tokens_by_model, sa.cast(x.metrics, sa.Text), x.turns),
            *(*log_rows.COST, received, d.user_digest, d.seq),
        )
        .outerjoin(t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
        .where(d.policy != LABELS, d.decided_at >= (since or 0.0), d.decided_at < (until or inf))
        .order_by(d.seq)
        .limit(BATCH)
    )
    after = 0 if since is None else listing.positions_at(store, [since - LATE_S])[0]
    return (_turn_of(tuple(row), rule) for row in pages(store, query, after, store.log_seq()))


def _turn_of(row: tuple[Any, ...], rule: RewardRule) -> DrawnTurn:
    width = len(log_rows.DECISION)
    decision = log_rows.decision_of(row[:width])
    status, tokens, metrics, turns, *raw, received, user, _ = row[width:]
    reward = None
    if status is not None and metrics is not None:
        weight, failed = decision.cost_weight, status != Status.OK
        reward = log_rows.reward_of(rule, turns, Cost(*raw), tokens, metrics, weight, failed=failed)
    failed = status not in (None, Status.OK, Status.CANCELLED)
    return DrawnTurn(decision, reward, failed, nan if received is None else float(received), user)


def explored(turn: DrawnTurn) -> bool:
    """Return whether the arm was drawn from a distribution."""
    return turn.decision.mode is Mode.EXPLORE and turn.decision.policy != LABELS
