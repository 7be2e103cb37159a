"""Append facts: one commit, from facts to rows, in two round trips to the database.

    begin, lock the head of the log, look up what the facts refer to
    insert the rows, advance the head, commit

The statements are compiled once in a process. Between the two, `Batch` decides which facts are new, numbers
them, and finds the status of feedback; it writes nothing. What it knows of the log is read under the lock of
the transaction that will write it, so a fact that is new stays new until then. Downwards:

    with_texts, without_texts    the texts of a fact: redacted, or gone with an erasure
    UnderWay                     erasures that turns from before may still be under way of
    decision_row and others      facts as rows
    Batch                        which facts are new, their positions, the status of feedback
    Episodes                     whether a decision of an episode awaits feedback
    Appender                     the statements, and their two round trips
"""

import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from reprlib import repr as _shortened
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from armwise.feedback.clock import GRACE_S, check_behind, check_stamp
from armwise.feedback.errors import ConflictError, StoreError, TooMuchFeedbackError
from armwise.feedback.events import (
    COMMENT,
    DEMONSTRATION,
    Context,
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
from armwise.feedback.log.backend import (
    Database,
    ResultRows,
    Statement,
    compiled,
    dumps,
    limited,
    loads,
    storable,
)
from armwise.feedback.log.limits import Limited, Word
from armwise.feedback.log.schema import require_head
from armwise.feedback.texts import by_pseudonym, pseudonym

logger = logging.getLogger(__name__)

Fact = Decision | Execution | Feedback | Observation | Tick

# -- texts of a fact -------------------------------------------------------------------------------

F = TypeVar("F")

WRITTEN = (COMMENT, DEMONSTRATION)
"""Keys of the content of feedback that hold what somebody wrote; the others are labels, ids and arms."""


def with_texts(fact: F, change: Callable[[str], str]) -> F:
    """Return a fact with its texts changed; the same object where nothing differs.

    >>> with_texts(Feedback("f", "d", content={"comment": "Ada left", "label": "bad"}), str.upper).content
    {'comment': 'ADA LEFT', 'label': 'bad'}
    """
    changed: Any = fact
    match fact:
        case Decision():
            context = replace(fact.context, question=change(fact.context.question))
            changed = replace(fact, context=context)
        case Execution():
            answer, error = fact.answer and change(fact.answer), change(fact.error)
            changed = replace(fact, answer=answer, error=error, stages=tuple(_inside(fact.stages, change)))
        case Observation():
            changed = replace(fact, answer=fact.answer and change(fact.answer), error=change(fact.error))
        case Feedback():
            content = {key: change(text) if key in WRITTEN else text for key, text in fact.content.items()}
            changed = replace(
                fact, content=content, tags={key: change(text) for key, text in fact.tags.items()}
            )
    return fact if changed == fact else changed


def without_texts(fact: F) -> F:
    """Return a fact as it is after its decision was erased.

    An id of feedback is any text, so it becomes a pseudonym, by which a retry and a retraction still find it.
    Those of decisions and episodes stay: they are made of few characters, and draws and joins depend on them.

    >>> without_texts(Feedback("f", "d", value=1.0, tags={"page": "/ada"})).tags
    {}
    """
    changed: Any = fact
    match fact:
        case Decision():
            context = Context(
                "",
                by_pseudonym(fact.context.features),
                fact.context.embedding,
                {arm: by_pseudonym(features) for arm, features in fact.context.arms.items()},
            )
            changed = replace(fact, context=context, request_digest="", user_digest=None, erased=True)
        case Execution():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=(), stages=())
        case Observation():
            answer = None if fact.answer is None else ""
            changed = replace(fact, answer=answer, error="", passages=())
        case Feedback():
            content = {key: label for key, label in fact.content.items() if key not in WRITTEN}
            changed = replace(fact, id=pseudonym(fact.id), content=content, tags={})
    return changed  # type: ignore[no-any-return]


