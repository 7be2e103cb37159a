"""What a client sends reaches the provider, and what the provider answers reaches the client, as it is.

Each test is of a kind of request that gateways are known to spoil.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.api import responses
from armwise.agent.background import read_failures
from armwise.agent.run_folder import RUN_FOLDER
from armwise.feedback.events import Status
from armwise.feedback.log import LoggedDecision
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from benchmarks.exchanges_bodies import stream, whole
from tests.agent.asking import record
from tests.agent.fakes import Service
from tests.agent.provider import (
    ANSWERS,
    DOORS,
    QUESTION,
    TOOL,
    Body,
    answered,
    completion,
    events_of,
    framed,
    message,
    request,
    response,
    said,
    send,
    serving,
)

PROTOCOLS = [*DOORS]

BOTH = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])

ALL = pytest.mark.parametrize("protocol", PROTOCOLS)

ROAD = '{"road": "A9"}'

CALL = {"id": "call_7Qx", "type": "function", "function": {"name": "traffic", "arguments": ROAD}}


def decision_of(reply: Body) -> str:
    """Return the decision that an answer names."""
    return str(reply["id"]).partition("-" if reply["id"].startswith("chatcmpl-") else "_")[2]


async def logged(service: Service, decision_id: str) -> LoggedDecision:
    return await record(service, decision_id, lambda found: found.execution is not None)


# -- state of a model ------------------------------------------------------------------------------


def thoughtful(**fields: Any) -> Body:
    """Return an answer that reasons, and then calls a function."""
    reasoned = {"reasoning_content": "The A9 decides.", "reasoning_details": [{"type": "r", "data": "R"}]}
    calls = [{**CALL, "extra_content": {"google": {"thought_signature": "S"}}}]
    return completion({"role": "assistant", **reasoned, "content": None, "tool_calls": calls, **fields})


@BOTH
async def test_reasoning_and_ids_of_calls_return_to_their_model(tmp_path: Path, streamed: bool) -> None:
    given = thoughtful()
    given["choices"][0]["finish_reason"] = "tool_calls"
    tools = [TOOL["chat"]]
    async with serving(tmp_path, "chat", given, others={"other": "chat"}) as (service, provider):
        asked = request("chat", tools=tools, model="arm/direct")
        choice = (await answered(service, "chat", asked, streamed=streamed))["choices"][0]
        assert choice["message"] == given["choices"][0]["message"]
        assert choice["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": CALL["id"], "content": "jammed"}
        later = request("chat", choice["message"], result, tools=tools)
        provider.says(completion())
        await answered(service, "chat", later | {"model": "auto"}, streamed=streamed)
        assert provider.body["model"] == "m", "the arm that called goes on"
        assert provider.body["messages"] == later["messages"]
        reply = await answered(service, "chat", later | {"model": "arm/other"}, streamed=streamed)
        assert reply["choices"][0]["message"]["content"] == "It is."
        assert provider.body["model"] == "other"
        called = provider.body["messages"][1]
        assert called["tool_calls"] == [CALL], "without the signature"
        assert called.keys() <= {"role", "content", "tool_calls"}


@BOTH
async def test_reasoning_without_a_call_returns_to_its_model_alone(tmp_path: Path, streamed: bool) -> None:
    given = completion({"role": "assistant", "reasoning": "Bridges close at night.", "content": "Yes."})
    async with serving(tmp_path, "chat", given, others={"other": "chat"}) as (service, provider):
        asked = request("chat", model="arm/direct")
        spoken = (await answered(service, "chat", asked, streamed=streamed))["choices"][0]["message"]
        assert spoken["reasoning"] == "Bridges close at night."
        later = request("chat", spoken, {"role": "user", "content": "And at noon?"})
        provider.says(completion())
        for arm, kept in (("direct", True), ("other", False)):
            await answered(service, "chat", later | {"model": f"arm/{arm}"})
            assert ("reasoning" in provider.body["messages"][1]) == kept


@BOTH
async def test_thinking_and_signatures_pass_both_ways(tmp_path: Path, streamed: bool) -> None:
    blocks: list[Body] = [
        {"type": "thinking", "thinking": "The A9 decides.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "cmVk"},
        {"type": "tool_use", "id": "toolu_9", "name": "traffic", "input": {"road": "A9"}, "caller": {"t": 1}},
    ]
    given = message(*blocks, stop_reason="tool_use", container={"id": "c-1"})
    fields = {
        "tools": [TOOL["messages"]],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking"}]},
    }
    async with serving(tmp_path, "messages", given, others={"other": "messages"}) as (service, provider):
        asked = request("messages", **fields, model="arm/direct")
        reply = await answered(service, "messages", asked, streamed=streamed)
        assert reply["content"] == blocks
        assert (reply["stop_reason"], reply["container"]) == ("tool_use", {"id": "c-1"})
        sent = {name: value for name, value in provider.body.items() if name not in ("model", "stream")}
        assert sent == {name: value for name, value in asked.items() if name != "model"}
        result = {"type": "tool_result", "tool_use_id": "toolu_9", "content": "jammed"}
        called = {"role": "assistant", "content": reply["content"]}
        later = request("messages", called, {"role": "user", "content": [result]}, **fields)
        provider.says(ANSWERS["messages"])
        await answered(service, "messages", later, streamed=streamed)
        assert (provider.body["model"], provider.body["messages"]) == ("m", later["messages"])
        await answered(service, "messages", later | {"model": "arm/other"}, streamed=streamed)
        kinds = [block["type"] for block in provider.body["messages"][1]["content"]]
        assert (provider.body["model"], kinds) == ("other", ["tool_use"])


@BOTH
async def test_encrypted_reasoning_passes_both_ways(tmp_path: Path, streamed: bool) -> None:
    items: list[Body] = [
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "ZW5j"},
        {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_7Qx",
            "name": "traffic",
            "arguments": ROAD,
            "status": "completed",
        },
    ]
    fields = {
        "tools": [TOOL["responses"]],
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
    }
    given = response(*items)
    async with serving(tmp_path, "responses", given, others={"other": "responses"}) as (service, provider):
        asked = request("responses", **fields, model="arm/direct")
        reply = await answered(service, "responses", asked, streamed=streamed)
        assert reply["output"] == items
        sent = {name: value for name, value in provider.body.items() if name not in ("model", "stream")}
        assert sent == {name: value for name, value in asked.items() if name != "model"}
        result = {"type": "function_call_output", "call_id": "call_7Qx", "output": "jammed"}
        later = request("responses", *reply["output"], result, **fields)
        provider.says(response())
        await answered(service, "responses", later, streamed=streamed)
        assert (provider.body["model"], provider.body["input"]) == ("m", later["input"])
        await answered(service, "responses", later | {"model": "arm/other"}, streamed=streamed)
        kinds = [item.get("type", "message") for item in provider.body["input"]]
        assert provider.body["model"] == "other"
        assert kinds == ["message", "function_call", "function_call_output"]
        assert "id" not in provider.body["input"][1]


async def test_two_arms_with_the_same_calls_are_told_apart_by_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of a call that another project has got says nothing of who wrote it."""
    for project in ("shop", "bank"):
        monkeypatch.setenv(f"{project.upper()}_KEY", project)
    own = [{"env": f"{project.upper()}_KEY", "project": project} for project in ("shop", "bank")]
    given = thoughtful()
    async with serving(tmp_path, "chat", given, others={"other": "chat"}, keys=own) as (service, _):
        asked = request("chat", tools=[TOOL["chat"]], model="arm/direct")
        first = await answered(service, "chat", asked, authorization="Bearer shop")
        spoken = first["choices"][0]
        result = {"role": "tool", "tool_call_id": CALL["id"], "content": "jammed"}
        later = request("chat", spoken["message"], result, tools=[TOOL["chat"]])
        for project, known in (("shop", True), ("bank", False)):
            reply = await answered(service, "chat", later, authorization=f"Bearer {project}")
            assert (reply["agent"]["mode"] == "forced") == known


