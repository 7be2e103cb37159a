"""Laws of a log as triggers: a sound log breaks none, and each act that breaks one is named."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from armwise.feedback.log import tables as t
from tests.simulation.laws import enact, read_broken

MINUTE = "2026-01-01T00:00"

SOUND = (
    "INSERT INTO log_head (id, seq, at) VALUES (1, 0, 0.0)",
    "INSERT INTO decisions (seq, id, question, drawn) VALUES (1, 'd', 'which river?', 'bm25')",
    "INSERT INTO executions (seq, decision_id, status, answer) VALUES (2, 'd', 'ok', 'the Danube')",
    "INSERT INTO feedback (seq, id, decision_id, value) VALUES (3, 'f', 'd', 1.0)",
    "UPDATE log_head SET seq = 3, at = 5.0",
    "INSERT INTO executions (seq, decision_id, status) VALUES (0, 'probe', 'ok')",
    "DELETE FROM executions WHERE seq = 0",
    "INSERT INTO epochs (epoch, holder) VALUES (2, 'a')",
    "INSERT INTO progress (reader, log_seq, examples_seq) VALUES ('j', 3, 1)",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 1, 'd')",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('of another join', 1, 'd')",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (2, 'r', 'j', 1, 2)",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (3, 'r', 'j', 1, 2)",
    "INSERT INTO versions (version, recipe, \"join\", examples_seq, epoch) VALUES (4, 'another', 'j', 1, 1)",
    "INSERT INTO prices (seq, budget, log_seq, price, epoch) VALUES (1, 'b', 2, 0.1, 2)",
    "INSERT INTO prices (seq, budget, log_seq, price, epoch) VALUES (2, 'b', 3, 0.2, 2)",
    "INSERT INTO prices (seq, budget, log_seq, price, epoch) VALUES (3, 'another', 1, 0.2, 2)",
    f"INSERT INTO usage (key, period, requests) VALUES ('k', '{MINUTE}', 3)",
    "UPDATE usage SET requests = 4",
)
"""A log of one decision, learned twice."""

ERASED = "UPDATE decisions SET question = '', erased = 1"

BROKEN = {
    "UPDATE decisions SET drawn = 'dense'": "a row of decisions was changed: row 1",
    "UPDATE executions SET status = 'failed'": "a row of executions was changed: row 2",
    "UPDATE feedback SET value = NULL": "a row of feedback was changed: row 3",
    "DELETE FROM feedback": "a row of feedback was removed: row 3",
    "DELETE FROM examples WHERE \"join\" = 'j'": "a row of examples was removed: row 1",
    "UPDATE log_head SET seq = 2": "seq or at of log_head became smaller: row 1",
    "UPDATE log_head SET at = 4.9": "seq or at of log_head became smaller: row 1",
    "UPDATE progress SET examples_seq = 0": (
        "log_seq or log_at or examples_seq of progress became smaller: row 1"
    ),
    "UPDATE usage SET requests = 3": "requests or tokens or usd of usage became smaller: row 1",
    "INSERT INTO epochs (epoch) VALUES (1)": "not so: epochs grow: row 1",
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 3, 'd')": (
        "not so: examples are numbered one by one: row 3"
    ),
    "INSERT INTO examples (\"join\", seq, decision_id) VALUES ('j', 2, 'another')": (
        "not so: what is learned is of a decision that was answered: row 3"
    ),
    "INSERT INTO executions (seq, decision_id) VALUES (4, 'another')": (
        "not so: what is done was decided before: row 4"
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
    "INSERT INTO prices (seq, budget, log_seq, epoch) VALUES (4, 'b', 3, 2)": (
        "not so: a price is of the newest epoch, and after the one before it: row 4"
    ),
    "INSERT INTO prices (seq, budget, log_seq, epoch) VALUES (4, 'b', 4, 1)": (
        "not so: a price is of the newest epoch, and after the one before it: row 4"
    ),
    "INSERT INTO versions (version, \"join\", examples_seq, epoch) VALUES (5, 'nowhere', 1, 2)": (
        "not so: a version has learned no more than was joined: row 5"
    ),
    "INSERT INTO versions (version, \"join\", epoch) VALUES (5, 'j', 2)": (
        "not so: a version has learned no more than was joined: row 5"
    ),
    "UPDATE decisions SET question = ''": "a question was changed, and not by an erasure: row 1",
    "UPDATE executions SET answer = 'the Rhine'": ("an answer was changed into another one: row 2"),
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
    log.execute("UPDATE decisions SET question = '000000'")
    log.execute(ERASED)
    log.execute("UPDATE executions SET answer = '0000'")
    log.execute("UPDATE executions SET answer = ''")
    log.execute("INSERT INTO executions (seq, decision_id, answer) VALUES (4, 'd', '')")
    assert read_broken(log) == []
    log.execute("INSERT INTO executions (seq, decision_id, answer) VALUES (5, 'd', 'the Danube')")
    log.execute("UPDATE decisions SET question = 'which river?'")
    assert read_broken(log) == [
        "not so: what is done of an erased decision has no text: row 5",
        "a question was changed, and not by an erasure: row 1",
    ]


def test_what_is_rolled_back_has_broken_no_law(log: sqlite3.Connection) -> None:
    log.execute("BEGIN")
    log.execute("DELETE FROM feedback")
    log.execute("ROLLBACK")
    assert read_broken(log) == []