def _inside(value: Any, change: Callable[[str], str]) -> Any:
    """Return a document with its texts changed, but not the names in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _inside(part, change) for key, part in value.items()}
    return [_inside(part, change) for part in value] if isinstance(value, list | tuple) else value


# -- erasures that turns from before may be under way of -------------------------------------------
#
# A turn that began before an erasure may commit its decision after it. So the record of an erasure has a
# keyed hash of its subject for some time, and facts about that subject are stored without texts meanwhile.

UNDER_WAY_S = 120.0
"""Seconds after an erasure in which facts about its subject are stored without texts: more than a turn waits
for its draw."""


class Scope(StrEnum):
    """What was erased."""

    USER = "user"
    EPISODE = "episode"
    DECISION = "decision"
    AGE = "age"


def subject_digest(secret: str, scope: Scope, name: str) -> str:
    """Return the hash of the subject of an erasure.

    Args:
        secret: That of the draws.
        scope: Kind of the subject.
        name: Hash of a user, or id of an episode or a decision in the log.
    """
    about = json.dumps(["erased", scope, name]).encode()
    return hmac.new(secret.encode(), about, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Erasures that are so recent that turns from before them may still commit.

    Attributes:
        numbers: Number of each erasure, by the hash of its subject.
        secret: That of the draws.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)
    secret: str = field(default="", repr=False)

    def erasure_of(self, fact: Fact) -> int | None:
        """Return the number of the erasure that reaches a decision or feedback; None for none."""
        if not self.numbers:
            return None
        digests = (subject_digest(self.secret, scope, name) for scope, name in _subjects(fact))
        return next((self.numbers[digest] for digest in digests if digest in self.numbers), None)


def _subjects(fact: object) -> Iterator[tuple[Scope, str]]:
    match fact:
        case Decision(id=name, episode_id=episode, user_digest=user):
            pass
        case Feedback(decision_id=name, episode_id=episode):
            user = None
        case _:
            return
    named = (Scope.DECISION, name), (Scope.EPISODE, episode), (Scope.USER, user)
    yield from ((scope, subject) for scope, subject in named if subject is not None)


# -- facts as rows ---------------------------------------------------------------------------------


def decision_row(d: Decision, seq: int, logged_at: float, erased: int | None = None) -> dict[str, object]:
    """Return the row of a decision at a position and a time of the log; `erased` by an erasure or not."""
    return {
        "seq": seq,
        "id": d.id,
        "decided_at": d.decided_at,
        "deadline": d.deadline,
        "logged_at": logged_at,
        "mode": d.mode.value,
        "policy": d.policy,
        "version": d.version,
        "floor": d.floor,
        "drawn": d.drawn,
        "propensity": d.propensity if d.probabilities else None,
        "deferred": d.deferred,
        "episode_id": d.episode_id,
        "request_digest": d.request_digest,
        "question": storable(d.context.question),
        "arms": d.arms,
        "probabilities": d.probabilities,
        "shadow": d.shadow,
        "features": {
            "sparse": d.context.features,
            "embedding": d.context.embedding,
            "arms": d.context.arms,
            **({"masked": d.masked} if d.masked else {}),
            **({"trace": d.trace} if d.trace else {}),
            **({"incumbent": [d.incumbent_share, *d.incumbent]} if d.incumbent else {}),
            **({"quoted_groups": d.quoted_groups} if d.quoted_groups else {}),
        },
        "candidate": d.candidate,
        "share": d.share,
        "price": d.price,
        "costs": d.costs,
        "cost_weight": d.cost_weight,
        "candidate_scores": d.candidate_scores,
        "user_digest": d.user_digest,
        "erased": erased,
        "draw_id": d.draw_id,
    }


def execution_row(e: Execution, seq: int) -> dict[str, object]:
    """Return the row of an execution at a position of the log."""
    return {
        "seq": seq,
        "decision_id": e.decision_id,
        "served": e.served,
        "status": e.status.value,
        "steps": e.cost.steps,
        "prompt_tokens": e.cost.prompt_tokens,
        "completion_tokens": e.cost.completion_tokens,
        "retrieval_s": e.cost.retrieval_s,
        "llm_s": e.cost.llm_s,
        "usd": e.cost.usd,
        "passages": e.passages,
        "answer": None if e.answer is None else storable(e.answer),
        "error": storable(e.error),
        "finished_at": e.finished_at,
        "stages": e.stages,
        "index_version": e.index_version or None,
        "cached": e.cached,
        "tokens_by_model": dict(e.tokens_by_model) or None,
    }


def observation_row(o: Observation, seq: int) -> dict[str, object]:
    """Return the row of an observation at a position of the log."""
    judged = o.judge_cost
    return {
        "seq": seq,
        "decision_id": o.decision_id,
        "source": o.source.value,
        "arm": o.arm,
        "share": o.share,
        "propensity": o.propensity,
        "value": o.value,
        "steps": o.cost.steps,
        "prompt_tokens": o.cost.prompt_tokens,
        "completion_tokens": o.cost.completion_tokens,
        "retrieval_s": o.cost.retrieval_s,
        "llm_s": o.cost.llm_s,
        "usd": o.cost.usd,
        "judge": storable(o.judge),
        "judge_tokens": judged.prompt_tokens + judged.completion_tokens,
        "judge_s": judged.llm_s,
        "judge_usd": judged.usd,
        "swapped": o.swapped,
        "passages": o.passages,
        "answer": None if o.answer is None else storable(o.answer),
        "error": storable(o.error),
        "observed_at": o.observed_at,
    }


def feedback_row(f: Feedback, seq: int, early: bool) -> dict[str, object]:
    """Return the row of feedback at a position of the log; `early` if its decision is not in the log yet."""
    return {
        "seq": seq,
        "id": f.id,
        "kind": f.kind.value,
        "decision_id": f.decision_id,
        "episode_id": f.episode_id,
        "early": early,
        "more": False,
        "metric": f.metric,
        "value": f.value,
        "received_at": f.received_at,
        "event_time": f.event_time,
        "tags": dict(f.tags),
        "source": f.source,
        "key": f.key,
        "rater": f.rater,
        "content": dict(f.content) or None,
    }


# -- one commit ------------------------------------------------------------------------------------


class FeedbackStatus(StrEnum):
    """Status of an item of feedback; with any status, it is durable."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    PENDING_DECISION = "pending_decision"
    LATE_NOT_LEARNED = "late_not_learned"


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof that a fact is durable.

    Attributes:
        seq: Position in the log; 0 for an execution or observation that was in the log already.
        status: Status of feedback; None for other facts.
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
        # feedback on an episode before this decision refers to earlier decisions
        before = (
            item.decision_id is None
            and item.kind is FeedbackKind.VALUE
            and item.received_at < self.decided_at
        )
        return not self.learned and not before and item.received_at <= self.deadline and at <= self.closing


