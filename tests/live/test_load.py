"""More than the service carries: what it cannot answer is refused at once, and nothing of it stays behind."""

import asyncio

import httpx
import pytest

from benchmarks.http_load import load
from benchmarks.load import RETRIEVE, Held, Idle
from tests.live.conftest import Live, until

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0


def address_of(live: Live) -> tuple[str, int]:
    url = httpx.URL(live.url)
    assert url.port is not None
    return url.host, url.port


async def test_what_does_not_fit_is_a_503_with_a_time_to_ask_again_and_nothing_of_it_is_kept(
    live: Live,
) -> None:
    address, held = address_of(live), Held(live.pid)
    await load(address, RETRIEVE, 16, 3.0, PATIENCE_S)
    held.look()
    crowd = await load(address, RETRIEVE, 800, 8.0, PATIENCE_S)
    assert set(crowd.latencies_s) == {"200", "503"}, {key: len(n) for key, n in crowd.latencies_s.items()}

    def given_back() -> bool:
        held.look()
        return held.files[-1] < held.files[0] + 50 and held.mib[-1] < 1.3 * held.mib[0]

    await asyncio.to_thread(until, given_back, 60.0)
    after = await load(address, RETRIEVE, 16, 3.0, PATIENCE_S)
    assert set(after.latencies_s) == {"200"}


async def test_a_thousand_idle_connections_hold_nobody_up(each: Live) -> None:
    address = address_of(each)
    idle = Idle(address)
    await idle.open()
    try:
        found = await load(address, RETRIEVE, 16, 3.0, PATIENCE_S)
        assert (idle.refused, len(idle.connections)) == (0, 1000)
    finally:
        idle.close()
    assert set(found.latencies_s) == {"200"}
