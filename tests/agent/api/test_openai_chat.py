"""What clients that others wrote send to chat, and what they read: fields, tools, forms of answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from armwise.arms.llm import Prompt, base
from armwise.arms.llm.protocols import chat
from tests.agent.api.conftest import client_of, prompt_of
from tests.agent.asking import ask, events, refused, rows
from tests.agent.fakes import CONFIG, Service

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = [{"role": "user", "content": "how warm is the Danube?"}]
PARIS = '{"city": "Vienna"}'


def by_tools(prompt: Prompt) -> str | list[tuple[str, str]]:
    """Call the function once, and then answer from its result."""
    last = prompt.messages[-1]
    if last["role"] == "tool":
        return f"It says {last['content']}."
    return [("weather", PARIS), ("weather", '{"city": "Graz"}')] if "tools" in prompt.options else "Cold."


@pytest.fixture
async def calling(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, base.ScriptedGenerator(by_tools)).running() as service:
        yield service


NOTHING: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "n": 1,
    "stop": None,
    "temperature": None,
    "stream": None,
    "modalities": ["text"],
}

HARMLESS: dict[str, Any] = {
    "metadata": {"a": "b"},
    "user": "ada",
    "store": True,
    "service_tier": "auto",
    "reasoning_effort": "low",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "a field of next year": [{"x": 1}],
    "stream_options": {"include_obfuscation": False, "new": 1},
}


@pytest.mark.parametrize("fields", [NOTHING, HARMLESS])
async def test_fields_that_ask_for_nothing_are_ignored(service: Service, fields: dict[str, Any]) -> None:
    response = await ask(service, **fields)
    assert response.status_code == 200, response.text
    assert prompt_of(service).options == {}


@pytest.mark.parametrize(
    ("tools", "passed_on"),
    [
        ({}, set()),
        ({"tools": []}, set()),
        ({"tools": None}, set()),
        ({"tools": [WEATHER]}, {"tools", "tool_choice", "parallel_tool_calls"}),
    ],
)
def test_how_tools_are_called_is_passed_on_with_tools_alone(
    tools: dict[str, Any], passed_on: set[str]
) -> None:
    fields = {"messages": QUESTION, "tool_choice": "none", "parallel_tool_calls": False}
    given = chat.read_options(fields | tools)
    assert given.keys() & {"tools", "tool_choice", "parallel_tool_calls"} == passed_on


@pytest.mark.parametrize(
    ("given", "kept"), [({}, {}), ({"is_error": False}, {}), ({"is_error": True}, {"is_error": True})]
)
def test_a_result_says_only_that_it_is_an_error(given: dict[str, Any], kept: dict[str, Any]) -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": "x"}
    messages = [*QUESTION, {"role": "assistant", "tool_calls": [call]}, result | given]
    read = chat.read_messages({"messages": messages})
    assert read[-1] == result | kept


async def test_what_asks_for_nothing_is_the_same_request_under_a_key(service: Service) -> None:
    key = {"idempotency-key": "d-1"}
    first = await ask(service, key)
    again = await ask(service, key, stream=None, a_field_of_next_year=None, stop=None)
    assert again.json()["choices"] == first.json()["choices"]
    other = await ask(service, key, a_field_of_next_year=1)
    refused(other, 409, "idempotency_conflict", "Idempotency-Key")


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("logprobs", {"logprobs": True}),
        ("presence_penalty", {"presence_penalty": 1}),
        ("logit_bias", {"logit_bias": {"50256": -100}}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("functions", {"functions": [{"name": "f"}]}),
        ("tools", {"tools": [{"type": "mcp", "server_label": "s"}]}),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_before_the_draw(
    service: Service, param: str, fields: dict[str, Any]
) -> None:
    before = await rows(service)
    refused(await ask(service, **fields), 400, "unsupported_parameter", param)
    assert await rows(service) == before


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tools", {"tools": [WEATHER, WEATHER]}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        ("n", {"n": 0}),
    ],
)
async def test_a_value_that_means_nothing_is_refused_by_its_name(
    service: Service, param: str, fields: dict[str, Any]
) -> None:
    refused(await ask(service, **fields), 400, "invalid_value", param)


@pytest.mark.parametrize(
    "messages",
    [
        [*QUESTION, {"role": "tool", "content": "x"}],
        [{"role": "system"}, *QUESTION],
        [{"role": "assistant", "content": None, "refusal": "No."}, *QUESTION],
    ],
)
async def test_a_conversation_of_another_form_is_answered(
    service: Service, messages: list[dict[str, Any]]
) -> None:
    response = await ask(service, messages=messages, tools=[{"type": "custom"}])
    assert response.status_code == 200, response.text


async def test_each_model_that_is_listed_is_found_by_its_id(service: Service) -> None:
    client = client_of(service)
    async for model in client.models.list():
        assert await client.models.retrieve(model.id) == model


async def test_the_official_client_calls_functions_and_gives_their_results(calling: Service) -> None:
    client = client_of(calling)
    first = await client.chat.completions.create(model="auto", messages=QUESTION, tools=[WEATHER])  # type: ignore[list-item,arg-type]
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]  # type: ignore[union-attr]
    assert called == [("weather", PARIS), ("weather", '{"city": "Graz"}')]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "7 C"} for call in choice.message.tool_calls
    ]
    messages: Any = [*QUESTION, choice.message.model_dump(), *results]
    second = await client.chat.completions.create(model="auto", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
    assert second.choices[0].message.content == "It says 7 C."
    assert second.choices[0].finish_reason == "stop"
    roles = [message["role"] for message in prompt_of(calling).messages]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    passages = [message["content"].count("<passages>") for message in prompt_of(calling).messages]
    assert sum(passages) <= 1
    called_by = prompt_of(calling).messages[2]["tool_calls"]
    assert [call["id"] for call in called_by] == [call.id for call in choice.message.tool_calls]


async def a_round(service: Service, **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the reply to a question that calls functions, and the conversation with their results."""
    body = (await ask(service, messages=QUESTION, tools=[WEATHER], **fields)).json()
    message = body["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "7 C"} for call in message["tool_calls"]
    ]
    return body, [*QUESTION, message, *results]


