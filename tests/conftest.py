"""What holds for all tests: the same examples, no limit that a busy machine breaks, a Ray, a PostgreSQL.

Every log has the same secret, so that the draws of a test are the same in every run.

Two settings make mistakes visible that the tests would otherwise pass over: the local time is not UTC, and
SQLite returns rows in reverse where a query does not order them.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from arms.local_ray import UMASK
from feedback.log import schema
from tests.postgres import Server, running

settings.register_profile(
    "armwise",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # how long examples take to draw is the machine's
)
settings.load_profile("armwise")

os.environ["TZ"] = "Asia/Kathmandu"  # UTC+5:45, without daylight saving time
time.tzset()

os.umask(UMASK)  # as in every process of ours


@pytest.fixture(scope="session", autouse=True)
def _one_secret() -> Iterator[None]:
    """Give every log that a test creates the same secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "new_secret", lambda: "0123456789abcdef" * 4)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of a real service, whose file takes longest to finish."""
    items.sort(key=lambda item: item.path.parent.name != "live")


@sa.event.listens_for(sa.Engine, "connect")
def _reverse_unordered_selects(driver: object, _record: object) -> None:
    if isinstance(driver, sqlite3.Connection):
        driver.execute("PRAGMA reverse_unordered_selects = ON")


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """A Ray of one processor inside this process, which leaves the environment as it was."""
    from arms.jobs import worker_pool  # here: most tests need no Ray, and it takes a second to load

    before = dict(os.environ)
    os.environ.pop("RAY_ADDRESS", None)
    with worker_pool.cluster(1):
        yield
    os.environ.clear()
    os.environ |= before


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL that is started by the first test that asks for it."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def killable_postgres() -> Iterator[Server]:
    """A second PostgreSQL, for tests that kill it or change its settings; each leaves it running."""
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database, on each of the two."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'log.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    url = server.fresh()
    yield url
    server.drop(url)
