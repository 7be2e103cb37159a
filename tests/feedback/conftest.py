"""An empty log on each of the two databases, and facts to put into it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status
from feedback.log import Store
from feedback.log import tables as t
from feedback.log.database import open_database
from tests.postgres import Server


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


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log, on each of the two."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def empty(url: str) -> None:
    """Take everything out of a log on PostgreSQL but its secret; numbers begin with 1 again."""
    engine = open_database(url).engine
    numbered = [table for table in t.metadata.tables.values() if table.autoincrement_column is not None]
    emptied = [table for table in reversed(t.metadata.sorted_tables) if table is not t.draw_secret]
    statements = [f"DELETE FROM {table.name}" for table in emptied]
    for table in numbered:
        (key,) = table.primary_key
        statements.append(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{key.name}'), 1, false)")
    statements.append("INSERT INTO log_head VALUES (1, 0, 0)")
    with engine.begin() as connection:
        connection.exec_driver_sql("; ".join(statements))
    engine.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store(url)
    yield store
    store.close()


def decision(
    name: str, *, at: float = 100.0, wait_s: float = 60.0, mode: Mode = Mode.EXPLORE, digest: str = ""
) -> Decision:
    """A decision between two arms."""
    return Decision(
        id=name,
        context=Context(
            f"what is {name}?", {"w=what": 1.0}, (0.5, -0.5), {"a": {"steps": 0.0}, "b": {"steps": 1.0}}
        ),
        arms=("a", "b"),
        probabilities=(0.25, 0.75),
        drawn="b",
        policy="uniform",
        version=1,
        mode=mode,
        decided_at=at,
        deadline=at + wait_s,
        request_digest=digest,
    )


def execution(name: str, status: Status = Status.OK, steps: int = 1) -> Execution:
    """How a decision went."""
    stages = ({"arms": ["a"], "probability": 0.25}, {"arms": ["b"], "probability": 0.75})
    cost = Cost(steps, 10, 5, 0.01, 0.2, 0.0)
    return Execution(name, "b", status, cost, ("p1", "p2"), "an answer", "", 101.0, stages)


def value(
    name: str, metric: str = "right", number: float = 1.0, *, key: str | None = None, at: float = 105.0
) -> Feedback:
    """Feedback on a decision."""
    return Feedback(key or f"{name}:{metric}", name, metric, number, at, None, {"who": "test"})


Turn = Callable[..., None]


@pytest.fixture
def turn(store: Store) -> Turn:
    """Write a decision and its execution."""

    def write(name: str, **fields: object) -> None:
        status = fields.pop("status", Status.OK)
        assert isinstance(status, Status)
        store.append([decision(name, **fields), execution(name, status)])  # type: ignore[arg-type]

    return write
