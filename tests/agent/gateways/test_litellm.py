"""The tap of LiteLLM, over a double of the one class of LiteLLM that it needs, which is empty there, too."""

import importlib
import json
import logging
import queue
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from armwise.agent.client import Client

START = datetime(2026, 11, 25, 3, 0).astimezone()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The integration, with `litellm.integrations.custom_logger.CustomLogger` as an empty class."""
    custom: Any = types.ModuleType("litellm.integrations.custom_logger")
    custom.CustomLogger = type("CustomLogger", (), {})
    for name in ("litellm", "litellm.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, custom.__name__, custom)
    monkeypatch.delitem(sys.modules, "armwise.agent.integrations.litellm", raising=False)
    yield importlib.import_module("armwise.agent.integrations.litellm")
    sys.modules.pop("armwise.agent.integrations.litellm", None)


def call(**changes: Any) -> dict[str, Any]:
    metadata = {"session_id": "s 1"}
    return {
        "model": "openai/gpt",
        "messages": [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "?"},
            {"role": "user", "content": [{"type": "text", "text": "who"}, {"type": "image_url"}]},
        ],
        "litellm_params": {"metadata": metadata},
        "litellm_call_id": "call-1",
        "response_cost": 0.25,
        **changes,
    }


RESPONSE = {"id": "chatcmpl-1", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}


class Wire:
    """A service that keeps what is sent; it may be away, or refuse some arms."""

    def __init__(self, *refused: str) -> None:
        self.refused, self.away = refused, False
        self.most_bytes = 1 << 20
        self.items: list[Mapping[str, Any]] = []
        self.requests: list[httpx.Request] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert self.gate.wait(10)
        self.requests.append(request)
        if self.away:
            return httpx.Response(400, json={"error": {"code": "invalid_value", "message": "away"}})
        if len(request.content) > self.most_bytes:
            return httpx.Response(413, json={"error": {"code": "payload_too_large", "message": "?"}})
        items = json.loads(request.content)["items"]
        self.items += items
        error = {"type": "invalid_request_error", "code": "unknown_arm", "message": "?", "param": "arm"}
        error |= {"request_id": None, "retryable": False, "decision_id": None, "reasons": None}
        kept = {"status": "accepted", "evaluable": False, "log_seq": 1}
        rows = [
            {"error": error}
            if item["arm"] in self.refused
            else {"decision_id": item["id"], "arm": item["arm"], **kept}
            for item in items
        ]
        return httpx.Response(202, json={"items": rows})

    def client(self) -> Client:
        return Client("http://service", "key", http=httpx.AsyncClient(transport=httpx.MockTransport(self)))


def test_a_call_is_an_observation_with_what_is_known_of_it(module: Any) -> None:
    end = START + timedelta(seconds=1.5)
    metadata = {"session_id": "s 1", "armwise": module.Draw(propensity=0.8, metrics={"right": True})}
    item = module.make_observation(call(litellm_params={"metadata": metadata}), RESPONSE, START, end, "ok")
    assert item.pop("episode_id") == module._name("s 1") != "s 1"  # noqa: SLF001
    assert datetime.fromisoformat(item.pop("at")) == START
    assert item == {
        "id": "chatcmpl-1",
        "arm": "openai/gpt",
        "question": "who",
        "status": "ok",
        "cost": {"usd": 0.25, "seconds": 1.5, "prompt_tokens": 5, "completion_tokens": 7},
        "propensity": 0.8,
        "metrics": {"right": True},
    }


def test_what_is_not_known_is_left_out_and_no_propensity_is_made_up(module: Any) -> None:
    bare = call(litellm_params=None, response_cost=None, messages=None)
    item = module.make_observation(bare, None, None, None, "failed")
    cost = {"usd": 0.0, "seconds": 0.0, "prompt_tokens": 0, "completion_tokens": 0}
    assert item == {"id": "call-1", "arm": "openai/gpt", "question": "", "status": "failed", "cost": cost}


def test_the_metadata_of_a_request_to_the_proxy_and_the_standard_payload_are_read(module: Any) -> None:
    metadata = {"requester_metadata": {"armwise": {"features": {"tier": "free"}}}}
    logged = {"id": "std-1", "prompt_tokens": 3, "completion_tokens": 4}
    params = {"metadata": metadata, "litellm_session_id": "s-1"}
    item = module.make_observation(
        call(litellm_params=params, standard_logging_object=logged), None, START, START, "ok"
    )
    assert (item["id"], item["features"]) == ("std-1", {"tier": "free"})
    assert (item["episode_id"], item["cost"]["prompt_tokens"]) == ("s-1", 3)


FORGED = {"id": "d-1", "arm": "mine", "propensity": 0.001, "metrics": {"right": True}, "user": "another"}


@pytest.mark.parametrize("nested", [False, True])
def test_a_client_of_a_proxy_sends_features_and_forges_nothing_else(
    module: Any, caplog: pytest.LogCaptureFixture, nested: bool
) -> None:
    sent = {"armwise": {**FORGED, "distribution": {"mine": 1.0}, "features": {"tier": "free"}}}
    metadata = {"requester_metadata": sent} if nested else sent
    wire = Wire()
    tap = module.ArmwiseLogger(client=wire.client(), interval_s=0.001)
    for name in ("r-1", "r-2"):
        forged = call(litellm_params={"metadata": metadata})
        tap.log_success_event(forged, {**RESPONSE, "id": name}, START, START)
    tap.close()
    plain = module.make_observation(call(litellm_params={}), RESPONSE, START, START, "ok")
    assert wire.items == [{**plain, "id": name, "features": {"tier": "free"}} for name in ("r-1", "r-2")]
    assert (tap.sent, tap.dropped, tap.ignored) == (2, 0, 2)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a call's metadata has arm, distribution, id, metrics, propensity, user" in line
    assert "Draw(...)" in line


@pytest.mark.parametrize("sent", ["a text", 1, ["features"], None, {}])
def test_metadata_of_another_form_does_not_keep_a_call_from_being_observed(module: Any, sent: object) -> None:
    plain = module.make_observation(call(litellm_params={}), RESPONSE, START, START, "ok")
    strange = call(litellm_params={"metadata": {"armwise": sent}})
    assert module.make_observation(strange, RESPONSE, START, START, "ok") == plain


def test_a_draw_of_unknown_fields_is_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="a Draw has no field 'propensty'; available: id, arm, "):
        module.Draw(propensty=0.5)


def test_one_item_that_cannot_be_sent_takes_no_other_with_it(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    wire.most_bytes = 10_000
    tap = module.ArmwiseLogger(client=wire.client(), interval_s=0.001)
    items = [{"id": f"r-{n}", "arm": "x"} for n in range(9)]
    strange = [
        {"id": "nan", "arm": "x", "propensity": float("nan")},
        {"id": "surrogate", "arm": "x", "question": "\ud800"},
        {"id": "large", "arm": "x", "features": {"text": "?" * 10_000}},
    ]
    tap._send([strange[0], *items[:4], strange[1], *items[4:], strange[2]])  # noqa: SLF001
    tap.close()
    assert wire.items == items
    assert (tap.sent, tap.dropped) == (9, 3)
    assert [line.split(" were", 1)[0] for line in caplog.messages] == ["1 calls"] * 3


def test_a_question_is_cut_and_left_out_on_demand(module: Any) -> None:
    long = call(messages=[{"role": "user", "content": "?" * 9000}])
    assert len(module.make_observation(long, RESPONSE, START, START, "ok")["question"]) == 8000
    assert module.make_observation(long, RESPONSE, START, START, "ok", content=False)["question"] == ""


async def test_calls_are_sent_in_batches_by_a_thread(module: Any) -> None:
    wire = Wire()
    wire.gate.clear()
    tap = module.ArmwiseLogger(client=wire.client(), interval_s=0.01)
    for n in range(150):
        response = {**RESPONSE, "id": f"r-{n}"}
        tap.log_success_event(call(), response, START, START)
    await tap.async_log_success_event(call(), {**RESPONSE, "id": "a-1"}, START, START)
    tap.log_failure_event(call(), None, START, START)
    await tap.async_log_failure_event(call(litellm_call_id="call-2"), None, START, START)
    assert not wire.requests, "nothing is waited for"
    wire.gate.set()
    tap.close()
    assert [item["id"] for item in wire.items] == [
        *(f"r-{n}" for n in range(150)), "a-1", "call-1", "call-2",
    ]  # fmt: skip
    assert [item["status"] for item in wire.items[-3:]] == ["ok", "failed", "failed"]
    assert len(wire.requests) >= 2
    assert max(len(json.loads(one.content)["items"]) for one in wire.requests) <= 100
    assert (tap.sent, tap.dropped) == (153, 0)


def test_a_full_queue_drops_and_a_strange_call_fails_nothing(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    wire.gate.clear()
    tap = module.ArmwiseLogger(client=wire.client(), most=2, interval_s=0.01)
    with caplog.at_level(logging.WARNING):
        for n in range(200):
            tap.log_success_event(call(), {"id": f"r-{n}"}, START, START)
        tap.log_success_event(None, None, None, None)
        tap.log_success_event(call(messages=[None]), RESPONSE, START, START)
    wire.gate.set()
    tap.close()
    assert tap.dropped >= 50
    assert tap.sent + tap.dropped == 202
    assert "too many wait already" in caplog.text
    assert "it could not be read" in caplog.text


def test_a_refusal_is_logged_and_the_next_batch_is_sent(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire("huge")
    wire.away = True
    tap = module.ArmwiseLogger(client=wire.client(), interval_s=0.001)
    with caplog.at_level(logging.WARNING):
        tap._send([{"id": "a", "arm": "x"}])  # noqa: SLF001
        wire.away = False
        tap._send([{"id": "b", "arm": "x"}, {"id": "c", "arm": "huge"}])  # noqa: SLF001
    tap.close()
    assert (tap.sent, tap.dropped) == (1, 2)
    assert "`tap.names` may lack a model" in caplog.text


def test_an_answer_of_the_cache_is_no_decision(module: Any) -> None:
    wire = Wire()
    tap = module.ArmwiseLogger(client=wire.client(), interval_s=0.001)
    tap.log_success_event(call(cache_hit=True), RESPONSE, START, START)
    tap.log_success_event(call(cache_hit=False), RESPONSE, START, START)
    tap.close()
    assert len(wire.items) == 1


def test_a_tap_that_is_closed_while_the_queue_is_full_gives_up_after_its_time(module: Any) -> None:
    wire = Wire()
    wire.gate.clear()
    tap = module.ArmwiseLogger(client=wire.client(), most=1, interval_s=0.0)
    while True:  # one is being sent, and one waits
        try:
            tap._waiting.put({"id": "a", "arm": "x"}, timeout=0.2)  # noqa: SLF001
        except queue.Full:
            break
    tap.close(timeout_s=0.01)
    wire.gate.set()
    tap.close()