async def test_a_round_keeps_its_arm_and_episode_and_is_learned_once(calling: Service) -> None:
    for _ in range(5):  # five draws: one arm five times by chance would not show anything
        first, messages = await a_round(calling)
        ours = first["agent"]
        assert (ours["mode"], ours["episode_id"]) == ("explore", ours["decision_id"])
        again = (await ask(calling, messages=messages, tools=[WEATHER])).json()["agent"]
        assert (again["mode"], again["propensity"]) == ("forced", 1.0)
        assert again["arm_served"] == ours["arm_served"]
        assert again["episode_id"] == ours["decision_id"] != again["decision_id"]
        arm, query, _ = calling.arms.calls[-1]
        before = calling.arms.calls[-2]
        assert (arm, query.text, query.seed) == (before[0], before[1].text, before[1].seed)


async def test_a_second_round_of_one_question_leads_back_to_the_first_decision(calling: Service) -> None:
    first, messages = await a_round(calling)
    assert isinstance(calling.generator, base.ScriptedGenerator)
    calling.generator._reply = lambda _: [("weather", PARIS)]  # noqa: SLF001
    second = (await ask(calling, messages=messages, tools=[WEATHER])).json()
    (call,) = second["choices"][0]["message"]["tool_calls"]
    assert call["id"] not in json.dumps(messages)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "8 C"}
    messages = [*messages, second["choices"][0]["message"], result]
    third = (await ask(calling, messages=messages, tools=[WEATHER])).json()["agent"]
    assert (third["mode"], third["arm_served"]) == ("forced", first["agent"]["arm_served"])
    assert third["episode_id"] == first["agent"]["decision_id"]
    assert len({query.seed for _, query, _ in calling.arms.calls}) == 1


async def test_a_round_goes_on_at_another_replica(calling: Service, tmp_path: Path) -> None:
    first, messages = await a_round(calling)
    async with Service(tmp_path, base.ScriptedGenerator(by_tools)).running() as other:
        ours = (await ask(other, messages=messages, tools=[WEATHER])).json()["agent"]
    assert (ours["mode"], ours["arm_served"]) == ("forced", first["agent"]["arm_served"])


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": {"same_arm": False}},
        {"messages": [{"role": "user", "content": "another question"}]},
        {"names": "call_0_unknown"},
        {"names": "call_of_somebody_else"},
    ],
)
async def test_an_arm_is_drawn_anew_without_a_decision_to_follow(
    calling: Service, fields: dict[str, Any]
) -> None:
    _, messages = await a_round(calling)
    if question := fields.get("messages"):
        messages = [*question, *messages[1:]]
    if name := fields.get("names"):
        messages = json.loads(json.dumps(messages).replace(messages[-1]["tool_call_id"], name))
        messages = [messages[0], messages[1], messages[-1]]
    ours = (await ask(calling, messages=messages, agent=fields.get("agent", {}))).json()["agent"]
    assert (ours["mode"], len(ours["pmf"])) == ("explore", 3)


