"""The client: what it sends, how it waits, and what it makes of failures."""

import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import orjson
import pytest

from armwise.agent.client import Answer, AnswerFailedError, AsyncClient, AsyncStream, Client, ClientError
from armwise.agent.client.client import retry_after_s
from tests.agent.asking import QUESTION, record
from tests.agent.fakes import Service
from tests.endless import EndlessBody

AGENT = {
    "decision_id": "d1",
    "episode_id": None,
    "policy_version": 3,
    "mode": "explore",
    "arm_drawn": "dense",
    "arm_served": "bm25",
    "propensity": 0.5,
    "pmf": {"bm25": 0.5, "dense": 0.5},
    "cost": {"total": 1.0, "tokens": 0, "retrieval_ms": 2.5, "llm_ms": 0.0, "steps": 1, "usd": 0.0},
    "reward_deadline": 1800.0,
}
FOUND = {"passages": [{"id": "p1", "title": "", "text": "", "score": 1.0, "metadata": {}}], "agent": AGENT}
SERVING = {"version": 3, "pinned": True, "chosen": 3, "since": 5.0, "reason": "slow"}
POLICY = {
    "kind": "uniform",
    "params": {},
    "floor": 0.1,
    "version": 3,
    "parent": 2,
    "digest": "d3",
    "examples_seq": 4,
    "created_at": 5.0,
    "applied_seq": 5,
    "log_seq": 6,
    "serving": SERVING,
    "promotion": None,
    "canaries": [],
    "newest": None,
    "judge": None,
    "feedback": None,
    "drift": None,
    "reward": {},
    "router": None,
}
VERIFIED = {
    "decision_id": "d1",
    "policy_version": 3,
    "candidate": None,
    "share": 0.0,
    "mode": "explore",
    "verified": True,
    "erased": False,
    "tolerance": 1e-9,
    "max_difference": 0.0,
    "logged": {"bm25": 1.0},
    "recomputed": {"bm25": 1.0},
    "draw": {"u": 0.5, "arm": "bm25", "agrees": True},
    "shadow": None,
    "why": [],
}
BUSY = httpx.Response(
    503, headers={"retry-after": "0"}, json={"error": {"code": "overloaded", "message": "full"}}
)


def receipt(log_seq: int, status: str = "stored") -> dict[str, Any]:
    """Return what the service says of an item of feedback that it has kept."""
    ids = {"feedback_id": f"f{log_seq}", "decision_id": "d1", "episode_id": None}
    return {**ids, "status": status, "log_seq": log_seq}


def refused(code: str, message: str) -> dict[str, Any]:
    """Return what the service says of an item of feedback that it refuses."""
    error = {"type": "invalid_request_error", "code": code, "message": message, "param": "value"}
    return {"error": {**error, "request_id": None, "retryable": False, "decision_id": None, "reasons": None}}


Answering = Callable[[httpx.Request], httpx.Response]


def a_client(answer: Answering) -> AsyncClient:
    return AsyncClient("http://service/", http=httpx.AsyncClient(transport=httpx.MockTransport(answer)))


def a_blocking_client(answer: Answering, **settings: Any) -> Client:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return Client("http://service", http=http, **settings)


