"""The databases under the log: locks, kills of the server, refused values."""

import asyncio
import logging
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, StoreError
from armwise.feedback.events import Cost, Execution, Status
from armwise.feedback.log import postgres as postgres_of_logs
from armwise.feedback.log import tables as t
from armwise.feedback.log.database import open_database
from armwise.feedback.log.group_commit import GroupCommit
from armwise.feedback.log.store import Store
from tests.feedback.conftest import decision, execution, value
from tests.postgres import Server


def opened(url: str) -> closing[Store]:
    return closing(Store(url))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for others for longer than a moment."""
    monkeypatch.setattr("armwise.feedback.log.sqlite.WAIT_S", 0.05)
    monkeypatch.setattr("armwise.feedback.log.postgres.WAIT_S", 0.05)
    monkeypatch.setattr("armwise.feedback.log.store.WAIT_S", 0.05)


@pytest.fixture
def server(killable_postgres: Server) -> Server:
    return killable_postgres


# -- which database ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "'nonsense' is not a database URL such as sqlite:"),
        ("mysql://ada:secret@db/log", "database 'mysql' is not supported"),
        ("postgresql+psycopg2://ada:secret@db/log", r"database 'postgresql\+psycopg2' is not supported"),
        ("postgresql://ada:secret@db:port/log", "not a database URL"),
    ],
)
def test_a_url_that_is_of_no_use_is_named_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as refused:
        Store(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_missing_server_is_worth_a_retry_and_tells_no_password(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(LogUnavailableError, match="the log cannot be used") as refused:
        Store(f"{scheme}://ada:secret@/log?host={tmp_path}")
    assert "secret" not in str(refused.value)


PASSWORD, DATABASE, ADDRESS = "user or the password", "create this database", "no server answers there"


def remedy(url: str) -> str:
    with pytest.raises(LogUnavailableError) as refused:
        Store(url)
    assert refused.value.remedy not in str(refused.value), "clients of the service read the message"
    return refused.value.remedy


def test_why_a_server_cannot_be_used_says_what_to_correct(server: Server) -> None:
    url = server.fresh()
    assert PASSWORD in remedy(url.replace("://log", "://stranger"))
    assert DATABASE in remedy(url.replace("/postgres?", "/nothing?"))
    assert ADDRESS in remedy(url.replace(f"host={server.folder}", "host=/nowhere"))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', ADDRESS),
        ("connection timeout expired", ADDRESS),
        ('FATAL:  password authentication failed for user "database"', PASSWORD),
        ("fe_sendauth: no password supplied", PASSWORD),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada", no encryption', "pg_hba.conf"),
        ("failed to resolve host 'db.invalid': [Errno -2]", "correct the host in log_url"),
        ('FATAL:  database "log" is not currently accepting connections', ""),
        ("FATAL:  sorry, too many clients already", ""),
    ],
)
def test_the_words_of_a_server_name_the_cause(message: str, said: str) -> None:
    database = open_database("postgresql://ada@127.0.0.1/log")
    found = database.find_remedy(psycopg.OperationalError(message))
    assert said in found
    assert bool(found) == bool(said)


def test_a_folder_in_the_place_of_the_file_of_a_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.db").mkdir()
    assert f"{tmp_path / 'log.db'} is a folder" in remedy(f"sqlite:///{tmp_path / 'log.db'}")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (sqlite3.SQLITE_CANTOPEN, "let this user write"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "let this user write"),
        (sqlite3.SQLITE_FULL, "free space"),
        (sqlite3.SQLITE_BUSY, ""),
    ],
)
def test_the_code_of_sqlite_says_what_to_correct(tmp_path: Path, code: int, said: str) -> None:
    error = sqlite3.OperationalError()
    error.sqlite_errorcode = code
    found = open_database(f"sqlite:///{tmp_path / 'log.db'}").find_remedy(error)
    assert said in found
    assert bool(found) == bool(said)
    assert not found or str(tmp_path / "log.db") in found


def test_the_folder_of_a_log_is_made_and_one_in_memory_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Store(f"sqlite:///{tmp_path / 'new' / 'home' / 'log.db'}").close()
    assert (tmp_path / "new" / "home" / "log.db").exists()
    Store("sqlite:///:memory:").close()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_file_that_is_no_database_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("This is not a database, it is a text of some length." * 100)
    with pytest.raises(StoreError, match="not a database") as refused:
        Store(f"sqlite:///{tmp_path / 'log.db'}")
    assert not isinstance(refused.value, LogUnavailableError)


def test_an_old_server_is_refused(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_of_logs, "OLDEST", 99)
    with pytest.raises(StoreError, match="needs PostgreSQL 99 or later"):
        Store(postgres_url)


@pytest.mark.slow
def test_a_database_of_another_encoding_is_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"UTF8; this is version \d+, with LATIN1"):
        Store(server.fresh().replace("/postgres?", "/latin?"))


# -- durability ----------------------------------------------------------------------------------


def test_a_user_who_does_not_wait_for_the_disk_is_overruled(server: Server) -> None:
    url = server.fresh()
    with server.connect() as connection:
        connection.execute(f"ALTER ROLE {sa.make_url(url).username} SET synchronous_commit = off".encode())
    with opened(url) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


def test_a_connection_names_the_service_to_those_who_look_at_the_server(server: Server) -> None:
    with opened(server.fresh()) as store, store.reading() as connection:
        assert connection.exec_driver_sql("SHOW application_name").scalar() == "armwise"


def test_a_server_that_does_not_flush_is_warned_of_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    try:
        with opened(server.fresh()) as store, store.reading(), store.reading():
            pass
    finally:
        with server.connect() as connection:
            connection.execute("ALTER SYSTEM RESET fsync")
            connection.execute("SELECT pg_reload_conf()")
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "PostgreSQL may lose committed transactions in a crash: fsync is off"
    ]


# -- servers that do not answer ------------------------------------------------------------------


def test_a_statement_that_takes_too_long_is_cancelled_by_the_server(postgres_url: str) -> None:
    with (
        closing(Store(postgres_url, answer_s=0.2)) as store,
        pytest.raises(LogUnavailableError, match="statement timeout"),
        store.reading() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(60)")


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_and_used_again_once_it_answers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_of_logs, "GRACE_S", 0.1)
    with closing(Store(server.fresh(), answer_s=0.2)) as store:
        store.append([decision("d1")])
        with server.stalled():
            with pytest.raises(LogUnavailableError, match=r"the server has not answered for 0\.3 s"):
                store.append([decision("d2")])
            with pytest.raises(LogUnavailableError):
                store.record("d1")
        store.append([decision("d2"), decision("d3")])  # the first is kept already, or not
        assert [store.record(name) is not None for name in ("d1", "d2", "d3")] == [True] * 3


def test_a_connection_that_was_given_up_is_closed(server: Server) -> None:
    """Else the answer that comes in the end would be taken for that of the next statement."""
    with postgres_of_logs._Connection.connect(host=str(server.folder), user="postgres") as connection:  # noqa: SLF001
        connection.answer_s = 0.1
        with pytest.raises(psycopg.OperationalError, match="not answered"):
            connection.execute("SELECT pg_sleep(60)")
        assert connection.closed


def test_a_connection_in_use_when_its_log_is_closed_is_closed_when_it_comes_back(postgres: Server) -> None:
    url = postgres.fresh()
    store = Store(url)
    with store.reading() as connection:
        driver = connection.connection.driver_connection
        store.close()
        assert connection.scalar(sa.select(t.log.c.seq)) == 0
    assert driver is not None
    assert driver.closed
    with store.reading() as again:  # a closed log opens again
        kept = again.connection.driver_connection
    assert kept is not None
    assert not kept.closed
    with store.reading():
        store.close()
    assert kept.closed


# -- side by side --------------------------------------------------------------------------------


def test_a_reader_sees_one_moment_of_the_log(store: Store, url: str) -> None:
    store.append([decision("d1")])
    count = sa.select(sa.func.count()).select_from(t.decisions)
    with opened(url) as other, store.reading() as connection:
        assert connection.scalar(count) == 1
        other.append([decision("d2")])
        assert connection.scalar(count) == 1
        assert connection.scalar(sa.select(t.log.c.seq)) == 1
    assert store.log_seq() == 2


def test_a_reader_cannot_write_to_a_server(postgres_url: str) -> None:
    with opened(postgres_url) as store:
        refused = pytest.raises(LogUnavailableError, match="read-only")
        with refused, store.reading() as connection:
            connection.execute(sa.update(t.log).values(seq=7))


@pytest.mark.usefixtures("impatient")
def test_only_one_is_in_control(url: str) -> None:
    with opened(url) as one, opened(url) as other:
        with one.writing(), pytest.raises(LogUnavailableError, match="lock"), other.writing():
            pass
        with other.writing():
            pass


def test_who_is_in_control_of_a_server_does_not_hold_up_facts(postgres_url: str) -> None:
    with opened(postgres_url) as one, opened(postgres_url) as other, one.writing():
        before = other.log_seq()
        other.append([value("d1", key="meanwhile")])
        assert other.log_seq() == before + 1


@pytest.mark.usefixtures("impatient")
def test_facts_wait_for_each_other_up_to_a_limit(url: str) -> None:
    with opened(url) as one, opened(url) as other:
        with one.engine.begin() as connection:
            connection.execute(sa.update(t.log).values(at=0.0))
            with pytest.raises(LogUnavailableError, match="lock"):
                other.append([decision("d1")])
        other.append([decision("d1")])


@pytest.mark.usefixtures("impatient")
def test_connections_are_bounded(url: str) -> None:
    with opened(url) as store:
        readers = ExitStack()
        with readers:
            for _ in range(6):
                readers.enter_context(store.reading())
            with pytest.raises(LogUnavailableError, match="all connections to it are busy"):
                store.log_seq()
            store.append([decision("d1")])  # readers do not block commits
            store.probe()
        assert store.log_seq() == 1


# -- a server that goes away ---------------------------------------------------------------------


@pytest.mark.slow
def test_connections_that_a_server_ended_are_noticed_before_they_are_used(server: Server) -> None:
    with opened(server.fresh()) as store:
        with store.reading(), store.reading(), store.reading():
            pass
        server.kill()
        with pytest.raises(LogUnavailableError):
            store.append([decision("d1")])
        server.start()
        store.append([decision("d1")])
        with store.reading(), store.reading(), store.reading():
            pass


def test_a_connection_that_is_lost_during_a_commit_fails_this_one_only(server: Server) -> None:
    url = server.fresh()
    with opened(url) as store:
        with store.engine.connect() as blocker:
            blocker.execute(sa.update(t.log).values(at=0.0))
            with ThreadPoolExecutor(1) as pool, server.connect() as connection:
                appended = pool.submit(store.append, [decision("d1")])
                ours = "SELECT pid FROM pg_stat_activity WHERE usename = %s AND wait_event_type = 'Lock'"
                while not (found := connection.execute(ours, [sa.make_url(url).username]).fetchone()):
                    pass
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", found)
                with pytest.raises(LogUnavailableError, match="the log cannot be used"):
                    appended.result()
        store.append([decision("d1")])


@pytest.mark.slow
def test_what_was_acknowledged_before_a_kill_of_the_server_is_there_after_it(server: Server) -> None:
    url, writers = server.fresh(), 4
    acknowledged: list[list[str]] = [[] for _ in range(writers)]
    many = threading.Barrier(writers + 1)

    def write(n: int) -> None:
        with opened(url) as store:
            for i in range(100_000):
                name = f"{n}-{i}"
                try:
                    store.append([decision(name), execution(name), value(name)])
                except LogUnavailableError:
                    return
                acknowledged[n].append(name)
                if i == 20:
                    many.wait(30)

    with ThreadPoolExecutor(writers) as pool:
        done = [pool.submit(write, n) for n in range(writers)]
        many.wait(30)
        server.kill()
        for one in done:
            one.result()
    server.start()
    with opened(url) as store, store.reading() as connection:
        found = set(connection.scalars(sa.select(t.executions.c.decision_id)))
        assert found >= {name for names in acknowledged for name in names}
        assert len(found) <= sum(map(len, acknowledged)) + writers, "one each may be there unanswered"
        seqs = [
            seq
            for table in (t.decisions, t.executions, t.feedback)
            for seq in connection.scalars(sa.select(table.c.seq))
        ]
        assert sorted(seqs) == list(range(1, 3 * len(found) + 1))


@pytest.mark.slow
async def test_a_kill_of_the_server_costs_the_commit_under_way_and_no_restart_of_ours(server: Server) -> None:
    with opened(server.fresh()) as store, closing(GroupCommit(store, clock=count().__next__)) as log:
        await log.append(decision("d0"))
        server.kill()
        with pytest.raises(LogUnavailableError):
            await log.append(decision("d1"))
        with pytest.raises(LogUnavailableError):
            await asyncio.to_thread(log.check)
        server.start()
        await asyncio.to_thread(log.check)
        await log.append(decision("d1"))
        assert store.counts()["decisions"] == 2


def test_a_server_that_only_reads_is_away_for_those_who_write(server: Server) -> None:
    url = server.fresh()
    with opened(url) as store:
        store.append([decision("d1")])
    with server.connect() as connection:
        name = sa.make_url(url).username
        connection.execute(f"ALTER ROLE {name} SET default_transaction_read_only = on".encode())
    with opened(url) as store:
        assert store.record("d1") is not None
        with pytest.raises(LogUnavailableError, match="read-only"):
            store.append([decision("d2")])


@pytest.mark.parametrize(
    "error", [psycopg.errors.IdleInTransactionSessionTimeout(), psycopg.errors.InFailedSqlTransaction()]
)
def test_a_transaction_that_a_server_gave_up_is_worth_a_retry(error: Exception) -> None:
    database = open_database("postgresql://ada@localhost/log")
    assert database.is_away(error)
    assert not database.is_damaged(error)


# -- values --------------------------------------------------------------------------------------


def test_what_the_database_cannot_take_is_no_outage_and_named(store: Store) -> None:
    unwritable: Any = (object(),)
    tokens = Execution("d1", "b", Status.OK, Cost(), passages=unwritable)
    with pytest.raises((StoreError, OverflowError, TypeError)) as refused:
        store.append([decision("d1"), tokens])
    assert not isinstance(refused.value, LogUnavailableError)
    assert store.log_seq() == 0


def test_text_that_no_database_keeps_is_replaced_and_not_refused(store: Store) -> None:
    said = Execution("d1", "b", Status.OK, Cost(), ("p\0",), "an\0swer \ud800", "er\0ror", 101.0)
    tagged = value("d1")
    tagged.tags["who"] = "a\0da"  # type: ignore[index]
    store.append([decision("d1"), said, tagged])
    found = store.record("d1")
    assert found is not None
    assert found.execution is not None
    assert (found.execution.answer, found.execution.error) == ("an\ufffdswer \ufffd", "er\ufffdror")
    assert found.execution.passages == ("p\ufffd",)
    assert found.feedback[0].tags == {"who": "a\ufffdda"}


# -- a disk that is full -------------------------------------------------------------------------


def test_a_full_file_takes_nothing_and_then_all_again(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path / 'log.db'}") as store:
        fill(store, limit=64)
        before = store.counts()
        with pytest.raises(LogUnavailableError, match="full"):
            store.probe()
        assert store.counts() == before
        at_most(store, 10**6)
        store.probe()
        store.append([decision("more")])


def fill(store: Store, limit: int) -> None:
    at_most(store, limit)
    for i in range(10_000):
        try:
            store.append([decision(f"d{i}")])
        except LogUnavailableError:
            assert store.log_seq() == i
            return
    raise AssertionError("it never got full")


def at_most(store: Store, pages: int) -> None:
    """Let the file have so many pages; a limit of each connection, of which one is made here."""
    limit = f"PRAGMA max_page_count={pages}"
    store.engine.dispose()
    sa.event.listen(store.engine, "connect", lambda driver, _: driver.execute(limit))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_takes_nothing_and_then_all_again(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with opened(f"sqlite:///{small_disk / 'log.db'}") as store:
        store.append([decision("first")])
        filler.write_bytes(bytes(400_000))
        acknowledged = ["first"]
        with suppress(LogUnavailableError):
            for i in range(10_000):
                store.append([decision(f"d{i}"), execution(f"d{i}")])
                acknowledged.append(f"d{i}")
        with pytest.raises(LogUnavailableError, match="full"):
            store.probe()
        filler.unlink()
        store.probe()
        store.append([decision("last")])
        with closing(sqlite3.connect(small_disk / "log.db")) as file:
            found = [name for (name,) in file.execute("SELECT id FROM decisions ORDER BY seq")]
        assert found == [*acknowledged, "last"]
