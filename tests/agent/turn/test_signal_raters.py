"""The attacker has a key: of which answers its questions say something, and how much of that is learned."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent import wings
from armwise.agent.turn.steps import signals
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.events import Feedback
from armwise.feedback.log import conversations
from armwise.feedback.training_log.raters import read_rated
from tests.agent.fakes import Service, pass_time

KEYS: dict[str, dict[str, Any]] = {
    "APP": {"scopes": ["decide", "feedback"]},
    "ASKER": {"scopes": ["decide"]},
    "GRADER": {"scopes": ["decide", "feedback"], "source": "judge"},
    "ACME_ONE": {"scopes": ["decide"], "project": "acme"},
    "ACME_TWO": {"scopes": ["decide"], "project": "acme"},
}

METRICS: dict[str, Any] = {
    "thumb": {"range": [-1, 1]},
    "again": {"signal": "retry"},
    "dearer": {"signal": "escalation"},
    "broken": {"signal": "tool_error"},
    "misshapen": {"signal": "schema_error"},
    "left": {"signal": "abandoned"},
}

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}

SCHEMA = {"type": "json_schema", "json_schema": {"name": "river", "schema": {"type": "object"}}}


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service with several keys, whose model calls a function where it may."""
    for name in KEYS:
        monkeypatch.setenv(name, f"{name}-secret")
    model = ScriptedGenerator(
        lambda prompt: [("look_up", "{}")] if prompt.options.get("tools") else "The Danube."
    )
    async with Service(
        tmp_path,
        generator=model,
        arms={"small": {"kind": "none"}, "other": {"kind": "none"}},
        reward={"metrics": METRICS, "cost_weight": 0.0, "complete": "any", "correction_time": "PT0S"},
        keys=[{"env": name, **key} for name, key in KEYS.items()],
        tap={},
    ).running() as service:
        yield service


async def post(service: Service, key: str, path: str, body: Any, **headers: str) -> httpx.Response:
    headers["authorization"] = f"Bearer {key}-secret"
    return await service.client.post(path, json=body, headers=headers)


async def ask(
    service: Service, key: str, question: str = "Which river?", talk: str | None = "talk", **fields: Any
) -> Any:
    """Ask in a conversation; return the reply once what follows from it is written."""
    reply = await send(service, key, question, talk, **fields)
    await service.replica.workers.join("signals", "answers")
    return reply


async def send(
    service: Service, key: str, question: str = "Which river?", talk: str | None = "talk", **fields: Any
) -> Any:
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": question}],
        "agent": {} if talk is None else {"episode_id": talk},
        **fields,
    }
    answer = await post(service, key, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def decision_of(reply: Any) -> str:
    return str(reply["agent"]["decision_id"])


def items(service: Service, decision_id: str) -> dict[str, Feedback]:
    """Return the feedback on a decision by metric."""
    record = service.replica.store.record(decision_id)
    assert record is not None
    return {item.metric: item for item in record.feedback}


def values(service: Service, decision_id: str) -> dict[str, float | None]:
    return {metric: item.value for metric, item in items(service, decision_id).items()}


# -- whose share a signal counts in --------------------------------------------------------------------


@pytest.mark.parametrize("key", ["APP", "ASKER", "GRADER"])
async def test_a_signal_counts_in_the_share_of_the_key_that_caused_it(service: Service, key: str) -> None:
    first = decision_of(await ask(service, key))
    await ask(service, key)
    assert {
        (item.metric, item.value, item.source, item.rater) for item in items(service, first).values()
    } == {("again", 1.0, "user", key), ("dearer", 0.0, "user", key)}


async def test_all_signals_that_requests_cause_name_the_rater(service: Service) -> None:
    shaped = decision_of(await ask(service, "ASKER", response_format=SCHEMA))
    called = await ask(service, "ASKER", talk=None, tools=[TOOL])
    await ask_with_result(service, "ASKER", called)
    pass_time(service.config.reward.wait_s / 2)
    async with asyncio.timeout(10):
        while "left" not in values(service, decision_of(called)):
            await asyncio.sleep(0.005)
    found = {**items(service, shaped), **items(service, decision_of(called))}
    assert {metric: (item.value, item.source, item.rater) for metric, item in found.items()} == {
        "misshapen": (1.0, "user", "ASKER"),
        "broken": (1.0, "user", "ASKER"),
        "left": (found["left"].value, "user", "ASKER"),
    }


async def learned(service: Service) -> list[tuple[str, bool]]:
    """Learn, and return who rated each decision, and whether that was learned."""
    await service.learn()
    return read_rated(service.replica.store, service.config.reward.join)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [["ASKER"], ["ACME_ONE", "ACME_TWO"]])
