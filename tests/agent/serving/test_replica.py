"""A replica: what it serves while a newer version cannot be loaded, and how it ends."""

import asyncio
import time
from functools import partial
from pathlib import Path

import pytest

from armwise.agent.serving import replica
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.errors import ClockError
from armwise.feedback.log import ChangeWatch
from tests.agent.fakes import Service


async def test_a_replica_whose_wall_clock_jumped_says_so_and_asks_to_be_replaced(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.replica.check()
    ahead = time.time() + 3600.0
    monkeypatch.setattr(service.replica.clock, "_wall", lambda: ahead)
    with pytest.raises(ClockError, match="restart the process"):
        service.replica.check()
    text = (await service.client.get("/metrics")).text
    assert "armwise_clock_jump_seconds 3599." in text or "armwise_clock_jump_seconds 3600." in text


async def test_connections_to_language_models_end_with_the_replica(tmp_path: Path) -> None:
    closed = list[str]()

    class Closing(ScriptedGenerator):
        async def close(self) -> None:
            closed.append(self.model)

    default, other = (Closing({}, model=name) for name in ("one", "other"))
    service = Service(
        tmp_path, generator=default, generators={"second": other}, llms={"second": {"engine": "scripted"}}
    )
    async with service.running():
        assert closed == []
    assert sorted(closed) == ["one", "other"]


async def test_the_usage_of_keys_is_reported_every_second_however_long_nothing_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reported = [0.0], asyncio.Event()
    monkeypatch.setattr(replica, "POLL_S", 0.005)
    service = Service(tmp_path)

    async def report() -> None:
        reported.set()

    async def next_report(at: float) -> None:
        reported.clear()
        now[0] = at
        await asyncio.wait_for(reported.wait(), 20)

    monkeypatch.setattr(replica, "ChangeWatch", partial(ChangeWatch, clock=lambda: now[0]))
    async with service.running():
        monkeypatch.setattr(service.replica.quota, "report", report)
        for at in (100.0, 101.0, 102.0):
            await next_report(at)
