"""Replacing the live arms: at once for new turns, never for one under way, and never half."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.run_folder import RUN_FOLDER, BuildingProgress
from armwise.agent.turn import Ask, NoEligibleArmError
from armwise.arms.base import ArmBuildError, Query, Retrieval
from tests.agent.asking import look_up, refused
from tests.agent.fakes import CONFIG, Service

FUSED: dict[str, Any] = {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}}

ARMS: dict[str, Any] = {**CONFIG["arms"], "fused": {**FUSED, "action": False}}

NEW = ("none", "fused")


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with an arm that is not live."""
    async with Service(tmp_path, arms=ARMS).running() as service:
        yield service


async def put(service: Service, names: Iterable[str]) -> httpx.Response:
    return await service.client.put("/v1/arms", json={"arms": [*names]})


def names(response: httpx.Response) -> list[str]:
    return [arm["name"] for arm in response.json()["arms"]]


async def refreshed_until_served(service: Service, *arms: str) -> None:
    async with asyncio.timeout(30):
        while tuple(service.replica.turns.arms) != arms:
            await service.refresh()


async def test_the_new_arms_are_built_and_then_chosen_among(service: Service) -> None:
    replaced = await put(service, NEW)
    assert replaced.status_code == 200, replaced.text
    assert names(replaced) == ["none", "fused"]
    pmf = (await look_up(service)).json()["agent"]["pmf"]
    assert set(pmf) == {"none", "fused"}


async def test_a_part_of_an_arm_is_no_action_and_cannot_be_forced(service: Service) -> None:
    await put(service, NEW)
    refused = await service.client.post("/v1/retrieve", json={"query": "Who?", "model": "arm/bm25"})
    assert refused.status_code == 404
    assert "available: auto, arm/none, arm/fused" in refused.json()["error"]["message"]


async def test_while_a_first_start_builds_an_arm_its_live_part_answers_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = {"kind": "dense", "params": {"backbone": "tiny"}}
    dear = {"large": {**FUSED, "answering": {"llm": "large"}}}
    whole = {**dear, "hybrid": FUSED, "near": dense, "none": {"kind": "none"}}
    parts = {
        "bm25": {"kind": "bm25", "action": False},
        "dense": {**dense, "action": False},
        "pair": {**FUSED, "action": False},
    }
    llms = {"large": {"engine": "scripted", "default": ""}}
    async with Service(tmp_path, arms={**whole, **parts}, llms=llms).running() as service:
        await put(service, ["none", "bm25"])

        async def asked(model: str) -> httpx.Response:
            return await service.client.post("/v1/retrieve", json={"query": "Who?", "model": model})

        async def listed() -> list[str]:
            models = (await service.client.get("/v1/models")).json()["data"]
            return [model["id"] for model in models if model["id"].startswith("arm/")]

        assert (await asked("arm/hybrid")).status_code == 404, "it was replaced, and nothing builds it"
        assert await listed() == ["arm/none", "arm/bm25"]
        monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
        progress = BuildingProgress(tmp_path)
        progress("embedding passages", 3, 9)
        answered = await asked("arm/hybrid")
        assert answered.json()["agent"]["arm_served"] == "bm25", answered.text
        assert (await asked("arm/near")).status_code == 404, "no part of it is live"
        assert (await asked("arm/pair")).status_code == 404, "it is a part of others"
        assert (await asked("arm/large")).status_code == 404, "its words would be answered by another model"
        assert await listed() == ["arm/none", "arm/bm25", "arm/hybrid"]
        progress.end()
        assert (await asked("arm/hybrid")).status_code == 404


