"""The tables of a database: created once, refused if they are another Armwise's, migrated with every fact."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from armwise.feedback.errors import SchemaError
from armwise.feedback.log import Store
from armwise.feedback.log import schema as log_schema
from armwise.feedback.log import tables as t
from armwise.feedback.log.database import open_database
from armwise.feedback.log.facts import decision_row
from armwise.feedback.log.schema import MIGRATIONS, check, migrate, prepare, read_schema
from armwise.feedback.log.store import DrawSecret
from armwise.feedback.registry import active_policy
from tests.feedback.conftest import decision

ROOT = Path(__file__).parents[3]
NEXT = t.SCHEMA + 1

NEW_SECRET = log_schema.new_secret  # before the fixture that gives all logs the same


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = open_database(database_url).engine
    yield engine
    engine.dispose()


def url(engine: sa.Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def schema(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return read_schema(connection)


def stamp(engine: sa.Engine, number: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :number"), {"number": number})


def shape(engine: sa.Engine) -> Any:
    """Every table with its columns, their defaults, its keys and indexes, and their names."""
    inspector = sa.inspect(engine)
    columns = {
        table: [
            (column["name"], str(column["type"]), column["nullable"], column["default"]) for column in found
        ]
        for table, found in inspector.get_multi_columns().items()
    }
    indexes = {
        table: [
            {
                **index,
                "dialect_options": {name: str(option) for name, option in index["dialect_options"].items()},
            }
            for index in found
        ]
        for table, found in inspector.get_multi_indexes().items()
    }
    keys = (
        inspector.get_multi_pk_constraint(),
        inspector.get_multi_foreign_keys(),
        inspector.get_multi_unique_constraints(),
    )
    return columns, indexes, keys


def rows_of(engine: sa.Engine) -> dict[str, list[dict[str, Any]]]:
    """All rows of the tables, in the order of their keys."""
    with engine.connect() as connection:
        return {
            table.name: [dict(row) for row in connection.execute(sa.select(table).order_by(key)).mappings()]
            for table in t.metadata.sorted_tables
            for key in [next(iter(table.primary_key))]
        }


# -- prepare -------------------------------------------------------------------------------------------


def test_an_empty_database_gets_the_tables_and_an_empty_log(engine: sa.Engine) -> None:
    prepare(engine)
    assert schema(engine) == t.SCHEMA
    assert rows_of(engine) == {
        **{table: [] for table in t.metadata.tables},
        "log_head": [{"id": 1, "seq": 0, "at": 0.0}],
        "draw_secret": [{"id": 1, "secret": log_schema.new_secret(), "after": 0}],
    }


def test_draws_of_before_there_was_a_secret_have_the_salt_of_the_configuration() -> None:
    secret = DrawSecret("s", after=5)
    assert [secret.salt("c", seq) for seq in (1, 5, 6, None)] == ["c", "c", "s/c", "s/c"]


def test_every_log_has_a_secret_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_schema, "new_secret", NEW_SECRET)
    stores = [Store(f"sqlite:///{tmp_path / name}.db") for name in "ab"]
    found = {store.draw_secret.secret for store in stores}
    assert [len(bytes.fromhex(secret)) for secret in found] == [32, 32]
    for store in stores:
        assert store.draw_secret.secret not in repr(store.draw_secret)
        store.close()


def test_a_prepared_database_is_checked_with_one_query_and_keeps_its_rows(engine: sa.Engine) -> None:
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(t.ticks), {"seq": 1, "at": 1.0})
    executed: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *call: executed.append(call[2]))
    prepare(engine)
    assert [statement for statement in executed if not statement.startswith(("BEGIN", "SET"))] == [
        "SELECT alembic_version.version_num \nFROM alembic_version"
    ]
    assert len(rows_of(engine)["ticks"]) == 1


def at_once(*calls: Callable[[], object]) -> None:
    """Make all calls at the same time, each in its own thread, and raise what they raise."""
    start, errors = threading.Barrier(len(calls)), []

    def run(call: Callable[[], object]) -> None:
        start.wait()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_services_that_start_together_create_the_tables_once(database_url: str) -> None:
    engines = [open_database(database_url).engine for _ in range(6)]
    at_once(*(partial(prepare, engine) for engine in engines))
    with engines[0].connect() as connection:
        assert connection.execute(sa.select(t.log_head)).all() == [(1, 0, 0.0)]
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize(
    ("number", "reason"),
    [(t.SCHEMA - 1, "run `armwise migrate`"), (NEXT, "it was written by a newer Armwise")],
)
def test_tables_of_another_armwise_are_refused(engine: sa.Engine, number: int, reason: str) -> None:
    prepare(engine)
    stamp(engine, str(number))
    with pytest.raises(
        SchemaError, match=f"has schema {number}, and schema {t.SCHEMA} is expected: {reason}"
    ):
        prepare(engine)
    with engine.connect() as connection, pytest.raises(SchemaError, match=f"has schema {number}, and"):
        check(connection)


def test_the_database_of_another_program_is_refused(engine: sa.Engine) -> None:
    prepare(engine)
    stamp(engine, "ae1027a6acf")
    for call in (partial(prepare, engine), partial(migrate, url(engine))):
        with pytest.raises(SchemaError, match="has the schema 'ae1027a6acf' of another program"):
            call()


def test_tables_without_a_schema_number_are_refused_and_left_alone(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE versions (id int)")
    for call in (partial(prepare, engine), partial(migrate, url(engine))):
        with pytest.raises(SchemaError, match="has a table 'versions' and no schema number"):
            call()
    assert sa.inspect(engine).get_table_names() == ["versions"]


# -- migrate -------------------------------------------------------------------------------------------

STEP = f"""
import os
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{NEXT}", "{t.SCHEMA}"

