"""Turns that were served in a period, row by row: what was drawn, what it cost and what it earned."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import ELSEWHERE, Cost, Mode, Status
from armwise.feedback.log import Store, listing, loads
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import settled
from armwise.feedback.training_log.rollups import NOT_SERVED

BATCH = 2000
"""Turns that are read at a time."""

LATE_S = 3600.0
"""How much later than it is made a decision may be committed, and by how much clocks may differ."""


@dataclass(frozen=True, slots=True)
class ServedTurn:
    """One decision and what came of it.

    Attributes:
        seq: Position of the decision in the log.
        decided_at: Seconds since the epoch.
        arms: The arms that could be drawn.
        drawn: The drawn arm.
        propensity: Probability with which it was drawn; NaN where none is known.
        explored: Whether it was drawn from the policy's distribution.
        failed: Whether the arm or the language model failed.
        cost: What the answer cost; None where there is none yet.
        reward: Reward by the rule; None without one, and where it may still change.
        settled: Whether it can change no more.
    """

    seq: int
    decided_at: float
    arms: tuple[str, ...]
    drawn: str
    propensity: float
    explored: bool
    failed: bool
    cost: Cost | None
    reward: float | None
    settled: bool = True


def between(store: Store, rule: RewardRule, since: float, until: float) -> Iterator[ServedTurn]:
    """Return the turns whose decisions were made in a period, in order of the log.

    Labels are none, nor are decisions that another system made or took part in.

    Args:
        store: The log.
        rule: Names the training log, and gives the rewards.
        since: Begin of the period, seconds since the epoch.
        until: End of it; a decision at this time is not part of it.

    Raises:
        LogUnavailableError: Try again later.
    """
    d, e, x = t.decisions.c, t.executions.c, t.examples.c
    query = (
        sa.select(
            *(d.seq, d.decided_at, sa.cast(d.arms, sa.Text), d.drawn, d.propensity, d.mode, d.cost_weight),
            *(e.status, e.tokens_by_model, sa.cast(x.metrics, sa.Text), x.turns, *log_rows.COST),
        )
        .outerjoin(t.executions, e.decision_id == d.id)
        .outerjoin(t.examples, (x.decision_id == d.id) & (x.join == rule.join))
        .where(d.policy.not_in(NOT_SERVED), d.decided_at >= since, d.decided_at < until)
        .order_by(d.seq)
        .limit(BATCH)
    )
    final = settled.read(store, rule).position
    return (_served_turn(row, rule, final) for row in pages(store, query, *_positions(store, since, until)))


def any_elsewhere(store: Store, since: float, until: float) -> bool:
    """Return whether another system made, or took part in, a decision of a period as that of `between`.

    Raises:
        LogUnavailableError: Try again later.
    """
    d = t.decisions.c
    after, last = _positions(store, since, until)
    query = sa.exists().where(
        d.policy.in_(ELSEWHERE), d.seq > after, d.seq <= last, d.decided_at >= since, d.decided_at < until
    )
    with store.reading() as connection:
        return bool(connection.scalar(sa.select(query)))


def _positions(store: Store, since: float, until: float) -> list[int]:
    """Return the position after which the decisions of a period begin, and one with which they have ended."""
    return listing.positions_at(store, [since - LATE_S, until + LATE_S])


def pages(store: Store, query: sa.Select[Any], after: int, last: int) -> Iterator[sa.Row[Any]]:
    """Yield the rows of a query on decisions by position, so that no page is read slower than the first.

    Args:
        store: The log.
        query: In the order of `seq`, which is one of its columns, and limited to `BATCH` rows.
        after: Position after which it begins.
        last: Position with which it ends.

    Raises:
        LogUnavailableError: Try again later.
    """
    seq = t.decisions.c.seq
    while after < last:
        with store.reading() as connection:
            rows = connection.execute(query.where(seq > after, seq <= last)).all()
        yield from rows
        if len(rows) < BATCH:
            return
        after = rows[-1].seq


def _served_turn(row: sa.Row[Any], rule: RewardRule, final: int) -> ServedTurn:
    seq, at, arms, drawn, propensity, mode, weight, status, tokens, metrics, turns, *raw = tuple(row)
    cost = None if status is None else Cost(*raw)
    reward = None
    if cost is not None and metrics is not None and seq <= final:
        failed = status != Status.OK
        reward = log_rows.reward_of(rule, turns, cost, tokens, metrics, weight, failed=failed)
    explored = mode == Mode.EXPLORE
    failed = status in (Status.ARM_FAILED, Status.LLM_FAILED, Status.LLM_TIMEOUT)
    return ServedTurn(
        *(
            seq,
            at,
            tuple(loads(arms)),
            drawn,
            nan if propensity is None else propensity,
            explored,
            failed,
            cost,
        ),
        reward=reward,
        settled=seq <= final,
    )
