"""The PostgreSQL that the tests run against: durable, isolated, and gone at the end."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from tests import postgres as server_of_tests
from tests.postgres import Server, running

ROOT = Path(__file__).parents[1]


@contextmanager
def database(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


@pytest.mark.slow
def test_what_was_committed_survives_a_kill_and_what_was_not_does_not(killable_postgres: Server) -> None:
    server = killable_postgres
    with database(server.fresh()) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE facts (seq int)")
            connection.exec_driver_sql("INSERT INTO facts VALUES (1)")
        with engine.connect() as connection:
            connection.exec_driver_sql("INSERT INTO facts VALUES (2)")
            server.kill()
            with pytest.raises(sa.exc.OperationalError):
                connection.exec_driver_sql("SELECT 1")
            connection.invalidate()
        server.start()
        with engine.begin() as connection:
            assert connection.exec_driver_sql("SELECT seq FROM facts").scalars().all() == [1]


def test_a_commit_is_flushed_to_the_disk(postgres: Server) -> None:
    with postgres.connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"SHOW {setting}".encode()).fetchone() == ("on",)


def shared_memory(server: psutil.Process) -> set[Path]:
    """The segments of shared memory of a server that have a name, and so could outlive it."""
    return {Path(one.path) for one in server.memory_maps() if one.path.startswith("/dev/shm/PostgreSQL")}


@pytest.mark.slow
def test_it_leaves_no_shared_memory() -> None:
    with running() as server:
        pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        segments = shared_memory(psutil.Process(pid))
        assert segments
    assert not {one for one in segments if one.exists()}


@pytest.mark.slow
def test_it_ends_with_the_process_that_started_it() -> None:
    script = """
from tests.postgres import running
with running() as server, server.connect() as connection:
    print(connection.execute("SHOW data_directory").fetchone()[0], flush=True)
    input()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        server = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
        assert server.is_running()
        segments = shared_memory(server)
        process.kill()
    server.wait(30)
    assert not server.is_running()
    assert not {one for one in segments if one.exists()}
    shutil.rmtree(folder.parent)


@pytest.mark.slow
def test_programs_that_its_user_cannot_read_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_of_tests, "_can_run", lambda *_: False)
    with running() as server, server.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