def _target(decided_at: float, deadline: float, logged_at: float, example_seq: int | None = None) -> _Target:
    return _Target(decided_at, deadline, max(deadline, logged_at) + GRACE_S, example_seq is not None)


@dataclass(slots=True)
class _Episode:
    """An episode that feedback refers to.

    Attributes:
        exists: Whether the log has a decision of it.
        oldest: Position of its oldest open decision; None if the log has none.
        targets: That decision, and those of the batch.
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
"""A decision, or else an episode, and a kind of the feedback on it."""


@dataclass(slots=True)
class StoredFacts:
    """What the log contains already about the facts of a batch.

    Attributes:
        executions: Ids of decisions that have an execution.
        observations: Stored observations, by decision, source and arm.
        feedback: Stored feedback and its position, by the pseudonym of its id and by kind.
        decisions: Decisions that feedback refers to, and those that are not new.
        episodes: Episodes that feedback refers to.
        amounts: Number of stored items of feedback, if it is limited.
        erased: Decisions of the facts whose texts were erased.
        erased_episodes: Episodes of the facts whose newest decision was erased.
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
    under_way: UnderWay = field(default_factory=UnderWay)

    @classmethod
    def of(
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
        under_way: ResultRows = (),
    ) -> "StoredFacts":
        """Build it from the rows of the lookups; `_lookups` and `Episodes.oldest` have their columns."""
        observed = {(name, source, arm) for name, source, arm in observations}
        state = cls({name for (name,) in executions}, observed, {}, {}, defaultdict(_Episode))
        for name, kind, decision_id, episode_id, metric, value, content, seq in feedback:
            item = Feedback(name, decision_id, metric, value, episode_id=episode_id, kind=_kind(kind))
            item = replace(item, content=loads(content or "null") or {})
            state.feedback[pseudonym(name), item.kind] = item, seq
        for name, *target in decisions:
            state.decisions[name] = _target(*target)
        for name, _, exists, oldest, *open_one, gone in episodes:
            targets = [] if oldest is None else [_target(*open_one)]
            if gone is not None:
                state.erased_episodes.add(name)
            state.episodes[name] = _Episode(exists is not None, oldest, targets)
        state.erased.update(name for (name,) in erased)
        state.under_way = UnderWay(dict(map(tuple, under_way)), secret)
        for name, kind, n in on_decisions:
            state.amounts[name, None, _kind(kind)] += n
        for name, kind, n in on_episodes:
            state.amounts[None, name, _kind(kind)] += n
        return state


