"""Recorded exchanges through a proxy: one that copies bytes changes nothing, and each change is found."""

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from fastapi import FastAPI, Request, Response
from typer.testing import CliRunner

from benchmarks import exchanges
from benchmarks.exchanges import Case, Exchange, put, serving, standing_in
from benchmarks.exchanges_bodies import PATHS, Body, read_events, stream, whole, words_of, write_events

TOOL = {"name": "weather", "parameters": {"type": "object"}}
CALL = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
USE = {"type": "tool_use", "id": "toolu_a", "name": "weather", "input": {"city": "Rome"}}
USAGE = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}

REQUESTS: dict[str, Body] = {
    "chat": {
        "model": "m",
        "n": 1,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_a", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
    },
    "messages": {
        "model": "m",
        "max_tokens": 4000,
        "system": "Be brief.",
        "thinking": {"type": "adaptive"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
            {"role": "assistant", "content": [USE]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_a", "content": "sunny"},
                    {"type": "document", "source": {"type": "text", "data": "A map."}},
                ],
            },
        ],
    },
    "responses": {
        "model": "m",
        "instructions": "Be brief.",
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "user", "content": "Rome?"},
            {
                "type": "function_call",
                "call_id": "call_a",
                "name": "weather",
                "arguments": '{"city": "Rome"}',
            },
            {"type": "function_call_output", "call_id": "call_a", "output": "sunny"},
        ],
    },
}

ANSWERS: dict[str, Body] = {
    "chat": {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 7,
        "model": "m-1",
        "provider": "P",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Sunny.",
                    "refusal": None,
                    "reasoning": "It said so.",
                    "reasoning_details": [{"type": "reasoning.text", "text": "It said so.", "index": 0}],
                    "tool_calls": [CALL],
                },
                "logprobs": {"content": [{"token": "Sunny.", "logprob": -0.5}]},
                "native_finish_reason": "STOP",
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "cost": 0.5},
    },
    "messages": {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [
            {"type": "thinking", "thinking": "It said so.", "signature": "SIG"},
            {"type": "redacted_thinking", "data": "R"},
            {"type": "text", "text": "Sunny.", "citations": [{"type": "char_location", "cited_text": "map"}]},
            USE,
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "container": {"id": "c"},
        "usage": {"input_tokens": 9, "output_tokens": 2},
    },
    "responses": {
        "id": "resp_7",
        "object": "response",
        "created_at": 7,
        "status": "completed",
        "model": "m-1",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "E"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_b",
                "name": "weather",
                "arguments": "{}",
            },
        ],
        "usage": USAGE,
    },
}
"""Answers with fields that gateways are known to lose."""

ERROR = {"error": {"message": "x is bad", "type": "invalid_request_error", "code": "bad_x", "param": "x"}}

WHOLE = [Exchange(f"{name}-whole", name, "here", REQUESTS[name], 200, ANSWERS[name]) for name in PATHS]
STREAMED = [
    replace(
        one,
        id=f"{one.protocol}-stream",
        request=one.request | {"stream": True},
        answer=None,
        events=": wait\n\n" + write_events(one.protocol, stream(one.protocol, one.answer)),
        beta="new-1" if one.protocol == "messages" else None,
    )
    for one in WHOLE
]
FAILED = Exchange("error", "chat", "here", REQUESTS["chat"], 422, ERROR)
ALL = [*WHOLE, *STREAMED, FAILED]

PASSED = "anthropic"
"""How the names of the headers begin that the proxy passes on."""

Change = Callable[[Body], Body]


def same(body: Body) -> Body:
    return body


@contextmanager
def proxy(far: int, asked: Change, answered: Callable[[str], str] = str) -> Iterator[str]:
    """Run a proxy in front of a port that copies bytes but for a change; yield its URL."""
    app = FastAPI()
    with httpx.Client(base_url=f"http://127.0.0.1:{far}") as there:

        async def pass_on(request: Request) -> Response:
            changed = asked(await request.json())
            content = await request.body() if asked is same else json.dumps(changed).encode()
            kept = {name: value for name, value in request.headers.items() if name.startswith(PASSED)}
            reply = there.post(_path(request, changed), content=content, headers=kept)
            text = answered(reply.text)
            return Response(text, reply.status_code, media_type=reply.headers["content-type"])

        for path in PATHS.values():
            app.add_api_route(f"/v1/{path}", pass_on, methods=["POST"])
        with serving(app) as near:
            yield f"http://127.0.0.1:{near}"


