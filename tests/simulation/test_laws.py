"""Laws of a log as triggers: a sound log breaks none, and each act that breaks one is named."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from armwise.feedback.log import tables as t
from tests.simulation.laws import enact, read_broken

MINUTE = "2026-01-01T00:00"


def price(seq: int, budget: str, log_seq: int, epoch: int) -> str:
    """Return the statement that adds a price."""
    document = f'{{"log_seq":{log_seq},"epoch":{epoch}}}'
    return (
        "INSERT INTO operations (seq, kind, subject, document) "
        f"VALUES ({seq}, 'price', '{budget}', '{document}')"
    )


SOUND = (
    "INSERT INTO log (schema, seq, at) VALUES (1, 0, 0.0)",
    "INSERT INTO decisions (seq, id, drawn) VALUES (1, 'd', 'bm25')",
    "INSERT INTO texts (seq, document) VALUES (1, '\"which river?\"')",
    "INSERT INTO executions (seq, decision_id, status) VALUES (2, 'd', 'ok')",
    "INSERT INTO texts (seq, document) VALUES (2, '\"the Danube\"')",
    "INSERT INTO feedback (seq, id, decision_id, value) VALUES (3, 'f', 'd', 1.0)",
    "UPDATE log SET seq = 3, at = 5.0",
    "INSERT INTO executions (seq, decision_id, status) VALUES (0, 'probe', 'ok')",
    "DELETE FROM executions WHERE seq = 0",
    "INSERT INTO operations (seq, kind) VALUES (2, 'epoch')",
    "INSERT INTO progress (reader, log_seq, examples_seq) VALUES ('j', 3, 1)",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 1, 'd')",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('of another join', 1, 'd')",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (2, 'r', 'j', 1, 2)",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (3, 'r', 'j', 1, 2)",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (4, 'another', 'j', 1, 1)",
    price(3, "b", 2, 2),
    price(4, "b", 3, 2),
    price(5, "another", 1, 2),
    f"INSERT INTO usage (key, period, requests) VALUES ('k', '{MINUTE}', 3)",
    "UPDATE usage SET requests = 4",
)
"""A log of one decision, learned twice."""

EMPTIED = "UPDATE texts SET document = printf('%-*s', length(document), '{}')"
ERASED = "UPDATE decisions SET erased = 1"

BROKEN = {
    "UPDATE decisions SET drawn = 'dense'": "a row of decisions was changed: row 1",
    "UPDATE executions SET status = 'failed'": "a row of executions was changed: row 2",
    "UPDATE feedback SET value = NULL": "a row of feedback was changed: row 3",
    "DELETE FROM feedback": "a row of feedback was removed: row 3",
    "DELETE FROM examples WHERE \"join\" = 'j'": "a row of examples was removed: row 1",
    "UPDATE log SET seq = 2": "seq or at of log became smaller: row 1",
    "UPDATE log SET at = 4.9": "seq or at of log became smaller: row 1",
    "UPDATE progress SET examples_seq = 0": (
        "log_seq or log_at or examples_seq of progress became smaller: row 1"
    ),
    "UPDATE usage SET requests = 3": "requests or tokens or usd of usage became smaller: row 1",
    "INSERT INTO operations (seq, kind) VALUES (1, 'epoch')": "not so: operations grow: row 1",
    "UPDATE operations SET document = '{}' WHERE seq = 3": "a row of operations was changed: row 3",
    "DELETE FROM operations WHERE seq = 5": "a row of operations was removed: row 5",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 3, 'd')": (
        "not so: examples are numbered one by one: row 3"
    ),
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 2, 'another')": (
        "not so: what is learned is of a decision that was answered: row 3"
    ),
    "INSERT INTO versions (version, \"join\", examples_seq, epoch) VALUES (5, 'j', 2, 2)": (
        "not so: a version has learned no more than was joined: row 5"
    ),
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (5, 'r', 'j', 1, 1)": (
        "not so: a version of the configured recipe, as the first one is, is of the newest epoch: row 5"
    ),
    "INSERT INTO versions (version, \"join\", examples_seq, epoch) VALUES (1, 'j', 1, 2)": (
        "not so: versions grow: row 1"
    ),
    price(6, "b", 3, 2): "not so: a price is of the newest epoch, and after the one before it: row 6",
    price(6, "b", 4, 1): "not so: a price is of the newest epoch, and after the one before it: row 6",
    "INSERT INTO versions (version, \"join\", examples_seq, epoch) VALUES (5, 'nowhere', 1, 2)": (
        "not so: a version has learned no more than was joined: row 5"
    ),
    "INSERT INTO versions (version, \"join\", epoch) VALUES (5, 'j', 2)": (
        "not so: a version has learned no more than was joined: row 5"
    ),
    ERASED: "an erased decision has a text: row 1",
    "UPDATE texts SET document = 'the Rhine' WHERE seq = 2": "a text was changed into another one: row 2",
    "UPDATE texts SET document = '{}' WHERE seq = 2": "a text was changed into another one: row 2",
    "DELETE FROM texts WHERE seq = 2": "a text was removed and not emptied: row 2",
}
"""What breaks a law, and how it is named."""


@pytest.fixture
def log() -> Iterator[sqlite3.Connection]:
    """The tables of a log without their constraints, under the laws."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for table in t.metadata.sorted_tables:
            columns = [f'"{column.name}"' for column in table.c]
            (first, *others) = table.primary_key.columns
            if isinstance(first.type, sa.Integer) and not others:  # SQLite makes it the number of the row
                columns[list(table.c).index(first)] += " INTEGER PRIMARY KEY"
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
        enact(connection)
        for statement in SOUND:
            connection.execute(statement)
        yield connection


