"""Facts that are committed together: which of them are new, their positions, the status of feedback.

What the log already has is read under the lock of the transaction that writes the batch, so a fact that is
new stays new until then.
"""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from reprlib import repr as _shortened
from typing import Any

import sqlalchemy as sa
from orjson import loads

from armwise.feedback.clock import check_stamp
from armwise.feedback.errors import ConflictError, StoreError, TooMuchFeedbackError
from armwise.feedback.events import Decision, Execution, Feedback, FeedbackKind, Observation, Tick
from armwise.feedback.log import counting
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import ResultRows, limit_numbers
from armwise.feedback.log.chain import ERASABLE, fold, make_salt, make_seal
from armwise.feedback.log.facts import (
    Fact,
    decision_row,
    execution_row,
    feedback_row,
    mark_rows,
    observation_row,
)
from armwise.feedback.log.limits import Limited
from armwise.feedback.log.texts import list_texts, with_texts, without_texts
from armwise.feedback.log.under_way import UnderWay
from armwise.feedback.texts import pseudonym

logger = logging.getLogger(__name__)

_LIMITS = {
    (table, column.name): column.type
    for table in (t.decisions, t.executions, t.observations)
    for column in table.c
    if isinstance(column.type, Limited)
}


class FeedbackStatus(StrEnum):
    """Status of an item of feedback; it is durable with each of them."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    PENDING_DECISION = "pending_decision"
    LATE_NOT_LEARNED = "late_not_learned"


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
class _Target:
    """A decision that feedback refers to.

    Attributes:
        decided_at: When it was made.
        deadline: Until when feedback counts, as promised to the client.
        closing: When it is closed, in the log's time.
        learned: Whether it is in the training log.
    """

    decided_at: float
    deadline: float
    closing: float
    learned: bool = False

    def awaits(self, item: Feedback, at: float) -> bool:
        """Return whether feedback that is committed at a time of the log may still be learned with it."""
        is_in_time = counting.counts(item, self.decided_at, self.deadline)
        return is_in_time and not self.learned and at <= self.closing


def _target(decided_at: float, deadline: float, logged_at: float, example_seq: int | None = None) -> _Target:
    closing = counting.find_closing(deadline, logged_at)
    return _Target(decided_at, deadline, closing, example_seq is not None)


@dataclass(slots=True)
class _Episode:
    """An episode that feedback refers to.

    Attributes:
        exists: Whether the log has a decision of it.
        oldest: Position of the oldest open decision in the log, if any.
        targets: That decision, and the decisions of the batch.
    """

    exists: bool = False
    oldest: int | None = None
    targets: list[_Target] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unclear:
    """Feedback on an episode that counts if another decision in the log awaits it.

    Attributes:
        item: The feedback.
        oldest: Position of the oldest open decision of the episode.
        at: The log's time at which it is committed.
    """

    item: Feedback
    oldest: int
    at: float


Subject = tuple[str | None, str | None, FeedbackKind]
"""Id of a decision, or of an episode, and the kind of the feedback on it."""


@dataclass(slots=True)
class StoredFacts:
    """What the log already has about the facts of a batch.

    Attributes:
        executions: Ids of decisions that have an execution.
        observations: Stored observations, by decision, source and arm.
        feedback: Stored feedback and its position, by the pseudonym of its id and by kind.
        decisions: Stored decisions that the batch repeats or its feedback refers to, by id.
        episodes: Episodes that feedback refers to.
        amounts: Number of stored items of feedback by subject, if it is limited.
        erased: Decisions of the facts whose texts were erased.
        erased_episodes: Episodes of the facts whose newest decision was erased.
        askers: Who asked the decisions of executions with marks, and their positions, by id.
        under_way: Erasures that apply to facts that are appended now.
    """

    executions: set[str]
    observations: set[tuple[str, str, str]]
    feedback: dict[tuple[str, FeedbackKind], tuple[Feedback, int]]
    decisions: dict[str, _Target]
    episodes: defaultdict[str, _Episode]
    amounts: Counter[Subject] = field(default_factory=Counter)
    erased: set[str] = field(default_factory=set)
    erased_episodes: set[str] = field(default_factory=set)
    askers: dict[str, tuple[str | None, int]] = field(default_factory=dict)
    under_way: UnderWay = field(default_factory=UnderWay)

    @classmethod
    def from_rows(
        cls,
        *,
        secret: str,
        executions: ResultRows = (),
        observations: ResultRows = (),
        feedback: ResultRows = (),
        decisions: ResultRows = (),
        episodes: ResultRows = (),
        on_decisions: ResultRows = (),
        on_episodes: ResultRows = (),
        erased: ResultRows = (),
        askers: ResultRows = (),
        under_way: ResultRows = (),
    ) -> "StoredFacts":
        """Build it from the rows of the lookups; `append` and `Episodes.oldest` have their columns."""
        observed = {(name, source, arm) for name, source, arm in observations}
        state = cls({name for (name,) in executions}, observed, {}, {}, defaultdict(_Episode))
        for name, kind, decision_id, episode_id, metric, value, labels, texts, seq in feedback:
            item = Feedback(name, decision_id, metric, value, episode_id=episode_id, kind=FeedbackKind(kind))
            item = replace(
                item, content={**(loads(labels or "null") or {}), **loads(texts or "{}").get("content", {})}
            )
            state.feedback[pseudonym(name), item.kind] = item, seq
        for name, *target in decisions:
            state.decisions[name] = _target(*target)
        for name, _, exists, oldest, *open_one, gone in episodes:
            targets = [] if oldest is None else [_target(*open_one)]
            if gone is not None:
                state.erased_episodes.add(name)
            state.episodes[name] = _Episode(exists is not None, oldest, targets)
        state.erased.update(name for (name,) in erased)
        state.askers = {name: (asked_by, seq) for name, asked_by, seq in askers}
        state.under_way = UnderWay(dict(map(tuple, under_way)), secret)
        for name, kind, n in on_decisions:
            state.amounts[name, None, FeedbackKind(kind)] += n
        for name, kind, n in on_episodes:
            state.amounts[None, name, FeedbackKind(kind)] += n
        return state


@dataclass(slots=True)
class CommitBatch:
    """Facts that are committed together, as rows.

    Attributes:
        seq: The last assigned position.
        at: The log's time there.
        chain: The chain before the facts of the batch.
        now: Seconds since the epoch, by the clock.
        stored: What the log already has; `add` extends it.
        most: Values and retractions that a decision or an episode may have; None: unlimited.
        rows: Rows to insert, by table.
        receipts: Receipts of the facts so far.
        unclear: Feedback whose status is still to be looked up, by its index among the receipts.
        redact: Applied to every text before it is written.
        erased_by: Number of the erasure that applies to a decision of the batch, by its id.
    """

    seq: int
    at: float
    chain: str
    now: float
    stored: StoredFacts
    most: int | None = None
    rows: Mapping[sa.Table, list[dict[str, object]]] = field(default_factory=lambda: defaultdict(list))
    receipts: list[Receipt] = field(default_factory=list)
    unclear: dict[int, Unclear] = field(default_factory=dict)
    redact: Callable[[str], str] | None = None
    erased_by: dict[str, int] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Assign the next position to a fact that is new to the log.

        Raises:
            ConflictError: Its id is in use with another content.
            TooMuchFeedbackError: The decision or episode has as much feedback as it may have.
            ClockError: Its timestamp is in the future.
            StoreError: A value is infinite or NaN.
        """
        try:
            self.receipts.append(self._add(self._prepare(fact)))
        except (ConflictError, TooMuchFeedbackError) as error:
            error.fact = fact  # as its sender knows it, rather than as it is written
            raise

    def _prepare(self, fact: Fact) -> Fact:
        """Return a fact as it is written: redacted, or without texts if its subject was erased."""
        stored = self.stored
        match fact:
            case Decision():
                gone = (number := stored.under_way.find_erasure(fact)) is not None
                if number is not None:
                    stored.erased.add(fact.id)
                    self.erased_by[fact.id] = number
                if fact.episode_id is not None:  # its newest decision is this one
                    change = stored.erased_episodes.add if gone else stored.erased_episodes.discard
                    change(fact.episode_id)
            case Feedback(decision_id=None, episode_id=str(episode)):
                gone = episode in stored.erased_episodes or stored.under_way.find_erasure(fact) is not None
            case Feedback():
                gone = fact.decision_id in stored.erased or stored.under_way.find_erasure(fact) is not None
            case Execution() | Observation():
                gone = fact.decision_id in stored.erased
            case Tick():
                gone = False
        if gone:
            return without_texts(fact)
        return fact if self.redact is None else with_texts(fact, self.redact)

    def fold(self) -> str:
        """Return the chain after the facts of the batch, once it has all of them."""
        return fold(self.chain, self.rows)

    def list_receipts(self, awaited: Sequence[bool]) -> list[Receipt]:
        """Return the receipts of all facts.

        Args:
            awaited: For each unclear item, whether a decision in the log awaits it.
        """
        for place, accepted in zip(self.unclear, awaited, strict=True):
            if accepted:
                self.receipts[place] = replace(self.receipts[place], status=FeedbackStatus.ACCEPTED)
        return self.receipts

    def _add(self, fact: Fact) -> Receipt:
        match fact:
            case Decision():
                if fact.id in self.stored.decisions:
                    raise ConflictError(f"decision id {fact.id!r} is already taken", fact)
                self._next(fact.decided_at)
                erased = self.erased_by.get(fact.id)
                self._insert(t.decisions, decision_row(fact, self.seq, self.at, erased), fact)
                self.stored.askers[fact.id] = fact.asked_by, self.seq
                target = _target(fact.decided_at, fact.deadline, self.at)
                self.stored.decisions[fact.id] = target
                if fact.episode_id is not None:
                    self.stored.episodes[fact.episode_id].targets.append(target)
            case Execution():
                return self._add_execution(fact)
            case Observation():
                key = fact.decision_id, str(fact.source), fact.arm
                if key in self.stored.observations:
                    return Receipt()
                self.stored.observations.add(key)
                self._next(fact.observed_at)
                self._insert(t.observations, observation_row(fact, self.seq), fact)
            case Feedback():
                return self._add_feedback(fact)
            case Tick():
                self._next(fact.at)
                self.rows[t.ticks].append({"seq": self.seq, "at": fact.at})
        return Receipt(self.seq)

    def _add_execution(self, execution: Execution) -> Receipt:
        name = execution.decision_id
        if name in self.stored.executions:
            return Receipt()
        self.stored.executions.add(name)
        self._next(execution.finished_at)
        self._insert(t.executions, execution_row(execution, self.seq), execution)
        asked_by, decision_seq = self.stored.askers.get(name, (None, 0))
        if asked_by is not None and (marks := mark_rows(execution, decision_seq, asked_by)):
            self.rows[t.answer_marks].extend(marks)
        return Receipt(self.seq)

    def _insert(self, table: sa.Table, row: dict[str, Any], fact: Fact) -> None:
        """Add a row and the texts of its fact; values beyond the limits are replaced, with a warning."""
        texts = list_texts(fact)
        for part in (row, texts):
            for name, value in part.items():
                limits = _LIMITS.get((table, name))
                within = limit_numbers(value) if limits is None else limits.within(value)
                if within is not value and within != value:
                    about = row.get("decision_id") or row["id"]
                    shown = _shortened(within), table.name, name, about, _shortened(value)
                    logger.warning("wrote %s into %s.%s of decision %r instead of %s", *shown)
                    part[name] = within
        self.rows[table].append(row)
        self._seal(table, row, texts)

    def _seal(self, table: sa.Table, row: dict[str, Any], texts: Mapping[str, Any]) -> None:
        """Add the texts of the newest fact and the salt of its seal, if it has what an erasure removes."""
        if texts or any(row[name] for name in ERASABLE.get(table, ())):
            salt = make_salt()
            row["seal"] = make_seal(table, row, texts, salt)
            self.rows[t.texts].append({"seq": self.seq, "document": texts, "salt": salt})

    def _next(self, at: float) -> None:
        check_stamp(at, self.now)
        self.seq, self.at = self.seq + 1, max(self.at, at)

    def _add_feedback(self, item: Feedback) -> Receipt:
        if item.value is not None and not math.isfinite(item.value):
            raise StoreError(f"feedback {item.id!r} has the value {item.value}; it must be finite")
        shown = item.kind is FeedbackKind.ACTIVATION
        name = pseudonym(item.id)
        for kind in (FeedbackKind.ACTIVATION,) if shown else (FeedbackKind.VALUE, FeedbackKind.RETRACTION):
            if stored := self.stored.feedback.get((name, kind)):
                _same_or_conflict(stored[0], item)
        if stored := self.stored.feedback.get((name, item.kind)):
            return Receipt(stored[1], FeedbackStatus.DUPLICATE)
        if not shown and self.most is not None:
            self._count(item, self.most)
        self._next(item.received_at)
        self.stored.feedback[name, item.kind] = item, self.seq
        early = item.decision_id is not None and item.decision_id not in self.stored.decisions
        row, rows = feedback_row(item, self.seq, early), self.rows[t.feedback]
        if rows and all(rows[-1][key] == row[key] for key in ("decision_id", "episode_id")):
            rows[-1]["more"] = rows[-1]["seq"] == self.seq - 1
        rows.append(row)
        self._seal(t.feedback, row, list_texts(item))
        return Receipt(self.seq, self._status(item))

    def _count(self, item: Feedback, most: int) -> None:
        """Count feedback on its decision or episode. Raises TooMuchFeedbackError."""
        subject = item.decision_id, item.episode_id, item.kind
        if self.stored.amounts[subject] >= most:
            about = f"decision {item.decision_id}" if item.decision_id else f"episode {item.episode_id}"
            kind = "values" if item.kind is FeedbackKind.VALUE else "retractions"
            raise TooMuchFeedbackError(
                f"{about} already has {most:,} {kind} of feedback, which is the maximum", item
            )
        self.stored.amounts[subject] += 1

    def _status(self, item: Feedback) -> FeedbackStatus:
        """Return the status of new feedback; it is pending while its decision is missing from the log."""
        if item.decision_id is not None:
            decision = self.stored.decisions.get(item.decision_id)
            episode = _Episode(targets=[] if decision is None else [decision])
        else:
            episode = self.stored.episodes[item.episode_id or ""]
        if any(target.awaits(item, self.at) for target in episode.targets):
            return FeedbackStatus.ACCEPTED
        if episode.oldest is not None:
            self.unclear[len(self.receipts)] = Unclear(item, episode.oldest, self.at)
        if episode.exists or episode.targets:
            return FeedbackStatus.LATE_NOT_LEARNED
        return FeedbackStatus.PENDING_DECISION


def _same_or_conflict(stored: Feedback, item: Feedback) -> None:
    """Check that the id of feedback is used for one content only. Raises ConflictError."""
    same = (stored.decision_id, stored.episode_id, stored.metric) == (
        item.decision_id,
        item.episode_id,
        item.metric,
    )
    contents = (stored.value, stored.content), (item.value, item.content)
    if not same or (stored.kind is item.kind and contents[0] != contents[1]):
        before, now = _describe(stored), _describe(item)
        raise ConflictError(f"feedback id {item.id!r} was used for {before}; it cannot also be {now}", item)


def _describe(item: Feedback) -> str:
    about = item.decision_id if item.decision_id is not None else f"episode {item.episode_id}"
    what = item.kind.value if item.value is None else f"{item.metric}={item.value:g}"
    if item.content:
        what += f" {_shortened(dict(item.content))}"
    return f"{what} on {about}"
