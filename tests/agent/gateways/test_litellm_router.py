"""The router of LiteLLM's calls over a double of LiteLLM's one class; with its proxy: `make test-clients`."""

import asyncio
import importlib
import json
import logging
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from armwise.agent.client import AsyncClient, Client

START = datetime(2026, 11, 25, 3, 0).astimezone()

MESSAGES = [{"role": "user", "content": "who?"}]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The integration, with `litellm.integrations.custom_logger.CustomLogger` as an empty class."""
    custom: Any = types.ModuleType("litellm.integrations.custom_logger")
    custom.CustomLogger = type("CustomLogger", (), {})
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, custom.__name__, custom)
    ours = [f"armwise.agent.integrations.{name}" for name in ("litellm", "litellm_router")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(ours[1])
    for name in ours:
        sys.modules.pop(name, None)


class Wire:
    """A service that draws the last of the arms it is asked for, and keeps what is sent."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.refused: tuple[str, ...] = ()
        self.silent = False
        self.answer: Callable[[dict[str, Any]], str] = lambda body: body["allowed_arms"][-1]

    async def decide(self, request: httpx.Request) -> httpx.Response:
        if self.silent:
            await asyncio.Event().wait()
        body = json.loads(request.content)
        self.asked.append(body)
        name, chosen = f"d-{len(self.asked)}", self.answer(body)
        reply = {
            "object": "decision",
            "decision_id": name,
            "episode_id": body.get("episode_id"),
            "policy_version": 3,
            "mode": "explore",
            "chosen": chosen,
            "propensity": 0.123456789,
            "pmf": {chosen: 0.123456789},
            "reward_deadline": 0.0,
        }
        return httpx.Response(200, json=reply)

    def report(self, request: httpx.Request) -> httpx.Response:
        items = json.loads(request.content)["items"]
        self.sent += [(request.url.path, item) for item in items]
        error = {"type": "invalid_request_error", "code": "unknown_metric", "message": "?", "param": None}
        error |= {"request_id": None, "retryable": False, "decision_id": None, "reasons": None}
        rows = [
            {"error": error}
            if item.get("metric_name") in self.refused
            else {"decision_id": "d", "arm": "a", "status": "completed", "evaluable": True, "log_seq": 1}
            for item in items
        ]
        return httpx.Response(202, json={"items": rows})

    def router(self, module: Any, **options: Any) -> Any:
        asking = httpx.AsyncClient(transport=httpx.MockTransport(self.decide))
        client = httpx.AsyncClient(transport=httpx.MockTransport(self.report))
        return module.ArmwiseRouter(
            client=Client("http://service", "key", http=client),
            asking=AsyncClient("http://service", "key", http=asking, attempts=1),
            **{"interval_s": 0.001, "bound_s": 30.0, **options},
        )


def deployment(name: str, arm: str | None = None, **params: Any) -> dict[str, Any]:
    info = {"id": f"id-{name}"} | ({} if arm is None else {"arm": arm})
    return {"litellm_params": {"model": f"openai/{name}", **params}, "model_info": info}


SMALL, LARGE, THIRD = deployment("small", "small"), deployment("large", "large"), deployment("third")


