"""Erase texts that people wrote and read, keep the numbers that are learned from, and record the erasure.

Texts have a table of their own, so to erase them is to remove its rows; `armwise.feedback.log.facts` lists
them. The facts stay, with arms, probabilities, values of features, costs and values, so that a training log,
its digests and the evaluations are the same afterwards. Ids of feedback become pseudonyms, by which they are
still looked up. The seals of the facts, and the chain over them, stay as they are
(`armwise.feedback.log.chain`). A later fact on an erased decision is stored without its texts, and so is
a decision of an erased user or episode that was under way. `docs/reference/texts.md` lists what an erasure
does to each column.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass

import sqlalchemy as sa

from armwise.feedback.log import operations
from armwise.feedback.log import tables as t
from armwise.feedback.log.listing import position_at
from armwise.feedback.log.operations import Operation
from armwise.feedback.log.store import Store, row_time
from armwise.feedback.log.under_way import NAMED_ERASURE, subject_digest
from armwise.feedback.log.under_way import UNDER_WAY_S as UNDER_WAY_S
from armwise.feedback.log.under_way import Scope as Scope
from armwise.feedback.texts import pseudonym

DAY_S = 86_400.0

AT_ONCE = 1000
"""Positions of the log whose texts are erased by age in one transaction, a bound on the wait of commits."""

PAUSE_S = 3600.0
"""Seconds between erasures by age while fewer than `AT_ONCE` positions are due."""

EMPTY = 1000
"""Emptied rows that stay before the texts that are left, and fill more pages than rows move between."""

_FACTS = (t.decisions, t.executions, t.feedback, t.observations)

_d, _e, _f, _o = (table.c for table in _FACTS)


@dataclass(frozen=True, slots=True)
class Erasure:
    """A record of an erasure; it is free of personal data, ids included.

    Attributes:
        number: Number of the erasure, as in the column `erased` of a decision.
        at: Seconds since the epoch; an erasure by age goes on for a day, and this is its last part.
        scope: Kind of subject that was erased.
        by: Public id of the key that requested it; `cli`, or `retention`.
        upto: Position of the log up to which all texts are gone; only an erasure by age has it.
        decisions: Number of decisions that lost their texts.
        executions: Number of executions.
        feedback: Number of items of feedback.
        observations: Number of observations.
    """

    number: int
    at: float
    scope: Scope
    by: str
    upto: int | None
    decisions: int
    executions: int
    feedback: int
    observations: int


def user_digest(store: Store, project: str, user: str) -> str:
    """Return the hash of a user that a log stores, keyed with its secret."""
    about = json.dumps(["user", project, user]).encode()
    return hmac.new(store.draw_secret.secret.encode(), about, hashlib.sha256).hexdigest()


def erase_user(store: Store, project: str, user: str, by: str, now: float) -> Erasure:
    """Erase the texts of all decisions of a user, and of the other facts on them and on their episodes.

    Args:
        store: The log.
        project: Project of the key that sent the user's requests.
        user: Field `user` of these requests.
        by: Public id of the key that requested it, or `cli`.
        now: Seconds since the epoch.

    Raises:
        LogUnavailableError: Nothing was erased.
    """
    digest = user_digest(store, project, user)
    which = _d.user_digest == digest
    episodes = sa.select(_d.episode_id).where(which, _d.episode_id.is_not(None))
    return _erase(store, which, _on_episodes(_f.episode_id.in_(episodes)), (Scope.USER, digest), by, now)


def erase_episode(store: Store, episode: str, by: str, now: float) -> Erasure:
    """Erase the texts of all decisions of an episode, by its id in the log; see `erase_user`.

    Feedback on the episode is erased even if the log lacks its decisions.
    """
    named = _on_episodes(_f.episode_id == episode)
    return _erase(store, _d.episode_id == episode, named, (Scope.EPISODE, episode), by, now)


def erase_decision(store: Store, decision: str, by: str, now: float) -> Erasure:
    """Erase the texts of a decision, by its id in the log, and feedback on it; see `erase_episode`."""
    named = _f.decision_id == decision
    return _erase(store, _d.id == decision, named, (Scope.DECISION, decision), by, now)


def _on_episodes(episode: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return _f.decision_id.is_(None) & episode


def _erase(
    store: Store,
    which: sa.ColumnElement[bool],
    named: sa.ColumnElement[bool],
    subject: tuple[Scope, str],
    by: str,
    now: float,
) -> Erasure:
    """Erase decisions, the other facts on them, and the feedback that is `named`."""
    ids = sa.select(_d.id).where(which)
    new = ids.where(_d.erased.is_(None))
    digest = subject_digest(store.draw_secret.secret, *subject)
    with store.writing() as connection:
        _lock(connection)
        at = row_time(connection, now)
        about = {"scope": subject[0].value, "by": by}
        number = operations.record(connection, Operation.ERASURE, at, about, subject=digest)
        feedback = _f.decision_id.in_(ids) | named
        of_these = _e.decision_id.in_(new), feedback, _o.decision_id.in_(new)
        counts = _erase_texts(connection, number, (which & _d.erased.is_(None), *of_these))
        operations.change(connection, number, at, about | counts)
    store.forget()
    return next(record for record in erasures(store) if record.number == number)


def forget_subjects(store: Store, now: float) -> None:
    """Remove the hashes of erased subjects, once every turn that began before has ended.

    Raises:
        LogUnavailableError: They are still there.
    """
    before = {"before": now - UNDER_WAY_S}
    with store.reading() as connection:
        if connection.execute(_ANY_OVER, before).first() is None:
            return
    with store.writing() as connection:
        connection.execute(_FORGET, before)


_OVER = NAMED_ERASURE & (t.operations.c.at < sa.bindparam("before"))

_ANY_OVER = sa.select(t.operations.c.seq).where(_OVER).limit(1)

_FORGET = sa.update(t.operations).where(_OVER).values(subject="")


def erase_older(store: Store, days: float, now: float) -> bool:
    """Erase the texts of a bounded number of old decisions; the erasures of a day share a record.

    Args:
        store: The log.
        days: Age in days, by the log's time.
        now: Seconds since the epoch.

    Returns:
        Whether more decisions are due now.

    Raises:
        LogUnavailableError: Nothing was erased.
    """
    old = {"before": now - DAY_S * days}
    with store.reading() as connection:
        before = operations.find_newest(connection, Operation.RETENTION)
        start = before.document["upto"] if before else 0
        due = position_at(connection, old["before"], before=True)
        # feedback whose decision never came may be the newest there is
        here = {"after": start, "upto": start + AT_ONCE}
        due = max(due, int(connection.scalar(_NEWEST_OLD_FEEDBACK, {**here, **old}) or 0))
    if due <= start or (before and due < start + AT_ONCE and now < before.at + PAUSE_S):
        return False
    end = min(due, start + AT_ONCE)
    with store.writing() as connection:
        _lock(connection)
        if operations.find_newest(connection, Operation.RETENTION) != before:
            return True  # another process did it
        about = {"scope": Scope.AGE.value, "by": "retention", "upto": end}
        if before and before.at // DAY_S == now // DAY_S:
            number, so_far = before.seq, before.document
        else:
            number, so_far = operations.record(connection, Operation.RETENTION, now, about), {}

        def between(seq: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
            return (seq > start) & (seq <= end)

        ids = sa.select(_d.id).where(between(_d.seq))
        feedback = _f.decision_id.in_(ids) | between(_f.seq)  # the latter on episodes
        of_these = _e.decision_id.in_(ids), feedback, _o.decision_id.in_(ids)
        which = between(_d.seq) & _d.erased.is_(None), *of_these
        counts = _erase_texts(connection, number, which, between(t.texts.c.seq))
        connection.execute(_DROP, {"upto": end})
        added = {name: so_far.get(name, 0) + n for name, n in counts.items()}
        operations.change(connection, number, now, about | added)
    return due > end


def find_newest(store: Store) -> int | None:
    """Return the number of the newest erasure; None: there is none."""
    with store.reading() as connection:
        query = sa.select(sa.func.max(t.operations.c.seq)).where(t.operations.c.kind.in_(_ERASURES))
        found: int | None = connection.scalar(query)
    return found


def erasures(store: Store) -> list[Erasure]:
    """Return the records of erasures, newest first."""
    with store.reading() as connection:
        rows = operations.read_all(connection, *_ERASURES)
    return [_read_erasure(row.seq, row.at, **row.document) for row in reversed(rows)]


def _read_erasure(
    number: int, at: float, scope: str, by: str, upto: int | None = None, **counts: int
) -> Erasure:
    return Erasure(number, at, Scope(scope), by, upto, *(counts[name] for name in _COUNTS))


_ERASURES = (Operation.ERASURE, Operation.RETENTION)

_COUNTS = tuple(f"n_{table.name}" for table in _FACTS)

_NEWEST_OLD_FEEDBACK = sa.select(sa.func.max(_f.seq)).where(
    _f.seq > sa.bindparam("after"),
    _f.seq <= sa.bindparam("upto"),
    _f.early | _f.decision_id.is_(None),
    _f.received_at < sa.bindparam("before"),
)


_LAST_EMPTY = (
    sa.select(t.texts.c.seq)
    .where(t.texts.c.seq <= sa.bindparam("upto"))
    .order_by(t.texts.c.seq.desc())
    .offset(EMPTY)
    .limit(1)
)

_DROP = sa.delete(t.texts).where(t.texts.c.seq <= _LAST_EMPTY.scalar_subquery())


def _lock(connection: sa.Connection) -> None:
    """Block appends until the transaction ends: they have to see what it erases."""
    connection.execute(sa.select(t.log.c.seq).with_for_update())


def _erase_texts(
    connection: sa.Connection,
    number: int,
    which: tuple[sa.ColumnElement[bool], ...],
    *also: sa.ColumnElement[bool],
) -> dict[str, int]:
    """Remove the texts of facts, and mark the decisions; return the number of facts by table.

    Args:
        connection: A transaction that blocks appends.
        number: Number of the erasure.
        which: Conditions on decisions with texts, and on executions, feedback and observations.
        also: Conditions on further rows of `texts`.
    """
    seqs = [sa.select(table.c.seq).where(some) for table, some in zip(_FACTS, which, strict=True)]
    _remove(connection, sa.or_(t.texts.c.seq.in_(sa.union_all(*seqs)), *also))
    connection.execute(sa.delete(t.answer_marks).where(t.answer_marks.c.decision_seq.in_(seqs[0])))
    counts = [
        connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()
        for some in seqs
    ]
    found = {**dict(zip(_COUNTS, counts, strict=True)), "n_feedback": _hide_ids(connection, which[2])}
    gone = {"question_digest": None, "request_digest": "", "user_digest": None, "erased": number}
    connection.execute(sa.update(t.decisions).where(which[0]).values(gone))
    return found


def _remove(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Delete texts and salts; in an SQLite file, overwrite them in place by empty ones of the same length.

    A page that loses many of its rows gets some from its neighbours, and these rows stay on the pages they
    had, where their own erasure would not find them.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(sa.delete(t.texts).where(which))
        return
    size = sa.func.length(sa.cast(t.texts.c.document, sa.LargeBinary))
    empty = sa.func.printf("%-*s", size, "{}")
    connection.execute(sa.update(t.texts).where(which).values(document=empty, salt=" " * t.SALT_CHARS))


def _hide_ids(connection: sa.Connection, which: sa.ColumnElement[bool]) -> int:
    """Overwrite ids of feedback with their pseudonyms; return their number."""
    found = connection.execute(sa.select(_f.seq, _f.id).where(which).order_by(_f.seq))
    changed = [{"of": seq, "name": name} for seq, old in found if (name := pseudonym(old)) != old]
    if changed:
        update = sa.update(t.feedback).where(_f.seq == sa.bindparam("of"))
        connection.execute(update.values(id=sa.bindparam("name")), changed)
    return len(changed)
