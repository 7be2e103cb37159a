"""Prices of a budget: each row is computed from the row before it and the costs logged since."""

import math
from dataclasses import replace
from typing import Any, get_args

import sqlalchemy as sa

from armwise.feedback.budget import Budget, Price, Unit, mean_costs
from armwise.feedback.events import ELSEWHERE, LABELS, Mode
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import TokenPrices, usd_today
from armwise.feedback.training_log import confirm_epoch

KEPT = 1000
"""Newest prices of a budget that are kept; each decision records its price and costs itself."""

RECENT = 5000
"""Newest requests whose costs are computed again when the price of tokens changes."""


def latest(store: Store, budget: Budget) -> Price | None:
    """Return the newest price of a budget, if any."""
    with store.reading() as connection:
        row = operations.find_newest(connection, Operation.PRICE, budget.name)
    if row is None:
        return None
    price = Price(budget=budget.name, at=row.at, **row.document)
    return replace(price, arms={arm: (n, mean) for arm, (n, mean) in price.arms.items()})


def publish(store: Store, price: Price) -> None:
    """Write a price, and remove those of its budget that are older than `KEPT`.

    Raises:
        SupersededError: Another learner has taken over.
    """
    document = {name: getattr(price, name) for name in ("log_seq", "price", "debt", "arms", "epoch")}
    with store.writing() as connection:
        confirm_epoch(connection, price.epoch)
        operations.record(connection, Operation.PRICE, price.at, document, subject=price.budget)
        operations.prune(connection, Operation.PRICE, price.budget, KEPT)


def read_spending(store: Store, budget: Budget, after: int, limit: int) -> list[tuple[int, str, float]]:
    """Return position, drawn arm and cost of executions after a position, in order.

    Forced decisions, labels and decisions of the tap are left out: the policy here had no influence on them.
    """
    part = {"after": after, "limit": limit}
    with store.reading() as connection:
        rows = connection.execute(_FOLLOWING[budget.unit], part)
        return [(seq, arm, float(spent)) for seq, arm, spent in rows]


def reprice(store: Store, budget: Budget, upto: int, tokens: TokenPrices) -> dict[str, tuple[int, float]]:
    """Return the number of costs and their mean at today's prices, by arm, where these change its costs.

    Args:
        store: The log.
        budget: The budget; for one in steps the result is empty.
        upto: Position of the log up to which costs are read, the last `RECENT` of them.
        tokens: Prices of today.
    """
    if budget.unit != "usd" or not tokens:
        return {}
    e = t.executions.c
    query = _spending(budget.unit, e.tokens_by_model).where(e.seq <= upto)
    query = query.order_by(e.seq.desc()).limit(RECENT)
    with store.reading() as connection:
        rows = connection.execute(query).all()
    today = [
        (arm, usd_today(paid, log_rows.read_tokens(by_model), tokens)) for _, arm, paid, by_model in rows
    ]
    changed = {
        arm
        for (arm, usd), (_, _, paid, _) in zip(today, rows, strict=True)
        if not math.isclose(usd, paid, rel_tol=1e-9)
    }
    return mean_costs(budget, [(arm, usd) for arm, usd in reversed(today) if arm in changed])


def _spending(unit: Unit, *more: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the query of position, drawn arm and cost of executions, and of further columns."""
    d, e = t.decisions.c, t.executions.c
    return (
        sa.select(e.seq, d.drawn, e.usd if unit == "usd" else e.steps, *more)
        .join_from(t.executions, t.decisions, d.id == e.decision_id)
        .where(d.mode != Mode.FORCED, d.policy.not_in((LABELS, *ELSEWHERE)))
    )


def _following(unit: Unit) -> sa.Select[Any]:
    """Return the query of the first executions after a position."""
    seq = t.executions.c.seq
    query = _spending(unit).where(seq > sa.bindparam("after")).order_by(seq)
    return query.limit(sa.bindparam("limit", type_=sa.Integer))


_FOLLOWING: dict[Unit, sa.Select[Any]] = {unit: _following(unit) for unit in get_args(Unit)}
