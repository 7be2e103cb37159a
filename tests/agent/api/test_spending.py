"""Callers who try to spend more than their key may: by searches, repeats, departures and many slots."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.serving import Replica
from armwise.agent.turn import Places
from armwise.arms.base import ArmError, Passage, Query, Retrieval, Usage
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from armwise.feedback.registry.usage import spend
from tests.agent.asking import QUESTION, refused
from tests.agent.fakes import CONFIG, Service

NOON = 1_800_014_400.0

READ, WRITTEN = 50, 100
"""Tokens of a call of the language model in a search."""

COST = 0.0125
"""USD of these."""

USAGE = Usage(READ, WRITTEN, 0, COST)

MOST = 0.0195
"""USD that are reserved: 134 tokens of instructions and question, and 128 that the call may write."""

LLM = {"engine": "scripted", "usd_per_kilotoken_in": 0.05, "usd_per_kilotoken_out": 0.1}

ARMS = {
    **CONFIG["arms"],
    "variants": {"kind": "query_variants", "params": {"arm": "bm25", "way": "rewrite"}},
}


class Paid:
    """A search that prompts the language model, once it may.

    Attributes:
        begun: Searches so far.
        error: What they fail with, after the call; None where they work.
        may_go_on: Set where they end.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.error: ArmError | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def __call__(self, query: Query, k: int) -> Retrieval:
        del query
        self.begun += 1
        await self.may_go_on.wait()
        await asyncio.sleep(0)
        found = tuple(Passage(f"variants-{i}", f"title {i}", f"text {i}", 0.5**i) for i in range(1, k + 1))
        if self.error is not None:
            self.error.usage = USAGE
            raise self.error
        return Retrieval(found, steps=4, tokens=READ + WRITTEN, usage=USAGE)


class Fleet:
    """Replicas on one log, whose arm `variants` prompts a language model that costs money."""

    def __init__(self, services: list[Service]) -> None:
        self.services = services
        self.now = NOON
        self.paid = Paid()
        for service in services:
            vars(service.replica.quota)["_clock"] = lambda: self.now
            service.arms.behaviour["variants"] = self.paid

    async def key(self, **limits: Any) -> dict[str, str]:
        """Return the header of a new key with these limits."""
        service = self.services[0]
        settings = KeySettings("app", ("admin",), limits=KeyLimits(**limits))
        _, token = await asyncio.to_thread(
            keys.create, service.replica.store, settings, service.replica.clock()
        )
        for service in self.services:
            await service.refresh()
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

    async def poll(self) -> None:
        """Let a second pass, after which each replica knows what all have used."""
        self.now += 1
        for service in (*self.services, *self.services):
            await service.replica.quota.report()

    async def used(self) -> tuple[float, int]:
        """Return the USD and the tokens that all keys together have used."""
        for service in self.services:
            await service.replica.quota.report()
        found = await asyncio.to_thread(spend, self.services[0].replica.store, NOON)
        totals = [one["total"] for one in found.values()]
        return sum(one.usd for one in totals), sum(one.tokens for one in totals)


