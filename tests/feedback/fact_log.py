"""A log in memory that is filled with facts, and joined in portions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa

from armwise.feedback.events import LABELS, Feedback, Mode, Status
from armwise.feedback.log import tables as t
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import raters
from armwise.feedback.training_log.join import Joined, read_window

TABLES = (t.decisions, t.executions, t.feedback, t.ticks, t.examples)

EMPTY: dict[type, Any] = {str: "", int: 0, float: 0.0, bool: False, dict: {}, list: {}}


def _make_rows(table: sa.Table) -> dict[str, Any]:
    """Return a row whose columns are empty, for the columns that no fact has."""
    return {
        column.name: None if column.nullable else EMPTY.get(column.type.python_type, 0.0)
        for column in table.columns
    }


@dataclass(frozen=True, slots=True)
class DecisionFact:
    """A decision at a position of the log.

    Attributes:
        seq: The position.
        id: The decision.
        at: When it was made.
        logged_at: The log's time when it was committed.
        mode: How the arm came to be chosen.
        episode_id: The episode that it is a part of.
        deferred: Whether it counts only once it is activated.
        past: Whether it was over before it was logged, like a label: all of its feedback comes with it.
        draw_id: The draw whose arm its conversation keeps: itself, or the earlier decision it continues.
    """

    seq: int
    id: str
    at: float
    logged_at: float
    mode: Mode = Mode.EXPLORE
    episode_id: str | None = None
    deferred: bool = False
    past: bool = False
    draw_id: str | None = None


@dataclass(frozen=True, slots=True)
class Executed:
    """The status of an execution at a position of the log."""

    seq: int
    decision_id: str
    at: float
    status: Status


@dataclass(frozen=True, slots=True)
class FeedbackFact:
    """Feedback at a position of the log.

    Attributes:
        seq: The position.
        feedback: The feedback.
        more: Whether the next fact is feedback that was sent with this, on the same decision or episode: they
            are learned together.
    """

    seq: int
    feedback: Feedback
    more: bool = False

    @property
    def at(self) -> float:
        """When it was received."""
        return self.feedback.received_at


@dataclass(frozen=True, slots=True)
class TickFact:
    """Elapsed time at a position of the log."""

    seq: int
    at: float


JoinedFact = DecisionFact | Executed | FeedbackFact | TickFact


class FactLog:
    """Facts in tables of a database in memory."""

    def __init__(self) -> None:
        self._engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
        t.metadata.create_all(self._engine, tables=(*TABLES, t.observations))
        self._empty = {table: _make_rows(table) for table in TABLES}

    def fill(self, facts: Sequence[JoinedFact]) -> None:
        """Replace the log by facts, which are numbered from 1 on."""
        rows: dict[sa.Table, list[dict[str, Any]]] = {}
        log_at = 0.0
        for seq, fact in enumerate(facts, start=1):
            table, row = _write_row(fact)
            log_at = max(log_at, fact.at)
            if table is t.feedback:
                row["logged_at"] = log_at
            rows.setdefault(table, []).append({**self._empty[table], **row, "seq": seq})
        with self._engine.begin() as connection:
            for table in TABLES:
                connection.execute(sa.delete(table))
                if some := rows.get(table):
                    connection.execute(sa.insert(table), some)

    def join(self, rule: RewardRule, portions: Sequence[int]) -> list[Joined]:
        """Join the log in portions of some numbers of facts, and return what is ready, in order."""
        found: list[Joined] = []
        seq, log_at, n_learned, left_out = 0, 0.0, 0, list[str]()
        for n in portions:
            with self._engine.begin() as connection:
                shares = partial(raters.read_shares, connection, rule, n_learned, left_out)
                ready, log_at = read_window(connection, rule, seq, log_at, seq + n, shares)
                for each in ready:
                    if not each.learned:
                        left_out.append(each.rater or "")
                        continue
                    n_learned += 1
                    row = {**asdict(each), "join": rule.join, "joined_by": each.by, "seq": n_learned}
                    if each.rater is not None:
                        row["left_out"], left_out = left_out or None, []
                    known = {name: row.get(name) for name in self._empty[t.examples]}
                    connection.execute(sa.insert(t.examples), known)
            found += ready
            seq += n
        return found


def _write_row(fact: JoinedFact) -> tuple[sa.Table, dict[str, Any]]:
    match fact:
        case DecisionFact():
            return t.decisions, {
                "id": fact.id,
                "decided_at": fact.at,
                "logged_at": fact.logged_at,
                "mode": Mode(fact.mode),
                "episode_id": fact.episode_id,
                "deferred": fact.deferred,
                "draw_id": fact.draw_id,
                "policy": LABELS if fact.past else "",
            }
        case Executed():
            row = {"decision_id": fact.decision_id, "finished_at": fact.at, "status": fact.status}
            return t.executions, row
        case FeedbackFact(feedback=item):
            return t.feedback, {
                "id": item.id,
                "kind": item.kind,
                "decision_id": item.decision_id,
                "episode_id": item.episode_id,
                "more": fact.more,
                "metric": item.metric,
                "value": item.value,
                "received_at": item.received_at,
                "rater": item.rater,
            }
        case TickFact():
            return t.ticks, {"at": fact.at}