# -- the other door --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("effort", ["low", "high"])
async def test_effort_reaches_a_model_of_another_protocol(
    tmp_path: Path, streamed: bool, effort: str
) -> None:
    async with serving(tmp_path, "messages") as (service, provider):
        fields: dict[str, Body] = {"chat": {"reasoning_effort": effort}}
        fields["responses"] = {"reasoning": {"effort": effort}}
        for door, named in fields.items():
            asked = request(door, **named)
            await answered(service, door, asked, streamed=streamed)
            assert provider.body["output_config"] == {"effort": effort}
            assert provider.body["max_tokens"] > 0
    async with serving(tmp_path, "chat") as (service, provider):
        asked = request("messages", output_config={"effort": effort})
        await answered(service, "messages", asked, streamed=streamed)
        assert provider.body["reasoning_effort"] == effort


@BOTH
@pytest.mark.parametrize("door", PROTOCOLS)
@ALL
async def test_every_door_has_the_same_answer_of_every_model(
    tmp_path: Path, door: str, protocol: str, streamed: bool
) -> None:
    """A model that calls two functions at once is asked by each door, and gets both results."""
    calls = [("call_one", ROAD), ("call_two", '{"road": "A8"}')]
    by_protocol = {
        "chat": completion(
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    {"id": name, "type": "function", "function": {"name": "traffic", "arguments": text}}
                    for name, text in calls
                ],
            },
            "tool_calls",
        ),
        "messages": message(
            said("Let me see."),
            *(
                {"type": "tool_use", "id": name, "name": "traffic", "input": json.loads(text)}
                for name, text in calls
            ),
            stop_reason="tool_use",
        ),
        "responses": response(
            response()["output"][0]
            | {"content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            *(
                {
                    "id": f"fc_{name}",
                    "type": "function_call",
                    "call_id": name,
                    "name": "traffic",
                    "arguments": text,
                    "status": "completed",
                }
                for name, text in calls
            ),
        ),
    }
    async with serving(tmp_path, protocol, by_protocol[protocol]) as (service, provider):
        asked = request(door, tools=[TOOL[door]])
        reply = await answered(service, door, asked, streamed=streamed)
        assert read_answer(door, reply) == ("Let me see.", [(n, "traffic", json.loads(t)) for n, t in calls])
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert (found.execution.status, found.execution.finish_reason) == (Status.OK, "tool_calls")
        provider.says(ANSWERS[protocol])
        results = {name: f"result {name}" for name, _ in calls}
        again = request(door, *continued(door, reply, results), tools=[TOOL[door]])
        reply = await answered(service, door, again, streamed=streamed)
        assert read_answer(door, reply) == ("It is.", [])
        assert reply["agent"]["mode"] == "forced" if not streamed else True
        for text in (*results, *results.values()):
            assert provider.received[-1].raw.count(json.dumps(text).encode()) == (
                2 if text in results else 1
            ), "a call and its result have the same id"


