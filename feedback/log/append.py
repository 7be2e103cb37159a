"""Append facts: a transaction that locks the head of the log, looks up what they name, and inserts them.

What the log already has is read under the lock, so a fact that is new stays new until the commit. In between,
`Batch` decides in memory which facts are new, numbers them, and finds those whose texts were erased.
"""

import logging
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from reprlib import repr as _shortened
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.clock import check_behind, check_stamp
from armwise.feedback.errors import ConflictError, StoreError, TooMuchFeedbackError
from armwise.feedback.events import (
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Observation,
    Status,
    Tick,
)
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import dumps, json_items, limit_numbers
from armwise.feedback.log.chain import ERASABLE, FACTS, make_salt, make_seal
from armwise.feedback.log.facts import (
    Fact,
    decision_row,
    execution_row,
    feedback_row,
    mark_rows,
    observation_row,
)
from armwise.feedback.log.limits import Limited
from armwise.feedback.log.rows import IDS, look_up, select_texts
from armwise.feedback.log.schema import require_row
from armwise.feedback.log.texts import list_texts, with_texts, without_texts
from armwise.feedback.log.under_way import NAMED_ERASURE, UNDER_WAY_S, UnderWay
from armwise.feedback.texts import pseudonym

logger = logging.getLogger(__name__)

PROBE_BYTES = 64 * 1024
"""Bytes that a probe writes: more than most commits."""

_LIMITED = {
    table: [(column.name, column.type) for column in table.c if isinstance(column.type, Limited)]
    for table in (t.decisions, t.executions, t.observations)
}

_DOCUMENTS = {
    table: [column.name for column in table.c if isinstance(column.type, sa.JSON)] for table in _LIMITED
}


class FeedbackStatus(StrEnum):
    """What became of an item of feedback; it is durable with either."""

    STORED = "stored"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a fact is durable.

    Attributes:
        seq: Position in the log; 0: an execution or observation that the log already had.
        status: Status of feedback; other facts have none.
    """

    seq: int = 0
    status: FeedbackStatus | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How facts are written.

    Attributes:
        most: Values and retractions that a decision or an episode may have; None: unlimited.
        redact: Applied to every text before it is written.
        secret: Returns the secret of the draws, by which erasures name their subjects.
    """

    most: int | None = None
    redact: Callable[[str], str] | None = None
    secret: Callable[[], str] = str


def append(connection: sa.Connection, facts: Sequence[Fact], now: float, rules: Rules) -> list[Receipt]:
    """Write facts within a transaction that the caller commits; return the receipt of each.

    Raises:
        StoreError: A fact is refused, as `Store.append` says: roll the transaction back.
    """
    batch = Batch(*_lock_head(connection, now), now, rules)
    batch.look_up(connection, facts)
    for fact in facts:
        batch.add(fact)
    for table, rows in batch.rows.items():
        if connection.dialect.name == "postgresql":
            connection.execute(_INSERTS[table], {"rows": rows})
        else:
            connection.execute(sa.insert(table), rows)
    if batch.rows:
        connection.execute(_MOVE, {"to_seq": batch.seq, "to_at": batch.at})
    return batch.receipts


