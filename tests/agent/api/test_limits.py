"""Keys at their limits: refused before the draw, by what replicas have reported, in the words of OpenAI."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.arms.llm import base
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from tests.agent.asking import CHAT, refused
from tests.agent.fakes import Service, hanging

NOON = 1_800_014_400.0


@pytest.fixture
async def two(log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Service]]:
    """Two replicas on one log."""
    async with AsyncExitStack() as stack:
        services = []
        for _ in range(2):
            service = Service(tmp_path, log_url=log_url)
            services.append(service)
            # one minute, however long it takes
            monkeypatch.setattr(service.replica.quota, "_clock", lambda: NOON)
            await stack.enter_async_context(service.running())
        yield services


async def a_key(services: list[Service], **limits: Any) -> dict[str, str]:
    store, now = services[0].replica.store, services[0].replica.clock()
    settings = KeySettings("app", ("admin",), limits=KeyLimits(**limits))
    _, token = await asyncio.to_thread(keys.create, store, settings, now)
    for service in services:
        await service.refresh()
    return {"authorization": f"Bearer {token}"}


async def ask(service: Service, key: dict[str, str], **fields: Any) -> httpx.Response:
    return await service.client.post("/v1/chat/completions", json=CHAT | fields, headers=key)


def decisions(service: Service) -> int:
    return service.replica.store.counts()["decisions"]


async def exchange(services: list[Service]) -> None:
    """Let all replicas know what each has used, as they do within a second."""
    for service in (*services, *services):
        await service.replica.quota.report()


@pytest.mark.slow
async def test_two_replicas_answer_the_requests_of_a_minute(two: list[Service]) -> None:
    key = await a_key(two, rpm_limit=12)
    answers = []
    for i in range(15):
        answers.append(await ask(two[i % 2], key))
        await exchange(two)
    assert [answer.status_code for answer in answers] == [200] * 12 + [429] * 3
    assert decisions(two[0]) == 12, "what is refused draws nothing"
    last = answers[-1]
    message = refused(last, 429, "rate_limit_exceeded")
    assert "12 requests per minute" in message
    assert last.json()["error"]["type"] == "requests"
    assert last.json()["error"]["retryable"]
    assert last.headers["retry-after"] == "60"
    assert last.headers["x-ratelimit-limit-requests"] == "12"
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    assert last.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert answers[0].headers["x-ratelimit-remaining-requests"] == "11"


async def test_a_replica_answers_at_once_what_a_minute_allows(service: Service) -> None:
    key = await a_key([service], rpm_limit=9)
    body = {"query": "which river runs through Vienna?"}
    calls = [
        service.client.post("/v1/feedback", json={**body, "n": i}, headers=key)
        for i in range(24)  # whatever they are, they count
    ]
    codes = [answer.status_code for answer in await asyncio.gather(*calls)]
    assert (codes.count(400), codes.count(429)) == (9, 15)


@pytest.mark.slow
async def test_a_budget_of_tokens_is_spent_by_both_replicas(two: list[Service]) -> None:
    tokens = (await ask(two[0], await a_key(two))).json()["usage"]["total_tokens"]
    key = await a_key(two, token_budget=5 * tokens, budget_duration="1mo")
    answers = []
    for i in range(10):
        answers.append(await ask(two[i % 2], key))
        await exchange(two)
    spent = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.is_success)
    assert 5 * tokens <= spent < 6 * tokens + 10, "the last turn may exceed it"
    assert [answer.status_code for answer in answers[:4]] == [200] * 4
    before = decisions(two[0])
    for service in two:
        answer = await ask(service, key)
        assert "the budget of this key is spent" in refused(answer, 429, "insufficient_quota", final=True)
        assert answer.json()["error"]["type"] == "insufficient_quota"
        assert "retry-after" not in answer.headers
    assert decisions(two[0]) == before
    listed = (await two[1].client.get("/v1/keys", headers=key)).json()["keys"]
    assert listed[-1]["spend"]["total"]["tokens"] == spent


def away() -> None:
    raise LogUnavailableError("the log cannot be used: it is away")


class Paid(base.ScriptedGenerator):
    """A language model that charges for each answer."""

    async def stream(self, prompt: base.Prompt) -> AsyncIterator[base.Chunk]:
        del prompt
        yield base.Chunk("yes", "stop", 2, 1, 0.25)


async def test_a_budget_of_money_pays_for_answers_and_not_for_retrieval(tmp_path: Path) -> None:
    async with Service(tmp_path, generator=Paid({})).running() as service:
        key = await a_key([service], max_budget=1.0, budget_duration="1d")
        answers = [await ask(service, key) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2
        (row,) = (await service.client.get("/v1/keys", headers=key)).json()["keys"]
        assert row["spend"]["day"] == {"requests": 7, "tokens": 12, "usd": 1.0}
        assert row["spend"]["total"] == row["spend"]["month"] == row["spend"]["day"]


async def test_a_budget_of_money_is_refused_where_a_model_has_no_price(tmp_path: Path) -> None:
    near = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    async with Service(tmp_path, llms={"near": near}).running() as service:
        body = {"name": "app", "scopes": ["admin"], "max_budget": 1.0, "budget_duration": "1d"}
        answer = await service.client.post("/v1/keys", json=body)
        assert "no price is known for model 'm'" in refused(answer, 400, "invalid_value", "max_budget")
        del body["max_budget"]
        answer = await service.client.post("/v1/keys", json={**body, "token_budget": 5})
        assert answer.status_code == 201


async def test_a_turn_that_fails_before_the_draw_costs_nothing(service: Service) -> None:
    key = await a_key([service], token_budget=1, budget_duration="1d")
    refused(await ask(service, key, model="arm/bm52"), 404, "model_not_found", "model")
    assert (await ask(service, key)).status_code == 200
    refused(await ask(service, key), 429, "insufficient_quota", final=True)


async def test_a_cancelled_stream_is_charged_with_what_it_wrote(service: Service) -> None:
    key = await a_key([service], token_budget=1, budget_duration="1d")
    async with service.client.stream(
        "POST", "/v1/chat/completions", json=CHAT | {"stream": True}, headers=key
    ):
        pass
    await service.replica.quota.report()
    refused(await ask(service, key), 429, "insufficient_quota", final=True)


async def test_a_key_without_limits_has_no_such_headers(service: Service) -> None:
    answer = await ask(service, await a_key([service]))
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_what_cannot_be_reserved_while_the_log_is_away_is_a_503(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await a_key([service], rpm_limit=100)
    with monkeypatch.context() as patch:
        patch.setattr(service.replica.store, "reading", away)
        refused(await ask(service, key), 503, "log_unavailable")
    assert (await ask(service, key)).status_code == 200


@pytest.mark.slow
async def test_one_key_leaves_room_for_another(two: list[Service]) -> None:
    greedy, other, service = await a_key(two), await a_key(two), two[0]
    service.arms.behaviour["bm25"] = hanging

    def look_up(key: dict[str, str], arm: str) -> asyncio.Task[httpx.Response]:
        body = {"query": "which river runs through Vienna?", "model": f"arm/{arm}"}
        return asyncio.create_task(service.client.post("/v1/retrieve", json=body, headers=key))

    held = [look_up(greedy, "bm25") for _ in range(3)]  # of four
    while len(service.replica.under_way) < 3:
        await asyncio.sleep(0)
    assert "3 requests of this key" in refused(await look_up(greedy, "none"), 503, "overloaded")
    assert (await look_up(other, "none")).status_code == 200
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert (await look_up(greedy, "none")).status_code == 200
