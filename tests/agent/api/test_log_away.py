"""A log that cannot be written: nothing is acknowledged that is not there, and the service is not ready."""

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from feedback.clock import SteadyClock
from feedback.errors import ClockError
from feedback.events import Tick
from feedback.log import Store
from tests.agent.fakes import Service


def at_most(store: Store, pages: int) -> None:
    """Let the database of a store have so many pages from now on, as a disk of that size would."""
    limit = f"PRAGMA max_page_count={pages}"
    store.engine.dispose()  # each connection has a limit of its own
    sa.event.listen(store.engine, "connect", lambda driver, _: driver.execute(limit))


async def test_a_full_disk_is_a_503_and_not_ready_until_there_is_room(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feedback.log.group_commit.PROBE_S", 0.0)
    client, store = service.client, service.replica.store
    at_most(store, 1)  # as large as it is by now
    acknowledged = []
    while (response := await client.post("/v1/retrieve", json={"query": "Who?" * 200})).status_code == 200:
        acknowledged.append(response.json()["agent"]["decision_id"])
    feedback = await client.post(
        "/v1/feedback",
        json={"decision_id": "d-1", "metric_name": "thumb", "value": 1, "tags": {"a": "b" * 4000}},
    )
    for refused in (response, feedback, await client.get("/ready")):
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "log_unavailable"
        assert "full" in refused.json()["error"]["message"]
    assert all(store.record(name) is not None for name in acknowledged)
    assert store.counts()["feedback"] == 0
    at_most(store, 10**6)
    assert (await client.get("/ready")).json()["status"] == "ready"
    assert (await client.post("/v1/retrieve", json={"query": "Who?"})).status_code == 200


async def test_a_service_whose_clock_was_set_back_does_not_open_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(tmp_path).running() as service:
        service.replica.store.append([Tick(time.time())])
    monkeypatch.setattr("tests.agent.fakes.SteadyClock", lambda: SteadyClock(lambda: time.time() - 3600.0))
    with pytest.raises(ClockError, match="one of the clocks is or was wrong"):
        Service(tmp_path)