def endless(status: int, bodies: list[EndlessBody]) -> Answering:
    """Return what answers each request with a body that has no end."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["accept-encoding"] == "identity"
        bodies.append(EndlessBody())
        return httpx.Response(status, stream=bodies[-1])

    return answer


def write(client: Client, *, stream: bool) -> None:
    if stream:
        list(client.stream("Who?"))
    else:
        client.ask("Who?")


async def write_async(client: AsyncClient, *, stream: bool) -> None:
    if stream:
        async for _ in client.stream("Who?"):
            pass
    else:
        await client.ask("Who?")


@pytest.mark.parametrize("stream", [False, True])
async def test_only_the_beginning_of_an_error_is_read(stream: bool) -> None:
    bodies = list[EndlessBody]()
    with a_blocking_client(endless(400, bodies)) as client, pytest.raises(ClientError, match="gave 400, xxx"):
        write(client, stream=stream)
    async with a_client(endless(400, bodies)) as client:
        with pytest.raises(ClientError, match="gave 400, xxx"):
            await write_async(client, stream=stream)
    assert [(body.parts, body.closed) for body in bodies] == [(1, True), (1, True)]


@pytest.mark.parametrize(
    ("stream", "said"),
    [(False, "gave more than 100,000 bytes"), (True, "was lost: .*more than 100,000 bytes")],
)
async def test_a_reply_that_is_too_large_is_refused_and_not_requested_again(
    stream: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.client.client.REPLY_BYTES", 100_000)
    bodies = list[EndlessBody]()
    with a_blocking_client(endless(200, bodies)) as client, pytest.raises(ClientError, match=said):
        write(client, stream=stream)
    async with a_client(endless(200, bodies)) as client:
        with pytest.raises(ClientError, match=said):
            await write_async(client, stream=stream)
    assert [(body.parts, body.closed) for body in bodies] == [(2, True), (2, True)]


def answering(responses: Iterable[httpx.Response | Exception]) -> Callable[[httpx.Request], httpx.Response]:
    waiting = iter(responses)

    def answer(request: httpx.Request) -> httpx.Response:
        del request
        response = next(waiting)
        if isinstance(response, Exception):
            raise response
        return response

    return answer


async def test_both_endpoints_give_passages_cost_and_words() -> None:
    bodies: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        bodies[request.url.path] = orjson.loads(request.content)
        if request.url.path == "/v1/retrieve":
            return httpx.Response(200, json=FOUND)
        message = {"role": "assistant", "content": "Ada"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}]
        return httpx.Response(
            200, json={"choices": choices, "agent": {**AGENT, "passages": FOUND["passages"]}}
        )

    client = a_client(answer)
    found, said = await client.retrieve("Who?", k=2, arm="bm25"), await client.ask("Who?")
    assert bodies["/v1/retrieve"] == {"query": "Who?", "k": 2, "model": "arm/bm25", "agent": {}}
    assert bodies["/v1/chat/completions"] == {
        "model": "auto",
        "messages": [{"role": "user", "content": "Who?"}],
        "agent": {"return": ["passages"]},
    }
    assert found.passage_ids == said.passage_ids == ["p1"]
    await client.retrieve("Who?", k=0)
    assert bodies["/v1/retrieve"]["k"] == 0, "the service says what is wrong with it"
    turns = [{"role": "user", "content": text} for text in ("Who?", "And then?")]
    await client.ask(turns)
    assert bodies["/v1/chat/completions"]["messages"] == turns
    assert (found.text, said.text) == ("", "Ada")
    assert (found.cost.total, found.cost.steps, found.cost.retrieval_ms) == (1.0, 1, 2.5)
    assert 0 < found.latency_s < 60


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that an awaited client pauses between attempts, without the wait."""
    found: list[float] = []

    async def note(pause_s: float) -> None:
        found.append(pause_s)

    monkeypatch.setattr("asyncio.sleep", note)
    return found


async def test_a_busy_service_is_asked_again_after_the_pause_it_names(pauses: list[float]) -> None:
    client = a_client(
        answering([BUSY, httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(200, json=FOUND)])
    )
    assert isinstance(await client.retrieve("Who?", k=1), Answer)
    assert client.retries == 2
    assert pauses == [0.0, 7.0]


async def test_pauses_double_up_to_a_minute(pauses: list[float]) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(503)))
    with pytest.raises(ClientError, match="failed 13 times"):
        await AsyncClient("http://service", http=http, attempts=13).arms()
    assert pauses == pytest.approx([*(0.1 * 2**n for n in range(10)), 60.0, 60.0])


async def test_a_client_that_is_left_closes_its_connections() -> None:
    blocking, awaited = httpx.AsyncClient(), httpx.AsyncClient()
    with Client("http://service", http=blocking):
        assert not blocking.is_closed
    async with AsyncClient("http://service", http=awaited):
        assert not awaited.is_closed
    assert blocking.is_closed
    assert awaited.is_closed


