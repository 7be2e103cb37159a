"""Backup and restore: the copy is the log, whole, and a learner goes on from it; on both databases."""

import os
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import StoreError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, find_difference, take_epoch
from tests.feedback.conftest import decision, execution, value
from tests.postgres import Server

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()})


def fill(store: Store, first: int, last: int) -> None:
    for i in range(first, last):
        store.append([decision(f"d{i}"), execution(f"d{i}"), value(f"d{i}")])


def learned(store: Store) -> Joiner:
    joiner = Joiner(store, RULE, take_epoch(store, "test", 200.0))
    joiner.advance(200.0)
    return joiner


def facts(url: str) -> list[list[object]]:
    with closing(Store(url, RULE.join)) as store, store.reading() as connection:
        tables = (t.decisions, t.executions, t.feedback, t.examples, t.log)
        return [
            [tuple(row) for row in connection.execute(sa.select(one).order_by(*one.primary_key))]
            for one in tables
        ]


def verified(url: str) -> bool:
    with closing(Store(url, RULE.join)) as store:
        return not find_difference(store, RULE)[1]


def test_a_copy_is_the_log_and_a_learner_goes_on_from_it(tmp_path: Path) -> None:
    url, copy = (f"sqlite:///{tmp_path / name}.db" for name in ("log", "copy"))
    with closing(Store(url, RULE.join)) as store:
        fill(store, 0, 20)
        learned(store)
        store.backup(tmp_path / "copy.db")
        before = facts(url)
        fill(store, 20, 25)
    with closing(sqlite3.connect(tmp_path / "copy.db")) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("delete",), "a copy is one file"
    assert facts(copy) == before
    assert verified(copy)
    with closing(Store(copy, RULE.join)) as restored:
        fill(restored, 20, 25)
        assert learned(restored).advance(201.0).examples_seq == 25
    assert verified(copy)


def test_a_copy_that_is_made_while_others_write_is_one_snapshot(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}", RULE.join)
    fill(store, 0, 50)
    stop, wrote = threading.Event(), threading.Event()

    def write() -> None:
        i = 50
        while not stop.is_set():
            fill(store, i, i + 1)
            wrote.set()
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    wrote.wait()
    for n in range(5):
        store.backup(tmp_path / f"copy{n}.db")
    stop.set()
    writer.join()
    store.close()
    for n in range(5):
        with closing(Store(f"sqlite:///{tmp_path / f'copy{n}.db'}", RULE.join)) as restored:
            found = learned(restored)
            assert (found.left, restored.log_seq() % 3) == (0, 0)
        assert verified(f"sqlite:///{tmp_path / f'copy{n}.db'}")


def test_an_earlier_backup_is_not_replaced_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        store.backup(tmp_path / "copy.db")
        with pytest.raises(StoreError, match=r"copy\.db already exists"):
            store.backup(tmp_path / "copy.db")
        with pytest.raises(FileNotFoundError):
            store.backup(tmp_path / "missing" / "copy.db")
    assert {path.name for path in tmp_path.iterdir()} == {"log.db", "copy.db"}


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, OSError])
def test_a_copy_that_is_stopped_leaves_nothing_and_one_that_was_killed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: type[BaseException]
) -> None:
    def stop(_file: int) -> None:
        raise stopped_by

    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        with monkeypatch.context() as patch:
            patch.setattr("armwise.feedback.log.sqlite.os.fsync", stop)
            with pytest.raises(stopped_by):
                store.backup(tmp_path / "copy.db")
        assert not [*tmp_path.glob("copy.db*")]
        (tmp_path / "copy.db.unfinished").write_bytes(b"of a run that was killed")
        before = os.umask(0o022)
        try:
            store.backup(tmp_path / "copy.db")
        finally:
            os.umask(before)
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600, "texts of people are in it"
    assert [path.name for path in tmp_path.glob("copy.db*")] == ["copy.db"]


@pytest.mark.slow
def test_a_dump_of_postgresql_is_restored_and_verified(postgres: Server, tmp_path: Path) -> None:
    url = postgres.fresh()
    with closing(Store(url, RULE.join)) as store:
        fill(store, 0, 20)
        learned(store)
        with pytest.raises(StoreError, match=r"copy\.db: .*`pg_dump`"):
            store.backup(tmp_path / "copy.db")
    before = facts(url)
    address = url.replace("+psycopg", "")
    schema = str(sa.make_url(url).username)
    command = [
        postgres.program("pg_dump"),
        "--format=custom",
        "--no-owner",
        f"--schema={schema}",
        f"--dbname={address}",
    ]
    dump = subprocess.run(command, capture_output=True, check=True).stdout
    with postgres.connect() as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())
    command = [postgres.program("pg_restore"), "--no-owner", "--exit-on-error", f"--dbname={address}"]
    subprocess.run(command, input=dump, capture_output=True, check=True)
    assert facts(url) == before
    assert verified(url)
    with closing(Store(url, RULE.join)) as restored:
        fill(restored, 20, 25)
        assert learned(restored).advance(201.0).examples_seq == 25
    postgres.drop(url)
