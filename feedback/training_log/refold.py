"""Verify a training log: join the facts again, from the first one on, and compare."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa

from armwise.feedback.errors import LogGapError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log.joiner import join_facts
from armwise.feedback.training_log.position import Position, read_head, read_position

CHUNK = 2000
"""Facts that are joined at once."""


def find_difference(
    store: Store, rule: RewardRule, on_progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[Position, str]:
    """Join the log up to the position of its join, and compare the rows with the stored ones.

    What the stored rows up to some fact decide of later ones is used only once they were found to be equal.

    Returns:
        The recorded position of the join, and the first difference; empty: there is none.

    Raises:
        LogGapError: Facts are missing.
    """
    position, x = Position(0, 0.0, 0), t.examples.c
    with store.reading() as connection:
        recorded, head = read_position(connection, rule.join), read_head(connection)
        stored = connection.scalar(sa.select(sa.func.count()).where(x.join == rule.join))
    if recorded.log_seq > head:
        raise LogGapError(f"the log ends at {head}, but was read up to {recorded.log_seq} before")
    while position.log_seq < recorded.log_seq:
        with store.reading() as connection:
            end = min(position.log_seq + CHUNK, recorded.log_seq)
            position, examples = join_facts(connection, rule, position, end)
            different = _compare(connection, rule.join, examples)
        on_progress(end, recorded.log_seq)
        if different:
            return recorded, different
    if stored != position.examples_seq:
        return recorded, f"there are {stored} rows of examples, and the facts give {position.examples_seq}"
    if (expected := replace(position, settled_seq=recorded.settled_seq)) != recorded:
        return recorded, f"the join is recorded at {recorded}, and the facts give {expected}"
    if position.chain != recorded.chain:
        return recorded, "its facts are not those that were joined: run `armwise verify --log`"
    return recorded, ""


def require_gapless(store: Store) -> None:
    """Check that every position of the log has its fact. Raises LogGapError."""
    with store.reading() as connection:
        head = read_head(connection)
        tables = (t.decisions, t.executions, t.observations, t.feedback, t.ticks)
        counts = (connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables)
        n_facts = sum(count or 0 for count in counts)
    if n_facts != head:
        raise LogGapError(f"the log ends at position {head:,} but has {n_facts:,} facts: rows are missing")


def _compare(connection: sa.Connection, join: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first difference of the stored examples from consecutive expected ones; empty: none."""
    if not rows:
        return ""
    x = t.examples.c
    between = x.seq.between(rows[0]["seq"], rows[-1]["seq"])
    query = sa.select(*(x[name] for name in rows[0])).where(x.join == join, between).order_by(x.seq)
    for row, found in zip_longest(rows, map(dict, connection.execute(query).mappings())):
        if row != found:
            there = "missing" if found is None or found["seq"] != row["seq"] else found
            return f"row {row['seq']} of examples is {there}, and the facts give {row}"
    return ""