@contextmanager
def proxied(asked: Change = same, answered: Callable[[str], str] = str) -> Iterator[Callable[..., Case]]:
    """Run a proxy in front of a stand-in; yield what puts an exchange to it."""
    with (
        standing_in() as (provider, far),
        proxy(far, asked, answered) as url,
        httpx.Client(base_url=url) as near,
    ):
        yield lambda exchange, target="": put(near, provider, exchange, target or exchange.protocol)


def _path(request: Request, body: Body) -> str:
    """Return the path of the protocol that the body has."""
    if "max_tokens" in body:
        return "/v1/messages"
    return "/v1/responses" if "input" in body else request.url.path


@pytest.mark.slow
def test_a_proxy_that_copies_bytes_changes_nothing() -> None:
    with proxied() as through:
        assert [case.found for case in map(through, ALL)] == [()] * len(ALL)


def without(name: str) -> Change:
    return lambda body: {key: value for key, value in body.items() if key != name}


def instructed(body: Body) -> Body:
    first = {"role": "system", "content": "Use the passages."}
    return body | {name: [first, *body[name]] for name in ("messages", "input") if name in body}


def renamed(body: Body) -> Body:
    text = json.dumps(body).replace("call_a", "call_0").replace("toolu_a", "toolu_0")
    return dict(json.loads(text))


