"""Endpoints of Anthropic's protocol, over real HTTP: what they are sent, and what is read of their events."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from armwise.arms.llm.anthropic_api import MessageStream, write_conversation
from armwise.arms.llm.base import (
    Chunk,
    GeneratorBusyError,
    GeneratorError,
    GeneratorRefusedError,
    Message,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
    complete,
)
from armwise.arms.llm.catalog import AnthropicSpec, build_generator, list_inputs, list_options
from armwise.arms.llm.completion_stream import AnswerLimits
from armwise.arms.upstream import UpstreamError

PROMPT = Prompt(({"role": "user", "content": "What is the capital of France?"},), temperature=None)
MARK = {"cache_control": {"type": "ephemeral"}}
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 600,
    "cache_creation_input_tokens": 90,
    "output_tokens": 1,
}

endpoint = FastAPI()

heads: list[dict[str, str]] = []
"""Headers of the requests."""


tried: list[dict[str, Any]] = []
"""Bodies of the requests that a choosy endpoint has refused or answered."""


def start(**usage: int) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "m", "content": [], "usage": USAGE | usage}}


def end(reason: str, **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def text(*pieces: str, index: int = 0) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}}
            for piece in pieces
        ),
        {"type": "content_block_stop", "index": index},
    ]


def call(index: int, name: str, *pieces: str) -> list[dict[str, Any]]:
    block = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
    deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def stream(*events: dict[str, Any]) -> StreamingResponse:
    async def frames() -> AsyncIterator[bytes]:
        for event in events:
            yield f"event: {event['type']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


@endpoint.post("/echo/messages")
async def _echo(request: Request) -> Response:
    heads.append(dict(request.headers))
    return stream(start(), *text((await request.body()).decode()), *end("end_turn", output_tokens=7))


@endpoint.post("/calling/messages")
async def _calling() -> Response:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    return stream(
        start(),
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": thought},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "so"},
        },
        *text("I ", "look.", index=1),
        *call(2, "weather", '{"city":', ' "Oslo"}'),
        *call(3, "time"),
        *end("tool_use", output_tokens=30),
    )


@endpoint.post("/whole/messages")
async def _whole() -> Response:
    called = {"type": "tool_use", "id": "t", "name": "time", "input": {"zone": "UTC"}}
    content = [{"type": "text", "text": "Now:"}, called]
    return JSONResponse({"type": "message", "content": content, "stop_reason": "max_tokens", "usage": USAGE})


@endpoint.post("/cut/messages")
async def _cut() -> Response:
    return stream(start(), *text("Par"))


@endpoint.post("/failing/messages")
async def _failing() -> Response:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded: SECRET"}}
    return stream(start(), *text("Par"), error)


def _refusal(status: int, message: str) -> Response:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return JSONResponse(error, status, headers={"retry-after": "3"})


@endpoint.post("/choosy/messages")
async def _choosy(request: Request) -> Response:
    body = await request.json()
    tried.append(body)
    if {"temperature", "top_p"} <= body.keys():
        return _refusal(400, "`temperature` and `top_p` cannot both be specified for this model.")
    if "temperature" in body:
        return _refusal(400, "`temperature` is deprecated for this model.")
    return stream(start(), *text("Yes."), *end("end_turn", output_tokens=1))


@endpoint.post("/wrong/messages")
async def _wrong(request: Request) -> Response:
    tried.append(await request.json())
    return _refusal(400, "temperature: Input should be less than or equal to 1")


@endpoint.post("/long/messages")
async def _long() -> Response:
    return _refusal(400, "prompt is too long: 250000 tokens > 200000 maximum")


@endpoint.post("/locked/messages")
async def _locked() -> Response:
    return _refusal(401, "invalid x-api-key")


@endpoint.post("/busy/messages")
async def _busy() -> Response:
    return _refusal(429, "rate limit")


def spec(base_url: str, **changes: Any) -> AnthropicSpec:
    fields = {"engine": "anthropic", "base_url": base_url, "model": "claude", "max_retries": 0}
    return AnthropicSpec.model_validate(fields | changes)


async def sent(url: str, prompt: Prompt, **changes: Any) -> dict[str, Any]:
    """Return the body of the request for a prompt."""
    generator = build_generator(spec(f"{url}/echo", **changes))
    try:
        answer, _ = await complete(generator, prompt)
    finally:
        await generator.close()
    body: dict[str, Any] = json.loads(answer)
    return body


async def asked(base_url: str, prompt: Prompt = PROMPT, **changes: Any) -> list[Chunk]:
    generator = build_generator(spec(base_url, **changes))
    try:
        async with aclosing(generator.stream(prompt)) as chunks:
            return [chunk async for chunk in chunks]
    finally:
        await generator.close()


async def test_a_request_has_version_and_key_and_no_defaults(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-up")
    body = await sent(url, PROMPT, api_key_env="UPSTREAM_KEY")
    assert body == {
        "model": "claude",
        "max_tokens": 256,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}
        ],
        "stream": True,
    }
    assert heads[-1]["x-api-key"] == "sk-up"
    assert heads[-1]["anthropic-version"] == "2023-06-01"
    assert "authorization" not in heads[-1]


async def test_sampling_has_the_names_and_the_range_of_the_protocol(url: str) -> None:
    prompt = Prompt(PROMPT.messages, 9, temperature=1.5, top_p=0.5, stop=("a", "b"), seed=3)
    body = await sent(url, prompt, request={"metadata": {"user_id": "u"}})
    named = {
        name: body[name] for name in ("max_tokens", "temperature", "top_p", "stop_sequences", "metadata")
    }
    assert named == {
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.5,
        "stop_sequences": ["a", "b"],
        "metadata": {"user_id": "u"},
    }
    assert "seed" not in body


TOOL = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("options", "choice"),
    [
        ({}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "now"}}, "parallel_tool_calls": False},
            {"type": "tool", "name": "now", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": True}, {"type": "auto"}),
    ],
)
async def test_functions_are_tools(url: str, options: dict[str, Any], choice: dict[str, Any]) -> None:
    bare = {"type": "function", "function": {"name": "bare"}}
    tools = [TOOL, bare | MARK]
    body = await sent(url, Prompt(PROMPT.messages, options={"tools": tools, **options}))
    assert body["tools"] == [
        {"name": "now", "description": "The time.", "input_schema": {"type": "object"}},
        {"name": "bare", "input_schema": {"type": "object", "properties": {}}, **MARK},
    ]
    assert body["tool_choice"] == choice


async def test_a_form_needs_a_schema(url: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    body = await sent(url, Prompt(PROMPT.messages, options={"response_format": form}))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    with pytest.raises(PromptRefusedError, match="'json_schema' was expected"):
        await sent(url, Prompt(PROMPT.messages, options={"response_format": {"type": "json_object"}}))


def test_a_conversation_keeps_its_marks_images_and_calls() -> None:
    made = {"id": "call00000", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
    wrong = {"id": "call00001", "function": {"name": "now", "arguments": "{"}, **MARK}
    messages: list[Message] = [
        {"role": "system", "content": "a\nb", "parts": [_part("a") | MARK, _part("b")]},
        {
            "role": "user",
            "content": "see",
            "parts": [
                _part("see"),
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"},
                    **MARK,
                },
            ],
        },
        {"role": "assistant", "content": "I look.", "tool_calls": [made, wrong]},
        {"role": "user", "content": "and hurry"},
        {"role": "tool", "content": "12:00", "tool_call_id": "call00000", "is_error": True},
        {"role": "tool", "content": "x", "parts": [_part("x") | MARK], "tool_call_id": "call00001"},
        {"role": "assistant", "content": " "},
        {"role": "user", "content": ""},
    ]
    system, turns = write_conversation(messages)
    assert system == [_part("a") | MARK, _part("b")]
    png = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "BBBB"}
    assert turns == [
        {
            "role": "user",
            "content": [
                _part("see"),
                {"type": "image", "source": png},
                {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
                {"type": "document", "source": pdf, "title": "a.pdf", **MARK},
            ],
        },
        {
            "role": "assistant",
            "content": [
                _part("I look."),
                {"type": "tool_use", "id": "call00000", "name": "now", "input": {"zone": "UTC"}},
                {"type": "tool_use", "id": "call00001", "name": "now", "input": {"arguments": "{"}, **MARK},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call00000", "content": "12:00", "is_error": True},
                {"type": "tool_result", "tool_use_id": "call00001", "content": "x", **MARK},
                _part("and hurry"),
            ],
        },
        {"role": "assistant", "content": [_part("(empty)")]},
        {"role": "user", "content": [_part("(empty)")]},
    ]


def _part(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def test_texts_and_calls_are_read_and_reasoning_is_not(url: str) -> None:
    *pieces, last = await asked(f"{url}/calling")
    assert "".join(piece.text for piece in pieces) == "I look."
    calls = [
        (c["index"], c.get("id"), c["function"].get("name"), c["function"]["arguments"])
        for piece in pieces
        for c in piece.tool_calls
    ]
    assert calls == [
        (0, "toolu_2", "weather", ""),
        (0, None, None, '{"city":'),
        (0, None, None, ' "Oslo"}'),
        (1, "toolu_3", "time", ""),
    ]
    assert last == Chunk(
        finish_reason="tool_calls",
        prompt_tokens=700,
        completion_tokens=30,
        cached_tokens=600,
        cache_written_tokens=90,
    )


async def test_tokens_of_the_cache_have_their_price(url: str) -> None:
    prices = {"usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_cached": 0.1, "usd_per_kilotoken_out": 5.0}
    *_, last = await asked(f"{url}/calling", **prices)
    assert last.usd == pytest.approx((100 * 1.0 + 600 * 0.1 + 30 * 5.0) / 1000)
    *_, last = await asked(f"{url}/calling", **prices, usd_per_kilotoken_cache_write=1.25)
    assert last.usd == pytest.approx((10 * 1.0 + 90 * 1.25 + 600 * 0.1 + 30 * 5.0) / 1000)


async def test_an_answer_that_is_sent_whole_is_read(url: str) -> None:
    *pieces, last = await asked(f"{url}/whole")
    assert pieces[0].text == "Now:"
    assert pieces[1].tool_calls[0]["function"] == {"name": "time", "arguments": '{"zone":"UTC"}'}
    assert (last.finish_reason, last.completion_tokens) == ("length", 1)


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("cut", GeneratorError, "sent no stop reason"),
        ("failing", GeneratorError, "sent an error in the place of the answer$"),
        ("long", PromptTooLongError, "longer than the context"),
        ("locked", GeneratorRefusedError, "HTTP 401"),
        ("busy", GeneratorBusyError, "HTTP 429: again in 3 s"),
    ],
)
async def test_a_failure_is_its_own_error(
    url: str, case: str, error: type[GeneratorError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await asked(f"{url}/{case}")


async def test_what_a_model_does_not_take_is_not_sent_again(url: str) -> None:
    tried.clear()
    generator = build_generator(spec(f"{url}/choosy"))
    prompt = Prompt(PROMPT.messages, temperature=0.5, top_p=0.5)
    try:
        for _ in range(2):
            assert (await complete(generator, prompt))[0] == "Yes."
    finally:
        await generator.close()
    assert [sorted(body.keys() & {"temperature", "top_p"}) for body in tried] == [
        ["temperature", "top_p"],
        ["temperature"],
        [],
        [],
    ]


async def test_a_wrong_value_is_not_left_out(url: str) -> None:
    tried.clear()
    with pytest.raises(GeneratorError, match="HTTP 400"):
        await asked(f"{url}/wrong", Prompt(PROMPT.messages, temperature=0.5))
    assert len(tried) == 1


LIMITS = AnswerLimits(choices=1, tokens=10, request_bytes=100)


def read(*events: dict[str, Any]) -> tuple[list[Chunk], MessageStream]:
    answer = MessageStream(LIMITS, ["x" * 40])
    pieces = [piece for event in events for piece in answer.pieces(orjson.dumps(event))]
    return pieces, answer


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("refusal", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
    ],
)
def test_stop_reasons_have_the_names_of_chunks(reason: str, finish: str) -> None:
    _, answer = read(start(), *text("a"), *end(reason, output_tokens=1))
    assert answer.closed
    assert answer.last().finish_reason == finish


@pytest.mark.parametrize(
    "events",
    [
        [*text("four more words here"), *end("end_turn")],
        [start(input_tokens=-1), *text("four more words here"), *end("end_turn")],
        [start(input_tokens=10**9), *text("four more words here"), *end("end_turn", output_tokens=5)],
        [start(), *text("four more words here"), *end("end_turn", output_tokens=10**9)],
    ],
)
def test_usage_that_cannot_be_true_is_estimated(events: list[dict[str, Any]]) -> None:
    _, answer = read(*events)
    last = answer.last()
    assert (last.prompt_tokens, last.completion_tokens, last.cached_tokens, last.cache_written_tokens) == (
        10,
        5,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"no": "type"}], "type: Field required"),
        (
            [{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}}],
            "without its name",
        ),
        (text("x" * 20_000), "more than 10,320 characters"),
        (call(0, "f", "x" * 20_000), "more than 10,320 characters"),
        (
            [{"type": "content_block_delta", "index": 4, "delta": {"type": "x", "partial_json": "{"}}],
            "arguments of no function",
        ),
        ([event for i in range(129) for event in call(i, "f")], "more than 128 calls"),
    ],
)
def test_what_breaks_a_bound_is_no_answer(events: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        read(*events)


def test_the_engine_reads_images_and_files_and_tools() -> None:
    default = AnthropicSpec.model_validate({"engine": "anthropic", "model": "m"})
    assert list_inputs(default) == {"image", "file"}
    assert list_options(default) == {"tools", "tool_choice", "response_format", "parallel_tool_calls"}