def upgrade():
    op.add_column("ticks", sa.Column("source", sa.String(16), nullable=False, server_default="clock"))
    op.execute("UPDATE ticks SET at = at + 1")
    if os.environ.get("KILLED") == "in the middle":
        os._exit(9)
    op.create_table("notes", sa.Column("seq", sa.Integer, primary_key=True))
"""
"""A revision after those of this Armwise: it changes a table, moves rows, and creates another table."""


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    """The migrations of the next Armwise."""
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder)
    (folder / "versions" / "0009_source_of_ticks.py").write_text(STEP)
    return folder


@pytest.fixture
def filled(engine: sa.Engine) -> sa.Engine:
    """A log of this Armwise with a fact in it."""
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.insert(t.ticks), {"seq": 1, "at": 1.0})
    return engine


def test_the_revisions_lead_to_the_schema_of_this_armwise() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == str(t.SCHEMA)


@pytest.mark.slow
def test_the_revisions_create_the_tables_that_are_created_at_once(
    engine: sa.Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert migrate(url(engine)) == (0, t.SCHEMA)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, t.metadata) == []
    if engine.dialect.name == "sqlite":
        other = f"sqlite:///{tmp_path / 'other.db'}"
    else:
        other = request.getfixturevalue("postgres").fresh()
    created_at_once = open_database(other).engine
    prepare(created_at_once)
    assert shape(engine) == shape(created_at_once)
    migrated, created = rows_of(engine), rows_of(created_at_once)
    (secret,), _ = migrated.pop("draw_secret"), created.pop("draw_secret")
    assert (len(secret["secret"]), secret["after"]) == (64, 0)
    assert migrated == created
    created_at_once.dispose()
    prepare(engine)


def test_a_log_of_the_newest_schema_is_left_alone(filled: sa.Engine) -> None:
    before = shape(filled), rows_of(filled)
    assert migrate(url(filled)) == (t.SCHEMA, t.SCHEMA)
    assert (shape(filled), rows_of(filled)) == before
    prepare(filled)


def test_a_migration_keeps_every_fact_and_only_the_next_armwise_accepts_its_log(
    filled: sa.Engine, migrations: Path
) -> None:
    assert migrate(url(filled), migrations) == (t.SCHEMA, NEXT)
    with filled.connect() as connection:
        assert connection.exec_driver_sql("SELECT seq, at, source FROM ticks").all() == [(1, 2.0, "clock")]
    assert migrate(url(filled), migrations) == (NEXT, NEXT), "once"
    newer = f"has schema {NEXT}, and schema {t.SCHEMA} is expected: it was written by a newer Armwise"
    for call in (partial(prepare, filled), partial(migrate, url(filled))):
        with pytest.raises(SchemaError, match=newer):
            call()


def test_a_log_that_no_revision_starts_from_is_not_migrated(filled: sa.Engine) -> None:
    stamp(filled, "15")
    with pytest.raises(SchemaError, match="the log has schema 15: migrations start from schema 16"):
        migrate(url(filled))


def begin_with(number: int, engine: sa.Engine, folder: Path) -> None:
    """Create the tables of an earlier schema by the migrations of before."""
    before = folder / "before"
    shutil.copytree(MIGRATIONS, before)
    for later in [*(before / "versions").glob("0*.py")]:
        if int(later.name[:4]) > number - 15:
            later.unlink()
    assert migrate(url(engine), before) == (0, number)


@pytest.mark.slow
def test_decisions_of_before_keep_their_propensities_and_indexes(engine: sa.Engine, tmp_path: Path) -> None:
    """Schema 17 had no decision without a propensity."""
    begin_with(17, engine, tmp_path)
    row = decision_row(decision("d-1"), 1, 100.0)
    del row["draw_id"]  # of schema 18
    with engine.begin() as connection:
        connection.execute(sa.insert(t.decisions), row)
        with pytest.raises(sa.exc.IntegrityError), connection.begin_nested():
            connection.execute(sa.insert(t.decisions), {**row, "seq": 2, "id": "d-2", "propensity": None})
    engine.dispose()
    assert migrate(url(engine)) == (17, t.SCHEMA)
    found = rows_of(engine)["decisions"]
    assert [(one["id"], one["propensity"], one["probabilities"]) for one in found] == [
        ("d-1", 0.75, [0.25, 0.75])
    ]
    created = shape(engine)
    unknown = replace(decision("d-3"), probabilities=())
    with engine.begin() as connection:
        connection.execute(sa.insert(t.decisions), decision_row(unknown, 3, 100.0))
    assert [one["propensity"] for one in rows_of(engine)["decisions"]] == [0.75, None]
    with engine.begin() as connection:
        t.metadata.drop_all(connection)
        connection.exec_driver_sql("DROP TABLE alembic_version")
    engine.dispose()
    prepare(engine)
    assert shape(engine) == created


def test_sums_of_before_are_dropped_by_the_migration_and_added_up_again(
    engine: sa.Engine, tmp_path: Path
) -> None:
    """Schema 16 had neither explored decisions nor stretches of the log in its sums."""
    begin_with(16, engine, tmp_path)
    with engine.begin() as connection:
        columns = sa.inspect(connection).get_columns("rollups")
        row = {column["name"]: "a" if column["name"] == "arm" else 1 for column in columns}
        assert not {"explored", "wr2"} & row.keys()
        names = ", ".join(row)
        connection.execute(
            sa.text(f"INSERT INTO rollups ({names}) VALUES ({', '.join(':' + one for one in row)})"), row
        )
        connection.exec_driver_sql("INSERT INTO rollup_positions VALUES ('rule', 7, 7)")
        connection.execute(sa.insert(t.ticks), {"seq": 1, "at": 1.0})
    engine.dispose()
    assert migrate(url(engine)) == (16, t.SCHEMA)
    with engine.connect() as connection:
        for table, rows in ((t.rollups, 0), (t.rollup_positions, 0), (t.ticks, 1)):
            assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == rows


def test_canaries_that_a_newer_one_replaced_do_not_come_back_with_the_migration(
    engine: sa.Engine, tmp_path: Path
) -> None:
    """Under schema 16 the newest canary was the only one, and the one before got no row that ended it."""
    begin_with(16, engine, tmp_path)
    with engine.begin() as connection:
        connection.execute(sa.insert(t.epochs), {"holder": "test", "taken_at": 1.0})
        for number in (1, 2, 3):
            version = {"version": number, "recipe": "r", "join": "j", "policy": {}, "examples_seq": 0}
            version |= {"applied_seq": 0, "digest": "d", "epoch": 1, "created_at": 1.0}
            connection.execute(sa.insert(t.versions), version)
        insert = sa.text(
            "INSERT INTO promotions (version, action, reason, at, configured, forced, share) "
            "VALUES (:version, 'canary', 'a try', :at, :configured, :no, :share)"
        ).bindparams(sa.bindparam("no", False, sa.Boolean))
        for at, (configured, number, share) in enumerate(
            [("a", 1, 0.1), ("a", 2, 0.1), ("a", 3, 0.2), ("b", 1, 0.1), ("b", 2, 0.1), ("b", 2, 0.0)]
        ):
            row = {"version": number, "at": float(at), "configured": configured, "share": share, "no": False}
            connection.execute(insert, row)
    engine.dispose()
    assert migrate(url(engine)) == (16, t.SCHEMA)
    with closing(Store(url(engine))) as store:
        shares = {one.version: one.share for one in active_policy(store, "a").canaries}
        assert shares == {3: 0.2}
        assert active_policy(store, "b").canaries == ()


KILLED = """
import os, sys
from pathlib import Path
from alembic.runtime.migration import MigrationContext
from armwise.feedback.log.schema import migrate
if os.environ["KILLED"] == "at its end":
    MigrationContext.stamp = lambda *_: os._exit(9)
migrate(sys.argv[1], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("when", ["in the middle", "at its end"])
@pytest.mark.slow
def test_a_migration_that_is_killed_leaves_the_log_unchanged(
    filled: sa.Engine, migrations: Path, when: str
) -> None:
    before = shape(filled), rows_of(filled)
    filled.dispose()
    command = [sys.executable, "-c", KILLED, url(filled), str(migrations)]
    environment = {"PYTHONPATH": str(ROOT), "KILLED": when}
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 9
    assert schema(filled) == t.SCHEMA
    assert (shape(filled), rows_of(filled)) == before
    filled.dispose()
    assert migrate(url(filled), migrations) == (t.SCHEMA, NEXT)