async def test_an_arm_that_was_switched_off_or_excluded_since_is_not_forced(calling: Service) -> None:
    first, messages = await a_round(calling)
    arm = first["agent"]["arm_served"]
    ours = (await ask(calling, messages=messages, agent={"excluded_arms": [arm]})).json()["agent"]
    assert arm not in ours["pmf"]
    others = [name for name in first["agent"]["pmf"] if name != arm]
    ours = (await ask(calling, messages=messages, agent={"allowed_arms": others})).json()["agent"]
    assert (ours["mode"], set(ours["pmf"])) == ("explore", set(others))
    ours = (await ask(calling, messages=messages, agent={"allowed_arms": [arm]})).json()["agent"]
    assert (ours["mode"], ours["arm_served"]) == ("forced", arm)
    await calling.client.patch(f"/v1/arms/{arm}", json={"enabled": False})
    ours = (await ask(calling, messages=messages)).json()["agent"]
    assert (ours["mode"], len(ours["pmf"])) == ("explore", 2)


async def test_calls_repeat_exactly_under_an_idempotency_key_and_are_read_back(calling: Service) -> None:
    key = {"idempotency-key": "d-1"}
    wish: dict[str, Any] = {"messages": QUESTION, "tools": [WEATHER]}
    first = (await ask(calling, key, **wish)).json()
    again = (await ask(calling, key, **wish)).json()
    assert again == first
    streamed = events(await ask(calling, {"idempotency-key": "d-2"}, **wish, stream=True))
    repeated = events(await ask(calling, {"idempotency-key": "d-2"}, **wish, stream=True))
    assert calls_in(streamed) == calls_in(repeated)
    found = (await calling.client.get("/v1/decisions/d-1")).json()
    assert found["answer"] == ""
    assert found["choices"][0]["tool_calls"] == first["choices"][0]["message"]["tool_calls"]


def calls_in(frames: list[Any]) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of the calls of a stream, put together as clients do."""
    calls: dict[int, tuple[str, str, str]] = {}
    for frame in frames:
        for piece in frame["choices"][0]["delta"].get("tool_calls", ()):
            name, function = calls.get(piece["index"], ("", "", "")), piece["function"]
            calls[piece["index"]] = (
                name[0] or piece["id"],
                name[1] + function.get("name", ""),
                name[2] + function.get("arguments", ""),
            )
    assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"
    return list(calls.values())


async def test_several_answers_are_told_apart_and_all_are_paid_for(service: Service) -> None:
    key = {"idempotency-key": "d-1"}
    for _ in range(2):
        body = (await ask(service, key, n=3)).json()
        assert [choice["message"]["content"] for choice in body["choices"]] == ["The Danube does."] * 3
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert body["usage"]["completion_tokens"] == 9
    frames = events(await ask(service, n=2, stream=True))
    texts = {0: "", 1: ""}
    for frame in frames:
        for choice in frame["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert set(texts.values()) == {"The Danube does."}
    assert [frame["choices"][0]["finish_reason"] for frame in frames[-2:]] == ["stop", "stop"]


async def test_a_schema_that_the_engine_cannot_read_is_the_fault_of_the_request(service: Service) -> None:
    assert isinstance(service.generator, base.ScriptedGenerator)
    service.generator.error = base.PromptRefusedError("m: unrecognized type nonsense")
    response = await ask(service)
    assert "nonsense" in refused(response, 400, "invalid_value")
    assert response.headers["x-decision-id"]


async def test_the_calls_of_a_project_are_named_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in ("shop", "bank"):
        monkeypatch.setenv(f"{project.upper()}_KEY", project)
    keys = [{"env": f"{project.upper()}_KEY", "project": project} for project in ("shop", "bank")]
    async with Service(tmp_path, base.ScriptedGenerator(by_tools), keys=keys).running() as service:
        shop, bank = ({"authorization": f"Bearer {project}"} for project in ("shop", "bank"))
        first, messages = await a_round(service, headers=shop)
        assert "shop~" not in json.dumps(first)
        for headers, mode in ((shop, "forced"), (bank, "explore")):
            ours = (await ask(service, headers, messages=messages)).json()["agent"]
            assert ours["mode"] == mode


async def test_an_answer_is_not_observed_while_it_calls_functions(tmp_path: Path) -> None:
    reward = {**CONFIG["reward"], "metrics": {"graded": {"signal": "grade"}}}
    generator = base.ScriptedGenerator(by_tools)
    async with Service(tmp_path, generator, observations={"judge": 1.0}, reward=reward).running() as service:
        await ask(service, messages=QUESTION, tools=[WEATHER])
        await ask(service)
        await asyncio.wait_for(service.replica.workers.join("second_answers"), 10)
        assert "Cold." in prompt_of(service).messages[-1]["content"]
