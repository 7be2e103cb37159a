"""Behind Ray Serve's own proxy, what is late is answered in the envelope before the proxy gives up."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from armwise.agent.hosts.ingress import HEADER, TimeLimit
from tests.agent.asking import QUESTION, late_once_decided, record, refused
from tests.agent.fakes import Service, pass_time

LIMIT_S = 100.0


def behind(app: Any, default_s: float | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(TimeLimit(app, default_s)), base_url="http://service"
    )


@pytest.mark.parametrize(
    ("default_s", "headers"),
    [(LIMIT_S, {}), (None, {HEADER.decode(): "100"}), (1.0, {HEADER.decode(): "100"})],
    ids=["of the proxy", "of the request", "of the request, in place of the proxy's"],
)
async def test_a_turn_is_refused_with_its_decision_before_the_proxy_gives_up(
    service: Service, default_s: float | None, headers: dict[str, str]
) -> None:
    late_once_decided(service, LIMIT_S - 0.375)
    async with behind(service.app, default_s) as client:
        response = await client.post("/v1/retrieve", json={"query": QUESTION}, headers=headers)
    refused(response, 408, "deadline_exceeded")
    decision_id = response.json()["error"]["decision_id"]
    assert (await record(service, decision_id, lambda one: one.execution)).decision.id == decision_id


async def hangs(_scope: Scope, _receive: Receive, _send: Send) -> None:
    asyncio.get_running_loop().call_soon(pass_time, LIMIT_S)
    await asyncio.Event().wait()


async def test_any_other_request_is_refused_in_the_envelope_too() -> None:
    async with behind(hangs, LIMIT_S) as client:
        response = await client.put("/v1/arms", headers={"x-request-id": "r-1"})
    assert "100 s" in refused(response, 408, "deadline_exceeded")
    assert response.json()["error"]["request_id"] == "r-1"


async def streams(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    pass_time(LIMIT_S)
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"whole"})


async def test_what_has_begun_is_not_cut() -> None:
    async with behind(streams, LIMIT_S) as client:
        assert (await client.get("/v1/export")).content == b"whole"


async def waits(scope: Scope, receive: Receive, send: Send) -> None:
    for _ in range(3):  # a deadline that has passed would end it here
        await asyncio.sleep(0)
    await streams(scope, receive, send)


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon"])
async def test_a_header_that_is_no_time_out_cuts_nothing(header: str) -> None:
    async with behind(waits, LIMIT_S) as client:
        response = await client.get("/v1/export", headers={HEADER.decode(): header})
    assert (response.status_code, response.content) == (200, b"whole")


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon"])
async def test_a_header_that_is_no_time_out_is_left_to_the_application(service: Service, header: str) -> None:
    async with behind(service.app, LIMIT_S) as client:
        response = await client.post(
            "/v1/retrieve", json={"query": QUESTION}, headers={HEADER.decode(): header}
        )
    refused(response, 400, "invalid_value", "X-Request-Timeout-Seconds")
