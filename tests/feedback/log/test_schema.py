"""The tables of a database: made once, refused where they are another Armwise's, migrated with every fact."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st

from feedback.errors import SchemaError
from feedback.log import migrations
from feedback.log import tables as t
from feedback.log.database import connect
from feedback.log.migrations.versions import v1_first_log
from feedback.log.schema import migrate, prepare, schema_of
from tests.postgres import Server

Row = dict[str, Any]
Rows = dict[str, list[Row]]

ROOT = Path(__file__).parents[3]
FIRST = v1_first_log.metadata.tables


@pytest.fixture
def engine(log_url: str) -> Iterator[sa.Engine]:
    engine = connect(log_url)
    yield engine
    engine.dispose()


def url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def schema(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return schema_of(connection)


def stamp(engine: sa.Engine, number: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :number"), {"number": number})


def shape(engine: sa.Engine) -> Any:
    """Every table with its columns, keys and indexes, and their names."""
    look = sa.inspect(engine)
    columns = {
        table: [(column["name"], str(column["type"]), column["nullable"]) for column in found]
        for table, found in look.get_multi_columns().items()
    }
    indexes = {
        table: [
            {**index, "dialect_options": {key: str(told) for key, told in index["dialect_options"].items()}}
            for index in found
        ]
        for table, found in look.get_multi_indexes().items()
    }
    keys = look.get_multi_pk_constraint(), look.get_multi_foreign_keys(), look.get_multi_unique_constraints()
    return columns, indexes, keys


def read(engine: sa.Engine, metadata: sa.MetaData) -> Rows:
    """All rows of the tables, in their order."""
    with engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(sa.select(table).order_by(key)).mappings()]
            for table in metadata.sorted_tables
            for key in [next(iter(table.primary_key))]
        }


# -- a first log ---------------------------------------------------------------------------------------


def decided(seq: int, name: str, at: float) -> Row:
    return {
        "seq": seq,
        "id": name,
        "decided_at": at,
        "deadline": at + 60.0,
        "mode": "explore",
        "policy": "vowpal",
        "version": 1,
        "drawn": "b",
        "propensity": 0.75,
        "episode_id": "talk" if seq % 2 else None,
        "request_digest": "d1",
        "question": f"what is {name}?",
        "arms": ["a", "b"],
        "probabilities": [0.25, 0.75],
        "features": {"sparse": {"w=what": 1.0}, "embedding": [0.5], "arms": {}},
    }


def executed(name: str, at: float) -> Row:
    return {
        "decision_id": name,
        "served": "b",
        "status": "ok",
        "steps": 1,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "retrieval_s": 0.01,
        "llm_s": 0.2,
        "usd": 0.0,
        "passages": ["p1", "p2"],
        "answer": "an answer",
        "error": "",
        "finished_at": at,
    }


def said(seq: int, name: str, at: float) -> Row:
    return {
        "seq": seq,
        "id": f"f{seq}",
        "decision_id": name,
        "metric": "right",
        "value": 0.5,
        "received_at": at,
        "event_time": None,
        "tags": {"who": "test"},
    }


def first_log(**facts: list[Row]) -> Rows:
    """What a first log may hold besides its facts."""
    version = {
        "version": 1,
        "parent": None,
        "recipe": "r",
        "policy": {"kind": "vowpal"},
        "examples_seq": 0,
        "applied_seq": 0,
        "digest": "d",
        "epoch": 3,
        "created_at": 1.0,
    }
    return {
        "epochs": [{"epoch": 3, "holder": "me", "taken_at": 1.0}],
        "versions": [version],
        "checkpoints": [{"version": 1, "state": b"\0state"}],
        "switches": [{"seq": 1, "arm": "a", "enabled": False, "at": 2.0}],
        "arm_sets": [{"seq": 1, "arms": {"a": {}}, "configured": "c", "at": 2.0}],
        "examples": [{"seq": 1, "decision_id": "x", "metrics": {}, "joined_at": 1.0}],
        "progress": [{"reader": "join", "feedback_seq": 1, "deadline": 1.0}],
        **facts,
    }


def write(engine: sa.Engine, rows: Rows) -> None:
    """Make a log of schema 1, which had no number, and fill it."""
    with engine.begin() as connection:
        v1_first_log.metadata.create_all(connection)
        for table in v1_first_log.metadata.sorted_tables:
            if found := rows.get(table.name):
                connection.execute(sa.insert(table), found)


def in_order(rows: Rows) -> list[tuple[str, Row]]:
    """Say in plain Python in which order the facts of a first log were written."""
    its = {row["id"]: (row["decided_at"], row["seq"]) for row in rows["decisions"]}

    def key(fact: tuple[str, Row]) -> tuple[float, int, int, str]:
        table, row = fact
        if table == "decisions":
            return row["decided_at"], 0, row["seq"], row["id"]
        if table == "feedback":
            return row["received_at"], 2, row["seq"], row["id"]
        decided_at, seq = its.get(row["decision_id"], (0.0, 0))
        return max(row["finished_at"], decided_at), 1, seq, row["decision_id"]

    tables = ("decisions", "executions", "feedback")
    return sorted(((table, row) for table in tables for row in rows[table]), key=key)


TURN = first_log(
    decisions=[decided(1, "x", 10.0), decided(2, "y", 12.0)],
    executions=[executed("x", 11.0), executed("y", 9.0)],
    feedback=[said(1, "y", 11.5), said(2, "x", 20.0), said(3, "x", 20.0004), said(4, "gone", 21.0)],
)


# -- prepare -------------------------------------------------------------------------------------------


def test_an_empty_database_gets_the_tables_and_a_log_that_is_empty(engine: sa.Engine) -> None:
    prepare(engine)
    assert schema(engine) == t.SCHEMA
    assert read(engine, t.metadata) == {
        **{table: [] for table in t.metadata.tables},
        "log_head": [{"id": 1, "seq": 0, "at": 0.0}],
    }


def test_a_prepared_database_passes_with_one_query_and_keeps_its_rows(engine: sa.Engine) -> None:
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(t.ticks), {"seq": 1, "at": 1.0})
    asked: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    prepare(engine)
    assert [statement for statement in asked if not statement.startswith(("BEGIN", "SET"))] == [
        "SELECT alembic_version.version_num \nFROM alembic_version"
    ]
    assert len(read(engine, t.metadata)["ticks"]) == 1


def at_once(*calls: Callable[[], object]) -> None:
    """Make all calls at the same time, each in a thread of its own, and raise what they raise."""
    start, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - told to whoever waits below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_services_that_start_together_make_the_tables_once(log_url: str) -> None:
    engines = [connect(log_url) for _ in range(6)]
    at_once(*(partial(prepare, engine) for engine in engines))
    with engines[0].connect() as connection:
        assert connection.execute(sa.select(t.log_head)).all() == [(1, 0, 0.0)]
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (str(t.SCHEMA - 1), "`armwise migrate` brings it there"),
        (str(t.SCHEMA + 1), "this log was written by a newer Armwise"),
    ],
)
def test_tables_of_another_armwise_are_refused(engine: sa.Engine, number: str, told: str) -> None:
    prepare(engine)
    stamp(engine, number)
    with pytest.raises(SchemaError, match=f"has schema {number}, and schema {t.SCHEMA} is expected: {told}"):
        prepare(engine)


def test_a_log_without_a_number_has_the_first_schema_and_is_refused(engine: sa.Engine) -> None:
    write(engine, {})
    with pytest.raises(SchemaError, match=f"has schema 1, and schema {t.SCHEMA} is expected: `armwise migr"):
        prepare(engine)


def test_the_database_of_another_program_is_refused(engine: sa.Engine) -> None:
    prepare(engine)
    stamp(engine, "ae1027a6acf")
    told = "has the schema 'ae1027a6acf' of another program"
    with pytest.raises(SchemaError, match=told):
        prepare(engine)
    with pytest.raises(SchemaError, match=told):
        migrate(url(engine))


# -- migrate -------------------------------------------------------------------------------------------


def test_the_steps_are_numbered_and_lead_to_the_tables_of_this_armwise() -> None:
    (folder,) = migrations.__path__
    steps = list(ScriptDirectory(folder).walk_revisions())
    assert [step.revision for step in steps] == [str(number) for number in range(t.SCHEMA, 0, -1)]


def test_all_steps_from_nothing_make_what_is_made_at_once(
    engine: sa.Engine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    assert migrate(url(engine)) == (0, t.SCHEMA)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, t.metadata) == []
    if engine.dialect.name == "sqlite":
        other = f"sqlite:///{tmp_path_factory.mktemp('other') / 'log.db'}"
    else:
        other = request.getfixturevalue("postgres").fresh()
    made_at_once = connect(other)
    prepare(made_at_once)
    assert shape(engine) == shape(made_at_once)
    made_at_once.dispose()
    prepare(engine)


def test_what_is_migrated_is_left_alone(engine: sa.Engine) -> None:
    write(engine, TURN)
    assert migrate(url(engine)) == (1, t.SCHEMA)
    before = read(engine, t.metadata)
    assert migrate(url(engine)) == (t.SCHEMA, t.SCHEMA)
    assert read(engine, t.metadata) == before
    prepare(engine)


def test_a_newer_log_is_not_migrated(engine: sa.Engine) -> None:
    prepare(engine)
    stamp(engine, str(t.SCHEMA + 1))
    with pytest.raises(SchemaError, match="this log was written by a newer Armwise"):
        migrate(url(engine))


def test_a_migration_that_is_killed_at_its_end_leaves_the_log_as_it_was(engine: sa.Engine) -> None:
    write(engine, TURN)
    before = read(engine, v1_first_log.metadata)
    engine.dispose()
    script = """