def probe(connection: sa.Connection, now: float) -> None:
    """Insert and delete a row under the lock of the head, to show that writes succeed."""
    # not in `texts`, whose rows must not move: `armwise.feedback.log.erasures`
    filling = Execution("", None, Status.CANCELLED, Cost(), index_version=secrets.token_hex(PROBE_BYTES // 2))
    seq, at = _lock_head(connection, now)
    connection.execute(sa.insert(t.executions), execution_row(filling, 0))
    connection.execute(_MOVE, {"to_seq": seq, "to_at": at})
    connection.execute(sa.delete(t.executions).where(t.executions.c.seq == 0))


def _lock_head(connection: sa.Connection, now: float) -> tuple[int, float]:
    head = connection.execute(_HEAD).all()
    require_row(len(head))
    seq, at = head[0]
    check_behind(now, at)
    return seq, at


_HEAD = sa.select(t.log.c.seq, t.log.c.at).with_for_update()

_MOVE = sa.update(t.log).values(seq=sa.bindparam("to_seq"), at=sa.bindparam("to_at"))


def _insert_from_json(table: sa.Table) -> sa.Insert:
    """Return a statement that inserts all rows of a list, which a server gets as one parameter."""
    columns = (sa.column(column.name, column.type) for column in table.c)
    rows = sa.func.json_to_recordset(sa.bindparam("rows", type_=sa.JSON)).table_valued(*columns)
    return sa.insert(table).from_select([*table.c.keys()], sa.select(*rows.render_derived(with_types=True).c))


_INSERTS = {table: _insert_from_json(table) for table in (*FACTS, t.texts, t.answer_marks)}

# -- what the log has of the facts -----------------------------------------------------------------

_d, _e, _o, _f = t.decisions.c, t.executions.c, t.observations.c, t.feedback.c

_UNDER_WAY = sa.select(t.operations.c.subject, t.operations.c.seq).where(
    NAMED_ERASURE, t.operations.c.at > sa.bindparam("since")
)

_DECISIONS = sa.select(_d.id, _d.seq, _d.asked_by, _d.erased).where(_d.id.in_(IDS))

_EXECUTIONS = sa.select(_e.decision_id).where(_e.decision_id.in_(IDS))

_OBSERVATIONS = sa.select(_o.decision_id, _o.source, _o.arm).where(_o.decision_id.in_(IDS))

_FEEDBACK = sa.select(
    *(_f.id, _f.kind, _f.decision_id, _f.episode_id, _f.metric, _f.value),
    *(sa.cast(_f.labels, sa.Text).label("labels"), select_texts(t.feedback), _f.seq),
).where(_f.id.in_(IDS))

_ON_DECISIONS, _ON_EPISODES = (
    sa.select(subject, _f.kind, sa.func.count())
    .where(subject.in_(IDS), _f.kind != FeedbackKind.ACTIVATION.value)
    .group_by(subject, _f.kind)
    for subject in (_f.decision_id, _f.episode_id)
)

_NAMES = json_items(sa.bindparam("names")).table_valued("value")

_NEWEST_ERASURE = (
    sa.select(_d.erased)
    .where(_d.episode_id == _NAMES.c.value)
    .order_by(_d.seq.desc())
    .limit(1)
    .correlate(_NAMES)
    .scalar_subquery()
)

_EPISODES = sa.select(_NAMES.c.value, _NEWEST_ERASURE)
"""The erasure of the newest decision of each episode, which one search in an index finds."""

Subject = tuple[str | None, str | None, FeedbackKind]
"""Id of a decision, or of an episode, and the kind of the feedback on it."""


@dataclass(slots=True)
class Batch:
    """Facts that are committed together, as rows, and what the log has of what they name.

    Attributes:
        seq: The last assigned position.
        at: The log's time there.
        now: Seconds since the epoch, by the clock.
        rules: How facts are written.
        rows: Rows to insert, by table.
        receipts: Receipts of the facts so far.
        decisions: Position of each decision that the facts name, and who asked, by id.
        executions: Ids of decisions that have an execution.
        observations: Observations, by decision, source and arm.
        feedback: Feedback and its position, by the pseudonym of its id and by kind.
        amounts: Number of items of feedback by subject, if it is limited.
        erased: Decisions of the facts whose texts were erased.
        erased_episodes: Episodes of the facts whose newest decision was erased.
        under_way: Erasures that apply to facts that are appended now.
    """

    seq: int
    at: float
    now: float
    rules: Rules = field(default_factory=Rules)
    rows: Mapping[sa.Table, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    receipts: list[Receipt] = field(default_factory=list)
    decisions: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    executions: set[str] = field(default_factory=set)
    observations: set[tuple[str, str, str]] = field(default_factory=set)
    feedback: dict[tuple[str, FeedbackKind], tuple[Feedback, int]] = field(default_factory=dict)
    amounts: Counter[Subject] = field(default_factory=Counter)
    erased: set[str] = field(default_factory=set)
    erased_episodes: set[str] = field(default_factory=set)
    under_way: UnderWay = field(default_factory=UnderWay)

    def look_up(self, connection: sa.Connection, facts: Sequence[Fact]) -> None:
        """Read what the log has of all that facts name, under the lock of the head."""
        made = {fact.id for fact in facts if isinstance(fact, Decision)}
        executed = {fact.decision_id for fact in facts if isinstance(fact, Execution)}
        observed = {fact.decision_id for fact in facts if isinstance(fact, Observation)}
        said = [fact for fact in facts if isinstance(fact, Feedback)]
        judged = {item.decision_id for item in said if item.decision_id is not None}
        for name, seq, asked_by, erased in look_up(
            connection, _DECISIONS, made | executed | observed | judged
        ):
            self.decisions[name] = seq, asked_by
            if erased is not None:
                self.erased.add(name)
        self.executions.update(name for (name,) in look_up(connection, _EXECUTIONS, executed))
        self.observations.update(map(tuple, look_up(connection, _OBSERVATIONS, observed)))
        if said:
            self._look_up_feedback(connection, said, judged)
        under_way = connection.execute(_UNDER_WAY, {"since": self.now - UNDER_WAY_S}).all()
        if under_way:
            self.under_way = UnderWay(dict(map(tuple, under_way)), self.rules.secret())

    def _look_up_feedback(self, connection: sa.Connection, said: list[Feedback], judged: set[str]) -> None:
        names = {name for item in said for name in (item.id, pseudonym(item.id))}
        for name, kind, decision_id, episode_id, metric, value, labels, texts, seq in look_up(
            connection, _FEEDBACK, names
        ):
            content = {**(loads(labels or "null") or {}), **loads(texts or "{}").get("content", {})}
            item = Feedback(name, decision_id, metric, value, episode_id=episode_id, kind=FeedbackKind(kind))
            self.feedback[pseudonym(name), item.kind] = replace(item, content=content), seq
        episodes = {item.episode_id for item in said if item.episode_id and item.decision_id is None}
        if self.rules.most is not None:
            for name, kind, n in look_up(connection, _ON_DECISIONS, judged):
                self.amounts[name, None, FeedbackKind(kind)] = n
            for name, kind, n in look_up(connection, _ON_EPISODES, episodes):
                self.amounts[None, name, FeedbackKind(kind)] = n
        if episodes:
            newest = connection.execute(_EPISODES, {"names": sorted(episodes)})
            self.erased_episodes.update(name for name, erased in newest if erased is not None)

    def add(self, fact: Fact) -> None:
        """Assign the next position to a fact that is new to the log.

        Raises:
            ConflictError: Its id is in use with another content.
            TooMuchFeedbackError: The decision or episode has as much feedback as it may have.
            ClockError: Its timestamp is in the future.
            StoreError: A value is infinite or NaN.
        """
        try:
            self.receipts.append(self._add(fact))
        except (ConflictError, TooMuchFeedbackError) as error:
            error.fact = fact  # as its sender knows it, rather than as it is written
            raise

    def _add(self, fact: Fact) -> Receipt:
        erasure = self.under_way.find_erasure(fact)
        fact = self._prepare(fact, erasure)
        match fact:
            case Decision():
                if fact.id in self.decisions:
                    raise ConflictError(f"decision id {fact.id!r} is already taken", fact)
                self._next(fact.decided_at)
                self._insert(t.decisions, decision_row(fact, self.seq, self.at, erasure), fact)
                self.decisions[fact.id] = self.seq, fact.asked_by
            case Execution():
                return self._add_execution(fact)
            case Observation():
                key = fact.decision_id, str(fact.source), fact.arm
                if key in self.observations:
                    return Receipt()
                self.observations.add(key)
                self._next(fact.observed_at)
                self._insert(t.observations, observation_row(fact, self.seq), fact)
            case Feedback():
                return self._add_feedback(fact)
            case Tick():
                self._next(fact.at)
                self.rows[t.ticks].append({"seq": self.seq, "at": fact.at})
        return Receipt(self.seq)

    def _prepare(self, fact: Fact, erasure: int | None) -> Fact:
        """Return a fact as it is written: redacted, or without texts if its subject was erased."""
        gone = erasure is not None
        match fact:
            case Decision():
                if gone:
                    self.erased.add(fact.id)
                if fact.episode_id is not None:  # its newest decision is this one
                    change = self.erased_episodes.add if gone else self.erased_episodes.discard
                    change(fact.episode_id)
            case Feedback(decision_id=None, episode_id=str(episode)):
                gone = gone or episode in self.erased_episodes
            case Execution() | Observation() | Feedback():
                gone = gone or fact.decision_id in self.erased
        if gone:
            return without_texts(fact)
        return fact if self.rules.redact is None else with_texts(fact, self.rules.redact)

    def _add_execution(self, execution: Execution) -> Receipt:
        name = execution.decision_id
        if name in self.executions:
            return Receipt()
        self.executions.add(name)
        self._next(execution.finished_at)
        self._insert(t.executions, execution_row(execution, self.seq), execution)
        decision_seq, asked_by = self.decisions.get(name, (0, None))
        if asked_by is not None and (marks := mark_rows(execution, decision_seq, asked_by)):
            self.rows[t.answer_marks].extend(marks)
        return Receipt(self.seq)

    def _insert(self, table: sa.Table, row: dict[str, Any], fact: Fact) -> None:
        """Add a row and the texts of its fact; values beyond the limits are replaced, with a warning."""
        texts = list_texts(fact)
        checked = [(row, name, limits.within) for name, limits in _LIMITED[table]]
        checked += [(row, name, limit_numbers) for name in _DOCUMENTS[table]]
        checked += [(texts, name, limit_numbers) for name in texts]
        for part, name, limit in checked:
            value = part[name]
            within = limit(value)
            if within is value:
                continue
            part[name] = within
            if within != value:
                about = row.get("decision_id") or row["id"]
                shown = _shortened(within), table.name, name, about, _shortened(value)
                logger.warning("wrote %s into %s.%s of decision %r instead of %s", *shown)
        self.rows[table].append(row)
        self._seal(table, row, texts)

    def _seal(self, table: sa.Table, row: dict[str, Any], texts: Mapping[str, Any]) -> None:
        """Add the texts of the newest fact and the salt of its seal, if it has what an erasure removes."""
        erasable = [row[name] for name in ERASABLE.get(table, ())]
        if texts or any(erasable):
            salt, document = make_salt(), dumps(texts).encode()
            row["seal"] = make_seal(
                salt.encode(), document, [None if part is None else part.encode() for part in erasable]
            )
            self.rows[t.texts].append({"seq": self.seq, "document": texts, "salt": salt})

    def _next(self, at: float) -> None:
        check_stamp(at, self.now)
        self.seq, self.at = self.seq + 1, max(self.at, at)

    def _add_feedback(self, item: Feedback) -> Receipt:
        if item.value is not None and not math.isfinite(item.value):
            raise StoreError(f"feedback {item.id!r} has the value {item.value}; it must be finite")
        shown = item.kind is FeedbackKind.ACTIVATION
        name = pseudonym(item.id)
        for kind in (FeedbackKind.ACTIVATION,) if shown else _RATINGS:
            if stored := self.feedback.get((name, kind)):
                _same_or_conflict(stored[0], item)
        if stored := self.feedback.get((name, item.kind)):
            return Receipt(stored[1], FeedbackStatus.DUPLICATE)
        if not shown and self.rules.most is not None:
            self._count(item, self.rules.most)
        self._next(item.received_at)
        self.feedback[name, item.kind] = item, self.seq
        early = item.decision_id is not None and item.decision_id not in self.decisions
        row, rows = feedback_row(item, self.seq, self.at, early), self.rows[t.feedback]
        if rows and all(rows[-1][key] == row[key] for key in ("decision_id", "episode_id")):
            rows[-1]["more"] = rows[-1]["seq"] == self.seq - 1
        rows.append(row)
        self._seal(t.feedback, row, list_texts(item))
        return Receipt(self.seq, FeedbackStatus.STORED)

    def _count(self, item: Feedback, most: int) -> None:
        """Count feedback on its decision or episode. Raises TooMuchFeedbackError."""
        subject = item.decision_id, item.episode_id, item.kind
        if self.amounts[subject] >= most:
            about = f"decision {item.decision_id}" if item.decision_id else f"episode {item.episode_id}"
            kind = "retractions" if item.kind is FeedbackKind.RETRACTION else "values"
            raise TooMuchFeedbackError(
                f"{about} already has {most:,} {kind} of feedback, which is the maximum", item
            )
        self.amounts[subject] += 1


_RATINGS = (FeedbackKind.VALUE, FeedbackKind.PASSAGE, FeedbackKind.RETRACTION)


def _same_or_conflict(stored: Feedback, item: Feedback) -> None:
    """Check that the id of feedback is used for one content only. Raises ConflictError."""
    same = (stored.decision_id, stored.episode_id, stored.metric) == (
        item.decision_id,
        item.episode_id,
        item.metric,
    )
    contents = (stored.value, stored.content), (item.value, item.content)
    is_taken_back = FeedbackKind.RETRACTION in (stored.kind, item.kind) and stored.kind is not item.kind
    if not same or (not is_taken_back and contents[0] != contents[1]):
        before, now = _describe(stored), _describe(item)
        raise ConflictError(f"feedback id {item.id!r} was used for {before}; it cannot also be {now}", item)


def _describe(item: Feedback) -> str:
    about = item.decision_id if item.decision_id is not None else f"episode {item.episode_id}"
    what = item.kind.value if item.value is None else f"{item.metric}={item.value:g}"
    if item.content:
        what += f" {_shortened(dict(item.content))}"
    return f"{what} on {about}"
