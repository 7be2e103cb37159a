"""The simulated disk under a real SQLite: what is synced stays, the rest may go, locks end with a process."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.simulation.disk import (
    BUSY,
    DRIVER,
    EXCLUSIVE,
    NONE,
    OK,
    RESERVED,
    SHARED,
    SHM_SHARED,
    SHM_UNLOCK,
    Disk,
    Fault,
    File,
    Handle,
    NoLibraryError,
    install,
)

PLACE = "file:/simulated/log.db?vfs=simulated"


@pytest.fixture
def disk() -> Iterator[Disk]:
    try:
        install(default=False)
    except NoLibraryError as error:
        pytest.skip(str(error))
    DRIVER.disk = Disk(random.Random(7))
    yield DRIVER.disk
    assert DRIVER.error is None
    assert not [handle for handle in DRIVER.disk.handles.values() if not handle.dead]


def opened(disk: Disk, owner: str, synchronous: str = "FULL") -> sqlite3.Connection:
    """Open the log as a process."""
    disk.owner = lambda: owner
    connection = sqlite3.connect(PLACE, uri=True, timeout=0, isolation_level=None)
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS t (name TEXT)")
    return connection


def add(connection: sqlite3.Connection, *names: str) -> None:
    for name in names:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t VALUES (?)", (name,))
        connection.execute("COMMIT")


def names(connection: sqlite3.Connection) -> list[str]:
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return [name for (name,) in connection.execute("SELECT name FROM t ORDER BY rowid")]


def crash(disk: Disk, owner: str, connection: sqlite3.Connection) -> None:
    disk.kill(owner)
    connection.close()


def test_two_processes_see_what_the_other_commits(disk: Disk) -> None:
    with closing(opened(disk, "a")) as one, closing(opened(disk, "b")) as other:
        add(one, "x")
        add(other, "y")
        assert names(one) == names(other) == ["x", "y"]


def test_a_second_writer_is_refused_until_the_first_is_killed(disk: Disk) -> None:
    with closing(opened(disk, "b")) as other:
        one = opened(disk, "a")
        one.execute("BEGIN IMMEDIATE")
        one.execute("INSERT INTO t VALUES ('half')")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            add(other, "y")
        disk.kill("a")
        add(other, "y")
        one.close()
        assert names(other) == ["y"]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_leaves_every_commit_and_no_more(disk: Disk, seed: int) -> None:
    disk.rng = random.Random(seed)
    connection, n = opened(disk, "a"), disk.rng.randrange(1, 60)
    add(connection, *(str(i) * 500 for i in range(n)))
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO t VALUES (?)", [("lost" * 1000,)] * 50)
    crash(disk, "a", connection)
    disk.lose_power()
    with closing(opened(disk, "b")) as after:
        assert names(after) == [str(i) * 500 for i in range(n)]


def test_without_syncs_a_loss_of_power_loses_commits(disk: Disk) -> None:
    lost = 0
    for seed in range(20):
        disk.rng, disk.files = random.Random(seed), {}
        with closing(opened(disk, "a")):  # the file and its table are synced when it is closed
            pass
        connection = opened(disk, "b", "OFF")
        add(connection, *map(str, range(20)))
        crash(disk, "b", connection)
        disk.lose_power()
        with closing(opened(disk, "c")) as after:
            lost += len(names(after)) < 20
    assert lost > 10


@pytest.mark.parametrize(
    ("fault", "message"),
    [(Fault.FULL, "full"), (Fault.READ_ONLY, "readonly"), (Fault.BROKEN, "disk I/O error")],
)
def test_a_disk_with_a_fault_refuses_writes_and_is_whole_afterwards(
    disk: Disk, fault: Fault, message: str
) -> None:
    with closing(opened(disk, "a")) as connection:
        add(connection, "x")
        disk.fault = fault
        with pytest.raises(sqlite3.OperationalError, match=message):
            add(connection, "y" * 5000)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        assert names(connection) == ["x"]
        disk.fault = Fault.NONE
        add(connection, "z")
        assert names(connection) == ["x", "z"]


def opened_twice() -> tuple[Handle, Handle]:
    """Open a file twice, as two processes do."""
    file = File()
    return Handle(file, "a"), Handle(file, "b")


def test_locks_of_a_file_are_shared_until_one_handle_wants_to_write() -> None:
    one, other = opened_twice()
    assert [one.lock(SHARED), other.lock(SHARED)] == [OK, OK]
    assert [one.lock(RESERVED), other.lock(RESERVED)] == [OK, BUSY]
    assert one.lock(EXCLUSIVE) == BUSY, "the other still reads"
    other.unlock(NONE)
    assert [other.lock(SHARED), one.lock(EXCLUSIVE)] == [BUSY, OK]
    one.unlock(SHARED)
    assert [other.lock(SHARED), other.lock(RESERVED)] == [OK, OK]


def test_a_slot_of_shared_memory_has_readers_or_one_writer() -> None:
    one, other = opened_twice()
    assert [handle.lock_memory(2, 1, SHM_SHARED) for handle in (one, other)] == [OK, OK]
    assert one.lock_memory(2, 1, 0) == BUSY
    assert one.lock_memory(3, 2, 0) == OK
    assert [other.lock_memory(4, 1, flags) for flags in (0, SHM_SHARED)] == [BUSY, BUSY]
    other.lock_memory(2, 1, SHM_UNLOCK)
    assert one.lock_memory(2, 1, 0) == OK


def test_bytes_are_found_in_the_files_that_hold_them(disk: Disk) -> None:
    with closing(opened(disk, "a")) as connection:
        add(connection, "needle")
        assert disk.contains(b"needle") == ["/simulated/log.db-wal"]
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert disk.contains(b"needle") == ["/simulated/log.db"]


def test_a_later_write_may_survive_an_earlier_one_that_is_lost() -> None:
    left = set()
    for seed in range(50):
        file = File()
        file.sync()
        file.write(0, b"a" * 512)
        file.write(512, b"b" * 512)
        file.lose_power(random.Random(seed))
        left.add((bytes(file.data[:1]), bytes(file.data[512:513])))
    assert (b"\0", b"b") in left
    assert {(b"", b""), (b"a", b""), (b"a", b"b")} <= left


def test_an_unsynced_file_is_torn_at_sectors_or_gone() -> None:
    sizes = set()
    for seed in range(50):
        file = File()
        file.write(0, b"a" * 512)
        assert not file.lose_power(random.Random(seed))
        file = File()
        file.write(0, b"a" * 512)
        file.sync()
        file.write(512, b"b" * 2048)
        assert file.lose_power(random.Random(seed))
        assert file.data[:512] == b"a" * 512
        assert set(file.data[512:]) <= {ord("b")}
        sizes.add(len(file.data) - 512)
    assert sizes == {0, 512, 1024, 1536, 2048}