import os, sys
from alembic.runtime.migration import MigrationContext
from feedback.log.schema import migrate
MigrationContext.stamp = lambda *_: os._exit(9)
migrate(sys.argv[1])
"""
    assert subprocess.run([sys.executable, "-c", script, url(engine)], cwd=ROOT, check=False).returncode == 9
    assert schema(engine) == 1
    assert set(sa.inspect(engine).get_table_names()) == set(FIRST)
    assert read(engine, v1_first_log.metadata) == before
    engine.dispose()
    assert migrate(url(engine)) == (1, t.SCHEMA)


def test_a_first_log_keeps_its_facts_in_the_order_of_their_stamps(engine: sa.Engine) -> None:
    write(engine, TURN)
    migrate(url(engine))
    rows = read(engine, t.metadata)
    assert [(row["seq"], row["id"], row["logged_at"]) for row in rows["decisions"]] == [
        (1, "x", 10.0),
        (4, "y", 12.0),
    ]
    # that of y finished before y was decided, by its clock
    assert [(row["seq"], row["decision_id"]) for row in rows["executions"]] == [(2, "x"), (5, "y")]
    assert [(row["seq"], row["id"], row["early"], row["more"]) for row in rows["feedback"]] == [
        (3, "f1", True, False),
        (6, "f2", False, True),
        (7, "f3", False, False),
        (8, "f4", True, False),
    ]
    assert rows["log_head"] == [{"id": 1, "seq": 8, "at": 21.0}]


def test_what_was_not_recorded_is_said_to_be_nothing(engine: sa.Engine) -> None:
    write(engine, TURN)
    migrate(url(engine))
    rows = read(engine, t.metadata)
    new = {
        "seq": 1,
        "logged_at": 10.0,
        "floor": None,
        "deferred": False,
        "shadow": [],
        "candidate": 0,
        "share": 0.0,
    }
    assert rows["decisions"][0] == TURN["decisions"][0] | new
    assert rows["executions"][0] == TURN["executions"][0] | {"seq": 2}
    new = {"seq": 6, "kind": "value", "episode_id": None, "early": False, "more": True}
    assert rows["feedback"][1] == TURN["feedback"][1] | new
    assert rows["versions"] == [TURN["versions"][0] | {"join": "", "start": None}]


def test_a_first_log_keeps_what_is_not_made_again(engine: sa.Engine) -> None:
    write(engine, TURN)
    migrate(url(engine))
    rows = read(engine, t.metadata)
    for kept in ("epochs", "checkpoints", "switches", "arm_sets"):
        assert rows[kept] == TURN[kept]
    assert rows["examples"] == rows["progress"] == []


def test_numbers_that_the_database_gives_out_go_on_after_the_newest(engine: sa.Engine) -> None:
    write(engine, TURN)
    migrate(url(engine))
    with engine.begin() as connection:
        epoch = connection.execute(
            sa.insert(t.epochs), {"holder": "you", "taken_at": 5.0}
        ).inserted_primary_key
        switch = connection.execute(
            sa.insert(t.switches), {"arm": "a", "enabled": True, "at": 5.0}
        ).inserted_primary_key
    assert (epoch, switch) == ((4,), (2,))


stamps = st.sampled_from([1.0, 1.0004, 2.0, 3.0, 4.0])
names = st.integers(0, 7).map(lambda number: f"d{number}")


@st.composite
def first_logs(draw: st.DrawFn) -> Rows:
    """Logs with clocks that jump, executions and feedback without a decision, and equal stamps."""
    decisions = draw(st.lists(st.tuples(names, stamps), unique_by=lambda one: one[0], max_size=6))
    executions = draw(st.lists(st.tuples(names, stamps), unique_by=lambda one: one[0], max_size=6))
    feedback = draw(st.lists(st.tuples(names, stamps), max_size=8))
    return first_log(
        decisions=[decided(seq, name, at) for seq, (name, at) in enumerate(decisions, start=1)],
        executions=[executed(name, at) for name, at in executions],
        feedback=[said(seq, name, at) for seq, (name, at) in enumerate(feedback, start=1)],
    )


def holds_the_laws(engine: sa.Engine, first: Rows) -> None:
    """Check a migrated log against what it was made from."""
    rows = read(engine, t.metadata)
    expected = in_order(first)
    facts = sorted(
        (row["seq"], table, row) for table in ("decisions", "executions", "feedback") for row in rows[table]
    )
    assert [seq for seq, _, _ in facts] == list(range(1, len(expected) + 1))
    for (_, table, row), (was_in, was) in zip(facts, expected, strict=True):
        assert (table, {**row, "seq": 0}) == (table, {**row, **was, "seq": 0})
        assert table == was_in
    position = {row["id"]: row["seq"] for row in rows["decisions"]}
    for row in rows["executions"]:
        assert position.get(row["decision_id"], 0) < row["seq"]
    time = 0.0
    for seq, table, row in facts:
        time = max(time, row.get("decided_at") or row.get("finished_at") or row["received_at"])
        if table == "decisions":
            assert row["logged_at"] == time
        if table == "feedback":
            assert row["early"] == (position.get(row["decision_id"], seq) >= seq)
    for (_, table, row), (_, following, after) in pairwise(facts):
        if table == "feedback":
            together = following == table and after["decision_id"] == row["decision_id"]
            assert row["more"] == (together and after["received_at"] <= row["received_at"] + 0.001)
    assert rows["log_head"] == [{"id": 1, "seq": len(facts), "at": time}]


@pytest.mark.parametrize(("database", "examples"), [("sqlite", 20), ("postgresql", 8)])
def test_any_first_log_is_put_into_one_order_without_gaps(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, examples: int
) -> None:
    number = count()
    server: Server | None = request.getfixturevalue("postgres") if database == "postgresql" else None

    @settings(max_examples=examples)
    @given(first=first_logs())
    def check(first: Rows) -> None:
        engine = connect(server.fresh() if server else f"sqlite:///{tmp_path / f'{next(number)}.db'}")
        write(engine, first)
        migrate(url(engine))
        holds_the_laws(engine, first)
        engine.dispose()

    check()
