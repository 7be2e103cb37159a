"""Append facts: one commit, from facts to rows, in two round trips to the database.

    begin, lock the head of the log, look up what the facts refer to
    insert the rows, advance the head, commit

The statements are compiled once in a process. Between the two round trips, a `CommitBatch` decides in memory
which facts are new, numbers them, and finds the status of feedback.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from armwise.feedback.clock import check_behind
from armwise.feedback.events import Cost, Decision, Execution, Feedback, Observation, Status
from armwise.feedback.log import tables as t
from armwise.feedback.log.backend import Database, ResultRows, Statement, compile_statements
from armwise.feedback.log.batch import CommitBatch, Receipt, StoredFacts
from armwise.feedback.log.episodes import Episodes
from armwise.feedback.log.facts import Fact, execution_row
from armwise.feedback.log.rows import select_texts
from armwise.feedback.log.schema import require_row
from armwise.feedback.log.under_way import NAMED_ERASURE, UNDER_WAY_S
from armwise.feedback.texts import pseudonym

PROBE_BYTES = 64 * 1024
"""Bytes that a probe writes: more than most commits."""

_COMMIT: Statement = ("COMMIT", {})


class Appender:
    """The statements that append to a log.

    Args:
        database: The database of the log.
        join: Digest of the training log in which decisions are looked up.
        most: Values and retractions that a decision or an episode may have; None: unlimited.
        redact: Applied to every text before it is written.
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
        self._sql, self._lookups = (
            compile_statements(database, _head_statements),
            compile_statements(database, _lookups),
        )
        written = (t.decisions, t.executions, t.answer_marks, t.feedback, t.observations, t.ticks, t.texts)
        self._add = database.addition(written, self._sql["move"])

    def begin(self, driver: Any, facts: Sequence[Fact], now: float) -> CommitBatch:
        """Begin a transaction; return a batch at the head of the log, with the rows that facts refer to."""
        about = subjects(facts, limited=self._most is not None)
        lookups = {name: self._lookup(name, ids) for name, ids in about.items() if ids}
        lookups["under_way"] = self._sql["under_way"], {"since": now - UNDER_WAY_S}
        (seq, at, chain), *rows = self._lock_head(driver, [*lookups.values()], now)
        results = dict(zip(lookups, rows, strict=True))
        self.episodes.remember(results.get("episodes", ()))
        return CommitBatch(
            seq,
            at,
            chain,
            now,
            StoredFacts.from_rows(**results, secret=self._erasing(results)),
            self._most,
            redact=self._redact,
        )

    def _erasing(self, results: Mapping[str, ResultRows]) -> str:
        """Return the secret if an erasure may apply to the facts; otherwise skip reading it."""
        return self._secret() if results["under_way"] else ""

    def _lookup(self, name: str, ids: set[str]) -> Statement:
        if name == "episodes":
            return self.episodes.oldest(ids)
        return self._lookups[name], {"ids": self._database.ids(sorted(ids)), "join": self._join}

    def _lock_head(self, driver: Any, lookups: Sequence[Statement], now: float) -> list[Any]:
        """Lock the head; return its position, time and chain, then the rows of each lookup."""
        head, *results = self._database.exchange(driver, [(self._sql["head"], {}), *lookups])
        require_row(len(head))
        check_behind(now, head[0][1])
        return [head[0], *results]

    def write(self, driver: Any, batch: CommitBatch) -> list[Receipt]:
        """Write a batch, commit, and return the receipt of each of its facts."""
        moved = {"to_seq": batch.seq, "to_at": batch.at, "to_chain": batch.fold()}
        queries = [
            self.episodes.awaiting(unclear.item, unclear.oldest, unclear.at)
            for unclear in batch.unclear.values()
        ]
        # before the rows of the batch, whose decisions it has compared itself
        results = self._database.exchange(driver, [*queries, *self._add(batch.rows, moved), _COMMIT])
        return batch.list_receipts([bool(rows) for rows in results[: len(queries)]])

    def probe(self, driver: Any, now: float) -> None:
        """Insert and delete a row under the lock of the head, and commit, to show that writes succeed."""
        # not in `texts`, whose rows must not move: `armwise.feedback.log.erasures`
        filling = Execution(
            "", None, Status.CANCELLED, Cost(), index_version=secrets.token_hex(PROBE_BYTES // 2)
        )
        ((seq, at, chain),) = self._lock_head(driver, [], now)
        kept = {"to_seq": seq, "to_at": at, "to_chain": chain}
        added = self._add({t.executions: [execution_row(filling, 0)]}, kept)
        self._database.exchange(driver, [*added, (self._sql["clear"], {}), _COMMIT])


def _head_statements(_: Database) -> dict[str, sa.ClauseElement]:
    """Return the statements on the head, and the one that removes a probe."""
    return {
        "head": sa.select(t.log.c.seq, t.log.c.at, t.log.c.chain).with_for_update(),
        "move": sa.update(t.log).values(
            {name: sa.bindparam(f"to_{name}") for name in ("seq", "at", "chain")}
        ),
        "under_way": sa.select(t.operations.c.subject, t.operations.c.seq).where(
            NAMED_ERASURE, t.operations.c.at > sa.bindparam("since", type_=sa.Double)
        ),
        "clear": sa.delete(t.executions).where(t.executions.c.seq == sa.literal_column("0")),
    }


def _lookups(database: Database) -> dict[str, sa.ClauseElement]:
    """Return the queries of the rows that facts refer to."""
    e, f, d, x = t.executions.c, t.feedback.c, t.decisions.c, t.examples.c
    o = t.observations.c
    learned = (x.decision_id == d.id) & (x.join == sa.bindparam("join", type_=sa.String))
    about = sa.select(d.id, d.decided_at, d.deadline, d.logged_at, x.seq)
    about = about.outerjoin(t.examples, learned)
    said = sa.cast(f.labels, sa.Text), select_texts(t.feedback)
    items = sa.select(f.id, f.kind, f.decision_id, f.episode_id, f.metric, f.value, *said, f.seq)
    among = database.among
    return {
        "executions": sa.select(e.decision_id).where(among(e.decision_id)),
        "observations": sa.select(o.decision_id, o.source, o.arm).where(among(o.decision_id)),
        "feedback": items.where(among(f.id)),
        "decisions": about.where(among(d.id)),
        "erased": sa.select(d.id).where(among(d.id), d.erased.is_not(None)),
        "askers": sa.select(d.id, d.asked_by, d.seq).where(among(d.id)),
        "on_decisions": _amounts(f.decision_id).where(among(f.decision_id)),
        "on_episodes": _amounts(f.episode_id).where(among(f.episode_id)),
    }


def _amounts(subject: sa.Column[str]) -> sa.Select[Any]:
    """Return a query of the number of values and of retractions, by subject."""
    f = t.feedback.c
    query = sa.select(subject, f.kind, sa.func.count()).where(f.kind != sa.literal_column("'activation'"))
    return query.group_by(subject, f.kind)


def subjects(facts: Sequence[Fact], *, limited: bool = False) -> dict[str, set[str]]:
    """Return the ids to look up, by lookup; if feedback is `limited`, also those to count it by."""
    executed, marked, items, decided, episodes, observed, judged = (set[str]() for _ in range(7))
    for fact in facts:
        match fact:
            case Decision():
                decided.add(fact.id)
            case Execution():
                executed.add(fact.decision_id)
                if fact.marks:
                    marked.add(fact.decision_id)
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
        "askers": marked,
        "on_decisions": judged if limited else set(),
        "on_episodes": episodes if limited else set(),
    }