REQUEST_CHANGES: dict[str, tuple[Change, set[str]]] = {
    "a field left out": (without("n"), {"chat"}),
    "another field left out": (without("include"), {"responses"}),
    "a limit added": (lambda body: body | {"top_p": 1}, {*PATHS}),
    "an id renamed": (renamed, {*PATHS}),
    "an instruction added": (instructed, {*PATHS}),
    "a number that became a truth value": (lambda b: b | ({"n": True} if "n" in b else {}), {"chat"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", REQUEST_CHANGES)
def test_a_proxy_that_changes_requests_is_found(change: str) -> None:
    how, protocols = REQUEST_CHANGES[change]
    with proxied(asked=how) as through:
        found = {one.id: bool(through(one).found) for one in ALL}
    assert found == {one.id: one.protocol in protocols for one in ALL}


ANSWER_CHANGES: dict[str, tuple[Callable[[str], str], set[str]]] = {
    "reasoning renamed": (
        lambda text: text.replace('"reasoning":', '"reasoning_content":'),
        {"chat-whole", "chat-stream"},
    ),
    "an id of a call renamed": (
        lambda text: text.replace('"call_', '"call-').replace('"toolu_', '"toolu-'),
        {one.id for one in ALL if one is not FAILED},
    ),
    "a signature lost": (lambda text: text.replace("SIG", ""), {"messages-whole"}),
    "a field added in the middle of a stream": (
        lambda text: text.replace(
            '"type": "content_block_stop"', '"type": "content_block_stop", "agent": {}'
        ),
        {"messages-stream"},
    ),
    "the code of an error lost": (lambda text: text.replace('"bad_x"', "null"), {"error"}),
    "the last event lost": (
        lambda text: "".join(text.split("event: message_stop")[:1]),
        {"messages-stream"},
    ),
    "the name of events lost": (
        lambda text: text.replace("event: ", ": "),
        {"messages-stream", "responses-stream"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", ANSWER_CHANGES)
def test_a_proxy_that_changes_answers_is_found(change: str) -> None:
    how, ids = ANSWER_CHANGES[change]
    with proxied(answered=how) as through:
        assert {one.id for one in ALL if through(one).found} == ids


@pytest.mark.slow
def test_what_a_gateway_has_to_set_is_no_difference() -> None:
    """The field of our service may stand in the first and the last event alone."""

    def set_fields(body: Body) -> Body:
        return body | {"model": "m-2", "stream_options": {"include_usage": True}}

    def set_answer(text: str) -> str:
        changed = text
        for one in ("chatcmpl-7", "msg_7", "resp_7", "m-1"):
            changed = changed.replace(f'"{one}"', '"other"')
        return changed.replace('"created": 7', '"agent": {"arm": "a"}, "created": 8').replace(
            '"created_at": 7', '"agent": {"arm": "a"}, "created_at": 8'
        )

    with proxied(set_fields, set_answer) as through:
        found = {one.id: {where.path for where in through(one).found} for one in ALL}
    middle = {"chat-stream": {"events[].data.agent"}, "responses-stream": {"events[].data.response.agent"}}
    assert found == {one.id: middle.get(one.id, set()) for one in ALL}


@pytest.mark.slow
def test_a_gateway_that_asks_in_the_other_form_gets_the_recorded_answer() -> None:
    """The proxy asks for a stream where the client does not, and the reverse."""

    def turned(body: Body) -> Body:
        return body | {"stream": body.get("stream") is not True}

    def put_together(text: str) -> str:
        if text.startswith("{"):
            body = json.loads(text)
            return write_events(protocol, stream(protocol, body)) if "error" not in body else text
        return json.dumps(whole(protocol, [event.data for event in read_events(text)]))

    with proxied(turned, put_together) as through:
        for exchange in ALL:
            protocol = exchange.protocol
            assert through(exchange).found == ()


def translated(request: Body, lost: str = "") -> Body:
    """Return a request as one to the messages protocol, with all that it says but for one kind of words."""
    protocol = next(name for name, one in REQUESTS.items() if set(one) & set(request) == set(one))
    blocks: list[Any] = []
    for kind, value in words_of(protocol, request):
        if kind != lost:
            blocks.append(
                {"type": "text", "text": f"It said: {value}"}
                if isinstance(value, str)
                else {"type": "tool_use", "id": "toolu_0", "name": "weather", "input": value}
            )
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": blocks}]}


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["", "instructions", "text", "arguments", "tool result"])
def test_each_text_that_a_translation_loses_is_found(lost: str) -> None:
    with proxied(lambda body: translated(body, lost)) as through:
        for exchange in (WHOLE[0], WHOLE[2]):
            assert {one.path for one in through(exchange, "messages").found} == ({lost} if lost else set())


@pytest.mark.slow
def test_a_gateway_that_asks_another_protocol_is_found() -> None:
    with proxied(lambda _: {"input": "x"}) as through:
        assert through(WHOLE[0]).found[0].what == "sent to /responses"
        assert through(WHOLE[0], "messages").found[0].what == "sent to /responses"


@pytest.mark.slow
def test_a_header_of_beta_features_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.PASSED", "no header")
    with proxied() as through:
        assert {one.id for one in ALL if through(one).found} == {"messages-stream"}


def test_a_document_among_the_results_is_a_text_of_the_conversation() -> None:
    kinds = [kind for kind, _ in words_of("messages", REQUESTS["messages"])]
    assert kinds == ["instructions", "text", "arguments", "tool result", "document"]


def test_a_text_said_twice_must_be_found_twice() -> None:
    twice = words_of("chat", {"messages": [{"role": "user", "content": "Go on."}] * 2})
    assert [*exchanges.lost(twice, twice[:1])] == twice[1:]
    assert [*exchanges.lost(twice, twice)] == []


def test_only_successful_requests_go_to_other_protocols() -> None:
    work = exchanges.pairs([*WHOLE, FAILED], cross=True)
    assert [(one.protocol, target) for one, target in work] == [
        (source, target) for source in PATHS for target in PATHS if source != target
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("at_least", "code"), [(50, 0), (51, 1)])
def test_the_exit_code_says_whether_enough_is_unchanged(
    at_least: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy in place of the service drops `n`, which one of the two requests has."""
    file = tmp_path / "exchanges.jsonl.gz"
    rows = [{name: getattr(one, name) for name in Exchange.__slots__} for one in WHOLE[:2]]
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    monkeypatch.setattr(exchanges, "our_service", lambda port: proxy(port, without("n")))
    app = typer.Typer()
    app.command()(exchanges.main)
    result = CliRunner().invoke(app, [str(file), "--at-least", str(at_least), "--list"])
    assert result.exit_code == code, result.output
    assert "| all |  | 2 | 1 | 1 |" in result.output
    assert "| chat | request.n left out | 1 | `chat-whole` |" in result.output
