"""What fails on the way: the status says so, the row stays, and a retry is never a second draw."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.api import responses
from armwise.agent.turn import Decider
from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.llm import GeneratorError, Prompt, base
from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Decision, Status
from tests.agent.asking import (
    AN_ANSWER,
    CHAT,
    QUESTION,
    ask,
    events,
    late_once_decided,
    look_up,
    record,
    refused,
    rows,
    tell,
)
from tests.agent.fakes import DIM, Service, failing, hanging
from tests.agent.turn.test_turn import Stuck

# -- arms, models, deadlines, load -------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_arm_is_a_502_and_its_row_stays(service: Service, stream: bool) -> None:
    service.arms.behaviour["bm25"] = failing
    response = await ask(service, model="arm/bm25", stream=stream)
    assert refused(response, 502, "arm_failed") == "ArmError: the index is gone"
    decision_id = response.headers["x-decision-id"]
    assert response.json()["error"]["decision_id"] == decision_id
    found = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    assert (found["status"], found["arm_drawn"]) == ("arm_failed", "bm25")


ALWAYS_BM25: dict[str, Any] = {"policy": {"kind": "fixed", "params": {"arm": "bm25"}}, "floor": 1e-12}


async def test_with_a_fallback_the_answer_names_both_arms(tmp_path: Path) -> None:
    async with Service(tmp_path, fallback="none", **ALWAYS_BM25).running() as service:
        service.arms.behaviour["bm25"] = failing
        response = await ask(service)
        ours = response.json()["agent"]
        assert (ours["arm_drawn"], ours["arm_served"]) == ("bm25", "none")
        assert (response.headers["x-arm"], response.json()["model"]) == ("none", "arm/none")
        found = (await service.client.get(f"/v1/decisions/{ours['decision_id']}")).json()
        assert (found["status"], found["error"]) == ("fell_back", "ArmError: the index is gone")
        metrics = (await service.client.get("/metrics")).text
        assert 'armwise_executions_total{arm="bm25",status="fell_back"} 1.0' in metrics


@pytest.mark.parametrize(
    "wish",
    [{"model": "arm/bm25"}, {"agent": {"excluded_arms": ["none"]}}, {"agent": {"allowed_arms": ["bm25"]}}],
)
async def test_a_fallback_that_was_not_eligible_does_not_answer(tmp_path: Path, wish: dict[str, Any]) -> None:
    async with Service(tmp_path, fallback="none", **ALWAYS_BM25).running() as service:
        service.arms.behaviour["bm25"] = failing
        refused(await ask(service, **wish), 502, "arm_failed")
        assert (
            'armwise_executions_total{arm="bm25",status="arm_failed"} 1.0'
            in (await service.client.get("/metrics")).text
        )


async def test_a_language_model_that_fails_is_a_502(service: Service) -> None:
    assert isinstance(service.generator, base.ScriptedGenerator)
    service.generator.error = GeneratorError("the engine is gone")
    response = await ask(service)
    assert "the engine is gone" in refused(response, 502, "llm_failed")
    found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
    assert found.execution is not None
    assert found.execution.status is Status.LLM_FAILED


async def test_a_conversation_that_does_not_fit_the_model_is_the_callers_to_shorten(service: Service) -> None:
    assert isinstance(service.generator, base.ScriptedGenerator)
    service.generator.error = base.PromptTooLongError("5000 tokens; 4096 fit")
    assert "4096 fit" in refused(await ask(service), 400, "context_length_exceeded", "messages")


async def test_values_of_one_decision_sent_together_are_committed_together(service: Service) -> None:
    decision_id = (await look_up(service)).json()["agent"]["decision_id"]
    items = [
        {"decision_id": decision_id, "metric_name": "thumb", "value": 1.0, "feedback_id": "a"},
        {"decision_id": "another", "metric_name": "thumb", "value": 1.0, "feedback_id": "b"},
        {"decision_id": decision_id, "metric_name": "right", "value": True, "feedback_id": "c"},
    ]
    seqs = [
        item["log_seq"]
        for item in (await service.client.post("/v1/feedback", json={"items": items})).json()["items"]
    ]
    assert (seqs[2] - seqs[0], len(set(seqs))) == (1, 3)
    await service.learn()
    found = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    assert found["metrics"] == {"thumb": 1.0, "right": 1.0}


class Waiting(base.ScriptedGenerator):
    """Writes its answer once it may.

    Attributes:
        began: Set once it is asked.
        go_on: Set while it may write.
    """

    def __init__(self) -> None:
        super().__init__({})
        self.began, self.go_on = asyncio.Event(), asyncio.Event()

    async def stream(self, prompt: Prompt) -> Any:
        self.began.set()
        await self.go_on.wait()
        async with aclosing(super().stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk


async def test_a_language_model_that_hangs_is_a_504(tmp_path: Path) -> None:
    limits = {"llm_timeout_s": 0.05}
    async with Service(tmp_path, Stuck(), limits=limits).running() as service:
        response = await ask(service)
        refused(response, 504, "llm_timeout")
        found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
        assert found.execution is not None
        assert (found.execution.status, found.execution.answer) == (Status.LLM_TIMEOUT, "The")


async def test_a_request_past_its_own_deadline_is_a_408_and_its_decision_is_kept(service: Service) -> None:
    late_once_decided(service, 5.0)
    response = await look_up(service, {"x-request-timeout-seconds": "5"}, model="arm/bm25")
    assert refused(response, 408, "deadline_exceeded") == "no answer within 5 s"
    found = await record(service, response.headers["x-decision-id"], lambda r: r.execution)
    assert found.execution is not None
    assert found.execution.status is Status.CANCELLED
    assert not service.replica.under_way


async def test_an_encoder_that_is_away_before_the_draw_is_a_503(tmp_path: Path) -> None:
    features = {"embedding": {"backbone": "tiny", "dims": 4}}
    async with Service(tmp_path, features=features).running() as service:
        service.embedders.error = ArmError("the encoder restarts")
        assert "restarts" in refused(await look_up(service), 503, "not_ready")
        assert (await rows(service))["decisions"] == 0


async def test_load_is_shed_before_the_draw(service: Service) -> None:
    released = asyncio.Event()

    async def waiting(_query: Query, _k: int) -> Retrieval:
        await released.wait()
        return Retrieval()

    service.arms.behaviour["bm25"] = waiting
    busy = [asyncio.create_task(look_up(service, model="arm/bm25")) for _ in range(4)]
    while len(service.arms.calls) < 4:
        await asyncio.sleep(0)
    refused(await look_up(service), 503, "overloaded")
    refused(await ask(service, stream=True), 503, "overloaded")
    released.set()
    assert {(await task).status_code for task in busy} == {200}
    assert (await rows(service))["decisions"] == 4
    assert (await look_up(service)).status_code == 200
    assert "armwise_shed_total 2.0" in (await service.client.get("/metrics")).text


async def test_without_a_version_nothing_is_answered_but_feedback_is_kept(tmp_path: Path) -> None:
    async with Service(tmp_path).running(ready=False) as service:
        for response in (await ask(service), await ask(service, stream=True), await look_up(service)):
            refused(response, 503, "not_ready")
        refused(await service.client.get("/ready"), 503, "not_ready")
        assert (await service.client.get("/health")).json() == {"status": "ok"}
        assert (await service.client.get("/v1/policy")).json()["version"] is None
        assert (await tell(service, "d-1")).json()["status"] == "stored"
        await service.learn()
        assert (await service.client.get("/ready")).json() == {
            "status": "ready",
            "version": 1,
            "mode": "one_process",
            "building": None,
            "failed": [],
        }
        assert (await look_up(service)).status_code == 200


async def test_a_log_that_is_away_is_a_503_everywhere(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LogUnavailableError("the log cannot be used: disk full")

    store = service.replica.store
    for name in ("append", "probe", "reading"):
        monkeypatch.setattr(store, name, away)
    responses = [
        await ask(service),
        await ask(service, stream=True),
        await look_up(service),
        await look_up(service, {"idempotency-key": "k-1"}),
        await tell(service, "d-1"),
        await service.client.get("/v1/decisions/d-1"),
        await service.client.get("/v1/policy"),
        await service.client.get("/ready"),
    ]
    for response in responses:
        assert "disk full" in refused(response, 503, "log_unavailable")
    batch = {"items": [{"decision_id": "d-1", "metric_name": "thumb", "value": 1}]}
    assert "disk full" in refused(
        await service.client.post("/v1/feedback", json=batch), 503, "log_unavailable"
    )
    monkeypatch.undo()
    assert (await rows(service))["decisions"] == 0
    assert (await ask(service)).status_code == 200


async def test_a_bug_of_an_arm_is_a_recorded_failure_that_tells_no_secret(service: Service) -> None:
    async def broken(_query: Query, _k: int) -> Retrieval:
        raise KeyError("password=hunter2")

    service.arms.behaviour["bm25"] = broken
    response = await look_up(service, model="arm/bm25")
    assert refused(response, 502, "arm_failed") == "ArmError: KeyError: see the service's log"
    decided = await record(service, response.headers["x-decision-id"], lambda record: record.execution)
    assert decided.execution is not None
    assert (decided.execution.status, "hunter2" in decided.execution.error) == (Status.ARM_FAILED, False)
    assert not service.replica.under_way


async def test_a_bug_of_the_service_is_a_500_that_tells_no_secret(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("password=hunter2")

    monkeypatch.setattr(Decider, "decide", broken)
    message = refused(await look_up(service), 500, "internal_error")
    assert message == "KeyError: see the service's log"
    assert not service.replica.under_way


# -- clients that go away ----------------------------------------------------------------------------


class Connection:
    """A client that speaks ASGI, and leaves when it has read enough."""

    def __init__(self, body: dict[str, Any], leave_after: int, path: str = AN_ANSWER) -> None:
        self.received = b""
        self._pieces = 0
        self._leave_after = leave_after
        self._gone = asyncio.Event()
        self._body = json.dumps(body).encode()
        self._sent = False
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._gone.set()

    async def send(self, message: Any) -> None:
        if body := message.get("body"):
            self.received += body
            self._pieces += 1
            if self._pieces == self._leave_after:
                self._gone.set()


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_client_that_leaves_a_stream_is_recorded_as_cancelled(tmp_path: Path, pieces: int) -> None:
    async with Service(tmp_path, Stuck()).running() as service:
        client = Connection(CHAT | {"stream": True}, leave_after=pieces)
        await service.app(client.scope, client.receive, client.send)
        first = json.loads(client.received.partition(b"\n\n")[0].removeprefix(b"data: "))
        found = await record(service, first["agent"]["decision_id"], lambda r: r.execution)
        assert found.execution is not None
        assert found.execution.status is Status.CANCELLED
        assert not service.replica.under_way


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (AN_ANSWER, CHAT),
        ("/v1/responses", {"input": "who?"}),
        ("/v1/messages", CHAT | {"max_tokens": 5}),
    ],
    ids=["chat", "responses", "messages"],
)
@pytest.mark.parametrize(("key", "status"), [(b"", Status.CANCELLED), (b"d-1", Status.OK)])
@pytest.mark.slow
async def test_an_answer_that_nobody_can_get_any_more_is_cancelled(
    tmp_path: Path, key: bytes, status: Status, path: str, body: dict[str, Any]
) -> None:
    generator = Waiting()
    async with Service(tmp_path, generator).running() as service:
        client = Connection(body, leave_after=-1, path=path)
        client.scope["headers"] += [(b"idempotency-key", key)] if key else []
        committed: list[Any] = []
        append = service.replica.turns.log.append
        service.replica.turns.log.append = lambda *facts: committed.extend(facts) or append(*facts)  # type: ignore
        answering = asyncio.create_task(service.app(client.scope, client.receive, client.send))
        await generator.began.wait()
        client.leave()
        if not key:
            await answering
        for _ in range(20):  # so that a turn which ends with its client has ended
            await asyncio.sleep(0)
        generator.go_on.set()
        await answering
        (decision_id,) = (fact.id for fact in committed if isinstance(fact, Decision))
        found = await record(service, decision_id, lambda r: r.execution)
        assert found.execution is not None
        assert found.execution.status is status
        assert not service.replica.under_way


@pytest.mark.parametrize(
    ("path", "body"),
    [(AN_ANSWER, CHAT), ("/v1/messages", CHAT | {"max_tokens": 5})],
    ids=["chat", "messages"],
)
@pytest.mark.parametrize("held", ["start", "body"])
async def test_a_client_that_reads_nothing_of_a_stream_is_left_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], held: str
) -> None:
    monkeypatch.setattr(responses, "READ_S", 0.01)
    client = Connection(body | {"stream": True}, leave_after=-1, path=path)

    async def send(message: Any) -> None:
        await client.send(message)
        headers.update(message.get("headers", ()))
        if message["type"].endswith(held):
            await asyncio.Event().wait()  # as a connection whose buffer is full

    headers: dict[bytes, bytes] = {}
    await service.app(client.scope, client.receive, send)
    assert not service.replica.under_way
    found = await record(service, headers[b"x-decision-id"].decode(), lambda r: r.execution)
    assert found.execution is not None
    assert found.execution.status is Status.CANCELLED


# -- asking again ------------------------------------------------------------------------------------


async def test_the_same_request_under_the_same_key_gets_the_stored_answer(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    first = await ask(service, key, agent={"return": ["passages"]})
    assert isinstance(service.generator, base.ScriptedGenerator)
    service.generator.error = GeneratorError("must not be asked again")
    again = await ask(service, key, agent={"return": ["passages"]})
    assert again.json() == first.json()
    assert again.json()["agent"]["decision_id"] == "k-1"
    assert (again.headers["x-arm"], again.headers["x-propensity"]) == (
        first.headers["x-arm"],
        first.headers["x-propensity"],
    )
    counts = await rows(service)
    assert (counts["decisions"], counts["executions"]) == (1, 1)


async def test_a_stream_is_repeated_as_a_stream(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    wishes = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    first = events(await ask(service, key, **wishes))
    again = events(await ask(service, key, **wishes))
    assert (again[0], again[-2:]) == (first[0], first[-2:])
    assert again[1]["choices"][0]["delta"]["content"] == "The Danube"
    assert again[-2]["choices"][0]["finish_reason"] == "length"


async def test_another_request_under_the_same_key_is_a_conflict(service: Service) -> None:
    key = {"idempotency-key": "k-1"}
    await look_up(service, key)
    for response in (await look_up(service, key, k=2), await ask(service, key)):
        assert "'k-1'" in refused(response, 409, "idempotency_conflict", "Idempotency-Key")
    assert (await rows(service))["decisions"] == 1


async def test_two_requests_at_once_under_one_key_are_decided_once(service: Service) -> None:
    released = asyncio.Event()

    async def waiting(_query: Query, _k: int) -> Retrieval:
        await released.wait()
        return Retrieval()

    service.arms.behaviour["bm25"] = waiting
    key = {"idempotency-key": "k-1"}
    tasks = [asyncio.create_task(look_up(service, key, model="arm/bm25")) for _ in range(2)]
    while not service.arms.calls or not any(task.done() for task in tasks):
        await asyncio.sleep(0)
    released.set()
    first, second = sorted([await task for task in tasks], key=lambda response: response.status_code)
    refused(second, 503, "in_progress", "Idempotency-Key")
    assert (await rows(service))["executions"] == 1
    again = await look_up(service, key, model="arm/bm25")
    assert again.json() == first.json()


@pytest.mark.parametrize("arm", [failing, None])
async def test_what_failed_is_not_repeated_as_if_it_were_an_answer(service: Service, arm: Any) -> None:
    assert isinstance(service.generator, base.ScriptedGenerator)
    if arm:
        service.arms.behaviour["bm25"] = arm
    else:
        service.generator.error, service.generator.fail_after = GeneratorError("gone"), 1
    key = {"idempotency-key": "k-1"}
    assert (await ask(service, key, model="arm/bm25")).status_code == 502
    service.generator.error = None
    service.arms.behaviour.clear()
    again = await ask(service, key, model="arm/bm25")
    message = refused(again, 409, "idempotency_conflict", "Idempotency-Key")
    assert "ask again with another id" in message


async def test_a_repeated_answer_whose_passages_cannot_be_found_again_is_a_503(tmp_path: Path) -> None:
    async with Service(tmp_path, limits={"arm_timeout_s": 0.05}).running() as service:
        key = {"idempotency-key": "k-1"}
        await look_up(service, key, model="arm/bm25")
        for behaviour in (failing, hanging):
            service.arms.behaviour["bm25"] = behaviour
            refused(await look_up(service, key, model="arm/bm25"), 503, "not_ready")


@pytest.mark.slow
async def test_a_repeated_answer_of_an_arm_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    key = {"idempotency-key": "k-1"}
    async with Service(tmp_path).running() as service:
        await look_up(service, key, agent={"allowed_arms": ["none"]})
    arms = {"bm25": {"kind": "bm25"}, "none": {"kind": "none"}}
    async with Service(tmp_path, arms={"bm25": arms["bm25"]}).running() as service:
        body = {"query": QUESTION, "agent": {"allowed_arms": ["none"]}}
        response = await service.client.post("/v1/retrieve", json=body, headers=key)
        assert "'none', which is gone" in refused(response, 409, "idempotency_conflict", "Idempotency-Key")
    async with Service(tmp_path, arms=arms).running() as service:
        await look_up(service, {"idempotency-key": "k-2"}, agent={"excluded_arms": ["bm25"]})
    arms["other"] = arms.pop("none")
    async with Service(tmp_path, arms=arms).running() as service:
        response = await look_up(service, {"idempotency-key": "k-2"}, agent={"excluded_arms": ["bm25"]})
        assert "'none'" in refused(response, 409, "idempotency_conflict", "Idempotency-Key")


async def test_a_service_is_not_ready_before_what_is_behind_it_was_reached(tmp_path: Path) -> None:
    up = asyncio.Event()

    async def reach() -> None:
        await up.wait()

    async with Service(tmp_path, reach=reach).running() as service:
        assert (await service.client.get("/ready")).status_code == 503
        refused(await look_up(service), 503, "not_ready")
        assert (await rows(service))["decisions"] == 0
        up.set()
        async with asyncio.timeout(10):
            while not service.replica.ready:
                await asyncio.sleep(0)
        assert (await look_up(service)).status_code == 200


async def test_an_encoder_that_does_not_fit_the_features_is_found_at_the_start(tmp_path: Path) -> None:
    embedding = {"backbone": "tiny", "dims": DIM + 1}
    async with Service(tmp_path, features={"embedding": embedding}).running() as service:
        with pytest.raises(ValueError, match=f"fewer than dims: {DIM + 1}"):
            service.replica.check()
        assert (await service.client.get("/ready")).status_code == 503
