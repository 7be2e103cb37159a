"""How the tests speak to a service, and what they expect of every refusal."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from armwise.agent.config import AppConfig
from armwise.feedback.events import Decision
from armwise.feedback.log import LoggedDecision, Store
from armwise.feedback.training_log import Joiner, take_epoch
from tests.agent.fakes import Service, hanging, pass_time

QUESTION = "which river runs through Vienna?"
AN_ANSWER = "/v1/chat/completions"
HUGE = 10**99
CHAT: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}


async def ask(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await service.client.post("/v1/chat/completions", json=CHAT | fields, headers=headers)


async def look_up(service: Service, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await service.client.post("/v1/retrieve", json={"query": QUESTION} | fields, headers=headers)


async def post(
    service: Service, path: str, body: bytes | AsyncIterator[bytes], **headers: str
) -> httpx.Response:
    """Send bytes that no JSON writer of ours would write."""
    headers = {"content-type": "application/json"} | headers
    return await service.client.post(path, content=body, headers=headers)


async def tell(service: Service, decision_id: str, value: Any = 1.0, **fields: Any) -> httpx.Response:
    body = {"decision_id": decision_id, "metric_name": "thumb", "value": value} | fields
    return await service.client.post("/v1/feedback", json=body)


async def forced(service: Service, arm: str) -> str:
    return str((await look_up(service, model=f"arm/{arm}")).json()["agent"]["decision_id"])


def refused(
    response: httpx.Response, status: int, code: str, param: str | None = None, *, final: bool = False
) -> str:
    """Check an error envelope and return its message; `final` where the key stands for the failure."""
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["retryable"] == (status in (408, 429, 502, 503, 504) and not final)
    waits = status == 503 or (status == 429 and not final)
    assert ("retry-after" in response.headers) == waits
    return str(error["message"])


async def rows(service: Service) -> dict[str, int]:
    return await asyncio.to_thread(service.replica.store.counts)


async def record(
    service: Service, decision_id: str, when: Callable[[LoggedDecision], object]
) -> LoggedDecision:
    """Return a record once it is as wanted: a turn that nobody waits for is written behind its back."""
    async with asyncio.timeout(10):
        while True:
            found = await asyncio.to_thread(service.replica.store.record, decision_id)
            if found is not None and when(found):
                return found


def events(response: httpx.Response) -> list[Any]:
    """Return the server-sent events of a stream, checked to end as OpenAI's do."""
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2] if not frame.startswith(":")]


def join(store: Store, config: AppConfig) -> None:
    """Join all that the log holds into its training log, long after it was written."""
    joiner = Joiner(store, config.reward, take_epoch(store, "test", 0.0))
    joiner.advance(10_000.0)
    while joiner.left:
        joiner.advance(10_000.0)


def late_once_decided(service: Service, seconds: float) -> None:
    """Have every arm hang, and let `seconds` pass as soon as a decision is in the log."""
    service.arms.behaviour = dict.fromkeys(service.config.actions, hanging)
    append = service.replica.turns.log.append

    def appending(*facts: Any) -> "asyncio.Future[Any]":
        stored = append(*facts)
        if isinstance(facts[0], Decision):
            stored.add_done_callback(lambda _: pass_time(seconds))
        return stored

    service.replica.turns.log.append = appending  # type: ignore[method-assign]