async def test_a_service_out_of_reach_is_told_at_once() -> None:
    client = a_client(answering([httpx.ConnectError("refused")]))
    with pytest.raises(
        ClientError, match=r"no service answers at http://service.* \(ConnectError refused\); is it"
    ):
        await client.arms()
    assert client.retries == 0


async def test_a_connection_lost_in_the_middle_is_tried_again(pauses: list[float]) -> None:
    arms = httpx.Response(
        200, json={"arms": [{"name": "bm25", "enabled": True}, {"name": "old", "enabled": False}]}
    )
    lost = httpx.ReadError("reset")
    client = a_client(answering([arms, lost, lost, httpx.Response(200, json=FOUND)]))
    assert await client.arms() == ["bm25"]
    assert (await client.retrieve("Who?", k=1)).passage_ids == ["p1"]
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, AnswerFailedError),
        (502, AnswerFailedError),
        (504, AnswerFailedError),
        (599, AnswerFailedError),
        (499, ClientError),
        (408, AnswerFailedError),
        (400, ClientError),
        (401, ClientError),
    ],
)
async def test_a_failed_answer_is_told_from_a_refused_request(status: int, kind: type[ClientError]) -> None:
    said = {"error": {"code": "arm_failed", "message": "dense is down"}}
    client = a_client(lambda _: httpx.Response(status, json=said))
    with pytest.raises(
        ClientError, match=f"POST http://service/v1/retrieve gave {status}, arm_failed: dense is down"
    ) as raised:
        await client.retrieve("Who?", k=1)
    assert type(raised.value) is kind


def failing(status: int, code: str = "", **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "no", **more}})


@pytest.mark.parametrize(
    ("reply", "words", "retries"),
    [
        (BUSY, "failed 8 times, the last time with: .* 503, overloaded: full", 7),
        (
            failing(429, "insufficient_quota", retryable=False),
            "insufficient_quota: no; `armwise key",
            0,
        ),
        (failing(403, "forbidden"), "forbidden: no; .*`armwise key create`", 0),
        (failing(404, "unknown_arm"), "unknown_arm: no; .*`GET /v1/arms`", 0),
        (failing(404, "model_not_found"), "model_not_found: no; .*`GET /v1/models`", 0),
        (failing(400, "unknown_metric"), "unknown_metric: no; .*`reward.metrics`", 0),
        (failing(400, "unknown_host"), "unknown_host: no; .*`hosts`", 0),
        (httpx.Response(404, json={"error": "no such page"}), r'gave 404, {"error":"no such page"}$', 0),
        (httpx.Response(404, text="x" * 201), r"gave 404, x{200}$", 0),
        (httpx.Response(403, text="no"), "http://service/v1/arms gave 403, no", 0),
        (httpx.Response(200, text="<html>"), "http://service/v1/arms gave 200 and no JSON object", 0),
    ],
)
async def test_a_failure_is_told_in_the_words_of_the_service_with_its_remedy(
    reply: httpx.Response, words: str, retries: int
) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: reply))
    client = AsyncClient("http://user:password@service", http=http)
    with pytest.raises(ClientError, match=words) as raised:
        await client.request("GET", "/v1/arms")
    assert client.retries == retries
    assert "password" not in str(raised.value)


def test_an_address_is_told_without_its_password() -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(answering([httpx.ConnectError("refused")])))
    with pytest.raises(ClientError, match="no service answers at http://service "):
        Client("http://user:password@service", http=http).request("GET", "/v1/arms")


async def test_a_reply_of_another_shape_is_named() -> None:
    client = a_client(lambda _: httpx.Response(200, json={"agent": {**AGENT, "pmf": None}}))
    with pytest.raises(ClientError, match=r"retrieve gave a reply that does not fit Answer: agent\.pmf: "):
        await client.retrieve("Who?", k=1)