@dataclass(slots=True)
class Batch:
    """Facts that are committed together, as rows.

    Attributes:
        seq: The last assigned position.
        at: The log's time there.
        now: Seconds since the epoch, by the clock.
        stored: Facts that the log contains; `add` extends it.
        most: Values of feedback that a decision or an episode may have, and retractions; None for any number.
        rows: Rows to insert, by table.
        receipts: Receipts of the facts so far.
        unclear: Feedback whose status is not known yet, by its place among the receipts.
        redact: Applied to every text before it is written; None keeps texts as they are.
        erased_by: Number of the erasure that reaches a decision of the batch, by its id.
    """

    seq: int
    at: float
    now: float
    stored: StoredFacts
    most: int | None = None
    rows: Mapping[sa.Table, list[dict[str, object]]] = field(default_factory=lambda: defaultdict(list))
    receipts: list[Receipt] = field(default_factory=list)
    unclear: dict[int, Unclear] = field(default_factory=dict)
    redact: Callable[[str], str] | None = None
    erased_by: dict[str, int] = field(default_factory=dict)

    def add(self, fact: Fact) -> None:
        """Assign the next position to a fact, unless the log has it.

        Raises:
            ConflictError: Its id is used already, with another content.
            TooMuchFeedbackError: There is as much feedback already as there may be.
            ClockError: Its stamp is in the future.
            StoreError: A value is not finite.
        """
        try:
            self.receipts.append(self._add(self._written(fact)))
        except (ConflictError, TooMuchFeedbackError) as error:
            error.fact = fact  # which its sender knows, and not what is written of it
            raise

    def _written(self, fact: Fact) -> Fact:
        """Return a fact as it is written: redacted, or without texts if its subject was erased."""
        stored = self.stored
        match fact:
            case Decision():
                gone = (number := stored.under_way.erasure_of(fact)) is not None
                if number is not None:
                    stored.erased.add(fact.id)
                    self.erased_by[fact.id] = number
                if fact.episode_id is not None:  # its newest decision is this one
                    change = stored.erased_episodes.add if gone else stored.erased_episodes.discard
                    change(fact.episode_id)
            case Feedback(decision_id=None, episode_id=str(episode)):
                gone = episode in stored.erased_episodes or stored.under_way.erasure_of(fact) is not None
            case Feedback():
                gone = fact.decision_id in stored.erased or stored.under_way.erasure_of(fact) is not None
            case Execution() | Observation():
                gone = fact.decision_id in stored.erased
            case Tick():
                gone = False
        if gone:
            return without_texts(fact)
        return fact if self.redact is None else with_texts(fact, self.redact)

    def settled(self, awaited: Sequence[bool]) -> list[Receipt]:
        """Return the receipts of all facts.

        Args:
            awaited: For each item that is unclear, whether a decision in the log awaits it.
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
                self._insert(t.decisions, decision_row(fact, self.seq, self.at, erased))
                target = _target(fact.decided_at, fact.deadline, self.at)
                self.stored.decisions[fact.id] = target
                if fact.episode_id is not None:
                    self.stored.episodes[fact.episode_id].targets.append(target)
            case Execution():
                if fact.decision_id in self.stored.executions:
                    return Receipt()
                self.stored.executions.add(fact.decision_id)
                self._next(fact.finished_at)
                self._insert(t.executions, execution_row(fact, self.seq))
            case Observation():
                key = fact.decision_id, str(fact.source), fact.arm
                if key in self.stored.observations:
                    return Receipt()
                self.stored.observations.add(key)
                self._next(fact.observed_at)
                self._insert(t.observations, observation_row(fact, self.seq))
            case Feedback():
                return self._add_feedback(fact)
            case Tick():
                self._next(fact.at)
                self.rows[t.ticks].append({"seq": self.seq, "at": fact.at})
        return Receipt(self.seq)

    def _insert(self, table: sa.Table, row: dict[str, Any]) -> None:
        """Add a row, its values within the limits of their columns; a warning names the others."""
        for column in table.c:
            value = row[column.name]
            within = column.type.within(value) if isinstance(column.type, Limited) else limited(value)
            if within is not value and within != value:
                about = row["id" if table is t.decisions else "decision_id"]
                shown = _shortened(within), table.name, column.name, about, _shortened(value)
                logger.warning("%s is written into %s.%s of decision %r, in the place of %s", *shown)
                row[column.name] = within
        self.rows[table].append(row)

    def _next(self, at: float) -> None:
        check_stamp(at, self.now)
        self.seq, self.at = self.seq + 1, max(self.at, at)

    def _add_feedback(self, item: Feedback) -> Receipt:
        if item.value is not None and not math.isfinite(item.value):
            raise StoreError(f"feedback {item.id!r} has the value {item.value}: it is not finite")
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
        return Receipt(self.seq, self._status(item))

    def _count(self, item: Feedback, most: int) -> None:
        """Count feedback on its decision or episode. Raises TooMuchFeedbackError."""
        subject = item.decision_id, item.episode_id, item.kind
        if self.stored.amounts[subject] >= most:
            about = item.decision_id or f"episode {item.episode_id}"
            kind = "values" if item.kind is FeedbackKind.VALUE else "retractions"
            raise TooMuchFeedbackError(f"{about} has {most:,} {kind} of feedback, and may have no more", item)
        self.stored.amounts[subject] += 1

    def _status(self, item: Feedback) -> FeedbackStatus:
        """Return the status of new feedback; a decision that is not in the log has no deadline."""
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


def _kind(word: str) -> FeedbackKind:
    return FeedbackKind(cast(Word, t.feedback.c.kind.type).within(word))


def _same_or_conflict(stored: Feedback, item: Feedback) -> None:
    """Raise ConflictError if the id of feedback is used already, with another content."""
    same = (stored.decision_id, stored.episode_id, stored.metric) == (
        item.decision_id,
        item.episode_id,
        item.metric,
    )
    contents = (stored.value, stored.content), (item.value, item.content)
    if not same or (stored.kind is item.kind and contents[0] != contents[1]):
        before, now = _described(stored), _described(item)
        raise ConflictError(f"feedback id {item.id!r} was used for {before}; it cannot also be {now}", item)


def _described(item: Feedback) -> str:
    about = item.decision_id if item.decision_id is not None else f"episode {item.episode_id}"
    what = item.kind.value if item.value is None else f"{item.metric}={item.value:g}"
    if item.content:
        what += f" {_shortened(dict(item.content))}"
    return f"{what} on {about}"


# -- episodes --------------------------------------------------------------------------------------
#
# Feedback on an episode needs the oldest decision that is open: neither learned nor closed. Decisions before
# it are settled and stay so, since facts do not change and the log's time does not go back. Up to which
# position they are is remembered, so each process passes over a settled decision once.

REMEMBERED = 10_000
"""Episodes whose settled decisions are remembered."""

_ONE: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
_ZERO: sa.ColumnElement[int] = sa.literal_column("0", sa.Integer)


class Episodes:
    """The statements about the episodes of one log, and what is settled of them. Thread-safe.

    Args:
        database: The database of the log.
        join: Digest of the training log in which decisions are looked up.
    """

    def __init__(self, database: Database, join: str) -> None:
        self._join = join
        self._settled: dict[str, int] = {}
        self._lock = threading.Lock()
        self._sql = compiled(database, _episode_statements)

    def oldest(self, names: Iterable[str]) -> Statement:
        """Return the statement that looks up episodes.

        A row is: name, position of the head of the log, 1 if there is any decision of the episode; then
        position, `decided_at`, `deadline` and `logged_at` of the oldest open one; the erasure of the newest.
        None where there is none.
        """
        positions = [[name, self._settled.get(name, 0)] for name in sorted(names)]
        return self._sql["oldest"], {"numbered": dumps(positions), "join": self._join}

    def remember(self, rows: Iterable[Sequence[Any]]) -> None:
        """Remember what is settled, by the rows of `oldest`."""
        with self._lock:
            for name, head, _, seq, *_ in rows:
                self._settled.pop(name, None)
                self._settled[name] = head if seq is None else seq - 1
            while len(self._settled) > REMEMBERED:
                del self._settled[next(iter(self._settled))]

    def awaiting(self, item: Feedback, oldest: int, at: float) -> Statement:
        """Return the statement that finds a row if a decision after the oldest open one awaits feedback.

        Args:
            item: Feedback on the episode.
            oldest: Position of the oldest open decision of the episode.
            at: The log's time at which the feedback is committed.
        """
        return self._sql["awaiting"], {
            "episode": item.episode_id,
            "oldest": oldest,
            "made_by": item.received_at if item.kind is FeedbackKind.VALUE else math.inf,
            "received_at": item.received_at,
            "at": at,
            "join": self._join,
        }


def _episode_statements(database: Database) -> dict[str, sa.ClauseElement]:
    return {"oldest": _oldest(*database.numbered()), "awaiting": _awaiting()}


def _open(at: sa.ColumnElement[float]) -> Sequence[sa.ColumnElement[bool]]:
    """Return the conditions that a decision is neither closed at a time of the log nor learned."""
    d, x = t.decisions.c, t.examples.c
    grace = sa.literal_column(repr(GRACE_S), sa.Double)
    learned = (x.decision_id == d.id) & (x.join == sa.bindparam("join", type_=sa.String))
    # PostgreSQL expects that it holds of half of the rows, so goes through them in order; for NOT EXISTS, it
    # may read the whole table, and for IS NULL, sort the whole episode
    false = sa.select(sa.false()).where(learned).correlate(t.decisions).scalar_subquery()
    return (d.deadline + grace >= at) | (d.logged_at + grace >= at), sa.func.coalesce(false, sa.true())


def _oldest(
    pairs: sa.FromClause, name: sa.ColumnElement[str], settled: sa.ColumnElement[int]
) -> sa.Select[Any]:
    d = t.decisions.c
    head, at = (sa.select(column).scalar_subquery() for column in (t.log_head.c.seq, t.log_head.c.at))
    of_episode = d.episode_id == name
    after = sa.case((settled <= head, settled), else_=_ZERO)  # an older log was restored
    any_decision = _first(sa.select(_ONE).where(of_episode))
    oldest = _first(sa.select(d.seq).where(of_episode, d.seq > after, *_open(at)).order_by(d.seq))
    newest = _first(sa.select(d.erased).where(of_episode).order_by(d.seq.desc()))
    looked_up = sa.select(
        name.label("name"),
        head.label("head"),
        any_decision.correlate(pairs).scalar_subquery().label("any_decision"),
        oldest.correlate(pairs).scalar_subquery().label("oldest"),
        newest.correlate(pairs).scalar_subquery().label("erased"),
    )
    f = looked_up.select_from(pairs).subquery()
    columns = f.c.name, f.c.head, f.c.any_decision, d.seq, d.decided_at, d.deadline, d.logged_at, f.c.erased
    return sa.select(*columns).outerjoin_from(f, t.decisions, d.seq == f.c.oldest)


def _awaiting() -> sa.Select[Any]:
    """Compare as `Batch` does with the decisions that it has in memory."""
    d = t.decisions.c
    made_by, received_at, at = (
        sa.bindparam(key, type_=sa.Double) for key in ("made_by", "received_at", "at")
    )
    conditions = (
        d.episode_id == sa.bindparam("episode", type_=sa.String),
        d.seq > sa.bindparam("oldest", type_=sa.BigInteger),
        d.decided_at <= made_by,
        d.deadline >= received_at,
        *_open(at),
    )
    return _first(sa.select(_ONE).select_from(t.decisions).where(*conditions).order_by(d.seq))


def _first(query: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query of the first row; both numbers are literals, since a driver gets the compiled text."""
    return query.limit(_ONE).offset(_ZERO)