@pytest.fixture(params=[1, 2], ids=["one replica", "two replicas"])
async def fleet(request: pytest.FixtureRequest, log_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        services = []
        for _ in range(request.param):
            limits = {**CONFIG["limits"], "in_flight": 100}
            service = Service(tmp_path, log_url=log_url, llm=LLM, arms=ARMS, limits=limits)
            services.append(service)
            await stack.enter_async_context(service.running())
        yield Fleet(services)


@pytest.mark.slow
async def test_searches_at_once_stay_within_the_budget_of_replicas(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=0.2, budget_duration="1d")
    fleet.paid.may_go_on.clear()
    asked = [asyncio.create_task(fleet.look_up(key, i)) for i in range(24)]
    while fleet.paid.begun + sum(task.done() for task in asked) < 24:
        await asyncio.sleep(0)
    held = fleet.paid.begun
    fleet.paid.may_go_on.set()
    answers = await asyncio.gather(*asked)
    assert sorted({answer.status_code for answer in answers}) == [200, 429]
    most = math.ceil(0.2 / MOST) * len(fleet.services)
    assert 1 <= held <= most, "on each replica what may cost the budget, and one that may exceed it"
    assert await fleet.spent() == pytest.approx(COST * fleet.paid.begun)
    for i in range(24):
        await fleet.poll()
        last = await fleet.look_up(key, i)
    refused(last, 429, "insufficient_quota", final=True)
    assert await fleet.spent() == pytest.approx(COST * fleet.paid.begun)
    assert 0.2 - 1e-9 <= await fleet.spent() <= max(0.2, COST * held) + COST + 1e-9


@pytest.mark.slow
async def test_repeats_of_a_search_that_prompts_a_model_return_what_the_log_has(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=0.01, budget_duration="1d") | {"idempotency-key": "d-1"}
    first, *repeats = [await fleet.look_up(key, i) for i in range(22)]
    assert [answer.status_code for answer in repeats] == [200] * 21, "although the budget is spent"
    assert (fleet.paid.begun, await fleet.used()) == (1, (COST, READ + WRITTEN))
    found, again = first.json(), repeats[-1].json()
    assert again["agent"] == found["agent"]
    for rank, (one, other) in enumerate(zip(again["passages"], found["passages"], strict=True), start=1):
        assert {**other, "score": 1 / rank} == one, "the log has no scores"


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.slow
async def test_repeats_that_search_again_are_charged(fleet: Fleet, kept: int) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d") | {"idempotency-key": "d-1"}
    for service in fleet.services:
        service.replica.passages = in_part(service.replica, kept)
    answers = [await fleet.look_up(key, i) for i in range(22)]
    assert [answer.json() for answer in answers] == [answers[0].json()] * 22
    assert (fleet.paid.begun, await fleet.spent()) == (22, pytest.approx(22 * COST))


@pytest.mark.slow
async def test_a_repeat_that_searches_again_is_refused_once_the_budget_is_spent(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=3 * COST, budget_duration="1d") | {"idempotency-key": "d-1"}
    for service in fleet.services:
        service.replica.passages = in_part(service.replica, 0)
    answers = []
    for i in range(8):
        answers.append(await fleet.look_up(key, i))
        await fleet.poll()
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 5
    assert await fleet.spent() == pytest.approx(fleet.paid.begun * COST)


@pytest.mark.slow
async def test_a_repeat_shows_no_passage_that_its_caller_may_not_see_any_more(fleet: Fleet) -> None:
    key = await fleet.key() | {"idempotency-key": "d-1"}
    first = await fleet.look_up(key)
    for service in fleet.services:
        service.replica.passages = in_part(service.replica, 10, hidden="variants-2")
    again = await fleet.look_up(key)
    assert [one["id"] for one in again.json()["passages"]] == [
        one["id"] for one in first.json()["passages"] if one["id"] != "variants-2"
    ]


@pytest.mark.parametrize("fleet", [2], indirect=True, ids=["two replicas"])
@pytest.mark.slow
async def test_one_key_at_once_on_two_replicas_is_charged_for_both_searches(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d") | {"idempotency-key": "d-1"}
    fleet.paid.may_go_on.clear()
    asked = [asyncio.create_task(fleet.look_up(key, i)) for i in range(2)]
    while fleet.paid.begun < 2:
        await asyncio.sleep(0)
    fleet.paid.may_go_on.set()
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status_code for answer in answers) == [200, 503]
    assert await fleet.spent() == pytest.approx(2 * COST)


@pytest.mark.slow
async def test_a_caller_who_leaves_while_an_arm_searches_is_charged_what_it_may_cost(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d")
    fleet.paid.may_go_on.clear()
    for n in range(3):
        task = asyncio.create_task(fleet.look_up(key, n))
        while fleet.paid.begun == n:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert await fleet.used() == (pytest.approx(3 * MOST), 3 * (134 + 128))


@pytest.mark.slow
async def test_a_search_that_runs_out_of_time_is_charged_what_it_may_cost(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d")
    fleet.paid.may_go_on.clear()
    for service in fleet.services:
        service.replica.turns.searcher.timeout_s = 0.01
    refused(await fleet.look_up(key), 502, "arm_failed", final=False)
    assert await fleet.spent() == pytest.approx(MOST)


@pytest.mark.slow
async def test_a_search_that_fails_after_its_call_is_charged(fleet: Fleet) -> None:
    key = await fleet.key(max_budget=1.0, budget_duration="1d")
    fleet.paid.error = ArmError("no passage fits")
    refused(await fleet.look_up(key), 502, "arm_failed", final=False)
    assert await fleet.used() == (pytest.approx(COST), READ + WRITTEN)


@pytest.mark.slow
async def test_a_turn_that_finds_no_place_of_the_language_model_returns_what_it_reserved(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await fleet.key(max_budget=4 * MOST, budget_duration="1d")
    body = {"model": "arm/variants", "messages": [{"role": "user", "content": QUESTION}]}
    full = Places("places of the language model", 1, 0, 0.0)
    async with full.hold():
        with monkeypatch.context() as patch:
            for service in fleet.services:
                patch.setattr(service.replica, "chats", full)
            for i in range(12):
                service = fleet.services[i % len(fleet.services)]
                answer = await service.client.post("/v1/chat/completions", json=body, headers=key)
                refused(answer, 503, "overloaded")
    assert fleet.paid.begun == 0
    assert (await fleet.look_up(key)).status_code == 200
    assert await fleet.spent() == pytest.approx(COST)


@pytest.mark.parametrize("without", ["another is forced", "excluded", "not allowed", "switched off"])
@pytest.mark.slow
async def test_an_arm_that_cannot_be_drawn_reserves_nothing(fleet: Fleet, without: str) -> None:
    key = await fleet.key(max_budget=MOST / 2, budget_duration="1d")
    wish: dict[str, Any] = {"arm": "auto"}
    match without:
        case "another is forced":
            wish = {"arm": "arm/bm25"}
        case "excluded":
            wish["agent"] = {"excluded_arms": ["variants"]}
        case "not allowed":
            wish["agent"] = {"allowed_arms": ["bm25", "none"]}
        case _:
            await fleet.services[0].client.patch("/v1/arms/variants", json={"enabled": False}, headers=key)
            for service in fleet.services:
                await service.refresh()
    held = asyncio.Event()

    async def waiting(query: Query, k: int) -> Retrieval:
        del query, k
        begun.append(1)
        await held.wait()
        return Retrieval()

    begun: list[int] = []
    for service in fleet.services:
        service.arms.behaviour |= dict.fromkeys(("none", "bm25", "dense"), waiting)
    asked = [asyncio.create_task(fleet.look_up(key, i, **wish)) for i in range(24)]
    while len(begun) < 24:
        await asyncio.sleep(0)
    held.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


def in_part(replica: Replica, n: int, hidden: str = "") -> Any:
    """Return a corpus that has the first passages only, one of which may be for nobody's group."""
    whole = replica.passages

    async def passages(ids: Sequence[str]) -> list[Passage]:
        return [
            replace(one, metadata={"allowed_groups": ["others"]}) if one.id == hidden else one
            for one in await whole(ids[:n])
        ]

    return passages