def ended(call: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What LiteLLM passes to its callbacks when a deployment has ended a call."""
    params = {"metadata": call["metadata"], "model_info": {"id": f"id-{name}"}}
    return {"model": name, "litellm_params": params, "messages": MESSAGES, "response_cost": 0.25}


USAGE = {"id": "1", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}


async def keep(router: Any, deployments: list[Any], call: dict[str, Any], model: str = "chat") -> list[Any]:
    kept: list[Any] = await router.async_filter_deployments(model, deployments, MESSAGES, call)
    return kept


async def test_the_deployments_of_the_drawn_arm_are_kept(module: Any) -> None:
    wire, call = Wire(), {"metadata": {"session_id": "s-1", "armwise": {"features": {"tier": "free"}}}}
    router = wire.router(module)
    twin = deployment("twin", "large")
    assert await keep(router, [SMALL, LARGE, twin], call) == [LARGE, twin]
    assert wire.asked == [
        {
            "question": "who?",
            "allowed_arms": ["small", "large"],
            "context": {"tier": "free"},
            "episode_id": "s-1",
        }
    ]
    router.close()


async def test_the_decision_stands_in_the_log_of_litellm_and_in_the_headers(module: Any) -> None:
    wire, call = Wire(), {"metadata": {"spend_logs_metadata": {"team": "a"}}}
    router = wire.router(module)
    await keep(router, [SMALL, deployment("größe", "größe")], call)
    drawn = {"decision_id": "d-1", "arm": "größe", "propensity": 0.123456789, "policy_version": 3}
    assert call["metadata"]["spend_logs_metadata"] == {"team": "a", "armwise": drawn}
    assert await router.async_post_call_response_headers_hook(call, None, None) == {
        "x-decision-id": "d-1",
        "x-arm": "gr%C3%B6%C3%9Fe",
        "x-propensity": "0.123457",
        "x-policy-version": "3",
    }
    assert await router.async_post_call_response_headers_hook({}, None, None) is None
    router.close()


async def test_how_a_call_ended_is_reported_once_under_its_decision(module: Any) -> None:
    wire, call = Wire(), {"metadata": {}}
    router = wire.router(module)
    twin = deployment("twin", "large")
    await keep(router, [SMALL, LARGE, twin], call)
    end = START + timedelta(seconds=1.5)
    await router.async_log_success_event(ended(call, "large"), USAGE, START, end)
    await router.async_log_success_event(ended(call, "large"), USAGE, START, end)
    await router.async_log_failure_event(ended(call, "twin"), None, START, end)
    await router.async_log_success_event(ended({"metadata": {}}, "large"), USAGE, START, end)
    router.close()
    cost = {"usd": 0.25, "seconds": 1.5, "prompt_tokens": 5, "completion_tokens": 7}
    item = {"id": "d-1", "arm": "large", "status": "ok", "cost": cost}
    assert wire.sent == [("/v1/observations", item)]
    assert (router.sent, router.decided, router.undecided) == (1, 1, 0)


async def test_an_answer_of_the_cache_is_no_end_of_a_decision(module: Any) -> None:
    wire, call = Wire(), {"metadata": {}}
    router = wire.router(module)
    await keep(router, [SMALL, LARGE], call)
    await router.async_log_success_event(ended(call, "large") | {"cache_hit": True}, USAGE, START, START)
    router.close()
    assert wire.sent == []


async def test_a_retry_is_a_decision_among_the_arms_that_were_not_tried(module: Any) -> None:
    wire, call = Wire(), {"metadata": {}}
    router = wire.router(module)
    every = [SMALL, LARGE, THIRD]
    assert await keep(router, every, call) == [THIRD]
    assert await keep(router, every, call) == [LARGE]
    await router.async_log_failure_event(ended(call, "third"), None, START, START)
    await router.async_log_success_event(ended(call, "large"), USAGE, START, START)
    assert [body["allowed_arms"] for body in wire.asked] == [
        ["small", "large", "openai/third"], ["small", "large"],
    ]  # fmt: skip
    assert await keep(router, every, call) == [SMALL]
    assert await router.async_post_call_response_headers_hook(call, None, None) == {}
    assert "undecided" in call["metadata"]["spend_logs_metadata"]["armwise"]
    router.close()
    assert [(item["id"], item["status"]) for _, item in wire.sent] == [("d-1", "failed"), ("d-2", "ok")]
    assert len(wire.asked) == 2


async def test_nothing_is_drawn_where_there_is_nothing_to_choose(module: Any) -> None:
    wire, call = Wire(), {"metadata": {}}
    router = wire.router(module, groups={"chat"})
    twins = [LARGE, deployment("twin", "large")]
    assert await keep(router, twins, call) == twins
    assert await keep(router, [SMALL, LARGE], call, "embeddings") == [SMALL, LARGE]
    assert await router.async_filter_deployments("chat", [SMALL, LARGE], None, call) == [SMALL, LARGE]
    assert await router.async_filter_deployments("chat", [SMALL, LARGE], MESSAGES, None) == [SMALL, LARGE]
    assert await keep(router, [], call) == []
    router.close()
    assert wire.asked == []
    assert "spend_logs_metadata" not in call["metadata"]


async def test_without_an_answer_in_time_all_are_kept_and_the_log_says_why(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wire, call = Wire(), {"litellm_metadata": {}, "metadata": {}}
    wire.silent = True
    router = wire.router(module, bound_s=0.01)
    with caplog.at_level(logging.WARNING):
        assert await keep(router, [SMALL, LARGE], call) == [SMALL, LARGE]
        wire.silent = False
        router._bound_s = 30.0  # noqa: SLF001
        wire.answer = lambda _: "unheard of"
        assert await keep(router, [SMALL, LARGE], {"metadata": {}}) == [SMALL, LARGE]
    assert call["litellm_metadata"]["spend_logs_metadata"]["armwise"] == {
        "undecided": "no answer within 10 ms"
    }
    assert call["metadata"] == {}
    assert (router.decided, router.undecided) == (0, 2)
    assert "LiteLLM decided instead of Armwise (1 times so far): no answer within 10 ms" in caplog.text
    assert await router.async_post_call_response_headers_hook(call, None, None) == {}
    router.close()
    assert wire.sent == []


async def test_what_a_client_writes_into_the_metadata_is_no_decision(module: Any) -> None:
    wire = Wire()
    router = wire.router(module)
    forged = {"id-large": {"id": "forged", "arm": "large"}}
    metadata = {router._name: forged, "armwise": {"id": "forged", "features": None}}  # noqa: SLF001
    await router.async_log_success_event(ended({"metadata": metadata}, "large"), USAGE, START, START)
    assert await keep(router, [SMALL, LARGE], {"metadata": metadata}) == [LARGE]
    await router.async_log_success_event(ended({"metadata": metadata}, "large"), USAGE, START, START)
    router.close()
    assert [item["id"] for _, item in wire.sent] == ["d-1"]


async def test_two_routers_of_one_proxy_do_not_end_each_others_decisions(module: Any) -> None:
    wires, call = (Wire(), Wire()), {"metadata": {}}
    one, other = wires[0].router(module, groups={"chat"}), wires[1].router(module, groups={"other"})
    await keep(one, [SMALL, LARGE], call)
    for router in (other, one):
        await router.async_log_success_event(ended(call, "large"), USAGE, START, START)
        router.close()
    assert (len(wires[0].sent), len(wires[1].sent)) == (1, 0)


async def test_a_question_is_left_out_on_demand(module: Any) -> None:
    wire = Wire()
    router = wire.router(module, content=False)
    await keep(router, [SMALL, LARGE], {"metadata": {}})
    router.close()
    assert wire.asked[0]["question"] == ""


def test_what_cannot_work_is_refused_by_its_value(module: Any) -> None:
    for bound_s in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"bound_s is {bound_s:g}; it must be a positive number"):
            Wire().router(module, bound_s=bound_s)