def test_a_sound_log_breaks_no_law(log: sqlite3.Connection) -> None:
    assert read_broken(log) == []


@pytest.mark.parametrize("act", BROKEN)
def test_what_breaks_a_law_is_named(log: sqlite3.Connection, act: str) -> None:
    log.execute(act)
    assert read_broken(log) == [BROKEN[act]]


def test_a_text_goes_with_an_erasure_and_does_not_come_back(log: sqlite3.Connection) -> None:
    log.execute(EMPTIED)
    log.execute(ERASED)
    log.execute("DELETE FROM texts WHERE seq = 1")
    log.execute("INSERT INTO executions (seq, decision_id) VALUES (4, 'd')")
    assert read_broken(log) == []
    log.execute("INSERT INTO texts (seq, document) VALUES (4, '\"the Danube\"')")
    log.execute("INSERT INTO texts (seq, document) VALUES (5, '\"the Danube\"')")
    log.execute("INSERT INTO executions (seq, decision_id) VALUES (5, 'd')")
    law = "not so: what is done of an erased decision has no text"
    assert read_broken(log) == [f"{law}: row 4", f"{law}: row 5"]


@pytest.mark.parametrize(("decided", "is_sound"), [(4, True), (6, False), (None, False)])
def test_what_is_done_was_decided_before_in_whichever_order_the_rows_of_an_append_come(
    log: sqlite3.Connection, decided: int | None, is_sound: bool
) -> None:
    log.execute("INSERT INTO executions (seq, decision_id) VALUES (5, 'another')")
    if decided is not None:
        log.execute(f"INSERT INTO decisions (seq, id) VALUES ({decided}, 'another')")
    assert read_broken(log) == []
    log.execute("UPDATE log SET seq = 6")
    assert read_broken(log) == ([] if is_sound else ["not so: what is done was decided before: row 1"])


def test_what_is_rolled_back_has_broken_no_law(log: sqlite3.Connection) -> None:
    log.execute("BEGIN")
    log.execute("DELETE FROM feedback")
    log.execute("ROLLBACK")
    assert read_broken(log) == []