async def test_fields_of_the_reward_that_are_not_known_are_left_out() -> None:
    reward = {"cost_weight": 0.5, "metrics": {"recall": {"weight": 2}}, "shape": "new"}
    client = a_client(lambda _: httpx.Response(200, json={**POLICY, "applied_seq": 4, "reward": reward}))
    policy = await client.policy()
    assert (policy.applied_seq, policy.reward.cost_weight) == (4, 0.5)
    assert policy.reward.metric("recall").weight == 2


async def test_feedback_is_one_fact_however_often_it_is_sent() -> None:
    sent: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.headers["idempotency-key"], orjson.loads(request.content)))
        items = [receipt(7), receipt(8)]
        return BUSY if len(sent) == 1 else httpx.Response(202, json={"items": items})

    receipts = await a_client(answer).feedback("d1", {"em": 1.0}, right=True)
    assert ([one.status for one in receipts.items], receipts.log_seq) == (["stored"] * 2, 8)
    (key, body), again = sent
    assert again == (key, body)
    assert body["items"] == [
        {"decision_id": "d1", "metric_name": "em", "value": 1.0},
        {"decision_id": "d1", "metric_name": "right", "value": True},
    ]
    with pytest.raises(ValueError, match="no metric"):
        await a_client(answer).feedback("d1")


async def test_a_token_for_the_buttons_of_a_page_is_asked_for_by_the_id_of_an_answer() -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.raw_path.decode()))
        return httpx.Response(200, json={"token": "a.b", "expires_at": 1.0})

    assert await a_client(answer).feedback_token("news:d/1") == "a.b"
    assert asked == [("POST", "/v1/decisions/news%3Ad%2F1/feedback-token")]


async def test_refused_feedback_is_named() -> None:
    items = [refused("invalid_value", "2 is above 1")]
    client = a_client(lambda _: httpx.Response(202, json={"items": items}))
    with pytest.raises(ClientError, match=r"feedback em of d1 was refused, invalid_value: 2 is above 1"):
        await client.feedback("d1", {"em": 2.0})
    items.insert(0, receipt(7))
    with pytest.raises(ClientError, match=r"feedback em of d1 was refused, invalid_value") as raised:
        await client.feedback("d1", {"right": True, "em": 2.0})
    assert raised.value.code == "invalid_value"


async def test_feedback_is_learned_once_the_largest_position_is() -> None:
    items = [receipt(8), receipt(2, "duplicate")]
    receipts = await a_client(lambda _: httpx.Response(202, json={"items": items})).feedback(
        "d1", em=1.0, right=True
    )
    assert receipts.log_seq == 8
    items = []
    receipts = await a_client(lambda _: httpx.Response(202, json={"items": items})).feedback("d1", em=1.0)
    assert receipts.log_seq == 0, "without positions, there is nothing to wait for"


def test_retry_after_is_seconds_or_a_date_and_bounded() -> None:
    assert retry_after_s(None, default=0.4) == 0.4
    assert retry_after_s("3", default=0.4) == 3.0
    assert retry_after_s("-3", default=0.4) == 0.0
    assert retry_after_s("86400", default=0.4) == 60.0
    soon = datetime.now(UTC) + timedelta(seconds=30)
    assert 20.0 < retry_after_s(format_datetime(soon, usegmt=True), default=0.4) <= 30.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT", default=0.4) == 0.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 -0000", default=0.4) == 0.4, "of no time zone"


def test_a_response_has_two_minutes_and_a_connection_ten_seconds_unless_said_otherwise() -> None:
    waits: list[dict[str, float]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"])
        return httpx.Response(200, json={})

    a_blocking_client(answer).request("GET", "/health")
    a_blocking_client(answer).request("GET", "/health", timeout_s=3600.0)
    a_blocking_client(answer, timeout_s=3.0).request("GET", "/health")
    assert [(one["connect"], one["read"], one["write"]) for one in waits] == [
        (10.0, 120.0, 120.0),
        (3600.0, 3600.0, 3600.0),
        (3.0, 3.0, 3.0),
    ]


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers.get("authorization"))
        return httpx.Response(200, json={})

    monkeypatch.delenv("ARMWISE_URL", raising=False)
    monkeypatch.delenv("ARMWISE_API_KEY", raising=False)
    a_blocking_client(answer).request("GET", "/health")
    assert Client().url == "http://127.0.0.1:8000"
    monkeypatch.setenv("ARMWISE_URL", "http://elsewhere/")
    monkeypatch.setenv("ARMWISE_API_KEY", "of-environment")
    a_blocking_client(answer, key="given").request("GET", "/health")
    assert (Client().url, Client("http://given").url) == ("http://elsewhere", "http://given")
    assert shown == [None, "Bearer given"]