# -- statements ------------------------------------------------------------------------------------

PROBE_BYTES = 64 * 1024
"""Bytes that a probe writes: more than most commits."""

_COMMIT: Statement = ("COMMIT", {})


class Appender:
    """The statements that append to one log.

    Args:
        database: The database of the log.
        join: Digest of the training log in which decisions are looked up.
        most: Values of feedback that a decision or an episode may have, and retractions; None for any number.
        redact: Applied to every text before it is written; None keeps texts as they are.
        secret: Returns the secret of the draws.
    """

    def __init__(
        self,
        database: Database,
        join: str,
        most: int | None = None,
        redact: Callable[[str], str] | None = None,
        secret: Callable[[], str] = str,
    ) -> None:
        self._secret = secret
        self._most, self._redact = most, redact
        self._database = database
        self._join = join
        self.episodes = Episodes(database, join)
        self._sql, self._lookups = compiled(database, _head_statements), compiled(database, _lookups)
        facts = (t.decisions, t.executions, t.feedback, t.observations, t.ticks)
        self._add = database.addition(facts, self._sql["move"])

    def begin(self, driver: Any, facts: Sequence[Fact], now: float) -> Batch:
        """Begin a transaction; return a batch at the head of the log that knows what the facts refer to."""
        about = subjects(facts, limited=self._most is not None)
        lookups = {name: self._lookup(name, ids) for name, ids in about.items() if ids}
        lookups["under_way"] = self._sql["under_way"], {"since": now - UNDER_WAY_S}
        (seq, at), *rows = self._locked(driver, [*lookups.values()], now)
        results = dict(zip(lookups, rows, strict=True))
        self.episodes.remember(results.get("episodes", ()))
        return Batch(
            seq,
            at,
            now,
            StoredFacts.of(**results, secret=self._erasing(results)),
            self._most,
            redact=self._redact,
        )

    def _erasing(self, results: Mapping[str, ResultRows]) -> str:
        """Return the secret where an erasure may reach what is appended; else nothing, without reading it."""
        return self._secret() if results["under_way"] else ""

    def _lookup(self, name: str, ids: set[str]) -> Statement:
        if name == "episodes":
            return self.episodes.oldest(ids)
        return self._lookups[name], {"ids": self._database.ids(sorted(ids)), "join": self._join}

    def _locked(self, driver: Any, lookups: Sequence[Statement], now: float) -> list[Any]:
        """Lock the head; return its position and time, then the rows of each lookup."""
        head, *results = self._database.exchange(driver, [(self._sql["head"], {}), *lookups])
        require_head(len(head))
        check_behind(now, head[0][1])
        return [head[0], *results]

    def write(self, driver: Any, batch: Batch) -> list[Receipt]:
        """Write a batch, commit, and return the receipt of each of its facts."""
        moved = {"to_seq": batch.seq, "to_at": batch.at}
        queries = [
            self.episodes.awaiting(unclear.item, unclear.oldest, unclear.at)
            for unclear in batch.unclear.values()
        ]
        # before the rows of the batch, whose decisions it has compared itself
        results = self._database.exchange(driver, [*queries, *self._add(batch.rows, moved), _COMMIT])
        return batch.settled([bool(rows) for rows in results[: len(queries)]])

    def probe(self, driver: Any, now: float) -> None:
        """Insert and delete a row under the lock of the head, and commit, to show that writes succeed."""
        filling = Execution("", None, Status.CANCELLED, Cost(), answer=secrets.token_hex(PROBE_BYTES // 2))
        ((seq, at),) = self._locked(driver, [], now)
        added = self._add({t.executions: [execution_row(filling, 0)]}, {"to_seq": seq, "to_at": at})
        self._database.exchange(driver, [*added, (self._sql["clear"], {}), _COMMIT])


def _head_statements(_: Database) -> dict[str, sa.ClauseElement]:
    """Return the statements on the head, and the one that removes a probe."""
    return {
        "head": sa.select(t.log_head.c.seq, t.log_head.c.at).with_for_update(),
        "move": sa.update(t.log_head).values(seq=sa.bindparam("to_seq"), at=sa.bindparam("to_at")),
        "under_way": sa.select(t.erasures.c.subject, t.erasures.c.seq).where(
            t.erasures.c.subject.is_not(None), t.erasures.c.at > sa.bindparam("since", type_=sa.Double)
        ),
        "clear": sa.delete(t.executions).where(t.executions.c.seq == sa.literal_column("0")),
    }


def _lookups(database: Database) -> dict[str, sa.ClauseElement]:
    """Return the queries of what facts refer to."""
    e, f, d, x = t.executions.c, t.feedback.c, t.decisions.c, t.examples.c
    o = t.observations.c
    learned = (x.decision_id == d.id) & (x.join == sa.bindparam("join", type_=sa.String))
    about = sa.select(d.id, d.decided_at, d.deadline, d.logged_at, x.seq)
    about = about.outerjoin(t.examples, learned)
    content = sa.cast(f.content, sa.Text)
    items = sa.select(f.id, f.kind, f.decision_id, f.episode_id, f.metric, f.value, content, f.seq)
    among = database.among
    return {
        "executions": sa.select(e.decision_id).where(among(e.decision_id)),
        "observations": sa.select(o.decision_id, o.source, o.arm).where(among(o.decision_id)),
        "feedback": items.where(among(f.id)),
        "decisions": about.where(among(d.id)),
        "erased": sa.select(d.id).where(among(d.id), d.erased.is_not(None)),
        "on_decisions": _amounts(f.decision_id).where(among(f.decision_id)),
        "on_episodes": _amounts(f.episode_id).where(among(f.episode_id)),
    }


def _amounts(subject: sa.Column[str]) -> sa.Select[Any]:
    """Return a query of how many values and how many retractions there are, by subject."""
    f = t.feedback.c
    query = sa.select(subject, f.kind, sa.func.count()).where(f.kind != sa.literal_column("'activation'"))
    return query.group_by(subject, f.kind)


def subjects(facts: Sequence[Fact], *, limited: bool = False) -> dict[str, set[str]]:
    """Return the ids to look up; those that feedback is counted of where it is `limited`."""
    executed, items, decided, episodes, observed, judged = (set[str]() for _ in range(6))
    for fact in facts:
        match fact:
            case Decision():
                decided.add(fact.id)
            case Execution():
                executed.add(fact.decision_id)
            case Observation():
                observed.add(fact.decision_id)
            case Feedback(decision_id=str(about)):
                items |= {fact.id, pseudonym(fact.id)}
                decided.add(about)
                judged.add(about)
            case Feedback(episode_id=str(about)):
                items |= {fact.id, pseudonym(fact.id)}
                episodes.add(about)
    return {
        "executions": executed,
        "observations": observed,
        "feedback": items,
        "decisions": decided,
        "episodes": episodes,
        "erased": executed | observed | judged,
        "on_decisions": judged if limited else set(),
        "on_episodes": episodes if limited else set(),
    }
