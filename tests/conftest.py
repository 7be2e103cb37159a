"""What holds for all tests: the same examples, no limit that a busy machine breaks, a Ray, a PostgreSQL.

Every log has the same secret, so that the draws of a test are the same in every run. What a test or a fixture
changes in the environment is restored after it, also where the code under test changed it.

Two settings make mistakes visible that the tests would otherwise pass over: the local time is not UTC, and
SQLite returns rows in reverse where a query does not order them.
"""

import gc
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from sqlalchemy.util import LRUCache

from armwise.arms.local_ray import UMASK
from armwise.feedback.log import Store, schema
from armwise.feedback.log import tables as t
from armwise.feedback.log.database import open_database
from tests.postgres import MEMORY, Server, has_room, running

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]

for name, examples in {"armwise": 50, "few": 10, "many": 500}.items():  # `--hypothesis-profile=many`
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],  # how long examples take to draw is the machine's
    )
settings.load_profile("armwise")

os.environ["TZ"] = "Asia/Kathmandu"  # UTC+5:45, without daylight saving time
time.tzset()

# processes of ours import nothing of their folder, and some of them import what is below `tests`
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))

os.umask(UMASK)  # as in every process of ours

if has_room(MEMORY):  # for `tmp_path`: a commit does not wait for a disk there
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


@pytest.fixture(scope="session", autouse=True)
def _one_secret() -> Iterator[None]:
    """Give every log that a test creates the same secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "new_secret", lambda: "0123456789abcdef" * 4)
        yield


@pytest.fixture(scope="session", autouse=True)
def _state_of_no_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the command line remembers apart from that of the user, and of other workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@contextmanager
def environment_restored() -> Iterator[None]:
    """Undo what a block changes in the environment, but for the name of the test, which is pytest's."""
    before = dict(os.environ)
    try:
        yield
    finally:
        name = {key: value for key, value in os.environ.items() if key == "PYTEST_CURRENT_TEST"}
        if dict(os.environ) != before | name:
            os.environ.clear()
            os.environ.update(before | name)


@pytest.fixture(scope="module", autouse=True)
def _environment_of_a_file() -> Iterator[None]:
    with environment_restored():
        yield


@pytest.fixture(autouse=True)
def _environment_of_a_test() -> Iterator[None]:
    with environment_restored():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what is imported out of each collection of garbage, which would take a second for all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes after their parameter: packed ones hold the time, and processes would differ in names."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that processes which share the tests end together.

    These are the tests of a real service, then files of tests that may take long, then those of many tests.
    """
    number = Counter(item.path for item in items)
    limit_s: dict[Path, float] = dict.fromkeys(number, 0.0)
    for item in items:
        if marker := item.get_closest_marker("timeout"):
            limit_s[item.path] = max(limit_s[item.path], marker.args[0])
    items.sort(key=lambda item: (not _serves(item.nodeid), -limit_s[item.path], -number[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadFileScheduling | None":
    """Give a process whole files in their order, and all files that share a real service to one process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # here: some environments lack it

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/live" if nodeid.startswith("tests/live/") else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # by number of tests, however long they take
    return Scheduling(config, log)


def _serves(nodeid: str) -> bool:
    return nodeid.startswith(("tests/live/", "tests/test_commands.py"))


@sa.event.listens_for(sa.Engine, "connect")
def _reverse_unordered_selects(driver: object, _record: object) -> None:
    if isinstance(driver, sqlite3.Connection):
        driver.execute("PRAGMA reverse_unordered_selects = ON")


class _Compiled(LRUCache[Any, Any]):
    """What SQLAlchemy has made of statements, for all engines of a kind: a log has an engine of its own."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_its_kind(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_of_its_kind(key), compiled)


def _of_its_kind(key: tuple[sa.Dialect, Any]) -> tuple[Any, ...]:
    dialect, *statement = key
    return type(dialect), dialect.paramstyle, *statement


_compiled = _Compiled(2000)


@sa.event.listens_for(sa.Engine, "engine_connect")
def _share_what_is_compiled(connection: sa.Connection) -> None:
    connection.execution_options(compiled_cache=_compiled)


@pytest.fixture(scope="session")
def _ray() -> Iterator[Mapping[str, str]]:
    """A Ray of one processor inside this process; yields the variables that it adds to the environment."""
    from armwise.arms.lab.jobs import (
        ray_workers,  # here: most tests need no Ray, and it takes a second to load
    )

    with environment_restored():
        before = dict(os.environ)
        os.environ.pop("RAY_ADDRESS", None)
        with ray_workers.cluster(1):
            added = {key: value for key, value in os.environ.items() if before.get(key) != value}
            os.environ.clear()
            os.environ.update(before)
            yield added
            os.environ.update(added)


@pytest.fixture
def cluster(_ray: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray inside this process, which only the tests that ask for it find in the environment."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in _ray.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL in memory that is started by the first test that asks for it."""
    with running(in_memory=True) as server:
        yield server


@pytest.fixture(scope="session")
def killable_postgres() -> Iterator[Server]:
    """A second PostgreSQL, on disk, for tests that kill it or change its settings; each leaves it running."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, on each of the two."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'log.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    url = server.fresh()
    yield url
    server.drop(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log, on each of the two."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture(scope="session")
def _log_on_postgres(postgres: Server) -> str:
    """The URL of a log on PostgreSQL; making its tables takes longer than most tests do."""
    url = postgres.fresh()
    Store(url).close()
    return url


@pytest.fixture
def postgres_url(_log_on_postgres: str) -> Iterator[str]:
    """The URL of an empty log on PostgreSQL."""
    yield _log_on_postgres
    empty(_log_on_postgres)


def empty(url: str) -> None:
    """Take everything out of a log on PostgreSQL but its secret and its number.

    Whatever is still connected is cut off first. Numbers begin with 1 again.
    """
    numbered = [table for table in t.metadata.tables.values() if table.autoincrement_column is not None]
    emptied = [table for table in reversed(t.metadata.sorted_tables) if table is not t.log]
    statements = [_CUT_OFF, *(f"DELETE FROM {table.name}" for table in emptied)]
    for table in numbered:
        (key,) = table.primary_key
        statements.append(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{key.name}'), 1, false)")
    first = f"({t.SCHEMA}, 0, 0, '{schema.new_secret()}')"
    new = f"INSERT INTO log (schema, seq, at, secret) VALUES {first}"
    again = "DO UPDATE SET seq = 0, at = 0"
    statements.append(f"{new} ON CONFLICT (schema) {again}")  # a test may delete it
    engine = open_database(url).engine
    with engine.begin() as connection:
        connection.exec_driver_sql("; ".join(statements))
    engine.dispose()


_CUT_OFF = """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE usename = current_user AND pid <> pg_backend_pid()"""