async def test_an_arm_and_an_id_go_where_the_service_looks_for_them() -> None:
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = orjson.loads(request.content) if request.content else None
        asked.append((request.url.raw_path.decode(), body and body["model"]))
        return httpx.Response(200, json=FOUND if body else VERIFIED)

    client = a_client(answer)
    await client.retrieve("Who?")
    await client.retrieve("Who?", arm="bm25")
    assert (await client.verify("a/b?c")).why == []
    assert asked == [
        ("/v1/retrieve", "auto"),
        ("/v1/retrieve", "arm/bm25"),
        ("/v1/decisions/a%2Fb%3Fc/verify", None),
    ]


@pytest.mark.usefixtures("pauses")
def test_a_change_is_sent_again_if_no_connection_was_made() -> None:
    replies: list[httpx.Response | Exception] = [
        httpx.Response(200, json={}),
        httpx.ConnectError("refused"),
        httpx.Response(200, json={"a": 1}),
    ]
    client = a_blocking_client(answering(replies))
    client.request("GET", "/health")
    assert client.request("POST", "/v1/keys", {"name": "x"}) == {"a": 1}


async def test_a_version_is_chosen_and_a_decision_verified() -> None:
    asked: list[tuple[str, str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, request.content))
        if request.method == "POST":
            return httpx.Response(200, json=POLICY)
        found = {**VERIFIED, "verified": False, "max_difference": 0.25, "why": ["it differs"]}
        return httpx.Response(200, json=found)

    client = a_client(answer)
    for served in (await client.rollback(3, "slow"), await client.promote(4, "fast")):
        assert (served.serving.version, served.serving.pinned, served.serving.reason) == (3, True, "slow")
    found = await client.verify("d-1")
    assert (found.verified, found.max_difference, found.why) == (False, 0.25, ["it differs"])
    assert asked == [
        ("POST", "/v1/policies/3/rollback", b'{"reason":"slow"}'),
        ("POST", "/v1/policies/4/promote", b'{"reason":"fast"}'),
        ("GET", "/v1/decisions/d-1/verify", b""),
    ]


async def test_a_question_sent_again_has_the_same_key_and_another_one_its_own() -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        assert orjson.loads(request.content)["agent"] == {}, "a header has it"
        return BUSY if len(keys) == 1 else httpx.Response(200, json=FOUND)

    client = a_client(answer)
    await client.retrieve("Who?", 1)
    await client.retrieve("Who?", 1)
    await client.retrieve("Who?", 1, key="mine")
    first, again, other, own = keys
    assert (first == again, first == other, own) == (True, False, "mine")


def test_a_client_that_blocks_sends_the_same_and_types_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_API_KEY", "secret")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.url.path == "/v1/feedback":
            return httpx.Response(202, json={"items": [receipt(1)]})
        return httpx.Response(200, json=FOUND)

    with a_blocking_client(answer) as client:
        found = client.retrieve("Who?", context={"device": "phone"}, explore=False)
        assert (found.decision_id, found.arm, found.propensity) == ("d1", "bm25", 0.5)
        client.feedback(found, {"em": 0.5}, thumb=1)
    asked, rated = (orjson.loads(request.content) for request in seen)
    agent = {"context": {"device": "phone"}, "explore": False}
    assert asked == {"query": "Who?", "model": "auto", "agent": agent}
    assert rated["items"] == [
        {"decision_id": "d1", "metric_name": "em", "value": 0.5},
        {"decision_id": "d1", "metric_name": "thumb", "value": 1},
    ]
    assert {request.headers["authorization"] for request in seen} == {"Bearer secret"}


