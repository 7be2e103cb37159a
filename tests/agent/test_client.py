"""The client: what it sends, how it waits, and what it makes of failures."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import orjson
import pytest

from agent.client import ATTEMPTS, Answer, AnswerFailedError, Client, ClientError, retry_after_s

AGENT = {
    "decision_id": "d1",
    "policy_version": 3,
    "arm_drawn": "bm25",
    "arm_served": "bm25",
    "propensity": 0.5,
    "pmf": {"bm25": 0.5, "dense": 0.5},
    "cost": {"total": 1.0, "steps": 1},
}
FOUND = {"passages": [{"id": "p1", "title": "", "text": "", "score": 1.0}], "agent": AGENT}
BUSY = httpx.Response(
    503, headers={"retry-after": "0"}, json={"error": {"code": "overloaded", "message": "full"}}
)


def a_client(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client(httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(answer)))


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
        choices = [{"message": {"role": "assistant", "content": "Ada"}}]
        return httpx.Response(
            200, json={"choices": choices, "agent": {**AGENT, "passages": FOUND["passages"]}}
        )

    client = a_client(answer)
    found, said = await client.retrieve("Who?", k=2, model="arm/bm25"), await client.chat("Who?")
    assert bodies["/v1/retrieve"] == {"query": "Who?", "k": 2, "model": "arm/bm25", "agent": {}}
    assert bodies["/v1/chat/completions"] == {
        "model": "auto",
        "messages": [{"role": "user", "content": "Who?"}],
        "agent": {"return": ["passages"]},
    }
    assert found.passage_ids == said.passage_ids == ["p1"]
    assert (found.text, said.text) == ("", "Ada")
    assert found.agent.cost.model_dump() == {"total": 1.0, "steps": 1}
    assert found.latency_s > 0


async def test_a_busy_service_is_asked_again_after_the_pause_it_names() -> None:
    client = a_client(
        answering([BUSY, httpx.Response(429, headers={"retry-after": "0"}), httpx.Response(200, json=FOUND)])
    )
    assert isinstance(await client.retrieve("Who?", k=1), Answer)
    assert client.retries == 2


async def test_a_service_that_stays_busy_is_given_up_with_its_own_words() -> None:
    client = a_client(lambda _: BUSY)
    with pytest.raises(
        ClientError, match=rf"failed {ATTEMPTS} times, the last time with: .* 503, overloaded: full"
    ):
        await client.policy()
    assert client.retries == ATTEMPTS - 1


async def test_a_service_out_of_reach_is_told_at_once() -> None:
    client = a_client(answering([httpx.ConnectError("refused")]))
    with pytest.raises(
        ClientError, match=r"no service answers at http://service.* \(ConnectError refused\); is it"
    ):
        await client.arms()
    assert client.retries == 0


async def test_a_connection_lost_in_the_middle_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)

    monkeypatch.setattr("asyncio.sleep", note)
    arms = httpx.Response(200, json={"arms": [{"name": "bm25"}, {"name": "old", "enabled": False}]})
    lost = httpx.ReadError("reset")
    client = a_client(answering([arms, lost, lost, httpx.Response(200, json=FOUND)]))
    assert await client.arms() == ["bm25"]
    assert (await client.retrieve("Who?", k=1)).passage_ids == ["p1"]
    assert pauses == [0.1, 0.2]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (502, AnswerFailedError),
        (504, AnswerFailedError),
        (408, AnswerFailedError),
        (400, ClientError),
        (401, ClientError),
    ],
)
async def test_a_failed_answer_is_told_from_a_refused_request(status: int, kind: type[ClientError]) -> None:
    said = {"error": {"code": "arm_failed", "message": "dense is down"}}
    client = a_client(lambda _: httpx.Response(status, json=said))
    with pytest.raises(
        ClientError, match=f"POST /v1/retrieve gave {status}, arm_failed: dense is down"
    ) as raised:
        await client.retrieve("Who?", k=1)
    assert type(raised.value) is kind


async def test_a_reply_of_another_shape_is_named() -> None:
    client = a_client(lambda _: httpx.Response(200, json={"agent": {**AGENT, "pmf": None}}))
    with pytest.raises(ClientError, match=r"/v1/retrieve gave a reply that is no Answer: agent\.pmf: "):
        await client.retrieve("Who?", k=1)
    html = a_client(lambda _: httpx.Response(404, text="<h1>Not found</h1>"))
    with pytest.raises(ClientError, match=r"GET /v1/policy gave 404, <h1>Not found"):
        await html.policy()


async def test_fields_of_the_reward_that_are_not_known_are_left_out() -> None:
    reward = {"cost_weight": 0.5, "metrics": {"recall": {"weight": 2}}, "shape": "new"}
    client = a_client(lambda _: httpx.Response(200, json={"applied_seq": 4, "reward": reward}))
    policy = await client.policy()
    assert (policy.applied_seq, policy.reward.cost_weight) == (4, 0.5)
    assert policy.reward.metric("recall").weight == 2


async def test_feedback_carries_ids_and_returns_the_last_position() -> None:
    sent: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(orjson.loads(request.content))
        items = [{"status": "accepted", "log_seq": 7}, {"status": "accepted", "log_seq": 8}]
        return httpx.Response(202, json={"items": items})

    assert await a_client(answer).feedback("d1", {"em": 1.0, "f1": 0.5}) == 8
    assert sent == [
        {
            "items": [
                {"feedback_id": "d1:em", "decision_id": "d1", "metric_name": "em", "value": 1.0},
                {"feedback_id": "d1:f1", "decision_id": "d1", "metric_name": "f1", "value": 0.5},
            ]
        }
    ]


async def test_refused_feedback_is_named() -> None:
    items = [{"error": {"code": "invalid_value", "message": "2 is above 1"}}]
    client = a_client(lambda _: httpx.Response(202, json={"items": items}))
    with pytest.raises(ClientError, match=r"feedback d1:em was refused: .*2 is above 1"):
        await client.feedback("d1", {"em": 2.0})


def test_retry_after_is_seconds_or_a_date_and_bounded() -> None:
    assert retry_after_s(None, default=0.4) == 0.4
    assert retry_after_s("3", default=0.4) == 3.0
    assert retry_after_s("-3", default=0.4) == 0.0
    assert retry_after_s("86400", default=0.4) == 60.0
    soon = datetime.now(UTC) + timedelta(seconds=30)
    assert 20.0 < retry_after_s(format_datetime(soon, usegmt=True), default=0.4) <= 30.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT", default=0.4) == 0.0


async def test_a_version_is_chosen_and_a_decision_verified() -> None:
    state = {"applied_seq": 5, "reward": {}, "serving": {"version": 3, "pinned": True, "reason": "slow"}}
    asked: list[tuple[str, str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, request.content))
        if request.method == "POST":
            return httpx.Response(200, json=state)
        found = {"verified": False, "max_difference": 0.25, "why": ["it differs"]}
        return httpx.Response(200, json=found)

    client = a_client(answer)
    for served in (await client.rollback(3, "slow"), await client.promote(4, "fast")):
        assert served.serving is not None
        assert (served.serving.version, served.serving.pinned, served.serving.reason) == (3, True, "slow")
    found = await client.verify("d-1")
    assert (found.verified, found.max_difference, found.why) == (False, 0.25, ["it differs"])
    assert asked == [
        ("POST", "/v1/policies/3/rollback", b'{"reason":"slow"}'),
        ("POST", "/v1/policies/4/promote", b'{"reason":"fast"}'),
        ("GET", "/v1/decisions/d-1/verify", b""),
    ]
