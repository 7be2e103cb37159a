"""Append facts: a transaction that locks the head of the log, looks up what they name, and inserts them.

What the log already has is read under the lock, so a fact that is new stays new until the commit. In between,
`Batch` decides in memory which facts are new, numbers them, and finds those whose texts were erased.
"""

import logging
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from armwise.feedback.log.backend import dumps, json_items
from armwise.feedback.log.chain import ERASABLE, FACTS, make_salt, make_seal
from armwise.feedback.log.facts import (
    Fact,
    decision_row,
    execution_row,
    feedback_row,
    list_texts,
    mark_rows,
    observation_row,
    with_texts,
    without_texts,
)
from armwise.feedback.log.rows import IDS, look_up, select_texts
from armwise.feedback.log.schema import require_row
from armwise.feedback.log.under_way import NAMED_ERASURE, UNDER_WAY_S, find_erasure
from armwise.feedback.texts import pseudonym

logger = logging.getLogger(__name__)

PROBE_BYTES = 64 * 1024
"""Bytes that a probe writes: more than most commits."""

_LIMITED = {
    table: [
        (column.name, *column.info["limits"], isinstance(column.type, sa.Integer))
        for column in table.c
        if "limits" in column.info
    ]
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


def append(
    connection: sa.Connection,
    facts: Sequence[Fact],
    now: float,
    secret: Callable[[], str],
    most: int | None = None,
    redact: Callable[[str], str] | None = None,
) -> list[Receipt]:
    """Write facts within a transaction that the caller commits; return the receipt of each.

    Args:
        connection: The transaction.
        facts: The facts.
        now: Seconds since the epoch, by the clock.
        secret: Returns the secret of the draws, by which erasures name their subjects.
        most: Values and retractions that a decision or an episode may have; None: unlimited.
        redact: Applied to every text before it is written.

    Raises:
        StoreError: A fact is refused, as `Store.append` says: roll the transaction back.
    """
    batch = Batch(*_lock_head(connection, now), now, most, redact)
    batch.look_up(connection, facts, secret)
    for fact in facts:
        try:
            batch.receipts.append(batch.add(fact))
        except (ConflictError, TooMuchFeedbackError) as error:
            error.fact = fact  # as its sender knows it, rather than as it is written
            raise
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


class Batch:
    """Facts that are committed together, as rows, and what the log has of what they name."""

    def __init__(
        self, seq: int, at: float, now: float, most: int | None, redact: Callable[[str], str] | None
    ) -> None:
        self.seq, self.at, self._now = seq, at, now  # the last position, and the log's time there
        self._most, self._redact = most, redact
        self.rows = defaultdict[sa.Table, list[dict[str, Any]]](list)
        self.receipts: list[Receipt] = []
        self._decisions: dict[str, tuple[int, str | None]] = {}  # position, and who asked
        self._executions = set[str]()
        self._observations = set[tuple[str, str, str]]()
        self._feedback: dict[tuple[str, FeedbackKind], tuple[Feedback, int]] = {}  # by pseudonym of the id
        self._amounts = Counter[Subject]()
        self._erased, self._erased_episodes = set[str](), set[str]()
        self._under_way: dict[str, int] = {}
        self._secret = ""  # read when an erasure is under way # nosec B105

    def look_up(self, connection: sa.Connection, facts: Sequence[Fact], secret: Callable[[], str]) -> None:
        """Read what the log has of all that facts name, under the lock of the head."""
        made = {fact.id for fact in facts if isinstance(fact, Decision)}
        executed = {fact.decision_id for fact in facts if isinstance(fact, Execution)}
        observed = {fact.decision_id for fact in facts if isinstance(fact, Observation)}
        said = [fact for fact in facts if isinstance(fact, Feedback)]
        judged = {item.decision_id for item in said if item.decision_id is not None}
        for name, seq, asked_by, erased in look_up(
            connection, _DECISIONS, made | executed | observed | judged
        ):
            self._decisions[name] = seq, asked_by
            if erased is not None:
                self._erased.add(name)
        self._executions.update(name for (name,) in look_up(connection, _EXECUTIONS, executed))
        self._observations.update(map(tuple, look_up(connection, _OBSERVATIONS, observed)))
        if said:
            self._look_up_feedback(connection, said, judged)
        under_way = connection.execute(_UNDER_WAY, {"since": self._now - UNDER_WAY_S}).all()
        if under_way:
            self._under_way, self._secret = dict(map(tuple, under_way)), secret()

    def _look_up_feedback(self, connection: sa.Connection, said: list[Feedback], judged: set[str]) -> None:
        names = {name for item in said for name in (item.id, pseudonym(item.id))}
        for name, kind, decision_id, episode_id, metric, value, labels, texts, seq in look_up(
            connection, _FEEDBACK, names
        ):
            content = {**(loads(labels or "null") or {}), **loads(texts or "{}").get("content", {})}
            item = Feedback(name, decision_id, metric, value, episode_id=episode_id, kind=FeedbackKind(kind))
            self._feedback[pseudonym(name), item.kind] = replace(item, content=content), seq
        episodes = {item.episode_id for item in said if item.episode_id and item.decision_id is None}
        if self._most is not None:
            for name, kind, n in look_up(connection, _ON_DECISIONS, judged):
                self._amounts[name, None, FeedbackKind(kind)] = n
            for name, kind, n in look_up(connection, _ON_EPISODES, episodes):
                self._amounts[None, name, FeedbackKind(kind)] = n
        if episodes:
            newest = connection.execute(_EPISODES, {"names": sorted(episodes)})
            self._erased_episodes.update(name for name, erased in newest if erased is not None)

    def add(self, fact: Fact) -> Receipt:
        """Assign the next position to a fact that is new to the log."""
        erasure = find_erasure(fact, self._under_way, self._secret) if self._under_way else None
        fact = self._prepare(fact, erasure)
        match fact:
            case Decision():
                if fact.id in self._decisions:
                    raise ConflictError(f"decision id {fact.id!r} is already taken", fact)
                self._next(fact.decided_at)
                self._insert(t.decisions, decision_row(fact, self.seq, self.at, erasure), fact)
                self._decisions[fact.id] = self.seq, fact.asked_by
            case Execution(decision_id=name):
                if name in self._executions:
                    return Receipt()
                self._executions.add(name)
                self._next(fact.finished_at)
                self._insert(t.executions, execution_row(fact, self.seq), fact)
                decision_seq, asked_by = self._decisions.get(name, (0, None))
                if asked_by is not None and (marks := mark_rows(fact, decision_seq, asked_by)):
                    self.rows[t.answer_marks].extend(marks)
            case Observation():
                key = fact.decision_id, str(fact.source), fact.arm
                if key in self._observations:
                    return Receipt()
                self._observations.add(key)
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
                    self._erased.add(fact.id)
                if fact.episode_id is not None:  # its newest decision is this one
                    change = self._erased_episodes.add if gone else self._erased_episodes.discard
                    change(fact.episode_id)
            case Feedback(decision_id=None, episode_id=str(episode)):
                gone = gone or episode in self._erased_episodes
            case Execution() | Observation() | Feedback():
                gone = gone or fact.decision_id in self._erased
        if gone:
            return without_texts(fact)
        return fact if self._redact is None else with_texts(fact, self._redact)

    def _insert(self, table: sa.Table, row: dict[str, Any], fact: Fact) -> None:
        """Add a row and the texts of its fact; values beyond the limits are replaced, with a warning."""
        texts = list_texts(fact)
        within = [(row, name, _limit(row[name], name, *limits)) for name, *limits in _LIMITED[table]]
        within += [(row, name, limit_numbers(row[name])) for name in _DOCUMENTS[table]]
        within += [(texts, name, limit_numbers(part)) for name, part in texts.items()]
        for part, name, value in within:
            if value is not (given := part[name]):
                part[name] = value
                if value != given:
                    about = row.get("decision_id") or row["id"]
                    shown = _shortened(value), table.name, name, about, _shortened(given)
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
        check_stamp(at, self._now)
        self.seq, self.at = self.seq + 1, max(self.at, at)

    def _add_feedback(self, item: Feedback) -> Receipt:
        if item.value is not None and not math.isfinite(item.value):
            raise StoreError(f"feedback {item.id!r} has the value {item.value}; it must be finite")
        shown = item.kind is FeedbackKind.ACTIVATION
        name = pseudonym(item.id)
        for kind in (FeedbackKind.ACTIVATION,) if shown else _RATINGS:
            if stored := self._feedback.get((name, kind)):
                _same_or_conflict(stored[0], item)
        if stored := self._feedback.get((name, item.kind)):
            return Receipt(stored[1], FeedbackStatus.DUPLICATE)
        if not shown and self._most is not None:
            self._count(item, self._most)
        self._next(item.received_at)
        self._feedback[name, item.kind] = item, self.seq
        early = item.decision_id is not None and item.decision_id not in self._decisions
        row, rows = feedback_row(item, self.seq, self.at, early), self.rows[t.feedback]
        if rows and all(rows[-1][key] == row[key] for key in ("decision_id", "episode_id")):
            rows[-1]["more"] = rows[-1]["seq"] == self.seq - 1
        rows.append(row)
        self._seal(t.feedback, row, list_texts(item))
        return Receipt(self.seq, FeedbackStatus.STORED)

    def _count(self, item: Feedback, most: int) -> None:
        """Count feedback on its decision or episode. Raises TooMuchFeedbackError."""
        subject = item.decision_id, item.episode_id, item.kind
        if self._amounts[subject] >= most:
            about = f"decision {item.decision_id}" if item.decision_id else f"episode {item.episode_id}"
            kind = "retractions" if item.kind is FeedbackKind.RETRACTION else "values"
            raise TooMuchFeedbackError(
                f"{about} already has {most:,} {kind} of feedback, which is the maximum", item
            )
        self._amounts[subject] += 1


def _limit(value: Any, name: str, low: float, high: float, whole: bool) -> Any:
    """Return a number to write: the nearest limit beyond them, and no propensity rather than another one."""
    if value is not None and not low <= value <= high:
        value = None if name == "propensity" else low if value < low else high
    return round(value) if whole else value


def limit_numbers(value: Any) -> Any:
    """Return a document with numbers cut to +-`LARGEST`, NaN as 0; the same object if unchanged.

    >>> limit_numbers({"tokens": [1e30, 5], "usd": float("-inf")})
    {'tokens': [9007199254740992, 5], 'usd': -9007199254740992}
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return max(-t.LARGEST, min(t.LARGEST, value)) if value == value else 0.0
    if isinstance(value, list | tuple):
        if _is_plain(value):
            return value
        parts = map(limit_numbers, value)
        return tuple(parts) if isinstance(value, tuple) else list(parts)
    if isinstance(value, Mapping) and not _is_plain(value.values()):
        return {name: limit_numbers(part) for name, part in value.items()}
    return value


def _is_plain(values: Collection[Any]) -> bool:
    """Return whether values are all numbers within their limits, or all texts."""
    if isinstance(next(iter(values), None), str):
        return all(isinstance(part, str) for part in values)
    try:
        return not values or bool(min(values) >= -t.LARGEST and max(values) <= t.LARGEST)
    except TypeError:  # some are none, or hold others
        return False


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