CHOSEN = {
    "object": "decision",
    "decision_id": "d3",
    "episode_id": None,
    "mode": "explore",
    "policy_version": 3,
    "chosen": "small",
    "propensity": 0.05,
    "pmf": {"large": 0.95, "small": 0.05},
    "reward_deadline": 1800.0,
}


@pytest.mark.parametrize(
    ("incumbent", "sent"),
    [
        ("large", {"incumbent": {"arm": "large"}}),
        ({"large": 1.0}, {"incumbent": {"distribution": {"large": 1.0}}}),
        (None, {}),
    ],
)
async def test_a_choice_among_arms_of_another_system_has_the_callers_own(incumbent: Any, sent: Any) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=CHOSEN)

    one = a_blocking_client(answer).choose("who?", incumbent=incumbent, key="k-1")
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with AsyncClient("http://service", http=http) as client:
        other = await client.choose("who?", incumbent=incumbent, key="k-1")
    assert one == other
    assert (one.chosen, one.propensity) == ("small", 0.05)
    for request in seen:
        assert orjson.loads(request.content) == {"question": "who?", **sent}
        assert (request.url.path, request.headers["idempotency-key"]) == ("/v1/decisions", "k-1")


async def test_observations_are_sent_under_a_key_and_each_has_its_outcome() -> None:
    seen: list[httpx.Request] = []
    kept = {"decision_id": "o-1", "arm": "large", "status": "accepted", "evaluable": True, "log_seq": 7}
    error = {"type": "invalid_request_error", "code": "unknown_arm", "message": "?", "param": "arm"}
    error |= {"request_id": None, "retryable": False, "decision_id": None, "reasons": None}

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, json={"items": [kept, {"error": error}]})

    items = {"id": "o-1", "arm": "large"}, {"arm": "huge"}
    one = a_blocking_client(answer).observe(*items)
    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with AsyncClient("http://service", http=http) as client:
        other = await client.observe(*items, key="mine")
    assert one == other
    assert ([receipt.decision_id for receipt in one.kept], one.log_seq) == (["o-1"], 7)
    assert [orjson.loads(request.content) for request in seen] == [{"items": [*items]}] * 2
    assert [str(request.url.query, "ascii") for request in seen] == ["", ""]
    assert len(seen[0].headers["idempotency-key"]) == 32
    assert seen[1].headers["idempotency-key"] == "mine"
    with pytest.raises(ValueError, match="no decision"):
        a_blocking_client(answer).observe()


def lines(*events: Any) -> bytes:
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)