def read_answer(door: str, reply: Body) -> tuple[str, list[tuple[str, str, Any]]]:
    """Return the text of an answer, and the id, the name and the arguments of its calls."""
    if door == "chat":
        spoken = reply["choices"][0]["message"]
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in spoken.get("tool_calls") or ()
        ]
        return spoken.get("content") or "", calls
    if door == "messages":
        blocks = reply["content"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        return text, [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    items = reply["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in items
        if item["type"] == "function_call"
    ]
    return "".join(part["text"] for part in parts), calls


def continued(door: str, reply: Body, results: dict[str, str]) -> list[Body]:
    """Return the messages or items after an answer: what it said, and the results of its calls."""
    if door == "chat":
        told = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results.items()]
        return [reply["choices"][0]["message"], *told]
    if door == "messages":
        blocks = [
            {"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results.items()
        ]
        return [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": blocks}]
    told = [
        {"type": "function_call_output", "call_id": name, "output": text} for name, text in results.items()
    ]
    return [*reply["output"], *told]


# -- errors of the provider ------------------------------------------------------------------------

REFUSAL = {"message": "field x is bad", "type": "invalid_request_error", "code": "bad_x", "param": "x"}


def error_of(reply: httpx.Response) -> Body:
    found: Body = reply.json()["error"]
    return found


@BOTH
@ALL
@pytest.mark.parametrize("status", [400, 413, 415, 422, 424])
async def test_a_refusal_of_the_provider_is_the_callers(
    tmp_path: Path, protocol: str, status: int, streamed: bool
) -> None:
    async with serving(tmp_path, protocol, others={"other": protocol}) as (service, provider):
        provider.refuses(status, {"type": "error", "error": REFUSAL})
        asked = request(protocol, model="arm/direct", stream=streamed)
        for _ in range(12):
            reply = await send(service, protocol, asked)
            assert reply.status_code == status, reply.text
            error = error_of(reply)
            assert (error["message"], error["code"], error["param"]) == ("field x is bad", "bad_x", "x")
            assert error["retryable"] is False
            assert "retry-after" not in reply.headers
        assert len(provider.received) == 12, "none was tried again"
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert found.execution.status is Status.LLM_FAILED
        assert "field x" not in (found.execution.error or ""), "its words are the caller's alone"
        provider.says(ANSWERS[protocol])
        later = await answered(service, protocol, request(protocol))
        assert later["agent"]["pmf"].keys() == {"direct", "other"}, "the model is as healthy as before"


@pytest.mark.parametrize("door", PROTOCOLS)
async def test_a_refusal_reaches_the_callers_of_other_doors(tmp_path: Path, door: str) -> None:
    protocol = "messages" if door == "chat" else "chat"
    async with serving(tmp_path, protocol) as (service, provider):
        provider.refuses(422, {"error": {"message": "no such effort", "type": "invalid_request_error"}})
        reply = await send(service, door, request(door))
        assert (reply.status_code, error_of(reply)["message"]) == (422, "no such effort")
        assert error_of(reply)["type"] == "invalid_request_error"


@BOTH
@ALL
@pytest.mark.parametrize("status", [429, 529])
async def test_a_busy_provider_says_when_to_come_back(
    tmp_path: Path, protocol: str, status: int, streamed: bool
) -> None:
    async with serving(tmp_path, protocol) as (service, provider):
        provider.refuses(status, {"error": {"message": "slow down", "code": "busy"}}, retry_after="7")
        for asked in (1, 1):
            reply = await send(service, protocol, request(protocol, stream=streamed))
            assert reply.status_code == 429, reply.text
            assert reply.headers["retry-after"] == "7"
            assert error_of(reply)["retryable"] is True
            assert len(provider.received) == asked, "until then nothing is sent"
        assert error_of(reply)["type"] == ("rate_limit_error" if protocol == "messages" else "requests")


async def test_another_arm_goes_on_while_one_provider_is_busy(tmp_path: Path) -> None:
    async with serving(tmp_path, "chat", others={"other": "messages"}) as (service, provider):
        provider.refuses(429, {"error": {"message": "slow down"}}, retry_after="60")
        first = await send(service, "chat", request("chat", model="arm/direct"))
        assert first.status_code == 429
        provider.says(ANSWERS["messages"])
        for _ in range(8):
            reply = await answered(service, "chat", request("chat"))
            assert reply["agent"]["pmf"] == {"other": 1.0}


async def test_a_busy_provider_without_a_time_is_asked_again_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        provider.refuses(429, {"error": {"message": "slow down"}})
        reply = await send(service, "chat", request("chat"))
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        provider.says(ANSWERS["chat"])
        assert (await send(service, "chat", request("chat"))).status_code == 200


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_what_is_wrong_with_the_service_is_not_the_callers(tmp_path: Path, status: int) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        provider.refuses(status, {"error": {"message": "key sk-secret is wrong"}})
        reply = await send(service, "chat", request("chat"))
        assert (reply.status_code, error_of(reply)["code"]) == (502, "llm_failed")
        assert error_of(reply)["retryable"] is False
        assert "sk-secret" not in reply.text


@pytest.mark.parametrize("code", ["model_not_found", "file_not_found"])
async def test_what_its_provider_does_not_have_is_a_404_and_an_operators_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    async with serving(tmp_path, "chat", others={"other": "chat"}) as (service, provider):
        assert (await send(service, "chat", request("chat", model="arm/direct"))).status_code == 200
        error = {"message": "no model m", "type": "invalid_request_error", "code": code}
        provider.refuses(404, {"error": error})
        for _ in range(4):
            reply = await send(service, "chat", request("chat", model="arm/direct"))
            assert reply.status_code == 404, reply.text
            assert error_of(reply).items() >= {**error, "param": None, "retryable": False}.items()
        assert ["HTTP 404" in failure.why for failure in read_failures()] == [True]
        provider.says(ANSWERS["chat"])
        later = await answered(service, "chat", request("chat"))
        fails = code == "model_not_found"  # no request names the model at a provider
        assert (later["agent"]["pmf"].keys() == {"other"}) == fails


@pytest.mark.parametrize("status", [500, 503, 418])
async def test_a_failed_answer_names_no_model_and_no_address(tmp_path: Path, status: int) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        provider.refuses(status, "<html>")
        reply = await send(service, "chat", request("chat", model="arm/direct"))
        assert f"HTTP {status}" in error_of(reply)["message"]
        assert provider.body["model"] not in error_of(reply)["message"].split()
        assert "http:" not in reply.text
        assert error_of(reply)["message"].count("HTTP") == 1
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert "http://127.0.0.1" in (found.execution.error or ""), "operators find it in the log"


@BOTH
@pytest.mark.parametrize(
    ("error", "status", "fails"),
    [
        ({"code": 424, "message": "the tool server fails"}, 424, False),
        ({"code": "invalid_image_url", "message": "no image"}, 400, False),
        ({"type": "external_connector_error", "code": "http_error", "message": "no tools"}, 400, False),
        ({"code": "server_error", "message": "invalid_image_url"}, 502, True),
        ({"code": 502, "message": "invalid_image_url"}, 502, True),
        ({"type": "invalid_request_error", "code": "invalid_api_key", "message": "no"}, 502, True),
    ],
)
async def test_an_error_in_an_answer_is_the_requests_by_its_code(
    tmp_path: Path, error: Body, status: int, fails: bool, streamed: bool
) -> None:
    async with serving(tmp_path, "chat", others={"other": "chat"}) as (service, provider):
        for _ in range(4):
            provider.says({"error": error})
            provider.events = [{"error": error}]
            reply = await send(service, "chat", request("chat", model="arm/direct", stream=streamed))
            assert reply.status_code == status, reply.text
        provider.says(ANSWERS["chat"])
        later = await answered(service, "chat", request("chat"))
        assert (later["agent"]["pmf"].keys() == {"other"}) == fails


# -- how answers end -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("door", "ended"), [("chat", "content_filter"), ("messages", "refusal"), ("responses", "incomplete")]
)
@pytest.mark.parametrize("text", ["", "It "])
async def test_a_filtered_answer_says_so_at_every_door(
    tmp_path: Path, door: str, ended: str, text: str, streamed: bool
) -> None:
    given = completion({"role": "assistant", "content": text}, "content_filter")
    async with serving(tmp_path, "chat", given) as (service, _):
        reply = await answered(service, door, request(door), streamed=streamed)
        assert how_it_ended(door, reply) == ended
        assert read_answer(door, reply)[0] == text
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert (found.execution.finish_reason, found.execution.answer) == ("content_filter", text)


def how_it_ended(door: str, reply: Body) -> str:
    if door == "chat":
        return str(reply["choices"][0]["finish_reason"])
    return str(reply["stop_reason" if door == "messages" else "status"])


@BOTH
async def test_a_refusal_keeps_its_details(tmp_path: Path, streamed: bool) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    given = message(stop_reason="refusal", stop_details=details)
    async with serving(tmp_path, "messages", given) as (service, _):
        reply = await answered(service, "messages", request("messages"), streamed=streamed)
        assert (reply["stop_reason"], reply["stop_details"], reply["content"]) == ("refusal", details, [])
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert found.execution.finish_reason == "refusal"
        reply = await answered(service, "chat", request("chat"), streamed=streamed)
        assert how_it_ended("chat", reply) == "content_filter"


@BOTH
async def test_a_refusal_in_words_is_one(tmp_path: Path, streamed: bool) -> None:
    given = completion({"role": "assistant", "content": None, "refusal": "I will not."})
    async with serving(tmp_path, "chat", given) as (service, _):
        reply = await answered(service, "chat", request("chat"), streamed=streamed)
        assert reply["choices"][0]["message"]["refusal"] == "I will not."
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert found.execution.answer == "I will not."


@BOTH
@pytest.mark.parametrize(
    ("stop", "kept"),
    [("pause_turn", "pause_turn"), ("model_context_window_exceeded", "context_window")],
)
async def test_a_turn_that_pauses_or_overflows_says_so(
    tmp_path: Path, stop: str, kept: str, streamed: bool
) -> None:
    blocks = [{"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}}]
    given = message(*blocks, stop_reason=stop)
    async with serving(tmp_path, "messages", given) as (service, _):
        reply = await answered(service, "messages", request("messages"), streamed=streamed)
        assert (reply["stop_reason"], reply["content"]) == (stop, blocks)
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert found.execution.finish_reason == kept


@BOTH
@pytest.mark.parametrize("door", PROTOCOLS)
async def test_an_error_in_a_choice_is_a_failure(tmp_path: Path, door: str, streamed: bool) -> None:
    given = completion({"role": "assistant", "content": ""}, "error")
    given["choices"][0]["error"] = {"code": 502, "message": "the host is down"}
    async with serving(tmp_path, "chat", given) as (service, _):
        reply = await send(service, door, request(door, stream=streamed))
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert found.execution.status is Status.LLM_FAILED
        if not streamed:
            assert (reply.status_code, error_of(reply)["code"]) == (502, "llm_failed")
            assert "the host is down" in error_of(reply)["message"]
        elif door == "chat":
            choice = events_of(reply)[-1]["choices"][0]
            assert (choice["finish_reason"], choice["error"]) == ("error", given["choices"][0]["error"])
        else:
            last = events_of(reply)[-1]
            assert last["type"] == ("error" if door == "messages" else "response.failed")
            assert "the host is down" in str(last)


UNENDED: list[tuple[str, Body]] = [
    *(("chat", completion({"content": "It is."}, reason)) for reason in ("", None)),
    ("messages", message(said("It is."), stop_reason=None)),
]
del UNENDED[0][1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize(("protocol", "given"), UNENDED)
async def test_a_whole_answer_needs_no_reason_why_it_ended(
    tmp_path: Path, protocol: str, given: Body
) -> None:
    async with serving(tmp_path, protocol, given) as (service, _):
        for door in PROTOCOLS:
            reply = await send(service, door, request(door))
            assert reply.status_code == 200, reply.text
            execution = (await logged(service, reply.headers["x-decision-id"])).execution
            assert execution is not None
            assert (execution.status, execution.finish_reason) == (Status.OK, "stop")
            assert execution.answer == "It is."
            if door == protocol:
                assert {"choices": given.get("choices"), "content": given.get("content")}.items() <= (
                    {"choices": None, "content": None} | reply.json()
                ).items()


@pytest.mark.parametrize("missing", ["text", "usage"])
async def test_what_has_no_text_or_no_usage_needs_a_reason_why_it_ended(tmp_path: Path, missing: str) -> None:
    given = completion({"content": "" if missing == "text" else "It is."}, "")
    given |= {"usage": None} if missing == "usage" else {}
    async with serving(tmp_path, "chat", given) as (service, _):
        for streamed in (False, True):
            reply = await send(service, "chat", request("chat", stream=streamed))
            assert "no finish reason" in reply.text or "failed" in reply.text


async def test_a_call_keeps_its_fields_where_a_whole_answer_comes_as_events(tmp_path: Path) -> None:
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "S"}}}
    events = stream("chat", completion({"role": "assistant", "content": None, "tool_calls": [signed]}))
    async with serving(tmp_path, "chat") as (service, provider):
        provider.whole = events
        reply = await send(service, "chat", request("chat", tools=[TOOL["chat"]]))
        assert reply.json()["choices"][0]["message"]["tool_calls"] == [signed]


# -- streams that are formed otherwise -------------------------------------------------------------


def chunk(delta: Body, finish_reason: str | None = None, **fields: Any) -> Body:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "gen-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **fields}


FIRST, END = chunk({"role": "assistant", "content": "It "}), chunk({"content": "is."}, "stop")

USED = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

FORMS: dict[str, list[Any]] = {
    "without [DONE]": [FIRST, END],
    "usage beside a choice": [FIRST, END | {"usage": USED}],
    "usage before the end": [FIRST | {"usage": USED}, END],
    "CRLF": [framed(FIRST).replace(b"\n", b"\r\n"), framed(END).replace(b"\n", b"\r\n")],
    "an event without choices": [{"id": "gen-1", "prompt_filter_results": []}, FIRST, END],
    "an empty choice after the end": [FIRST, END, chunk({}, None)],
    "comments": [b": wait\n\n", FIRST, b": OPENROUTER PROCESSING\n\n", END],
    "cut after the end": [FIRST, END, b"data: {"],
    "reasoning only at first": [chunk({"reasoning": "hm"}), FIRST, END],
}


@pytest.mark.parametrize("door", PROTOCOLS)
@pytest.mark.parametrize("form", FORMS)
async def test_a_stream_of_another_form_is_the_same_answer(tmp_path: Path, form: str, door: str) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        provider.events = FORMS[form]
        reply = await send(service, door, request(door, stream=True))
        assert read_answer(door, whole(door, events_of(reply)))[0] == "It is."
        assert reply.text.endswith("data: [DONE]\n\n") == (door == "chat")
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert (found.execution.answer, found.execution.finish_reason) == ("It is.", "stop")
        if "usage" in form:
            assert found.execution.cost.completion_tokens == 7


BREAKS: dict[str, list[Any]] = {
    "cut in the middle": [FIRST],
    "cut in an event": [FIRST, b'data: {"choices": [{"ind'],
    "an error after text": [FIRST, {"error": {"message": "it broke", "code": 500}}],
    "no JSON": [FIRST, b"data: <html>\n\n"],
}


@pytest.mark.parametrize("door", PROTOCOLS)
@pytest.mark.parametrize("form", BREAKS)
async def test_a_stream_that_breaks_ends_with_an_error(tmp_path: Path, form: str, door: str) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        provider.events = BREAKS[form]
        reply = await send(service, door, request(door, stream=True))
        assert reply.status_code == 200
        *_, last = events_of(reply)
        assert {"chat": "error", "messages": "error", "responses": "response"}[door] in last
        if door == "responses":
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert ("it broke" in str(last)) == (form == "an error after text")
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert (found.execution.status, found.execution.answer) == (Status.LLM_FAILED, "It ")


@pytest.mark.parametrize("door", PROTOCOLS)
@pytest.mark.parametrize("protocol", ["messages", "responses"])
async def test_a_stream_that_is_cut_is_a_failure(tmp_path: Path, protocol: str, door: str) -> None:
    async with serving(tmp_path, protocol) as (service, provider):
        events = stream(protocol, ANSWERS[protocol])
        provider.events = events[: len(events) // 2]
        reply = await send(service, door, request(door, stream=True))
        *_, last = events_of(reply)
        assert last["response"]["status"] == "failed" if door == "responses" else "error" in last
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert found.execution.status is Status.LLM_FAILED


@pytest.mark.parametrize("door", PROTOCOLS)
async def test_a_response_that_failed_or_is_incomplete_says_so(tmp_path: Path, door: str) -> None:
    failed = response(status="failed", error={"code": "server_error", "message": "it broke"})
    async with serving(tmp_path, "responses", failed) as (service, provider):
        at_once = await send(service, door, request(door))
        assert (at_once.status_code, error_of(at_once)["code"]) == (502, "llm_failed")
        begun = stream("responses", response())[:5]
        provider.events = [*begun, {"type": "response.failed", "response": failed}]
        assert "it broke" in str(events_of(await send(service, door, request(door, stream=True)))[-1])
        provider.says(response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
        for streamed in (False, True):
            reply = await answered(service, door, request(door), streamed=streamed)
            expected = {"chat": "length", "messages": "max_tokens", "responses": "incomplete"}
            assert how_it_ended(door, reply) == expected[door]


async def test_an_error_event_of_anthropic_passes_after_text(tmp_path: Path) -> None:
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with serving(tmp_path, "messages") as (service, provider):
        begun = stream("messages", ANSWERS["messages"])[:3]
        for events in ([*begun, failure], [*begun, {"type": "ping"}, failure]):
            provider.events = events
            reply = await send(service, "messages", request("messages", stream=True))
            assert events_of(reply)[-1] == failure
            found = await logged(service, reply.headers["x-decision-id"])
            assert found.execution is not None
            assert found.execution.status is Status.LLM_FAILED
        provider.events = [failure]
        reply = await send(service, "messages", request("messages", stream=True))
        assert (reply.status_code, error_of(reply)["type"]) == (502, "api_error")


async def test_an_event_that_nobody_knows_passes(tmp_path: Path) -> None:
    for protocol in ("messages", "responses"):
        async with serving(tmp_path / protocol, protocol) as (service, provider):
            strange = {"type": f"{protocol}.omen", "omen": [1, None]}
            first, *rest = stream(protocol, ANSWERS[protocol])
            provider.events = [first, strange, *rest]
            reply = await send(service, protocol, request(protocol, stream=True))
            assert events_of(reply)[1] == strange
            assert f"event: {strange['type']}\n" in reply.text


async def test_calls_whose_pieces_are_mixed_are_told_apart(tmp_path: Path) -> None:
    def piece(index: int, arguments: str, **begins: Any) -> Body:
        function = {"arguments": arguments} | ({"name": "traffic"} if begins else {})
        return {"index": index, "function": function, **begins}

    begun = [piece(i, '{"road":', id=f"call_{i}", type="function") for i in range(3)]
    ended = [piece(i, f' "A{i}"}}') for i in (1, 0, 2)]
    events = [chunk({"tool_calls": [one]}) for one in (*begun, *ended)]
    async with serving(tmp_path, "chat") as (service, provider):
        provider.events = [*events, chunk({}, "tool_calls")]
        for door in PROTOCOLS:
            reply = await answered(service, door, request(door, tools=[TOOL[door]]), streamed=True)
            calls = [(f"call_{i}", "traffic", {"road": f"A{i}"}) for i in range(3)]
            assert read_answer(door, reply)[1] == calls


async def test_several_answers_and_their_probabilities_pass(tmp_path: Path) -> None:
    token = {"token": "It", "logprob": -0.25, "bytes": [73, 116], "top_logprobs": []}
    given = completion(logprobs={"content": [token], "refusal": None})
    second = given["choices"][0] | {"index": 1, "finish_reason": "length"}
    given["choices"].append(second)
    fields = {"n": 2, "logprobs": True, "top_logprobs": 3, "logit_bias": {"50256": -100}}
    async with serving(tmp_path, "chat", given) as (service, provider):
        for streamed in (False, True):
            reply = await answered(service, "chat", request("chat", **fields), streamed=streamed)
            assert reply["choices"] == given["choices"]
            assert {name: provider.body[name] for name in fields} == fields
            told = (await service.client.get(f"/v1/decisions/{decision_of(reply)}")).json()
            assert [one["finish_reason"] for one in told["choices"]] == ["stop", "length"]


@pytest.mark.parametrize("wanted", [None, False, True])
async def test_usage_ends_a_stream_where_the_client_asks(tmp_path: Path, wanted: bool | None) -> None:
    options = {} if wanted is None else {"stream_options": {"include_usage": wanted, "of_next_year": 1}}
    async with serving(tmp_path, "chat") as (service, provider):
        reply = await send(service, "chat", request("chat", stream=True, **options))
        told = [event for event in events_of(reply) if event.get("usage")]
        assert len(told) == (1 if wanted else 0)
        expected = {"include_usage": True} | ({} if wanted is None else {"of_next_year": 1})
        assert provider.body["stream_options"] == expected
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.execution is not None
        assert found.execution.cost.prompt_tokens == 11


@BOTH
async def test_marks_of_a_cache_and_betas_pass(tmp_path: Path, streamed: bool) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    cached = {"cache_creation_input_tokens": 5, "cache_read_input_tokens": 40}
    given = message(said("It is."), usage=cached | {"cache_creation": {"ephemeral_1h_input_tokens": 5}})
    asked = request("messages", system=[said("Be brief.") | mark], tools=[TOOL["messages"] | mark])
    asked["messages"][0]["content"] = [said(QUESTION) | mark]
    async with serving(tmp_path, "messages", given) as (service, provider):
        beta = "extended-cache-ttl-2025-04-11,next-2029"
        reply = await answered(service, "messages", asked, streamed=streamed, anthropic_beta=beta)
        assert provider.received[-1].headers["anthropic-beta"] == beta
        assert {name: provider.body[name] for name in asked} == asked
        assert reply["usage"] == given["usage"]
        told = (await service.client.get(f"/v1/decisions/{decision_of(reply)}")).json()
        counts = {"prompt": 56, "completion": 7, "cached": 40, "cache_written": 5}
        assert told["tokens_by_model"]["default"] == counts


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_an_image_in_the_result_of_a_tool_reaches_the_model(tmp_path: Path, protocol: str) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    used = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "traffic", "input": {}}],
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [said("a map"), picture]}
    asked = request("messages", used, {"role": "user", "content": [result]}, tools=[TOOL["messages"]])
    async with serving(tmp_path, protocol) as (service, provider):
        reply = await answered(service, "messages", asked)
        assert read_answer("messages", reply)[0] == "It is."
        if protocol == "messages":
            assert provider.body["messages"] == asked["messages"]
        else:
            *_, told, shown = provider.body["messages"]
            assert (told["role"], told["content"]) == ("tool", "a map")
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
            assert shown == {"role": "user", "content": [image]}


async def test_arguments_that_are_no_json_are_an_answer(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function"}
    for text in ('{"a": "\\ud83d"}', '{"a": NaN}', "{", '{"a":' * 400 + "1" + "}" * 400, str(2**70)):
        calls = [call | {"function": {"name": "traffic", "arguments": text}}]
        given = completion({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls")
        async with serving(tmp_path / str(hash(text)), "chat", given) as (service, _):
            for door in ("messages", "responses"):
                reply = await answered(service, door, request(door, tools=[TOOL[door]]))
                assert "c1" in str(reply["content" if door == "messages" else "output"])


@BOTH
async def test_the_id_of_an_answer_continues_at_its_provider(tmp_path: Path, streamed: bool) -> None:
    async with serving(tmp_path, "responses", others={"other": "responses"}) as (service, provider):
        asked = request("responses", model="arm/direct")
        first = await answered(service, "responses", asked, streamed=streamed)
        assert first["id"] == f"resp_{first['agent']['decision_id']}"
        later = {"input": "And at noon?", "previous_response_id": first["id"]}
        for _ in range(4):
            await answered(service, "responses", later, streamed=streamed)
            assert provider.body["previous_response_id"] == "resp_abc"
            assert provider.body["model"] == "m", "the other model does not have it"
        await send(service, "responses", later | {"previous_response_id": "resp_theirs"})
        assert provider.body["previous_response_id"] == "resp_theirs"


async def test_the_answer_of_another_caller_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ("shop", "clerk", "bank")
    for secret in secrets:
        monkeypatch.setenv(f"{secret.upper()}_KEY", secret)
    projects = ("shop", "shop", "bank")
    own = [{"env": f"{s.upper()}_KEY", "project": p} for s, p in zip(secrets, projects, strict=True)]
    async with serving(tmp_path, "responses", keys=own) as (service, provider):
        asked = request("responses", model="arm/direct")
        first = await answered(service, "responses", asked, authorization="Bearer shop")
        later = {"input": "And at noon?", "previous_response_id": first["id"]}
        for secret, seen in zip(secrets, ("resp_abc", first["id"], first["id"]), strict=True):
            await answered(service, "responses", later, authorization=f"Bearer {secret}")
            assert provider.body["previous_response_id"] == seen


# -- again, and with passages ----------------------------------------------------------------------


@BOTH
@ALL
async def test_an_answer_is_repeated_from_the_log(tmp_path: Path, protocol: str, streamed: bool) -> None:
    filtered = {
        "chat": completion({"role": "assistant", "content": "It "}, "content_filter"),
        "messages": message(said("It "), stop_reason="refusal"),
        "responses": response(status="incomplete", incomplete_details={"reason": "content_filter"}),
    }
    async with serving(tmp_path, protocol, filtered[protocol]) as (service, provider):
        replies = [
            await answered(service, protocol, request(protocol), streamed=streamed, idempotency_key="k-1")
            for _ in range(2)
        ]
        assert len(provider.received) == 1
        first, again = ((read_answer(protocol, one), how_it_ended(protocol, one)) for one in replies)
        assert first == again
        assert replies[0]["id"] == replies[1]["id"]


@BOTH
@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_passages_follow_the_instructions_and_are_cited(
    tmp_path: Path, protocol: str, streamed: bool
) -> None:
    part = {"type": "output_text", "text": "It is [1]."}
    cites = response(response()["output"][0] | {"content": [part]})
    given = cites if protocol == "responses" else completion({"role": "assistant", "content": "It is [1]."})
    arms = {"finds": {"kind": "bm25"}}
    async with serving(tmp_path, protocol, given, arms=arms) as (service, provider):
        asked = request(protocol)
        if protocol == "chat":
            asked["messages"].insert(0, {"role": "developer", "content": "Be brief."})
        else:
            asked["instructions"] = "Be brief."
        reply = await answered(service, protocol, asked, streamed=streamed)
        sent = provider.body
        if protocol == "chat":
            told, rest = sent["messages"][0]["content"], sent["messages"][1:]
            (note,) = (one["url_citation"] for one in reply["choices"][0]["message"]["annotations"])
            assert (rest, sent["messages"][0]["role"]) == (asked["messages"][1:], "developer")
        else:
            told = sent["instructions"]
            (note,) = reply["output"][0]["content"][0]["annotations"]
            assert sent["input"] == asked["input"]
        assert told.startswith("Be brief.\n\n")
        assert "<passages>" in told
        assert (note["start_index"], note["end_index"], note["title"]) == (6, 9, "title 1")


async def test_a_limit_of_a_key_limits_an_answer_that_has_none(tmp_path: Path) -> None:
    async with serving(tmp_path, "chat") as (service, provider):
        settings = KeySettings("app", ("decide",), limits=KeyLimits(tpm_limit=50_000))
        _, token = await asyncio.to_thread(keys.create, service.replica.store, settings, 0.0)
        await service.refresh()
        mine = f"Bearer {token}"
        await answered(service, "chat", request("chat"), authorization=mine)
        assert 0 < provider.body["max_tokens"] < 50_000
        await answered(service, "chat", request("chat", max_completion_tokens=9), authorization=mine)
        assert provider.body["max_completion_tokens"] == 9
        assert "max_tokens" not in provider.body


# -- texts and numbers -----------------------------------------------------------------------------


@BOTH
async def test_nul_and_half_a_pair_are_answered(tmp_path: Path, streamed: bool) -> None:
    used = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "traffic", "input": {}}],
    }
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ELF\0x cut \ud83d"}
    asked = request("messages", used, {"role": "user", "content": [result]}, tools=[TOOL["messages"]])
    asked["messages"][0]["content"] = "what is\0this \udc00?"
    body = json.dumps(asked | {"stream": streamed}).encode()
    async with serving(tmp_path, "messages") as (service, provider):
        reply = await service.client.post(
            "/v1/messages", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code == 200, reply.text
        block = provider.body["messages"][2]["content"][0]
        assert block["content"] == "ELF\0x cut \ufffd"
        found = await logged(service, reply.headers["x-decision-id"])
        assert found.decision.context.question == "what is\ufffdthis \ufffd?"
        provider.says(message(said("a\0b")))
        told = await answered(service, "messages", request("messages"), streamed=streamed)
        assert told["content"] == [said("a\0b")]
        found = await logged(service, decision_of(told))
        assert found.execution is not None
        assert found.execution.answer == "a\ufffdb"


@BOTH
@ALL
async def test_integers_of_any_size_pass_digit_by_digit(
    tmp_path: Path, protocol: str, streamed: bool
) -> None:
    largest = [9223372036854775807, -(2**63), 2**64 - 1, 2**70]
    tool = json.loads(json.dumps(TOOL[protocol]))
    parameters = (tool.get("function") or tool).get("parameters") or tool["input_schema"]
    parameters["properties"]["n"] = {"type": "integer", "enum": largest}
    async with serving(tmp_path, protocol) as (service, provider):
        asked = request(protocol, tools=[tool], stream=streamed)
        reply = await service.client.post(DOORS[protocol], json=asked)
        assert reply.status_code == 200, reply.text
        assert provider.body["tools"] == [tool]
        provider.answer = ANSWERS[protocol] | {"seed_of_next_year": 2**70}
        told = await answered(service, protocol, request(protocol), streamed=streamed)
        if protocol == "chat" or not streamed:
            assert told["seed_of_next_year"] == 2**70
        assert told["agent"]["decision_id"]


# -- tools -----------------------------------------------------------------------------------------

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}


@BOTH
async def test_a_custom_tool_is_a_function_of_one_text_elsewhere(tmp_path: Path, streamed: bool) -> None:
    tool = {"type": "custom", "name": "apply_patch", "format": GRAMMAR}
    async with serving(tmp_path, "responses") as (service, provider):
        await answered(service, "responses", request("responses", tools=[tool]), streamed=streamed)
        assert provider.body["tools"] == [tool]
    call = {"id": "call_p", "type": "function"}
    written = {"name": "apply_patch", "arguments": '{"input": "aaa"}'}
    given = completion({"role": "assistant", "content": None, "tool_calls": [call | {"function": written}]})
    async with serving(tmp_path, "chat", given) as (service, provider):
        reply = await answered(service, "responses", request("responses", tools=[tool]), streamed=streamed)
        (item,) = (item for item in reply["output"] if item["type"] != "message")
        assert (item["type"], item["call_id"], item["input"]) == ("custom_tool_call", "call_p", "aaa")
        (sent,) = provider.body["tools"]
        if sent["type"] == "function":
            assert sent["function"]["parameters"]["properties"] == {"input": {"type": "string"}}
        result = {"type": "custom_tool_call_output", "call_id": "call_p", "output": "done"}
        provider.says(completion())
        later = request("responses", *reply["output"], result, tools=[tool])
        await answered(service, "responses", later, streamed=streamed)
        *_, called, answer = provider.body["messages"]
        assert called["tool_calls"][0]["id"] == answer["tool_call_id"] == "call_p"
        assert answer["content"] == "done"
    used = {"type": "tool_use", "id": "toolu_p", "name": "apply_patch", "input": {"input": "aaa"}}
    async with serving(tmp_path, "messages", message(used, stop_reason="tool_use")) as (service, provider):
        reply = await answered(service, "responses", request("responses", tools=[tool]), streamed=streamed)
        (item,) = (item for item in reply["output"] if item["type"] != "message")
        assert (item["type"], item["input"]) == ("custom_tool_call", "aaa")
        (sent,) = provider.body["tools"]
        assert sent["input_schema"]["properties"] == {"input": {"type": "string"}}
        assert 'start: "a"' in sent["description"]


@BOTH
async def test_allowed_tools_pass_and_are_narrowed_elsewhere(tmp_path: Path, streamed: bool) -> None:
    tools = [TOOL["chat"], {"type": "function", "function": {"name": "ferries", "parameters": {}}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools[:1]}}
    asked = request("chat", tools=tools, tool_choice=allowed)
    async with serving(tmp_path, "chat") as (service, provider):
        await answered(service, "chat", asked, streamed=streamed)
        assert (provider.body["tools"], provider.body["tool_choice"]) == (tools, allowed)
    async with serving(tmp_path, "messages") as (service, provider):
        await answered(service, "chat", asked, streamed=streamed)
        assert [tool["name"] for tool in provider.body["tools"]] == ["traffic"]


async def test_a_tool_that_only_a_provider_runs_needs_its_model(tmp_path: Path) -> None:
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    async with serving(tmp_path, "chat", others={"other": "responses"}) as (service, provider):
        provider.says(response())
        for _ in range(6):
            reply = await answered(service, "responses", request("responses", tools=[tool]))
            assert reply["agent"]["pmf"] == {"other": 1.0}
            assert provider.body["tools"] == [tool]
        told = (await service.client.get(f"/v1/decisions/{decision_of(reply)}")).json()
        assert told["masked"] == {"direct": "unsupported"}
        refusal = await send(service, "responses", request("responses", tools=[tool], model="arm/direct"))
        assert (refusal.status_code, error_of(refusal)["param"]) == (400, "tools")
        assert "these arms could: other" in error_of(refusal)["message"]


@ALL
@BOTH
async def test_what_no_gateway_knows_passes(tmp_path: Path, protocol: str, streamed: bool) -> None:
    """Fields, blocks, tools, roles and events of next year."""
    strange = {"type": "hologram", "lens": [1, {"a": None}], "text": None}
    spoken = {"role": "oracle" if protocol == "chat" else "user", "content": [strange, said("Go on.")]}
    if protocol == "responses":
        spoken = {"type": "vision", "facets": [strange]}
    fields = {"tools": [{"type": "scrying_20290101", "bowl": 3}], "of_next_year": {"a": [None, 1.5, "ä"]}}
    item = {"type": "prophecy", "id": "p-1", "doubt": 0.5}
    extra = {"chat": completion({"role": "assistant", "content": "Yes.", "aura": ["blue"]}, trust=0.5)}
    extra |= {"messages": message(item, said("Yes."), mood="calm")}
    extra |= {"responses": response(item, *response()["output"], mood="calm")}
    given = extra[protocol]
    async with serving(tmp_path, protocol, given) as (service, provider):
        asked = request(protocol, spoken, **fields)
        reply = await answered(service, protocol, asked, streamed=streamed)
        own = ("model", "stream", "stream_options")
        assert {n: v for n, v in provider.body.items() if n not in own} == asked
        changed = ("id", "model", "agent")
        kept = {n: v for n, v in given.items() if n not in changed}
        assert {n: v for n, v in reply.items() if n not in changed and (n in kept or n == "mood")} == (
            kept if not (streamed and protocol == "chat") else kept | {"usage": reply.get("usage")}
        ) or streamed
        if protocol == "chat":
            assert reply["choices"] == given["choices"]
        else:
            name = "content" if protocol == "messages" else "output"
            assert (reply[name], reply["mood"]) == (given[name], "calm")


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("door", "sign"), [("chat", b": "), ("messages", b"event: ping\n"), ("responses", b": ")]
)
@pytest.mark.parametrize("at", [0, 2])
async def test_a_stream_is_never_silent(
    tmp_path: Path, door: str, sign: bytes, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model goes on once the client has seen three signs of life."""
    monkeypatch.setattr(responses, "FIRST_PING_S", 0.001)
    monkeypatch.setattr(responses, "PING_S", 0.001)
    monkeypatch.setattr("armwise.agent.api.protocols.write.FIRST_S", 0.001)
    goes_on, seen = asyncio.Event(), []
    async with serving(tmp_path, door) as (service, provider):
        events = stream(door, ANSWERS[door])
        provider.events = [*events[:at], goes_on, *events[at:]]
        app = service.app

        async def watched(scope: Any, receive: Any, send_on: Any) -> None:
            async def noted(sent: Any) -> None:
                if sent.get("body", b"").startswith(sign):
                    seen.append(sent["body"])
                    if len(seen) == 3:
                        goes_on.set()
                await send_on(sent)

            await app(scope, receive, noted)

        transport = httpx.ASGITransport(watched)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            reply = await client.post(DOORS[door], json=request(door, stream=True))
    assert len(seen) >= 3
    assert read_answer(door, whole(door, events_of(reply)))[0] == "It is."
    if door == "messages":
        assert all(sign_of == b'event: ping\ndata: {"type": "ping"}\n\n' for sign_of in seen)
    else:
        assert all(sign_of.count(b"\n") == 2 and sign_of.endswith(b"\n\n") for sign_of in seen)


def test_a_sign_of_life_comes_after_a_second_and_then_every_ten() -> None:
    assert (responses.FIRST_PING_S, responses.PING_S) == (1.0, 10.0)


# -- money -----------------------------------------------------------------------------------------


@BOTH
async def test_the_bill_of_the_provider_is_charged(tmp_path: Path, streamed: bool) -> None:
    spec = {"usd": None, "usd_per_kilotoken_in": 1.0}
    async with serving(tmp_path, "chat", completion(usage={"cost": 0.0123}), spec=spec) as (service, _):
        reply = await answered(service, "chat", request("chat"), streamed=streamed)
        found = await logged(service, decision_of(reply))
        assert found.execution is not None
        assert found.execution.cost.usd == pytest.approx(0.0123)
        assert reply["agent"]["cost"]["usd"] == pytest.approx(0.0123)


# -- ids and names ---------------------------------------------------------------------------------


@ALL
@BOTH
async def test_feedback_is_found_by_the_id_of_the_answer(
    tmp_path: Path, protocol: str, streamed: bool
) -> None:
    async with serving(tmp_path, protocol) as (service, _):
        reply = await answered(service, protocol, request(protocol), streamed=streamed)
        body = {"decision_id": reply["id"], "metric_name": "thumb", "value": 1}
        assert (await service.client.post("/v1/feedback", json=body)).status_code == 202
        told = (await service.client.get(f"/v1/decisions/{decision_of(reply)}")).json()
        assert [one["value"] for one in told["feedback"]] == [1]


# -- the request as it came ------------------------------------------------------------------------


@BOTH
@ALL
async def test_without_retrieval_nothing_is_added(tmp_path: Path, protocol: str, streamed: bool) -> None:
    async with serving(tmp_path, protocol) as (service, provider):
        asked = request(protocol)
        await answered(service, protocol, asked, streamed=streamed)
        added: Body = {"model": "m"}
        if streamed:
            added |= {"stream": True}
            added |= {"stream_options": {"include_usage": True}} if protocol == "chat" else {}
        assert provider.body == asked | added
        assert [*provider.body][: len(asked)] == [*asked], "in its order"


async def test_a_short_reply_is_read_with_what_it_answers(tmp_path: Path) -> None:
    task = "Refactor billing to use the new table"
    async with serving(tmp_path, "chat") as (service, provider):
        asked = request("chat")
        asked["messages"] = [
            {"role": "user", "content": task},
            {"role": "assistant", "content": "I will drop the old one. Continue?"},
            {"role": "user", "content": "yes"},
        ]
        reply = await answered(service, "chat", asked)
        assert provider.body["messages"] == asked["messages"]
        found = await logged(service, decision_of(reply))
        assert task in found.decision.context.question
