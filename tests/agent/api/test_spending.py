"""Callers who try to spend more than their key may: by searches, repeats, departures and many slots."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from arms.base import ArmError, Passage, Query, Retrieval, Usage
from feedback.registry import KeyLimits, KeySettings, keys
from feedback.registry.usage import spend
from tests.agent.asking import QUESTION, refused
from tests.agent.fakes import CONFIG, Service

NOON = 1_800_014_400.0

READ, WRITTEN = 50, 100
"""Tokens of a call of the language model in a search."""

COST = 0.0125
"""USD of these."""

LLM = {"engine": "scripted", "usd_per_kilotoken_in": 0.05, "usd_per_kilotoken_out": 0.1}

ARMS = {
    **CONFIG["arms"],
    "variants": {"kind": "query_variants", "params": {"arm": "bm25", "way": "rewrite"}},
}


class Paid:
    """A search that prompts the language model, once it may.

    Attributes:
        begun: Searches so far.
        may_go_on: Set where they are answered.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def __call__(self, query: Query, k: int) -> Retrieval:
        del query
        self.begun += 1
        await self.may_go_on.wait()
        await asyncio.sleep(0)
        passages = tuple(Passage(f"variants-{i}", f"title {i}", f"text {i}", 1.0 / i) for i in range(1, k + 1))
        usage = Usage(READ, WRITTEN, 0, COST)
        return Retrieval(passages, steps=4, tokens=READ + WRITTEN, usage=usage)


class Fleet:
    """Replicas on one log, whose arm `variants` prompts a language model that costs money."""

    def __init__(self, services: list[Service]) -> None:
        self.services = services
        self.paid = Paid()
        for service in services:
            service.arms.behaviour["variants"] = self.paid

    async def key(self, **limits: Any) -> dict[str, str]:
        """Return the header of a new key with these limits."""
        replica = self.services[0].replica
        settings = KeySettings("app", ("admin",), limits=KeyLimits(**limits))
        _, token = await asyncio.to_thread(keys.create, replica.store, settings, replica.clock())
        for service in self.services:
            await service.replica.refresh()
        return {"authorization": f"Bearer {token}"}

    async def look_up(
        self, key: dict[str, str], at: int = 0, arm: str = "arm/variants", **fields: Any
    ) -> httpx.Response:
        service = self.services[at % len(self.services)]
        body = {"query": QUESTION, "model": arm} | fields
        return await service.client.post("/v1/retrieve", json=body, headers=key)

    async def spent(self) -> float:
        """Return the USD that all keys together have used."""
        return (await self.used())[0]

    async def used(self) -> tuple[float, int]:
        """Return the USD and the tokens that all keys together have used."""
        for service in self.services:
            await service.replica.quota.report()
        found = await asyncio.to_thread(spend, self.services[0].replica.store, NOON)
        totals = [one["total"] for one in found.values()]
        return sum(one.usd for one in totals), sum(one.tokens for one in totals)


@pytest.fixture(params=[1, 2], ids=["one replica", "two replicas"])
async def fleet(
    request: pytest.FixtureRequest, log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        services = []
        for _ in range(request.param):
            limits = {**CONFIG["limits"], "in_flight": 100}
            service = Service(tmp_path, log_url=log_url, llm=LLM, arms=ARMS, limits=limits)
            services.append(service)
            monkeypatch.setattr(service.replica.quota, "_clock", lambda: NOON)
            await stack.enter_async_context(service.running())
        yield Fleet(services)


async def test_searches_at_once_that_prompt_a_model_spend_the_budget_and_one_turn(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=0.2, budget_duration="1d")
    answers = await asyncio.gather(*(fleet.look_up(key, i) for i in range(24)))
    spent = await fleet.spent()
    done = sum(answer.status_code == 200 for answer in answers)
    print("SPENT", spent, "of 0.20;", done, "of 24 answered")
    assert spent == pytest.approx(COST * fleet.paid.begun)
    assert spent <= 0.2 + COST


async def test_repeats_of_a_search_that_prompts_a_model_look_up_what_the_log_has(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d") | {"idempotency-key": "d-1"}
    answers = [await fleet.look_up(key, i) for i in range(22)]
    print("SEARCHES", fleet.paid.begun, "SPENT", await fleet.spent())
    assert fleet.paid.begun == 1
    assert await fleet.spent() == pytest.approx(COST)


async def test_a_caller_who_leaves_while_an_arm_searches_is_charged(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d")
    fleet.paid.may_go_on.clear()
    task = asyncio.create_task(fleet.look_up(key))
    while not fleet.paid.begun:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    print("LEFT", await fleet.used())
    assert await fleet.spent() >= COST
