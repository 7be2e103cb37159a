"""A log behind PgBouncer, whose sessions of the server change from transaction to transaction."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.log import Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, read_examples, take_epoch
from tests.agent.asking import look_up, tell
from tests.agent.fakes import Service
from tests.feedback.conftest import decision, execution, value
from tests.pooler import SESSIONS, WITH_POOLER, pooled
from tests.postgres import Server, running

pytestmark = [pytest.mark.slow, WITH_POOLER]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(in_memory=True) as found:
        yield found


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with pooled(server, "transaction") as found:
        yield found


def test_many_threads_append_read_and_learn(url: str) -> None:
    rule, numbers = RewardRule(metrics={"right": Metric()}, correction_time="PT0S"), count()
    with closing(Store(url)) as store:

        def append(_: int) -> None:
            for name in (f"d{next(numbers)}" for _ in range(12)):
                store.append([decision(name), execution(name)])
                store.append([value(name)])
                assert store.record(name) is not None

        def look(_: int) -> None:
            for _ in range(20):
                with store.reading() as connection:
                    first, second = (connection.scalar(sa.select(t.log.c.seq)) for _ in range(2))
                    assert first == second, "one snapshot"
                with store.writing() as connection:
                    found = connection.scalar(sa.select(sa.func.count()).select_from(t.operations))
                    connection.execute(sa.insert(t.operations), operation(f"{found}"))

        with ThreadPoolExecutor(8) as pool:
            for _ in [*pool.map(append, range(5)), *pool.map(look, range(3))]:
                pass
        joiner = Joiner(store, rule, take_epoch(store, "test", 0.0))
        while joiner.advance(110.0).log_seq < store.log_seq():
            pass
        assert len(list(read_examples(store, rule.join))) == 60
        with store.reading() as connection:
            once = connection.scalars(sa.select(t.operations.c.once).where(t.operations.c.once.is_not(None)))
            assert sorted(map(int, once)) == [*range(60)], "one writer at a time"


def operation(once: str) -> dict[str, object]:
    return {"kind": "test", "subject": "", "at": 0.0, "document": {}, "once": once}


def test_what_a_transaction_sets_stays_in_it(url: str, server: Server) -> None:
    user = sa.make_url(url).username
    with server.connect() as connection:
        connection.execute(f"ALTER ROLE {user} SET synchronous_commit = off".encode())
    shown = ("statement_timeout", "lock_timeout", "synchronous_commit", "transaction_isolation")

    def show(ask: Callable[[str], object]) -> list[object]:
        return [ask(f"SHOW {name}") for name in shown]

    with closing(Store(url, answer_s=7.0)) as store:
        with store.writing() as connection:
            found = show(lambda query: connection.exec_driver_sql(query).scalar())
        assert found == ["7s", "10s", "on", "read committed"]
        with store.reading() as connection:
            assert show(lambda query: connection.exec_driver_sql(query).scalar())[3] == "repeatable read"
        store.append([decision("d1"), execution("d1")])
        erasures.erase_decision(store, "d1", "test", 200.0)
        store.forget()
    with psycopg.connect(url.replace("+psycopg", "")) as other:
        for _ in range(2 * SESSIONS):
            found = show(lambda query: other.execute(query.encode()).fetchall()[0][0])
            assert found == ["0", "0", "off", "read committed"]
            other.commit()


async def test_sixty_chats_at_once_are_answered_and_learned(url: str, tmp_path: Path) -> None:
    async with Service(tmp_path, log_url=url, limits={"in_flight": 8}).running() as service:
        for _ in range(60):
            answer = await look_up(service)
            assert answer.status_code == 200, answer.text
            await tell(service, answer.json()["agent"]["decision_id"], 1.0)
        await service.learn()
        assert service.replica.store.counts()["examples"] == 60


def test_a_pooler_without_transactions_is_refused(server: Server) -> None:
    with (
        pooled(server, "statement") as url,
        pytest.raises(LogUnavailableError, match="statement pooling") as refused,
    ):
        Store(url)
    assert "pool_mode = transaction" in str(refused.value.remedy)
