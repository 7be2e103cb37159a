"""Join decisions with their executions and feedback into one ordered training log.

Each decision enters the training log at most once, at the moment when its
feedback is complete by the declared rule or when its wait time has passed.
Rows and the position reached are written in one transaction, so that a crash
neither loses an example nor writes it twice. What is read for it is read
before, without the lock of a writer: only a learner with a newer epoch could
change it in between, and that is found out when writing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from feedback import tables as t
from feedback.events import Decision, Example, Execution, Feedback, Mode, Status
from feedback.reward import RewardRule
from feedback.rows import cost_of, decision_of, load_decisions, load_executions, load_feedback
from feedback.store import Store

GRACE_S = 2.0
"""How long after a deadline a decision is closed: time for commits that were under way."""

DANGLING_S = 60.0
"""How long a decision that was judged, or is due, is waited for until it and its execution are visible."""

_READER = "join"


class SupersededError(Exception):
    """Another learner has taken over; this one must stop writing."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the join has read.

    Attributes:
        feedback_seq: Feedback up to here has been looked at.
        deadline: The last deadline that has been looked at; what is due until then is closed,
            at once or, while it has no execution, as soon as that appears.
        examples_seq: Length of the training log.
    """

    feedback_seq: int
    deadline: float
    examples_seq: int


class Joiner:
    """Turn the log into the training log; the only writer of `examples`.

    Deadlines are closed only when no feedback is left to be read, so a backlog puts
    them off and takes nothing from them. A decision is learned although something of
    it was committed late, within these bounds:

        feedback             `GRACE_S` after the deadline, else it counts only where the
                             deadline found nothing to learn
        the execution        `DANGLING_S` after the last feedback, or after the deadline was
                             looked at, whichever is later
        the decision itself  likewise when it was judged; without feedback it must be there
                             before a later deadline is looked at, at least `GRACE_S`

    Args:
        store: The log.
        rule: Says when feedback is complete and how several values become one.
        epoch: The right to write, from `take_epoch`.
        batch: Rows of feedback, and decisions that are due, looked at in one pass.
    """

    def __init__(self, store: Store, rule: RewardRule, epoch: int, batch: int = 5000) -> None:
        self._store = store
        self._rule = rule
        self._epoch = epoch
        self._batch = batch
        # decisions that were judged or due before they, or their execution, were visible, and since when
        self._waiting: dict[str, float] | None = None

    def advance(self, now: float) -> Position:
        """Join what has become complete by `now` and return the position reached; write only if it moved.

        Raises:
            SupersededError: Another learner holds a newer epoch; nothing was written.
        """
        with self._store.reading() as connection:
            confirm_epoch(connection, self._epoch)
            start = _position(connection)
            if self._waiting is None:
                self._waiting = dict.fromkeys(_recover_waiting(connection, start, now - DANGLING_S), now)
            waiting = {key: since for key, since in self._waiting.items() if since > now - DANGLING_S}
            news = connection.execute(
                sa.select(t.feedback.c.seq, t.feedback.c.decision_id)
                .where(t.feedback.c.seq > start.feedback_seq)
                .order_by(t.feedback.c.seq)
                .limit(self._batch)
            ).all()
            upto = news[-1].seq if news else start.feedback_seq
            if len(news) < self._batch:
                due, deadline = _due(connection, start.deadline, now - GRACE_S, self._batch)
            else:  # what is not read yet may be about decisions that are due
                due, deadline = [], start.deadline
            waiting |= dict.fromkeys([*due, *(row.decision_id for row in news)], now)
            joined, unready = self._join(connection, list(waiting), upto, deadline)
        rows = [
            {"seq": seq, "decision_id": one.decision_id, "metrics": dict(one.metrics), "joined_at": now}
            for seq, one in enumerate(joined, start=start.examples_seq + 1)
        ]
        end = Position(upto, deadline, start.examples_seq + len(rows))
        if end != start:
            with self._store.writing() as connection:
                confirm_epoch(connection, self._epoch)
                if rows:
                    connection.execute(sa.insert(t.examples), rows)
                _save(connection, end)
        self._waiting = {key: since for key, since in waiting.items() if key in unready}
        return end

    def _join(
        self, connection: sa.Connection, ids: Sequence[str], upto: int, deadline: float
    ) -> tuple[list["_Joined"], set[str]]:
        """Return those of the decisions that are to be learned, in order, and those that must wait."""
        joined: list[_Joined] = []
        unready: set[str] = set()
        for first in range(0, len(ids), self._batch):  # databases limit the values of one statement
            some = _not_learned(connection, ids[first : first + self._batch])
            decisions = load_decisions(connection, some)
            executions = load_executions(connection, some)
            feedback = load_feedback(connection, some, upto)
            for decision_id in some:
                decision, execution = decisions.get(decision_id), executions.get(decision_id)
                if not _may_teach(decision, execution):
                    continue
                if decision is None or execution is None:
                    unready.add(decision_id)
                elif found := self._joined(decision, feedback.get(decision_id, []), deadline):
                    joined.append(found)
        return sorted(joined, key=lambda one: one.order), unready

    def _joined(
        self, decision: Decision, feedback: Sequence[tuple[Feedback, int]], deadline: float
    ) -> "_Joined | None":
        """Return the decision with its values if these are complete, or if it is due by `deadline`."""
        timely = [(item, seq) for item, seq in feedback if item.received_at <= decision.deadline]
        values = self._rule.aggregate(item for item, _ in timely)
        if self._rule.is_complete(values):
            return _Joined((0, _completed_at(self._rule, timely)), decision.id, values)
        if decision.deadline <= deadline and (values or self._rule.default is not None):
            return _Joined((1, decision.deadline), decision.id, values)
        return None


@dataclass(frozen=True, slots=True)
class _Joined:
    """A decision to be learned.

    Attributes:
        order: First what is complete, by the feedback that completed it; then what is due, by deadline.
        decision_id: The decision.
        metrics: Aggregated value of each metric.
    """

    order: tuple[int, float]
    decision_id: str
    metrics: Mapping[str, float]


def _not_learned(connection: sa.Connection, ids: Sequence[str]) -> list[str]:
    """Return those of the decisions that are not in the training log, in order."""
    where = t.examples.c.decision_id.in_(ids)
    learned = set(connection.scalars(sa.select(t.examples.c.decision_id).where(where)))
    return [decision_id for decision_id in ids if decision_id not in learned]


def _may_teach(decision: Decision | None, execution: Execution | None) -> bool:
    """Whether the decision was drawn from the policy and its arm answered, as far as is known."""
    if decision is not None and decision.mode is not Mode.EXPLORE:
        return False
    return execution is None or execution.status is Status.OK


def _completed_at(rule: RewardRule, timely: Sequence[tuple[Feedback, int]]) -> int:
    """Return the position of the feedback that completed a decision."""
    seen: dict[str, float] = {}
    for item, seq in timely:
        if item.metric in rule.metrics:
            seen[item.metric] = item.value
        if rule.is_complete(seen):
            return seq
    return timely[-1][1]


def _due(connection: sa.Connection, after: float, upto: float, limit: int) -> tuple[list[str], float]:
    """Return decisions whose deadline lies in (after, upto], oldest first, and the last of the deadlines."""
    where = (t.decisions.c.deadline > after) & (t.decisions.c.deadline <= upto)
    order = (t.decisions.c.deadline, t.decisions.c.seq)
    found = connection.execute(
        sa.select(t.decisions.c.id, t.decisions.c.deadline).where(where).order_by(*order).limit(limit)
    ).all()
    if not found:
        return [], after
    last = found[-1].deadline
    if len(found) < limit:
        return [row.id for row in found], last
    # stop at a deadline that is read whole: rows that share the last one may have been cut off
    same = connection.scalars(
        sa.select(t.decisions.c.id).where(t.decisions.c.deadline == last).order_by(t.decisions.c.seq)
    )
    return [row.id for row in found if row.deadline < last] + list(same), last


def _position(connection: sa.Connection) -> Position:
    row = connection.execute(sa.select(t.progress).where(t.progress.c.reader == _READER)).first()
    length = int(connection.scalar(sa.select(sa.func.coalesce(sa.func.max(t.examples.c.seq), 0))) or 0)
    return Position(row.feedback_seq, row.deadline, length) if row else Position(0, 0.0, length)


def _save(connection: sa.Connection, position: Position) -> None:
    values = {"feedback_seq": position.feedback_seq, "deadline": position.deadline}
    updated = connection.execute(sa.update(t.progress).where(t.progress.c.reader == _READER).values(**values))
    if not updated.rowcount:
        connection.execute(sa.insert(t.progress), {"reader": _READER, **values})


def _recover_waiting(connection: sa.Connection, position: Position, since: float) -> Iterable[str]:
    """Return decisions that may have waited for themselves or their execution before a restart.

    That is what is not learned and was judged after `since`, or had its deadline looked at
    in the last `DANGLING_S` before the restart, however long ago that was.
    """
    judged = (
        sa.select(t.feedback.c.decision_id)
        .outerjoin(t.examples, t.examples.c.decision_id == t.feedback.c.decision_id)
        .where(t.feedback.c.seq <= position.feedback_seq)
        .where(t.feedback.c.received_at > since)
        .where(t.examples.c.seq.is_(None))
    )
    due = (
        sa.select(t.decisions.c.id)
        .outerjoin(t.examples, t.examples.c.decision_id == t.decisions.c.id)
        .where(t.decisions.c.deadline > position.deadline - DANGLING_S)
        .where(t.decisions.c.deadline <= position.deadline)
        .where(t.examples.c.seq.is_(None))
    )
    return sorted({*connection.scalars(judged), *connection.scalars(due)})


def take_epoch(store: Store, holder: str, now: float) -> int:
    """Become the only learner: every older epoch loses the right to write."""
    with store.writing() as connection:
        result = connection.execute(sa.insert(t.epochs), {"holder": holder, "taken_at": now})
        return int(result.inserted_primary_key[0]) if result.inserted_primary_key else 0


def confirm_epoch(connection: sa.Connection, epoch: int) -> None:
    """Check, inside a write transaction, that `epoch` is still the newest. Raises SupersededError."""
    newest = connection.scalar(sa.select(sa.func.max(t.epochs.c.epoch)))
    if newest != epoch:
        raise SupersededError(f"epoch {epoch} was superseded by epoch {newest}")


def read_examples(
    store: Store, after: int = 0, upto: int | None = None, chunk: int = 5000
) -> Iterator[Example]:
    """Yield the training log in order, from position `after` + 1 to `upto`, a chunk in memory at a time."""
    query = (
        sa.select(t.examples.c.seq.label("example_seq"), t.examples.c.metrics, t.decisions, t.executions)
        .join(t.decisions, t.decisions.c.id == t.examples.c.decision_id)
        .join(t.executions, t.executions.c.decision_id == t.examples.c.decision_id)
        .order_by(t.examples.c.seq)
        .limit(chunk)
    )
    while True:
        with store.reading() as connection:
            page = query.where(t.examples.c.seq > after)
            if upto is not None:
                page = page.where(t.examples.c.seq <= upto)
            rows = connection.execute(page).all()
        for row in rows:
            yield Example(row.example_seq, decision_of(row), cost_of(row), row.metrics)
        if len(rows) < chunk:
            return
        after = rows[-1].example_seq