def word(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


BEGIN = {"choices": [], "agent": {**AGENT, "cost": None, "passages": FOUND["passages"]}}

END = {"choices": [], "agent": AGENT}

DONE = b"data: [DONE]\n\n"


async def test_a_stream_gives_the_text_as_it_comes_and_the_answer_at_its_end() -> None:
    said = lines(BEGIN, word("Ada"), word(" Lovelace"), END) + DONE
    busy = iter([True, False])

    def answer(request: httpx.Request) -> httpx.Response:
        assert orjson.loads(request.content)["stream"] is True
        return httpx.Response(429) if next(busy) else httpx.Response(200, content=said)

    blocking = a_blocking_client(answer).stream("Who?")
    with pytest.raises(ClientError, match="has not begun"):
        _ = blocking.decision_id
    assert list(blocking) == ["Ada", " Lovelace"]
    busy = iter([True, False])
    stream = a_client(answer).stream("Who?")
    async for _ in stream:
        assert stream.decision_id == "d1"
        with pytest.raises(ClientError, match="has not ended"):
            _ = stream.answer
    for whole in (stream.answer, blocking.answer):
        assert (whole.text, whole.passage_ids, whole.decision_id) == ("Ada Lovelace", ["p1"], "d1")
        assert 0 < whole.latency_s < 60


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_an_answer_with_separators_of_lines_that_are_none_of_a_stream_comes_whole(size: int) -> None:
    texts = ["a\u2028b", "c\u2029d\u0085", "\x0b\x0c\x1c\x1d\x1ee", "\r\n \u00e9\u6771\n"]
    sent = lines(BEGIN, *map(word, texts), END).replace(b"\n", b"\r\n") + DONE.rstrip()

    def answer(_: httpx.Request) -> httpx.Response:
        parts = [sent[i : i + size] for i in range(0, len(sent), size)]

        async def later() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        return httpx.Response(200, content=later())

    blocking = a_blocking_client(answer).stream("Who?")
    assert list(blocking) == texts
    stream = a_client(answer).stream("Who?")
    assert [text async for text in stream] == texts
    assert blocking.answer.text == stream.answer.text == "".join(texts)


def test_a_stream_that_breaks_off_names_the_decision() -> None:
    broken = lines(BEGIN, word("Ada"), {"error": {"code": "llm_failed", "message": "out of memory"}})
    stream = a_blocking_client(lambda _: httpx.Response(200, content=broken)).stream("Who?")
    with pytest.raises(AnswerFailedError, match="llm_failed: out of memory") as failure:
        list(stream)
    assert (failure.value.decision_id, failure.value.code) == ("d1", "llm_failed")


class Body(httpx.AsyncByteStream):
    """A body that is lost after its first part; says whether it was closed."""

    def __init__(self, *parts: bytes) -> None:
        self._parts, self.closed, self.left = parts, False, threading.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        raise httpx.ReadError("reset")

    async def aclose(self) -> None:
        self.closed = True
        self.left.set()


async def test_a_stream_that_is_lost_is_a_failed_answer_and_its_connection_is_closed() -> None:
    body = Body(lines(BEGIN, word("Ada")))
    stream = a_blocking_client(lambda _: httpx.Response(200, stream=body)).stream("Who?")
    with pytest.raises(AnswerFailedError, match=r"the stream was lost: .*reset"):
        list(stream)
    assert body.closed
    body = Body(lines(BEGIN, word("Ada")))
    awaited = a_client(lambda _: httpx.Response(200, stream=body)).stream("Who?")
    with pytest.raises(AnswerFailedError, match=r"the stream was lost: .*reset"):
        [_ async for _ in awaited]
    assert body.closed


async def test_a_service_that_has_begun_a_stream_was_reached_and_is_tried_again(
    pauses: list[float],
) -> None:

    def replies() -> Answering:
        said = httpx.Response(200, content=lines(BEGIN, word("Ada"), END) + DONE)
        return answering([said, httpx.ConnectError("refused"), httpx.Response(200, json=FOUND)])

    blocking, awaited = a_blocking_client(replies()), a_client(replies())
    assert list(blocking.stream("Who?")) == [text async for text in awaited.stream("Who?")] == ["Ada"]
    assert blocking.retrieve("Who?").passage_ids == (await awaited.retrieve("Who?")).passage_ids == ["p1"]
    assert pauses == [0.1, 0.1]


def test_a_stream_that_its_reader_leaves_closes_its_connection() -> None:
    body = Body(lines(BEGIN, word("Ada"), word(" Lovelace")))
    parts = iter(a_blocking_client(lambda _: httpx.Response(200, stream=body)).stream("Who?"))
    assert next(parts) == "Ada"
    assert not body.closed
    del parts
    assert body.left.wait(10)


def test_a_stream_of_a_service_that_stays_busy_is_given_up() -> None:
    error = {"error": {"code": "overloaded", "message": "full"}}
    busy = iter([httpx.Response(503, headers={"retry-after": "0"}, json=error) for _ in range(4)])
    client = a_blocking_client(lambda _: next(busy), attempts=3)
    with pytest.raises(ClientError, match=r"failed 3 times, the last time with: .* 503, overloaded: full"):
        list(client.stream("Who?"))
    assert len([*busy]) == 1


def test_an_error_says_what_to_do_and_has_its_parts() -> None:
    error = {"code": "invalid_api_key", "message": "a key is needed", "param": None, "retryable": False}
    client = a_blocking_client(lambda _: httpx.Response(401, json={"error": error}))
    with pytest.raises(ClientError, match=r"a key is needed; pass `key`, or set ARMWISE_API_KEY") as failure:
        client.ask("Who?")
    assert (failure.value.status, failure.value.code) == (401, "invalid_api_key")
    assert (failure.value.param, failure.value.decision_id) == (None, None)
    error |= {"code": "arm_failed", "param": "model", "decision_id": "d1"}
    with pytest.raises(ClientError) as failure:
        client.ask("Who?")
    assert (failure.value.param, failure.value.decision_id) == ("model", "d1")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "///"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(
        ClientError, match=r"is not an address of a service: http://127\.0\.0\.1:8000 would be"
    ):
        Client(url)


def test_a_change_that_may_have_been_carried_out_is_not_sent_again() -> None:
    client = a_blocking_client(answering([httpx.Response(200, json={}), httpx.ReadError("reset")]))
    assert client.request("GET", "/health") == {}
    with pytest.raises(ClientError, match=r"POST http://service/v1/keys was lost.*reset"):
        client.request("POST", "/v1/keys", {"name": "x"})


@pytest.mark.parametrize("written", [True, False])
async def test_it_speaks_to_the_service(service: Service, written: bool) -> None:
    """Over the application itself: what it asks is in the log, and its feedback is learned."""
    client = AsyncClient("http://service", http=service.client)
    if not written:
        found = await client.retrieve(QUESTION, 2, arm="bm25")
        assert found.passage_ids == ["bm25-1", "bm25-2"]
    else:
        stream = client.stream(QUESTION, context={"device": "phone"})
        assert "".join([text async for text in stream]) == "The Danube does."
        found = stream.answer
        assert found.cost.tokens > 0
    kept = await client.feedback(found, thumb=1, right=True)
    assert [one.status for one in kept.items] == ["stored"] * 2
    logged = await record(service, found.decision_id, lambda r: len(r.feedback) == 2)
    assert logged.execution is not None
    assert list(logged.execution.passages) == found.passage_ids


async def test_a_stream_that_is_refused_says_why() -> None:
    said = orjson.dumps({"error": {"code": "unknown_arm", "message": "there is no arm 'bm52'"}})

    async def later() -> AsyncIterator[bytes]:
        yield said

    client = a_client(answering([httpx.Response(404, content=later())]))
    with pytest.raises(ClientError, match="unknown_arm: there is no arm 'bm52'"):
        [part async for part in client.stream("Who?")]
    blocking = a_blocking_client(answering([httpx.Response(404, content=later())]))
    with pytest.raises(ClientError, match="unknown_arm: there is no arm 'bm52'"):
        list(blocking.stream("Who?", arm="bm52"))


async def test_a_client_brings_connections_of_its_own() -> None:
    with socket.socket() as probe:  # bound, and not listening
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        async with AsyncClient(url) as client:
            with pytest.raises(ClientError, match=rf"no service answers at {url} \(ConnectError"):
                await client.arms()
        with Client(url) as blocking, pytest.raises(ClientError, match="ConnectError"):
            blocking.request("GET", "/v1/arms")


async def test_a_stream_passes_over_comments_and_says_how_a_provider_fails() -> None:
    begun = '{"choices": [{"delta": {"content": "The"}}], "agent": {"decision_id": "d-1"}}'
    said = '{"error": {"message": "no more"}}'

    async def sent() -> AsyncGenerator[str, None]:
        for line in (": the model has written nothing yet", "", f"data: {begun}", f"data: {said}"):
            yield line

    events = AsyncStream(sent())
    parts = aiter(events)
    assert await anext(parts) == "The"
    with pytest.raises(AnswerFailedError, match="broke off, llm_failed: no more"):
        await anext(parts)
    assert (events.text, events.decision_id) == ("The", "d-1")
