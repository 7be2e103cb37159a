"""A log that cannot be written: nothing is acknowledged that is not there, and the service is not ready."""

import asyncio
import re
import time
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import ClockError, LogUnavailableError
from armwise.feedback.events import Tick
from armwise.feedback.log import Store
from armwise.feedback.log.tables import SCHEMA
from tests.agent.asking import look_up, refused
from tests.agent.fakes import Service


def at_most(store: Store, pages: int) -> None:
    """Let the database of a store have so many pages from now on, as a disk of that size would."""
    limit = f"PRAGMA max_page_count={pages}"
    store.engine.dispose()  # each connection has a limit of its own
    sa.event.listen(store.engine, "connect", lambda driver, _: driver.execute(limit))


async def test_a_full_disk_is_a_503_and_not_ready_until_there_is_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.log.group_commit.PROBE_S", 0.0)
    client, store = service.client, service.replica.store
    at_most(store, 1)  # as large as it is by now
    acknowledged = []
    while (response := await client.post("/v1/retrieve", json={"query": "Who?" * 200})).status_code == 200:
        acknowledged.append(response.json()["agent"]["decision_id"])
    tags = {f"t{i}": "b" * 1000 for i in range(4)}
    feedback = await client.post(
        "/v1/feedback",
        json={"decision_id": "d-1", "metric_name": "thumb", "value": 1, "tags": tags},
    )
    for answer in (response, feedback, await client.get("/ready")):
        assert "full" in refused(answer, 503, "log_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert all(store.record(name) is not None for name in acknowledged)
    assert store.counts()["feedback"] == 0
    at_most(store, 10**6)
    assert (await client.get("/ready")).json()["status"] == "ready"
    assert (await client.post("/v1/retrieve", json={"query": "Who?"})).status_code == 200


async def test_a_batch_is_a_503_while_the_log_is_away_and_can_be_sent_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [
        {"decision_id": "d-1", "metric_name": "thumb", "value": 7},
        {"decision_id": "d-1", "metric_name": "thumb", "value": 1},
        {"episode_id": "e-1", "metric_name": "thumb", "value": 1},
    ]

    async def send() -> httpx.Response:
        return await service.client.post("/v1/feedback", json={"items": items})

    with monkeypatch.context() as patch:
        patch.setattr(service.replica.store, "append", away)
        response = await send()
        assert "items.1: gone" in refused(response, 503, "log_unavailable")
        assert [reason.split(": ")[1] for reason in response.json()["error"]["reasons"]] == [
            "invalid_value",
            "log_unavailable",
            "log_unavailable",
        ]
    response = await send()
    assert response.status_code == 202
    codes = [row.get("status") or row["error"]["code"] for row in response.json()["items"]]
    assert codes == ["invalid_value", "stored", "stored"]


def away(*_: object) -> None:
    raise LogUnavailableError("gone")


NUMBERED = "UPDATE log SET schema = {}"


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (["ALTER TABLE decisions RENAME TO gone"], ["ALTER TABLE gone RENAME TO decisions"]),
        (
            ["ALTER TABLE decisions RENAME COLUMN steps TO gone", NUMBERED.format(SCHEMA + 1)],
            ["ALTER TABLE decisions RENAME COLUMN gone TO steps", NUMBERED.format(SCHEMA)],
        ),
    ],
    ids=["a table is gone", "another schema"],
)
async def test_a_log_of_another_schema_is_a_503_whether_it_is_read_or_written(
    on_each: Service, broken: list[str], mended: list[str]
) -> None:
    service = on_each
    await execute(service, *broken)
    key = {"idempotency-key": "d-1"}
    responses = [
        await service.client.get("/ready"),  # before anything was written in vain
        await look_up(service, key),
        await look_up(service),
        await service.client.get("/v1/decisions/d-1"),
        await service.client.get("/ready"),
    ]
    for response in responses:
        refused(response, 503, "log_unavailable")
    assert (await service.client.get("/metrics")).status_code == 200
    await execute(service, *mended)
    assert (await look_up(service, key)).status_code == 200
    assert (await service.client.get("/ready")).status_code == 200


async def test_a_log_without_its_head_is_not_ready(on_each: Service) -> None:
    await execute(on_each, "DELETE FROM log")
    message = refused(await on_each.client.get("/ready"), 503, "log_unavailable")
    assert message == "`log` has 0 rows: it must have one"


async def execute(service: Service, *statements: str) -> None:
    def run() -> None:
        with service.replica.store.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    await asyncio.to_thread(run)


async def test_a_service_whose_clock_was_set_back_does_not_open_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(tmp_path).running() as service:
        service.replica.store.append([Tick(time.time())])
    monkeypatch.setattr("tests.agent.fakes.SteadyClock", lambda: SteadyClock(lambda: time.time() - 3600.0))
    with pytest.raises(ClockError) as raised:
        Service(tmp_path)
    entry, clock = map(datetime.fromisoformat, re.findall(r"[\d-]{10} [\d:]{8}", str(raised.value)))
    assert timedelta(minutes=59) < entry - clock <= timedelta(minutes=60, seconds=1)
