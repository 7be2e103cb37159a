"""The comparison of tables and migrations: additions pass, and what a log of the release loses is named."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import MIGRATIONS, prepare
from tests.release.changes import Change, changed
from tests.release.log import broken_migrations, broken_tables, migrations_of, tables_of


def column(kind: str = "INTEGER", *, null: bool = False, default: str | None = None) -> dict[str, Any]:
    return {"type": kind, "null": null, "default": default}


TABLES: dict[str, Any] = {
    "ticks": {
        "columns": {"seq": column(), "at": column("DOUBLE", default="0")},
        "key": ["seq"],
        "unique": [["at"]],
        "foreign": [[["seq"], "log_head", ["id"]]],
        "indexes": ["ticks_by_at"],
    },
    "notes": {"columns": {"seq": column()}, "key": ["seq"], "unique": [], "foreign": [], "indexes": []},
}


def columns(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["ticks"]["columns"]
    return found


BREAKS: dict[str, tuple[Change, str]] = {
    "table removed": (lambda made: made.pop("notes"), "table notes: is gone"),
    "column removed": (lambda made: columns(made).pop("at"), "column ticks.at: is gone"),
    "type": (
        lambda made: columns(made).update(at=column(default="0")),
        "column ticks.at: has the type INTEGER, and had DOUBLE",
    ),
    "null": (
        lambda made: columns(made)["seq"].update(null=True),
        "column ticks.seq: has the null True, and had False",
    ),
    "default": (
        lambda made: columns(made)["at"].update(default=None),
        "column ticks.at: has the default None, and had 0",
    ),
    "column without a value": (
        lambda made: columns(made).update(by=column()),
        "column ticks.by: is new, not null and without a default: rows of the release have none",
    ),
    "key": (
        lambda made: made["ticks"].update(key=["at"]),
        "table ticks: has the primary key ['at'], and had ['seq']",
    ),
    "unique": (
        lambda made: made["notes"].update(unique=[["seq"]]),
        "table notes: has the unique columns [['seq']], and had []",
    ),
    "foreign": (
        lambda made: made["ticks"].update(foreign=[]),
        "table ticks: has the foreign keys [], and had [[['seq'], 'log_head', ['id']]]",
    ),
}

ADDITIONS: dict[str, Change] = {
    "table": lambda made: made.update(pages={**TABLES["notes"], "columns": {"seq": column()}}),
    "column that may be null": lambda made: columns(made).update(by=column("TEXT", null=True)),
    "column with a default": lambda made: columns(made).update(by=column("TEXT", default="''")),
    "index": lambda made: made["notes"].update(indexes=["notes_by_seq"]),
    "no index": lambda made: made["ticks"].update(indexes=[]),
}


@pytest.mark.parametrize("case", BREAKS)
def test_what_a_log_loses_is_named(case: str) -> None:
    change, expected = BREAKS[case]
    assert broken_tables(TABLES, changed(TABLES, change)) == [expected]


@pytest.mark.parametrize("case", ADDITIONS)
def test_what_a_log_has_besides_passes(case: str) -> None:
    assert broken_tables(TABLES, changed(TABLES, ADDITIONS[case])) == []


@pytest.mark.slow
def test_tables_are_those_of_the_database(database_url: str) -> None:
    engine = open_database(database_url).engine
    prepare(engine)
    before = tables_of(engine)
    assert before["ticks"]["columns"].keys() == {"seq", "at"}
    assert before["examples"]["key"] == ["join", "seq"]
    assert before["examples"]["unique"] == [["decision_id", "join"]]
    assert before["checkpoints"]["foreign"] == [[["version"], "versions", ["version"]]]
    assert "decisions_by_draw_id" in before["decisions"]["indexes"]
    assert before["executions"]["columns"]["cached"]["default"] is not None
    assert "alembic_version" not in before
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE ticks ADD COLUMN note text")
        connection.exec_driver_sql("DROP TABLE alarms")
        connection.exec_driver_sql("ALTER TABLE executions DROP COLUMN error")
    assert broken_tables(before, tables_of(engine)) == [
        "table alarms: is gone",
        "column executions.error: is gone",
    ]
    engine.dispose()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, made)
    return made


def add(folder: Path, name: str, revision: str, after: str) -> None:
    text = f'"""Another."""\n\nrevision = "{revision}"\n\ndown_revision = "{after}"\n'
    (folder / "versions" / name).write_text(text)


def test_migrations_are_in_their_order_with_the_hash_of_their_file() -> None:
    found = migrations_of(MIGRATIONS)
    assert [one["revision"] for one in found[:3]] == ["16", "17", "18"]
    content = (MIGRATIONS / "versions" / "0001_initial.py").read_bytes()
    assert found[0] == {
        "revision": "16",
        "file": "0001_initial.py",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_a_migration_at_the_end_passes(folder: Path) -> None:
    released = migrations_of(folder)
    add(folder, "0099_another.py", "99", released[-1]["revision"])
    assert [one["revision"] for one in migrations_of(folder)][-1] == "99"
    assert broken_migrations(released, migrations_of(folder)) == []


def test_an_edited_migration_is_named(folder: Path) -> None:
    released = migrations_of(folder)
    edited = folder / "versions" / released[1]["file"]
    edited.write_text(edited.read_text() + "# more\n")
    assert broken_migrations(released, migrations_of(folder)) == [
        f"migration 17: {edited.name} was edited; add a migration after it"
    ]


def test_a_removed_migration_is_named(folder: Path) -> None:
    released = migrations_of(folder)
    assert broken_migrations(released, released[:-1]) == [f"migration {released[-1]['revision']}: is gone"]


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_migration_before_a_released_one_is_named(folder: Path, place: int) -> None:
    released = migrations_of(folder)
    added = {"revision": "99", "file": "0099.py", "sha256": ""}
    inserted = [*released[:place], added, *released[place:]]
    assert broken_migrations(released, inserted) == [
        f"migration 99: stands before the released {released[-1]['revision']}; add it after that"
    ]


def test_released_migrations_in_another_order_are_named() -> None:
    released = migrations_of(MIGRATIONS)[:3]
    assert broken_migrations(released, released[::-1]) == [
        "the migrations have the order 18, 17, 16, and had 16, 17, 18"
    ]


def test_a_table_of_sqlalchemy_is_read_whole(tmp_path: Path) -> None:
    """Every part of a table that is compared comes from the database, none from the definitions."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE a (x INTEGER PRIMARY KEY)")
        connection.exec_driver_sql(
            "CREATE TABLE b (y TEXT NOT NULL DEFAULT 'q', z INTEGER REFERENCES a (x), "
            "UNIQUE (y), PRIMARY KEY (z, y))"
        )
        connection.exec_driver_sql("CREATE INDEX i ON b (z)")
    assert tables_of(engine)["b"] == {
        "columns": {
            "y": {"type": "TEXT", "null": False, "default": "'q'"},
            "z": {"type": "INTEGER", "null": True, "default": None},
        },
        "key": ["z", "y"],
        "unique": [["y"]],
        "foreign": [[["z"], "a", ["x"]]],
        "indexes": ["i"],
    }
    engine.dispose()