async def test_questions_asked_again_teach_no_more_than_one_share(service: Service, keys: list[str]) -> None:
    for _ in range(45):
        answered = decision_of(await send(service, "APP", talk=None))
        body = {"decision_id": answered, "metric_name": "thumb", "value": 1.0}
        assert (await post(service, "APP", "/v1/feedback", body)).status_code == 202
    assert await learned(service) == [("APP", True)] * 45
    for _ in range(60 // len(keys)):
        for key in keys:
            await ask(service, key)
    caused = (await learned(service))[45:]
    assert len(caused) == 5, "a quarter of twenty; the rest waits for its deadline"
    assert all(is_learned for _, is_learned in caused)


async def test_metrics_of_an_observation_count_in_the_share_of_its_sender(service: Service) -> None:
    body = {"id": "seen", "question": "Which river?", "arm": "small", "metrics": {"thumb": 1.0}}
    reply = await post(service, "APP", "/v1/observations", {"items": [body]})
    assert reply.status_code == 202, reply.text
    assert items(service, "seen")["thumb"].rater == "APP"
    record = service.replica.store.record("seen")
    assert record is not None
    assert record.decision.asked_by == "APP", "so that the next turn may say something of it"


# -- of whose answers --------------------------------------------------------------------------------


async def test_a_question_of_another_key_says_nothing_of_an_answer(service: Service) -> None:
    first = decision_of(await ask(service, "APP"))
    await ask(service, "ASKER")
    assert values(service, first) == {}
    await ask(service, "APP")
    assert values(service, first) == {"again": 1.0, "dearer": 0.0}, "nor does it stand between"


async def test_another_key_cannot_make_a_conversation_look_continued(service: Service) -> None:
    first = decision_of(await ask(service, "APP"))
    await ask(service, "ASKER")
    pass_time(service.config.reward.wait_s / 2)
    async with asyncio.timeout(10):
        while not values(service, first):
            await asyncio.sleep(0.005)
    assert values(service, first) == {"left": 1.0}


async def ask_with_result(service: Service, key: str, called: Any, **agent: Any) -> Any:
    """Ask with the result of a call of an earlier answer, which failed."""
    message = called["choices"][0]["message"]
    (call,) = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Error: no such table"}
    messages = [{"role": "user", "content": "Which river?"}, message, result]
    body = {"model": "auto", "messages": messages, "tools": [TOOL], "agent": agent}
    answer = await post(service, key, "/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    await service.replica.workers.join("signals", "answers")
    return answer.json()


@pytest.mark.parametrize(
    ("key", "agent", "written"),
    [
        ("APP", {}, {"broken": 1.0}),
        ("APP", {"episode_id": "talk"}, {"broken": 1.0}),
        ("APP", {"episode_id": "own"}, {}),
        ("ASKER", {}, {}),
        ("ASKER", {"episode_id": "talk"}, {}),
        ("ASKER", {"episode_id": "own"}, {}),
    ],
)
async def test_the_id_of_a_call_counts_for_its_caller_in_its_episode_alone(
    service: Service, key: str, agent: dict[str, str], written: dict[str, float]
) -> None:
    called = await ask(service, "APP", tools=[TOOL])
    forged = await ask_with_result(service, key, called, **agent)
    assert values(service, decision_of(called)) == written
    record = service.replica.store.record(decision_of(forged))
    assert record is not None
    joined = record.decision.episode_id == "talk"
    assert joined == ((key == "APP" and agent != {"episode_id": "own"}) or agent == {"episode_id": "talk"})


# -- ids of signals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.0, None])
@pytest.mark.parametrize("place", ["item", "batch", "header"])
async def test_ids_of_signals_are_reserved(service: Service, value: float | None, place: str) -> None:
    first = decision_of(await ask(service, "ACME_ONE"))
    own = decision_of(await ask(service, "APP"))
    name = f"signal:retry:{own}" if place == "header" else f"signal:retry:acme~{first}"
    item: dict[str, Any] = {"decision_id": own, "metric_name": "thumb", "value": value}
    if place == "header":
        reply = await post(service, "APP", "/v1/feedback", item, **{"idempotency-key": name})
    else:
        item["feedback_id"] = name
        body = {"items": [item]} if place == "batch" else item
        reply = await post(service, "APP", "/v1/feedback", body)
    assert reply.status_code == 400
    assert (
        f"feedback id '{name}' begins with 'signal:', which is reserved for signals: choose another"
        in reply.text
    )
    await ask(service, "ACME_ONE")
    assert values(service, f"acme~{first}") == {"again": 1.0, "dearer": 0.0}


# -- the queues --------------------------------------------------------------------------------------


async def test_a_signal_written_before_ends_no_work(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts = [decision_of(await ask(service, "APP", talk=talk)) for talk in ("one", "two")]
    before = Feedback(f"signal:retry:{firsts[0]}", firsts[0], "again", 0.0, received_at=service.clock())
    service.replica.store.append([before])
    offered, previous_turn = threading.Event(), conversations.previous_turn

    def wait(*arguments: Any) -> Any:
        assert offered.wait(10)
        return previous_turn(*arguments)

    monkeypatch.setattr(conversations, "previous_turn", wait)
    for talk in ("one", "two"):
        await send(service, "APP", talk=talk)
    offered.set()
    await service.replica.workers.join("signals", "answers")
    assert [values(service, first) for first in firsts] == [
        {"again": 0.0, "dearer": 0.0},
        {"again": 1.0, "dearer": 0.0},
    ]


class Validation:
    """Stands for the validation of answers; a schema with the title slow waits until `released` is set."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.titles = list[str]()

    def __call__(self, schema: Mapping[str, Any], _: str) -> bool:
        if schema["title"].startswith("slow"):
            assert self.released.wait(10)
        self.titles.append(schema["title"])
        return True


@pytest.fixture
def validation(monkeypatch: pytest.MonkeyPatch) -> Validation:
    validation, load = Validation(), wings.load

    def stand_in(name: str) -> Callable[..., Any]:
        return validation if name == wings.SATISFIES_SCHEMA else load(name)

    monkeypatch.setattr(wings, "load", stand_in)
    return validation


async def shaped(service: Service, key: str, title: str) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": title}}}
    return decision_of(await send(service, key, talk=None, response_format=form))


async def test_other_signals_do_not_wait_for_slow_schemas(service: Service, validation: Validation) -> None:
    for number in range(3):
        await shaped(service, "ASKER", f"slow {number}")
    first = decision_of(await send(service, "APP"))
    await send(service, "APP")
    async with asyncio.timeout(10):
        while len(values(service, first)) < 2:
            await asyncio.sleep(0.005)
    assert validation.titles == [], "all of them wait still"
    validation.released.set()
    await service.replica.workers.join("signals", "answers")
    assert validation.titles == ["slow 0", "slow 1", "slow 2"]


async def test_callers_have_their_answers_validated_in_turn(service: Service, validation: Validation) -> None:
    for number in range(3):
        await shaped(service, "ASKER", f"slow {number}")
    written = [await shaped(service, key, key) for key in ("APP", "APP", "GRADER")]
    validation.released.set()
    await service.replica.workers.join("signals", "answers")
    assert validation.titles == ["slow 0", "slow 1", "APP", "GRADER", "slow 2", "APP"]
    assert [values(service, one) for one in written] == [{"misshapen": 0.0}] * 3


async def test_one_caller_cannot_fill_the_queue_of_schemas(
    service: Service, validation: Validation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "ANSWERS", 2)
    monkeypatch.setattr(signals, "QUEUE", 3)
    shed = list[str]()
    monkeypatch.setattr(service.replica.find_step("signals").telemetry, "count_observation", shed.append)
    for number in range(4):
        await shaped(service, "ASKER", f"slow {number}")
    assert shed == ["shed"], "one is under way, and two wait"
    for _ in range(2):
        await shaped(service, "APP", "APP")
    assert shed == ["shed", "shed"], "three wait in all"
    validation.released.set()
    await service.replica.workers.join("signals", "answers")
    assert validation.titles == ["slow 0", "slow 1", "APP", "slow 2"]
