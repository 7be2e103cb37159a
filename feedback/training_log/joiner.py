"""Write the training log: the one learner that may, and how far it has read.

    Joiner        writes the decisions that are ready with the position read, while its epoch is the newest
    read_examples reads the training log

New examples and the position read are written in one transaction, so a crash neither loses nor repeats an
example. The facts are read before it, without a lock: only a learner with a newer epoch could change the
training log in between, and the write detects that.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.errors import LogGapError, RebuiltError, SupersededError
from armwise.feedback.events import ARM_FAILURES, Example, Execution, Tick
from armwise.feedback.log import LARGEST, Operation, Store, chain, operations
from armwise.feedback.log import rows as log_rows
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import raters
from armwise.feedback.training_log.join import Joined, Row, is_tick_due, read_window
from armwise.feedback.training_log.position import Position, read_head, read_position, write_position
from armwise.feedback.training_log.settled import find_settled_together

# -- epoch fencing: the one learner that may write -------------------------------------------------


REBUILD = "armwise log rebuild"
"""Holder of an epoch that a rebuild took."""


def take_epoch(store: Store, holder: str, now: float) -> int:
    """Supersede every other learner and return the new epoch, the only one that may write."""
    with store.writing() as connection:
        return operations.record(connection, Operation.EPOCH, now, {"holder": holder})


def confirm_epoch(connection: sa.Connection, epoch: int) -> None:
    """Check within a write transaction that `epoch` is the newest.

    Raises:
        SupersededError: Another learner has taken over.
        RebuiltError: The training log was rebuilt.
    """
    newest, holder = newest_epoch(connection)
    if newest == epoch:
        return
    if holder == REBUILD:
        raise RebuiltError(f"epoch {epoch} ended with a rebuild: restart from the rebuilt training log")
    raise SupersededError(f"epoch {epoch} was superseded by epoch {newest} of {holder}")


def newest_epoch(connection: sa.Connection) -> tuple[int, str]:
    """Return the epoch that may write and its holder; 0 and `nobody` before the first."""
    row = operations.find_newest(connection, Operation.EPOCH)
    return (row.seq, row.document["holder"]) if row else (0, "nobody")


# -- the join, and its training log ----------------------------------------------------------------


_GONE = "rows or their facts are missing; run `armwise log rebuild`"


class Joiner:
    """The only writer of the training log of a rule. It keeps nothing between two steps.

    Args:
        store: The log.
        rule: Defines when feedback is complete and how values are aggregated.
        epoch: The right to write, from `take_epoch`.
        batch: Facts that are joined in one pass.

    Attributes:
        left: Facts that the last `advance` left unread.
    """

    def __init__(self, store: Store, rule: RewardRule, epoch: int, batch: int = 5000) -> None:
        self._store = store
        self._rule = rule
        self._epoch = epoch
        self._batch = batch
        self.left = 0

    def advance(self, now: float) -> Position:
        """Join the next facts, write the examples they complete, and return the position reached.

        At the end of the log, a tick is written if the time closes a decision or ends the last wait time.

        Raises:
            SupersededError: Another learner holds a newer epoch.
            LogGapError: Rows of the log, or of the training log, are missing.
            LogUnavailableError: Try again later; the log is unchanged.
        """
        with self._store.reading() as connection:
            confirm_epoch(connection, self._epoch)
            start, head = read_position(connection, self._rule.join), read_head(connection)
            require_length(connection, self._rule.join, start)
            if head < start.log_seq:
                raise LogGapError(f"the log ends at {head}, but was read up to {start.log_seq} before")
            end = min(head, start.log_seq + self._batch)
            position, examples = join_facts(connection, self._rule, start, end)
        if position != start:
            self._write(position, examples)
        self.left = head - position.log_seq
        if self.left:
            return position
        with self._store.reading() as connection:
            # what this step has learned does not wait for the time
            if not is_tick_due(connection, self._rule, position.log_at, now):
                return position
        self._store.append([Tick(now)])
        return self.advance(now)

    def _write(self, position: Position, examples: Sequence[Mapping[str, Any]]) -> None:
        join = self._rule.join
        with self._store.writing() as connection:
            confirm_epoch(connection, self._epoch)
            if examples:
                connection.execute(_ADD_EXAMPLES, [{"join": join, **row} for row in examples])
            settled_seq = find_settled_together(connection, self._rule, position)
            write_position(connection, join, replace(position, settled_seq=settled_seq))


_ADD_EXAMPLES = sa.insert(t.examples)


def join_facts(
    connection: sa.Connection, rule: RewardRule, start: Position, upto: int
) -> tuple[Position, list[dict[str, Any]]]:
    """Return the position of a join after some facts, and the rows of the examples they add.

    Raises:
        LogGapError: Facts are missing.
    """
    if upto == start.log_seq:  # as at most steps of a learner without traffic
        return start, []
    ready, log_at = read_window(
        connection,
        rule,
        *(start.log_seq, start.log_at, upto),
        lambda: raters.read_shares(connection, rule, start.examples_seq, start.left_out),
    )
    joined = [each for each in ready if each.learned]
    turns = read_conversation_costs(connection, joined)
    examples = list[dict[str, Any]]()
    left_out = deque(start.left_out, raters.BEFORE)
    for each in ready:
        if each.learned:
            row = {
                "seq": start.examples_seq + len(examples) + 1,
                "decision_id": each.decision_id,
                "metrics": each.metrics,
                "joined_by": each.by,
                "turns": turns.get(each.decision_id),
                "rater": each.rater,
                "left_out": None,
            }
            if each.rater is not None and left_out:
                row["left_out"] = [*left_out]
                left_out.clear()
            examples.append(row)
        elif each.rater is not None:
            left_out.append(each.rater)
    length = start.examples_seq + len(examples)
    head = chain.fold(connection, chain.LogHead(start.log_seq, start.chain), upto)
    return Position(upto, log_at, length, tuple(left_out), start.settled_seq, head.chain), examples


def read_conversation_costs(connection: sa.Connection, joined: Sequence[Joined]) -> dict[str, dict[str, Any]]:
    """Return the summed costs of the turns of conversations, by the id of their draw.

    Raises:
        LogGapError: The execution of a turn is missing.
    """
    of_draws = {ready.decision_id: ready.turns for ready in joined if ready.turns}
    names = [name for turns in of_draws.values() for name in turns]
    executions: dict[str, Execution] = {}
    for first in range(0, len(names), log_rows.LOOKED_UP):
        executions |= log_rows.load_executions(connection, names[first : first + log_rows.LOOKED_UP])
    if lost := [name for name in names if name not in executions]:
        raise LogGapError(f"the execution of {lost[0]!r}, which continues a draw, is missing")
    return {
        draw: log_rows.sum_turns([executions[name] for name in turns]) for draw, turns in of_draws.items()
    }


def delete_training_log(connection: sa.Connection, join: str) -> None:
    """Delete the training log of a join, within a write transaction; a `Joiner` makes it again."""
    connection.execute(sa.delete(t.examples).where(t.examples.c.join == join))
    connection.execute(sa.delete(t.progress).where(t.progress.c.reader == join))


def require_length(connection: sa.Connection, join: str, position: Position) -> None:
    """Check that a training log is as long as its join recorded. Raises LogGapError."""
    length = sa.select(sa.func.coalesce(sa.func.max(t.examples.c.seq), 0))
    recorded = connection.scalar(length.where(t.examples.c.join == join))
    if recorded != position.examples_seq:
        raise LogGapError(
            f"the training log ends at {recorded}, not at {position.examples_seq}: run `armwise log rebuild`"
        )


def read_examples(
    store: Store, join: str, after: int = 0, upto: int | None = None, chunk: int = 1000
) -> Iterator[Example]:
    """Yield a training log in order, from position `after` + 1 to `upto`, with one chunk in memory at a time.

    Raises:
        LogGapError: Rows of it, or of its facts, are missing.
    """
    part = {"join": join, "upto": LARGEST if upto is None else upto, "chunk": chunk}
    while True:
        with store.reading() as connection:
            rows = connection.execute(_EXAMPLES, {**part, "after": after}).all()
        yield from log_rows.readable(_consecutive(rows, after), _read_example)
        after += len(rows)
        if len(rows) < chunk:
            break
    if upto is not None and after < upto:
        raise LogGapError(f"the training log ends at {after}, not at {upto}: {_GONE}")


def _consecutive(rows: Iterable[Row], after: int) -> Iterator[Row]:
    for seq, row in enumerate(rows, after + 1):
        if row.seq != seq:
            raise LogGapError(f"the training log continues at {row.seq} after {seq - 1}: {_GONE}")
        yield row


def _read_example(row: Sequence[Any]) -> Example:
    seq, metrics, by, turns, status, index, cached, tokens, finish_reason, *values = row
    own_cost = log_rows.finite_cost(*values[: len(log_rows.COST)])
    cost, by_model, n_turns = log_rows.read_spending(
        loads(turns or "null"), own_cost, loads(tokens or "null")
    )
    return Example(
        seq,
        log_rows.read_decision(values[len(log_rows.COST) :]),
        cost,
        dict(loads(metrics)),
        failed=status in ARM_FAILURES,
        by=by,
        index_version=index or "",
        cached=cached,
        tokens_by_model=by_model,
        turns=n_turns,
        finish_reason=finish_reason,
    )


_x, _e = t.examples.c, t.executions.c

_EXAMPLES = (
    sa.select(
        *(_x.seq, sa.cast(_x.metrics, sa.Text), _x.joined_by, sa.cast(_x.turns, sa.Text), _e.status),
        *(_e.index_version, _e.cached, sa.cast(_e.tokens_by_model, sa.Text), _e.finish_reason),
        *(*log_rows.COST, *log_rows.DECISION),
    )
    .join(t.decisions, t.decisions.c.id == _x.decision_id)
    .join(t.executions, _e.decision_id == _x.decision_id)
    .where(_x.join == sa.bindparam("join"), _x.seq > sa.bindparam("after"), _x.seq <= sa.bindparam("upto"))
    .order_by(_x.seq)
    .limit(sa.bindparam("chunk", type_=sa.Integer))
)
