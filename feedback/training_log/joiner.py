"""Join the log: fold its facts, and write the decisions that are ready to be learned.

New examples and the position read are written in one transaction, so a crash neither loses an example nor
writes one twice. The facts are read before it, without a lock: only a learner with a newer epoch could change
the training log in between, and the write detects that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import orjson
import sqlalchemy as sa

from feedback.errors import LogGapError
from feedback.events import Cost, Example, Status, Tick
from feedback.fold import GRACE_S, Fold, Joined
from feedback.log import Store
from feedback.log import rows as log_rows
from feedback.log import tables as t
from feedback.reward import RewardRule
from feedback.training_log.epochs import confirm_epoch
from feedback.training_log.read_facts import read_facts, read_unlearned

_GONE = "rows of it, or of its facts, are missing; run `armwise rebuild`"


@dataclass(frozen=True, slots=True)
class Position:
    """How far a join has read.

    Attributes:
        log_seq: Facts up to this position are folded.
        log_at: The log's time there, seconds since the epoch.
        examples_seq: Length of the training log.
    """

    log_seq: int
    log_at: float
    examples_seq: int


class Joiner:
    """The only writer of the training log of a rule.

    Args:
        store: The log.
        rule: Defines when feedback is complete and how values are aggregated.
        epoch: The right to write, from `take_epoch`.
        batch: Facts that are folded in one pass.

    Attributes:
        left: Facts that were in the log at the last `advance` and not read by it.
    """

    def __init__(self, store: Store, rule: RewardRule, epoch: int, batch: int = 5000) -> None:
        self._store = store
        self._rule = rule
        self._join = rule.join
        self._epoch = epoch
        self._batch = batch
        self._fold: Fold | None = None  # None: to be restored from the log
        self._length = 0
        self.left = 0

    def advance(self, now: float) -> Position:
        """Fold the next facts, write the examples they complete, and return the position reached.

        At the end of the log, a tick is written if the time closes a decision.

        Args:
            now: Seconds since the epoch.

        Raises:
            SupersededError: Another learner holds a newer epoch; nothing was written.
            LogGapError: Rows of the log, or of the training log, are missing.
            LogUnavailableError: Try again later; nothing was lost.
        """
        fold, self._fold = self._fold, None  # discarded if anything below fails
        with self._store.reading() as connection:
            confirm_epoch(connection, self._epoch)
            if fold is None:
                fold, self._length = resume(connection, self._rule)
            start, head = fold.seq, head_of(connection)
            if head < start:
                raise LogGapError(f"the log ends at {head}, and was read up to {start} before")
            end = min(head, start + self._batch)
            facts = read_facts(connection, start, end)
        joined = [one for fact in facts for one in fold.apply(fact)]
        if fold.seq != end:
            raise LogGapError(f"the log ends at {end}, and rows after {fold.seq} are missing")
        position = Position(end, fold.at, self._length + len(joined))
        if end != start:
            self._write(joined, position)
        self._fold, self._length, self.left = fold, position.examples_seq, head - end
        closing = fold.next_closing
        if end == head and closing is not None and closing < now:
            self._store.append([Tick(now)])
            return self.advance(now)
        return position

    def _write(self, joined: Sequence[Joined], position: Position) -> None:
        rows = [
            {
                "join": self._join,
                "seq": seq,
                "decision_id": one.decision_id,
                "metrics": one.metrics,
                "joined_by": one.by,
            }
            for seq, one in enumerate(joined, start=self._length + 1)
        ]
        with self._store.writing() as connection:
            confirm_epoch(connection, self._epoch)
            if rows:
                connection.execute(sa.insert(t.examples), rows)
            write_position(connection, self._join, position)


def position_of(connection: sa.Connection, join: str) -> Position:
    """Return how far a join has read."""
    row = connection.execute(sa.select(t.progress).where(t.progress.c.join == join)).first()
    return Position(row.log_seq, row.log_at, row.examples_seq) if row else Position(0, 0.0, 0)


def write_position(connection: sa.Connection, join: str, position: Position) -> None:
    """Write how far a join has read."""
    moved = sa.update(t.progress).where(t.progress.c.join == join).values(**asdict(position))
    if not connection.execute(moved).rowcount:
        connection.execute(sa.insert(t.progress), {"join": join, **asdict(position)})


def head_of(connection: sa.Connection) -> int:
    """Return the last position of the log; 0 if it is empty."""
    return int(connection.scalar(sa.select(t.log_head.c.seq)) or 0)


def resume(connection: sa.Connection, rule: RewardRule) -> tuple[Fold, int]:
    """Return the fold at the position of a rule's join, and the length of its training log.

    Raises:
        LogGapError: The training log is shorter or longer than the join recorded.
    """
    position = position_of(connection, rule.join)
    length = sa.select(sa.func.coalesce(sa.func.max(t.examples.c.seq), 0))
    found = connection.scalar(length.where(t.examples.c.join == rule.join))
    if found != position.examples_seq:
        raise LogGapError(
            f"the training log ends at {found} and not at {position.examples_seq}: run `armwise rebuild`"
        )
    fold = Fold(rule, position.log_seq, position.log_at)
    # No open decision was committed earlier: `logged_at` or the deadline closes it, and the deadline is at
    # most `logged_at` plus the wait time. Twice the grace, since sums are rounded.
    since = position.log_at - rule.wait_s - 2 * GRACE_S
    for decided, status in read_unlearned(connection, rule.join, since, position.log_seq):
        if fold.closing(decided) >= position.log_at:
            fold.reopen(decided, status)
    return fold, position.examples_seq


def read_examples(
    store: Store, join: str, after: int = 0, upto: int | None = None, chunk: int = 1000
) -> Iterator[Example]:
    """Yield a training log in order, from position `after` + 1 to `upto`, with one chunk in memory at a time.

    Raises:
        LogGapError: Rows of it, or of its facts, are missing.
    """
    x, e = t.examples.c, t.executions.c
    query = (
        sa.select(
            *(x.seq, sa.cast(x.metrics, sa.Text), x.joined_by, e.status),
            *(*log_rows.SOURCES, *log_rows.COST, *log_rows.DECISION),
        )
        .join(t.decisions, t.decisions.c.id == x.decision_id)
        .join(t.executions, e.decision_id == x.decision_id)
        .where(x.join == join)
        .order_by(x.seq)
        .limit(chunk)
    )
    if upto is not None:
        query = query.where(x.seq <= upto)
    while True:
        with store.reading() as connection:
            rows = connection.execute(query.where(x.seq > after)).all()
        for seq, metrics, by, status, index, cached, tokens, *values in rows:
            if seq != after + 1:
                raise LogGapError(f"the training log goes on at {seq} after {after}: {_GONE}")
            after = seq
            cost, decision = (
                Cost(*values[: len(log_rows.COST)]),
                log_rows.decision_of(values[len(log_rows.COST) :]),
            )
            yield Example(
                seq,
                decision,
                cost,
                orjson.loads(metrics),
                failed=status != Status.OK,
                by=by,
                index_version=index or "",
                cached=cached,
                tokens_by_model=log_rows.tokens_of(tokens),
            )
        if len(rows) < chunk:
            break
    if upto is not None and after < upto:
        raise LogGapError(f"the training log ends at {after} and not at {upto}: {_GONE}")
