"""Join decisions with their executions and feedback into one ordered training log.

Each decision enters the training log at most once, at the moment when its
feedback is complete by the declared rule or when its wait time has passed.
Rows and the position reached are written in one transaction, so that a crash
neither loses an example nor writes it twice.
"""

from collections.abc import Iterator, Mapping, Sequence
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
"""How long feedback waits for a decision that is not visible; then only its deadline closes it."""

_READER = "join"


class SupersededError(Exception):
    """Another learner has taken over; this one must stop writing."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far the join has read.

    Attributes:
        feedback_seq: Feedback up to here has been looked at.
        deadline: Decisions whose deadline is not after this have been closed.
        examples_seq: Length of the training log.
    """

    feedback_seq: int
    deadline: float
    examples_seq: int


class Joiner:
    """Turn the log into the training log; the only writer of `examples`.

    Args:
        store: The log.
        rule: Says when feedback is complete and how several values become one.
        epoch: The right to write, from `take_epoch`.
        batch: Rows of feedback, and closed decisions, looked at in one transaction.
    """

    def __init__(self, store: Store, rule: RewardRule, epoch: int, batch: int = 5000) -> None:
        self._store = store
        self._rule = rule
        self._epoch = epoch
        self._batch = batch
        # decisions that had feedback before they, or their execution, were visible, and since when
        self._unready: dict[str, float] | None = None

    def advance(self, now: float) -> Position:
        """Join what has become complete by `now` and return the position reached.

        Raises:
            SupersededError: Another learner holds a newer epoch; nothing was written.
        """
        with self._store.writing() as connection:
            confirm_epoch(connection, self._epoch)
            start = _position(connection)
            if self._unready is None:
                self._unready = dict.fromkeys(_recover_unready(connection, start, now - DANGLING_S), now)
            self._unready = {key: since for key, since in self._unready.items() if since > now - DANGLING_S}
            news = connection.execute(
                sa.select(t.feedback.c.seq, t.feedback.c.decision_id)
                .where(t.feedback.c.seq > start.feedback_seq)
                .order_by(t.feedback.c.seq)
                .limit(self._batch)
            ).all()
            upto = news[-1].seq if news else start.feedback_seq
            due, deadline = _due(connection, start.deadline, now - GRACE_S, self._batch)
            touched = dict.fromkeys([*sorted(self._unready), *(row.decision_id for row in news)])
            rows = self._join(connection, list(touched), upto, start.examples_seq, now, closing=False)
            rows += self._join(connection, due, upto, start.examples_seq + len(rows), now, closing=True)
            if rows:
                connection.execute(sa.insert(t.examples), rows)
            end = Position(upto, deadline, start.examples_seq + len(rows))
            if (end.feedback_seq, end.deadline) != (start.feedback_seq, start.deadline):
                _save(connection, end)
        return end

    def _join(
        self,
        connection: sa.Connection,
        ids: Sequence[str],
        upto: int,
        last_seq: int,
        now: float,
        *,
        closing: bool,
    ) -> list[dict[str, object]]:
        """Return the rows of `examples` for those of the decisions that can be learned."""
        if not ids:
            return []
        decisions = load_decisions(connection, ids)
        executions = load_executions(connection, ids)
        feedback = load_feedback(connection, ids, upto)
        learned = set(
            connection.scalars(sa.select(t.examples.c.decision_id).where(t.examples.c.decision_id.in_(ids)))
        )
        complete: list[tuple[int, str, Mapping[str, float]]] = []
        assert self._unready is not None
        for decision_id in ids:
            decision, execution = decisions.get(decision_id), executions.get(decision_id)
            if decision_id in learned or not _may_teach(decision, execution):
                self._unready.pop(decision_id, None)
                continue
            if decision is None or execution is None:
                if not closing:
                    self._unready.setdefault(decision_id, now)
                continue
            self._unready.pop(decision_id, None)
            timely = [
                (item, seq)
                for item, seq in feedback.get(decision_id, [])
                if item.received_at <= decision.deadline
            ]
            values = self._rule.aggregate(item for item, _ in timely)
            if closing and (values or self._rule.default is not None):
                complete.append((0, decision_id, values))
            elif not closing and self._rule.is_complete(values):
                complete.append((_completed_at(self._rule, timely), decision_id, values))
        if not closing:
            complete.sort(key=lambda found: found[0])
        return [
            {"seq": seq, "decision_id": decision_id, "metrics": dict(values), "joined_at": now}
            for seq, (_, decision_id, values) in enumerate(complete, start=last_seq + 1)
        ]


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
    """Return decisions whose deadline lies in (after, upto], oldest first, and how far that reaches."""
    if upto <= after:
        return [], after
    where = (t.decisions.c.deadline > after) & (t.decisions.c.deadline <= upto)
    order = (t.decisions.c.deadline, t.decisions.c.seq)
    found = connection.execute(
        sa.select(t.decisions.c.id, t.decisions.c.deadline).where(where).order_by(*order).limit(limit)
    ).all()
    if len(found) < limit:
        return [row.id for row in found], upto
    # stop at a deadline that is read whole: rows that share the last one may have been cut off
    last = found[-1].deadline
    same = connection.scalars(
        sa.select(t.decisions.c.id).where(t.decisions.c.deadline == last).order_by(t.decisions.c.seq)
    )
    return [row.id for row in found if row.deadline < last] + list(same), last


def _position(connection: sa.Connection) -> Position:
    row = connection.execute(sa.select(t.progress).where(t.progress.c.reader == _READER)).first()
    length = int(connection.scalar(sa.select(sa.func.coalesce(sa.func.max(t.examples.c.seq), 0))) or 0)
    if row is None:
        connection.execute(sa.insert(t.progress), {"reader": _READER, "feedback_seq": 0, "deadline": 0.0})
        return Position(0, 0.0, length)
    return Position(row.feedback_seq, row.deadline, length)


def _save(connection: sa.Connection, position: Position) -> None:
    connection.execute(
        sa.update(t.progress)
        .where(t.progress.c.reader == _READER)
        .values(feedback_seq=position.feedback_seq, deadline=position.deadline)
    )


def _recover_unready(connection: sa.Connection, position: Position, since: float) -> set[str]:
    """Return decisions that had feedback before a restart and may have become ready since."""
    return set(
        connection.scalars(
            sa.select(t.feedback.c.decision_id)
            .outerjoin(t.examples, t.examples.c.decision_id == t.feedback.c.decision_id)
            .where(t.feedback.c.seq <= position.feedback_seq)
            .where(t.feedback.c.received_at > since)
            .where(t.examples.c.seq.is_(None))
        )
    )


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
