"""Laws of a log that hold at every statement, as triggers of its database, which know nothing of the code.

A trigger that finds a law broken leaves a row in `broken`, in the transaction that breaks it: what is rolled
back has never been.
"""

import sqlite3
from collections.abc import Iterator

KEPT = {
    "decisions": "seq, id, decided_at, logged_at, deadline, mode, policy, version, drawn, propensity, "
    "deferred, episode_id, arms, probabilities, steps",
    "executions": "seq, decision_id, served, status, steps, usd, finished_at",
    "feedback": "seq, kind, decision_id, episode_id, metric, value, received_at",
    "observations": "seq, decision_id, source, observed_at",
    "ticks": "seq, at",
    "examples": '"join", seq, decision_id, metrics, joined_by, rater',
    "versions": "version, recipe, policy, examples_seq, digest, epoch, arms",
    "operations": "seq, kind, subject, version, at, document, once",
}
"""Columns that a row keeps, by table, and no row of these goes; what an erasure removes is not among them."""

GROWS = {
    "log": ("seq", "at"),
    "progress": ("log_seq", "log_at", "examples_seq"),
    "usage": ("requests", "tokens", "usd"),
}
"""Columns of a row that never become smaller, by table."""

HOLDS = (
    ("operations", "operations grow", "NOT EXISTS (SELECT 1 FROM operations WHERE seq > NEW.seq)"),
    ("versions", "versions grow", "NOT EXISTS (SELECT 1 FROM versions WHERE version > NEW.version)"),
    (
        "examples",
        "examples are numbered one by one",
        'NEW.seq = 1 OR EXISTS (SELECT 1 FROM examples WHERE "join" = NEW."join" AND seq = NEW.seq - 1)',
    ),
    (
        "versions",
        "a version of the configured recipe, as the first one is, is of the newest epoch",
        "NEW.epoch = (SELECT max(seq) FROM operations WHERE kind = 'epoch') "
        "OR NEW.recipe IS NOT (SELECT recipe FROM versions ORDER BY version LIMIT 1)",
    ),
    (
        "versions",
        "a version has learned no more than was joined",
        'NEW.examples_seq <= coalesce((SELECT examples_seq FROM progress WHERE reader = NEW."join"), 0)',
    ),
    (
        "operations",
        "a price is of the newest epoch, and after the one before it",
        "NEW.kind <> 'price' OR NEW.document ->> 'epoch' = (SELECT max(seq) FROM operations WHERE "
        "kind = 'epoch') AND NEW.document ->> 'log_seq' > (SELECT coalesce(max(document ->> 'log_seq'), -1) "
        "FROM operations WHERE kind = 'price' AND subject = NEW.subject AND seq < NEW.seq)",
    ),
    (
        "examples",
        "what is learned is of a decision that was answered",
        "EXISTS (SELECT 1 FROM executions WHERE decision_id = NEW.decision_id AND status = 'ok')",
    ),
    (
        "executions",
        "what is done of an erased decision has no text",
        "(SELECT erased FROM decisions WHERE id = NEW.decision_id) IS NULL "
        "OR NOT EXISTS (SELECT 1 FROM texts WHERE seq = NEW.seq)",
    ),
    (
        "texts",
        "what is done of an erased decision has no text",
        "NOT EXISTS (SELECT 1 FROM executions AS e JOIN decisions ON id = e.decision_id "
        "WHERE e.seq = NEW.seq AND erased IS NOT NULL)",
    ),
)
"""What must hold of a new row: its table, and the law in words and in SQL."""


Trigger = tuple[str, str, str, str]
"""When it acts, its table, what breaks the law, and that in words."""


def _list_triggers() -> Iterator[Trigger]:
    for table, columns in KEPT.items():
        kept = " OR ".join(f"NEW.{name} IS NOT OLD.{name}" for name in columns.split(", "))
        if table == "operations":  # the record of an erasure counts, and forgets whom it was about
            kept = f"OLD.kind NOT IN ('erasure', 'retention') AND ({kept})"
        yield "AFTER UPDATE", table, kept, f"a row of {table} was changed"
        yield "AFTER DELETE", table, "1", f"a row of {table} was removed"
    for table, names in GROWS.items():
        fell = " OR ".join(f"NEW.{name} < OLD.{name}" for name in names)
        yield "AFTER UPDATE", table, fell, f"{' or '.join(names)} of {table} became smaller"
    for table, law, holds in HOLDS:
        yield "AFTER INSERT", table, f"({holds}) IS NOT 1", f"not so: {law}"
    # the rows of an append come table by table, and then the head of the log moves
    early = "EXISTS (SELECT 1 FROM executions AS e WHERE e.seq > OLD.seq AND NOT EXISTS "
    early += "(SELECT 1 FROM decisions AS d WHERE d.id = e.decision_id AND d.seq < e.seq))"
    yield "AFTER UPDATE", "log", early, "not so: what is done was decided before"
    # an erasure empties a text in place, and an empty one may go
    changed = "NEW.document IS NOT OLD.document AND (trim(NEW.document) <> '{}' OR length(NEW.document) <> "
    changed += "length(CAST(OLD.document AS BLOB)))"
    yield "AFTER UPDATE", "texts", changed, "a text was changed into another one"
    yield "AFTER DELETE", "texts", "trim(OLD.document) <> '{}'", "a text was removed and not emptied"
    kept = "NEW.erased IS NOT NULL AND (SELECT trim(document) FROM texts WHERE seq = NEW.seq) <> '{}'"
    yield "AFTER UPDATE", "decisions", kept, "an erased decision has a text"


def enact(connection: sqlite3.Connection) -> None:
    """Add the laws to a log."""
    connection.execute("CREATE TABLE broken (what TEXT, about INTEGER)")
    # a row at 0 is a probe of whether the log can be written, and is gone at once
    for number, (act, table, breaks, what) in enumerate(_list_triggers()):
        row = "OLD" if act.endswith("DELETE") else "NEW"
        connection.execute(
            f"CREATE TRIGGER law_{number} {act} ON {table} WHEN {row}.rowid > 0 AND ({breaks}) "
            f"BEGIN INSERT INTO broken VALUES ('{what}', {row}.rowid); END"
        )


def read_broken(connection: sqlite3.Connection) -> list[str]:
    """Return what has broken a law, in order."""
    rows = connection.execute("SELECT what, about FROM broken ORDER BY rowid")
    return [f"{what}: row {about}" for what, about in rows]
