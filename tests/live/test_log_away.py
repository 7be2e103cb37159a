"""A service of one process that answers while its PostgreSQL hangs or is down, and logs again after it."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import Live, single, until
from tests.postgres import running

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]


def ask(live: Live, n: int) -> tuple[bool, str]:
    """Ask, and return whether the answer is logged, and its decision."""
    body: dict[str, Any] = {"query": f"which bridge is number {n}?"}
    response = live.client.post("/v1/retrieve", json=body, timeout=60.0)
    assert response.status_code == 200, response.text
    logged = "x-armwise-log" not in response.headers
    assert logged or response.headers["x-arm"] == "bm25"
    return logged, response.headers["x-decision-id"]


def test_a_service_answers_while_its_database_hangs_or_is_down(tmp_path: Path) -> None:
    arms = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}
    away = {"log_away": "answer", "fallback": "bm25"}
    with (
        running() as server,
        single(
            tmp_path,
            arms=arms,
            llm={"engine": "scripted", "default": "Yes."},
            router=None,
            log_url=server.fresh(),
            **away,
        ) as live,
    ):
        acknowledged = [name for logged, name in (ask(live, n) for n in range(10)) if logged]
        assert len(acknowledged) == 10
        with server.stalled():
            began = time.monotonic()
            assert not ask(live, 10)[0]
            assert time.monotonic() - began < 10.0, "given up after five seconds"
            began = time.monotonic()
            unlogged = [ask(live, n) for n in range(20)]
            assert time.monotonic() - began < 5.0, "the others do not wait"
            assert not any(logged for logged, _ in unlogged)
            ready = live.client.get("/ready", timeout=30.0)
            assert ready.status_code == 200
            assert [failure["work"] for failure in ready.json()["failed"]] == ["log"]
        acknowledged.append(until(lambda: (answer := ask(live, 30))[0] and answer[1]))
        server.kill()
        assert not any(ask(live, n)[0] for n in range(10))
        server.start()
        acknowledged.append(until(lambda: (answer := ask(live, 31))[0] and answer[1]))
        for name in acknowledged:
            assert live.client.get(f"/v1/decisions/{name}").status_code == 200
        position = live.tell((acknowledged[-1], 1.0))
        assert live.learned(position, 60.0) > 1
        reply = live.client.post(
            "/v1/feedback",
            json={"decision_id": unlogged[0][1], "metric_name": "thumb", "value": 1},
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_logged")