async def test_a_turn_under_way_ends_with_the_arm_that_was_drawn_for_it(service: Service) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_query: Query, _k: int) -> Retrieval:
        reached.set()
        await go_on.wait()
        return Retrieval()

    service.arms.behaviour["dense"] = slow
    turn = asyncio.create_task(
        service.client.post("/v1/retrieve", json={"query": "Who?", "model": "arm/dense"})
    )
    await reached.wait()
    await put(service, NEW)
    go_on.set()
    answer = await turn
    assert answer.status_code == 200
    assert answer.json()["agent"]["arm_served"] == "dense"


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        (["bm52"], "arm 'bm52' is not in the configuration: declare it under `arms`"),
        ([], "at least 1"),
        ({"bm25": {"kind": "bm25"}}, "valid list"),
    ],
)
async def test_wrong_arms_are_refused(service: Service, arms: Any, message: str) -> None:
    answer = await service.client.put("/v1/arms", json={"arms": arms})
    assert message in refused(answer, 400, "invalid_value", "arms")
    assert names(await service.client.get("/v1/arms")) == list(CONFIG["arms"])


async def test_arms_that_cannot_be_built_change_nothing(service: Service) -> None:
    service.arms.unbuildable = frozenset({"fused"})
    refused = await put(service, NEW)
    assert refused.status_code == 502
    assert refused.json()["error"]["message"] == "arm 'fused' cannot be built"
    service.arms.unbuildable = frozenset()
    await service.refresh()
    assert names(await service.client.get("/v1/arms")) == list(CONFIG["arms"])


async def test_an_arm_that_cannot_be_built_as_described_is_the_caller_s_mistake(service: Service) -> None:
    async def load(_specs: object) -> None:
        raise ArmBuildError("arm 'x': no deployment 'GPU' hosts arms; available: Arms")

    service.arms.load = load  # type: ignore[method-assign]
    refused = await put(service, NEW)
    assert refused.status_code == 400
    assert "no deployment 'GPU'" in refused.json()["error"]["message"]


async def test_an_arm_that_vanished_meanwhile_is_refused_and_nothing_decided(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = service.replica.store.record

    def swap(key: str) -> Any:
        service.replica.turns.arms = {"none": service.replica.turns.arms["none"]}
        return record(key)

    loop = service.replica.turns
    monkeypatch.setattr(service.replica.store, "record", swap)
    body = {"query": "Who?", "model": "arm/dense"}
    refused = await service.client.post("/v1/retrieve", json=body, headers={"idempotency-key": "k"})
    assert refused.status_code == 404
    with pytest.raises(NoEligibleArmError, match="arm 'dense' is no longer live; available: none"):
        await anext(loop.turn(Ask("id", "Who?", forced="dense")))


async def test_what_a_former_arm_answered_is_answered_again(service: Service) -> None:
    asked = {"query": "Who?", "agent": {"allowed_arms": ["dense"]}}
    key = {"idempotency-key": "k-1"}
    first = await service.client.post("/v1/retrieve", json=asked, headers=key)
    await put(service, NEW)
    again = await service.client.post("/v1/retrieve", json=asked, headers=key)
    assert again.status_code == 200, again.text
    assert again.json()["agent"]["arm_served"] == first.json()["agent"]["arm_served"] == "dense"


async def test_what_may_be_secret_in_an_address_is_never_shown(tmp_path: Path) -> None:
    url = "http://me:s3cret@127.0.0.1:9/find?key=s3cret&page=1#s3cret"
    far = {
        "kind": "remote",
        "params": {"url": url, "method": "POST", "request": {"q": "{question}", "to": [url]}},
    }
    arms = {**CONFIG["arms"], "far": far, "part": {**far, "action": False}}
    async with Service(tmp_path, arms=arms).running() as service:
        shown = (await service.client.get("/v1/arms")).json()
        hidden = "http://***@127.0.0.1:9/find?key=***&page=***#***"
        (params,) = [arm["params"] for arm in shown["arms"] if arm["name"] == "far"]
        for one in (params, shown["parts"]["part"]["params"]):
            assert one["url"] == hidden
            assert one["request"] == {"q": "{question}", "to": [hidden]}
        for answer in (
            await put(service, ["part", "bm25"]),
            await service.client.patch("/v1/arms/part", json={"enabled": False}),
        ):
            assert answer.status_code == 200, answer.text
            assert "s3cret" not in answer.text
