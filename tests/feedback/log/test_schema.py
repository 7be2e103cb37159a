"""The tables of a database: created once, and refused if they are another Armwise's."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogGapError, SchemaError
from armwise.feedback.log import Store
from armwise.feedback.log import schema as log_schema
from armwise.feedback.log import tables as t
from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import check, prepare, read_schema

NEW_SECRET = log_schema.new_secret  # before the fixture that gives all logs the same


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = open_database(database_url).engine
    yield engine
    engine.dispose()


def schema(engine: sa.Engine) -> int:
    with engine.begin() as connection:
        return read_schema(connection)


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
        "log": [{"schema": t.SCHEMA, "seq": 0, "at": 0.0, "secret": log_schema.new_secret()}],
    }


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
        "SELECT log.schema \nFROM log"
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
        assert connection.execute(sa.select(t.log.c.seq, t.log.c.at)).all() == [(0, 0.0)]
    for engine in engines:
        engine.dispose()


def test_tables_of_another_armwise_are_refused(engine: sa.Engine) -> None:
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.update(t.log).values(schema=7))
    with pytest.raises(SchemaError, match="has schema 7, and this Armwise reads schema 2: run the version"):
        prepare(engine)
    with engine.connect() as connection, pytest.raises(SchemaError, match="has schema 7, and"):
        check(connection)


def test_a_log_without_its_row_is_refused(engine: sa.Engine) -> None:
    prepare(engine)
    with engine.begin() as connection:
        connection.execute(sa.delete(t.log))
    with pytest.raises(LogGapError, match="`log` has 0 rows: it must have one"):
        prepare(engine)


@pytest.mark.parametrize("name", ["versions", "log"])
def test_tables_without_a_schema_number_are_refused_and_left_alone(engine: sa.Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {name} (id int)")
    with pytest.raises(SchemaError, match=rf"table '{name}' .*no schema number"):
        prepare(engine)
    assert sa.inspect(engine).get_table_names() == [name]
