"""`log_away: answer`: the fallback answers while the log is away, and acknowledges nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.serving import outage
from armwise.arms.llm import base
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.log import group_commit
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from armwise.feedback.registry.usage import spend
from tests.agent.asking import AN_ANSWER, CHAT, QUESTION, ask, look_up, refused, rows, tell
from tests.agent.fakes import Service, failing
from tests.agent.serving.test_failures import Waiting

ANSWERING: dict[str, Any] = {
    "log_away": "answer",
    "fallback": "bm25",
    "policy": {"kind": "fixed", "params": {"arm": "none"}},
    "floor": 1e-12,
}
"""The policy draws the arm `none`, so that an answer of `bm25` is one of the fallback."""


@pytest.fixture
async def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(group_commit, "PROBE_S", 0.0)
    async with Service(tmp_path, **ANSWERING).running() as service:
        yield service


@contextmanager
def log_away(service: Service) -> Iterator[list[str]]:
    """Have the database refuse everything; yields what was asked of it, for as long as the block lasts."""
    asked: list[str] = []

    def refuse(name: str) -> Any:
        def refusing(*_: object, **__: object) -> Any:
            asked.append(name)
            raise LogUnavailableError("the server is gone")

        return refusing

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append", "probe", "reading", "writing"):
            patch.setattr(service.replica.store, name, refuse(name))
        yield asked


async def come_back(service: Service) -> None:
    """Probe the log, as the service does by itself."""
    await asyncio.to_thread(service.replica.log.check)


def is_unlogged(response: httpx.Response) -> bool:
    assert response.status_code == 200, response.text
    return response.headers.get("x-armwise-log") == "away"


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (AN_ANSWER, CHAT),
    "chat, streamed": (AN_ANSWER, CHAT | {"stream": True}),
    "responses": ("/v1/responses", {"model": "auto", "input": QUESTION}),
    "responses, streamed": ("/v1/responses", {"model": "auto", "input": QUESTION, "stream": True}),
    "messages": ("/v1/messages", {**CHAT, "max_tokens": 50}),
    "messages, streamed": ("/v1/messages", {**CHAT, "max_tokens": 50, "stream": True}),
    "retrieve": ("/v1/retrieve", {"query": QUESTION}),
}


@pytest.mark.parametrize("door", DOORS)
async def test_the_fallback_answers_and_nothing_is_logged(answering: Service, door: str) -> None:
    path, body = DOORS[door]
    before = await rows(answering)
    with log_away(answering):
        responses = [await answering.client.post(path, json=body) for _ in range(2)]
    for response in responses:  # the first one finds out, the second one knows
        assert is_unlogged(response)
        assert response.headers["x-arm"] == "bm25"
        assert response.headers["x-decision-id"].startswith("unlogged-")
        assert '"log":"away"' in response.text
    assert await rows(answering) == before
    await come_back(answering)
    response = await answering.client.post(path, json=body)
    assert not is_unlogged(response)
    assert '"log"' not in response.text
    assert response.headers["x-arm"] == "none"
    after = await rows(answering)
    assert after["decisions"] - before["decisions"] == 1
    assert after["executions"] - before["executions"] == 1


async def test_a_log_known_to_be_away_is_not_asked_by_requests(answering: Service) -> None:
    with log_away(answering) as asked:
        await look_up(answering)
        asked.clear()
        assert is_unlogged(await look_up(answering, {"idempotency-key": "k-1"}))
        assert is_unlogged(await ask(answering))
        assert set(asked) <= {"probe", "reading", "writing"}, "no commit is tried"
        assert answering.replica.outage.since is not None


async def test_without_the_setting_questions_are_refused(service: Service) -> None:
    with log_away(service):
        for response in (await look_up(service), await ask(service), await service.client.get("/ready")):
            refused(response, 503, "log_unavailable")
            assert "x-armwise-log" not in response.headers


async def test_feedback_on_an_unlogged_answer_is_a_409(answering: Service) -> None:
    logged = (await look_up(answering)).json()["agent"]["decision_id"]
    with log_away(answering):
        unlogged = (await look_up(answering)).json()["agent"]["decision_id"]
        refused(await tell(answering, logged), 503, "log_unavailable")
    await come_back(answering)
    assert unlogged in refused(await tell(answering, unlogged), 409, "not_logged")
    activation = await answering.client.post(f"/v1/decisions/{unlogged}/activate")
    refused(activation, 409, "not_logged")
    items = [
        {"decision_id": name, "metric_name": "thumb", "value": 1, "feedback_id": name}
        for name in (unlogged, logged)
    ]
    batch = (await answering.client.post("/v1/feedback", json={"items": items})).json()["items"]
    assert batch[0]["error"]["code"] == "not_logged"
    assert batch[1]["status"] == "stored"
    assert (await rows(answering))["feedback"] == 1


async def test_a_named_arm_answers_without_the_log_too(answering: Service) -> None:
    with log_away(answering):
        response = await look_up(answering, model="arm/dense")
    assert is_unlogged(response)
    assert response.headers["x-arm"] == "dense"


@pytest.mark.parametrize(
    "wish", [{"agent": {"excluded_arms": ["bm25"]}}, {"agent": {"allowed_arms": ["none"]}}]
)
async def test_a_fallback_that_may_not_answer_leaves_a_503(answering: Service, wish: dict[str, Any]) -> None:
    with log_away(answering):
        message = refused(await look_up(answering, **wish), 503, "log_unavailable")
    assert "arm 'bm25'" in message


async def test_an_unknown_arm_is_a_400_without_the_log(answering: Service) -> None:
    with log_away(answering):
        await look_up(answering)
        wish = {"agent": {"excluded_arms": ["gone"]}}
        refused(await look_up(answering, **wish), 400, "unknown_arm", "agent.excluded_arms")


async def test_a_failed_fallback_is_a_502_without_a_decision(answering: Service) -> None:
    answering.arms.behaviour["bm25"] = failing
    with log_away(answering):
        for _ in range(2):
            response = await look_up(answering, {"idempotency-key": "k-1"})
            refused(response, 502, "arm_failed")
            assert response.json()["error"]["decision_id"] is None


async def test_a_failed_fallback_may_be_retried_under_the_key(
    answering: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise LogUnavailableError("the disk is full")

    answering.arms.behaviour["bm25"] = failing
    monkeypatch.setattr(answering.replica.store, "append", refuse)  # the log can be read
    refused(await ask(answering, {"idempotency-key": "k-1"}), 502, "arm_failed")


async def test_the_service_stays_ready_and_names_the_outage(answering: Service) -> None:
    with log_away(answering):
        await look_up(answering)
        ready = await answering.client.get("/ready")
        metrics = (await answering.client.get("/metrics")).text
        assert ready.status_code == 200
        (failure,) = ready.json()["failed"]
        assert failure["work"] == "log"
        assert failure["why"].startswith("away since 20")
        assert failure["why"].endswith("+00:00: the server is gone")
        assert "armwise_answers_without_log_total 1.0" in metrics
        assert 'armwise_background_failures{work="log"} 1.0' in metrics
    await come_back(answering)
    assert (await answering.client.get("/ready")).json()["failed"] == []
    metrics = (await answering.client.get("/metrics")).text
    assert 'armwise_background_failures{work="log"} 0.0' in metrics
    assert 'armwise_decisions_total{arm="bm25"' not in metrics, "nothing was drawn"


async def test_a_probe_that_finds_the_log_away_leaves_the_service_ready(answering: Service) -> None:
    with log_away(answering):
        answering.replica.log.suspect("a stranger says so")
        assert (await answering.client.get("/ready")).status_code == 200
    with log_away(answering):
        answering.replica.log._wrote_at = -1e9  # noqa: SLF001  # so that it is probed
        await come_back_in_vain(answering)
        assert (await answering.client.get("/ready")).json()["failed"][0]["work"] == "log"


async def come_back_in_vain(service: Service) -> None:
    with pytest.raises(LogUnavailableError):
        await come_back(service)


async def test_a_repeated_key_is_answered_again_and_drawn_once_the_log_is_back(answering: Service) -> None:
    key = {"idempotency-key": "order-7"}
    with log_away(answering):
        first, second = [await ask(answering, key) for _ in range(2)]
    assert is_unlogged(first)
    assert is_unlogged(second)
    assert first.headers["x-decision-id"] != second.headers["x-decision-id"]
    await come_back(answering)
    third, fourth = [await ask(answering, key) for _ in range(2)]
    assert not is_unlogged(third)
    assert third.headers["x-decision-id"] == fourth.headers["x-decision-id"] == "order-7"


async def test_a_log_that_flaps_loses_no_logged_answer(answering: Service) -> None:
    logged = []
    for _ in range(5):
        with log_away(answering):
            assert is_unlogged(await look_up(answering))
        await come_back(answering)
        response = await look_up(answering)
        assert not is_unlogged(response)
        logged.append(response.headers["x-decision-id"])
    store = answering.replica.store
    assert all(store.record(name) is not None for name in logged)
    assert (await rows(answering))["decisions"] == 5


class Hanging:
    """A log that neither commits nor fails until it may."""

    def __init__(self, service: Service, patch: pytest.MonkeyPatch) -> None:
        self.go_on, self._append = threading.Event(), service.replica.store.append
        patch.setattr(service.replica.store, "append", self.append)

    def append(self, facts: Any) -> Any:
        self.go_on.wait(60)
        return self._append(facts)


async def test_a_log_that_hangs_is_given_up_and_used_again_once_it_answers(
    answering: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "SLOW_S", 0.2)
    monkeypatch.setattr(outage, "SLOW_S", 0.2)
    hanging = Hanging(answering, monkeypatch)
    first = await ask(answering, {"idempotency-key": "k-1"})
    assert is_unlogged(first)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert is_unlogged(await ask(answering))
    assert loop.time() - began < 0.2, "the second one knows"
    hanging.go_on.set()
    async with asyncio.timeout(20):
        while answering.replica.outage.since is not None:
            await asyncio.sleep(0)
    late = await asyncio.to_thread(answering.replica.store.record, "k-1")
    assert late is not None, "what was given up is written nevertheless"
    assert late.execution is None
    assert not is_unlogged(await ask(answering))


async def test_a_read_that_hangs_is_given_up_too(answering: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "SLOW_S", 0.2)
    go_on = threading.Event()
    monkeypatch.setattr(answering.replica.store, "record", lambda _: go_on.wait(60) and None)
    monkeypatch.setattr(answering.replica.store, "probe", lambda: go_on.wait(60) and None)
    assert is_unlogged(await look_up(answering, {"idempotency-key": "k-1"}))
    assert is_unlogged(await look_up(answering))
    go_on.set()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_outlasts_the_log_and_says_so(tmp_path: Path, stream: bool) -> None:
    generator = Waiting()
    async with Service(tmp_path, generator, **ANSWERING).running() as service:
        asking = asyncio.create_task(ask(service, {"idempotency-key": "k-1"}, stream=stream))
        await generator.began.wait()
        with log_away(service):
            generator.go_on.set()
            response = await asking
        assert response.status_code == 200
        assert response.text.count('"log":"away"') == 1
        assert ("x-armwise-log" in response.headers) != stream, "headers of a stream were sent before"
        assert response.headers["x-decision-id"] == "k-1"
        metrics = (await service.client.get("/metrics")).text
        assert "armwise_answers_without_log_total 1.0" in metrics
        await come_back(service)
        record = await asyncio.to_thread(service.replica.store.record, "k-1")
        assert record is not None
        assert record.execution is None
        assert (await tell(service, "k-1")).status_code == 202


async def test_a_round_of_tools_goes_on_without_the_log(answering: Service) -> None:
    call = {"id": "call_0_d-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    messages = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0_d-1", "content": "42"},
    ]
    with log_away(answering):
        response = await ask(answering, messages=messages, tools=[tool])
    assert is_unlogged(response)
    assert response.json()["agent"]["episode_id"] is None


async def a_key(service: Service, **limits: Any) -> tuple[str, dict[str, str]]:
    settings = KeySettings("app", ("decide",), limits=KeyLimits(**limits))
    store = service.replica.store
    key, token = await asyncio.to_thread(keys.create, store, settings, service.clock())
    await service.refresh()
    return key.public_id, {"authorization": f"Bearer {token}"}


async def test_a_budget_holds_without_the_log_and_is_charged_once_it_is_back(answering: Service) -> None:
    name, key = await a_key(answering, token_budget=200, budget_duration="1mo")
    statuses = [(await ask(answering, key)).status_code]
    with log_away(answering):
        while (response := await ask(answering, key)).status_code == 200:
            assert is_unlogged(response)
            statuses.append(200)
            assert len(statuses) < 100
        refused(response, 429, "insufficient_quota", final=True)
    assert len(statuses) > 2
    await come_back(answering)
    await answering.replica.refresh_keys()
    used = await asyncio.to_thread(spend, answering.replica.store, answering.clock())
    assert used[name]["month"].requests == len(statuses) + 1
    assert used[name]["month"].tokens >= 200
    refused(await ask(answering, key), 429, "insufficient_quota", final=True)


async def test_an_answer_that_finds_the_log_away_is_charged_once(answering: Service) -> None:
    assert isinstance(answering.generator, base.ScriptedGenerator)
    name, key = await a_key(answering, token_budget=10**6, budget_duration="1mo")
    await ask(answering, key)
    await answering.replica.refresh_keys()
    used = (await asyncio.to_thread(spend, answering.replica.store, answering.clock()))[name]["month"].tokens
    with log_away(answering):
        response = await ask(answering, key)
    await come_back(answering)
    await answering.replica.refresh_keys()
    after = (await asyncio.to_thread(spend, answering.replica.store, answering.clock()))[name]["month"].tokens
    assert after - used == response.json()["usage"]["total_tokens"]


async def test_keys_hold_as_they_were_known_last(answering: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    _, valid = await a_key(answering)
    gone, disabled = await a_key(answering)
    await asyncio.to_thread(keys.disable, answering.replica.store, gone, answering.clock())
    expires = answering.clock() + 3600
    settings = KeySettings("app", ("decide",), expires=expires)
    _, token = await asyncio.to_thread(keys.create, answering.replica.store, settings, answering.clock())
    await answering.refresh()
    expiring = {"authorization": f"Bearer {token}"}
    with log_away(answering):
        assert is_unlogged(await ask(answering, valid))
        assert is_unlogged(await ask(answering, expiring))
        assert refused(await ask(answering, disabled), 401, "invalid_api_key").endswith("is disabled")
        monkeypatch.setattr(answering.replica.keyring, "_clock", lambda: expires + 1)
        assert refused(await ask(answering, expiring), 401, "invalid_api_key").endswith("has expired")


def test_a_replica_does_not_start_without_its_log(tmp_path: Path) -> None:
    log_url = f"postgresql://nobody@/none?host={tmp_path}"
    with pytest.raises(LogUnavailableError):
        Service(tmp_path, log_url=log_url, **ANSWERING)


async def test_the_console_names_the_outage(answering: Service) -> None:
    with log_away(answering):
        await look_up(answering)
        page = await answering.client.get("/console/system")
    assert page.status_code == 200
    assert "away since" in page.text


async def test_a_read_that_fails_opens_the_circuit(
    answering: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise LogUnavailableError("the server is gone")

    monkeypatch.setattr(answering.replica.store, "record", refuse)
    monkeypatch.setattr(answering.replica.store, "probe", refuse)
    assert is_unlogged(await look_up(answering, {"idempotency-key": "k-1"}))
    assert is_unlogged(await look_up(answering))


async def test_no_signal_is_read_from_an_unlogged_answer(tmp_path: Path) -> None:
    metrics = {"thumb": {"range": [-1, 1]}, "formed": {"type": "boolean", "signal": "schema_error"}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    async with Service(tmp_path, reward={"metrics": metrics}, **ANSWERING).running() as service:
        with log_away(service) as asked:
            await look_up(service)
            asked.clear()
            assert is_unlogged(await ask(service, response_format=form))
            await service.replica.workers.join("signals", "answers")
            assert "append" not in asked
        await come_back(service)
        await ask(service, response_format=form)
        await service.replica.workers.join("signals", "answers")
        assert (await rows(service))["feedback"] == 1
