"""Models that LiteLLM asks, in front of a provider that answers over HTTP in two protocols."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from armwise.arms.llm import litellm_engine
from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorBusyError,
    GeneratorError,
    GeneratorRefusedError,
    GeneratorTimeoutError,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
    Refusal,
)
from armwise.arms.llm.catalog import EndpointSpec, build_generator
from armwise.arms.llm.protocols.request import Request as Asked

pytestmark = [
    pytest.mark.filterwarnings("default"),  # of LiteLLM
    pytest.mark.skipif(find_spec("litellm") is None, reason="make test-clients installs it"),
]

TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]

HEY = [{"role": "user", "content": "Hey"}]

CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}

COUNTED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@dataclass
class Provider:
    """What the provider answers, and what reached it.

    Attributes:
        answer: The body of an answer.
        events: The events of a stream.
        status: HTTP status.
        headers: Headers of the answer.
        refusals: Bodies of refusals of the next requests.
        asked: Bodies of the requests.
        sent: Headers of the requests.
    """

    answer: Any = None
    events: list[Any] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[Any] = field(default_factory=list)
    sent: list[dict[str, str]] = field(default_factory=list)
    refusals: list[Any] = field(default_factory=list)


provider = Provider()

endpoint = FastAPI()


@endpoint.post("/v1/chat/completions")
@endpoint.post("/v1/messages")
async def _answer(request: Request) -> Response:
    provider.asked.append(await request.json())
    provider.sent.append(dict(request.headers))
    if provider.refusals:
        return JSONResponse(provider.refusals.pop(0), 400)
    if provider.asked[-1].get("stream") and provider.status == 200:
        return StreamingResponse(_lines(), media_type="text/event-stream")
    return JSONResponse(provider.answer, provider.status, provider.headers)


async def _lines() -> AsyncIterator[bytes]:
    for event in provider.events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()
    if "type" not in provider.events[0]:
        yield b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    provider.__init__()  # type: ignore[misc]


@pytest.fixture
def silent() -> Iterator[str]:
    """Listen, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def chatting(url: str, **settings: Any) -> Generator:
    """Return a model that is asked by OpenAI's protocol."""
    return of_kind("openai/m", f"{url}/v1", **settings)


def of_kind(model: str, base_url: str, **settings: Any) -> Generator:
    os.environ["A_KEY"] = "sk-1"
    given = {"api_key_env": "A_KEY", "max_retries": 0, **settings}
    return build_generator(EndpointSpec(engine="litellm", model=model, base_url=base_url, **given))  # type: ignore[arg-type]


def messaging(url: str, **settings: Any) -> Generator:
    """Return a model that is asked by Anthropic's protocol."""
    return of_kind("anthropic/claude-opus-4-6", url, **settings)


def asking(*, streams: bool = False, **fields: Any) -> Prompt:
    """Return the prompt for a request of a client."""
    body = {"model": "auto", "messages": HEY, **fields}
    return Prompt((), request=Asked("chat", body), sets_limit=False, temperature=None, streams=streams)


async def read(generator: Generator, prompt: Prompt) -> list[Chunk]:
    async with aclosing(generator.stream(prompt)) as chunks:
        return [chunk async for chunk in chunks]


def completion(**message: Any) -> dict[str, Any]:
    reason = "tool_calls" if "tool_calls" in message else "stop"
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, **message},
        "finish_reason": reason,
    }
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": COUNTED,
    }


def piece(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


STREAM = [
    piece(role="assistant", reasoning_content="why"),
    piece(content="Hel"),
    piece(content="lo"),
    piece(tool_calls=[{"index": 0, **CALL}]),
    piece("tool_calls"),
    {**piece(), "choices": [], "usage": COUNTED},
]

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "thinking", "thinking": "why", "signature": "SIG"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 9,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 4,
    },
}

MESSAGE_EVENTS = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "why"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "SIG"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


# What is asked.


async def test_a_request_reaches_a_provider_of_its_protocol_whole(url: str) -> None:
    provider.answer = completion(content="Hello")
    said = {"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_a", "content": "B"}
    fields: dict[str, Any] = {
        "tools": TOOLS,
        "reasoning_effort": "high",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_k": 3,
    }
    fields |= {"messages": [*HEY, said, result], "new_field": {"a": [1]}, "metadata": {"b": "c"}}
    await read(chatting(url), asking(**fields))
    assert provider.asked == [{**fields, "model": "m"}]
    assert provider.sent[0]["authorization"] == "Bearer sk-1"


async def test_no_field_of_a_caller_is_an_argument_of_the_library(url: str) -> None:
    provider.answer = completion(content="Hello")
    hostile: dict[str, Any] = {
        "api_base": "http://127.0.0.1:9/v1",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key": "stolen",
        "extra_headers": {"authorization": "Bearer stolen"},
        "extra_body": {"model": "other"},
        "mock_response": "never asked",
        "custom_llm_provider": "anthropic",
        "fallbacks": ["openai/other"],
        "timeout": 0.001,
        "logger_fn": "x",
        "num_retries": 3,
        "vertex_credentials": "/etc/passwd",
    }
    await read(chatting(url), asking(**hostile))
    assert provider.asked == [{**hostile, "model": "m", "messages": HEY}]
    assert provider.sent[0]["authorization"] == "Bearer sk-1"


async def test_an_unknown_field_reaches_no_provider_of_another_protocol(url: str) -> None:
    provider.answer = MESSAGE
    await read(
        messaging(url), asking(max_tokens=9, new_field=1, api_base="http://127.0.0.1:9", mock_response="x")
    )
    text = {"role": "user", "content": [{"type": "text", "text": "Hey"}]}
    assert provider.asked == [{"model": "claude-opus-4-6", "messages": [text], "max_tokens": 9}]
    assert provider.sent[0]["x-api-key"] == "sk-1"


async def test_the_configuration_sets_and_removes_fields(url: str) -> None:
    provider.answer = completion(content="Hello")
    request = {"top_k": 3, "user": None, "odd": None, "seed": 4}
    await read(chatting(url, request=request), asking(user="u", odd=1, top_k=9, other=2, seed=1))
    assert provider.asked == [{"model": "m", "messages": HEY, "top_k": 3, "other": 2, "seed": 4}]


async def test_a_field_that_a_model_lacks_is_left_out_from_then_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.answer = MESSAGE
    generator = messaging(url)
    for _ in range(2):
        await read(generator, asking(max_tokens=9, seed=1, store=False, temperature=0.5))
    assert [body.keys() & {"seed", "store", "temperature"} for body in provider.asked] == [
        {"temperature"}
    ] * 2
    assert sum("later requests are sent without" in record.message for record in caplog.records) == 1


async def test_a_model_that_takes_no_temperature_is_asked_without(url: str) -> None:
    provider.answer = completion(content="Hello")
    generator = of_kind("openai/gpt-5", f"{url}/v1")
    await read(generator, asking(temperature=0.0, reasoning_effort="low"))
    assert provider.asked == [{"model": "gpt-5", "messages": HEY, "reasoning_effort": "low"}]


async def test_a_field_that_a_provider_refuses_is_left_out(url: str) -> None:
    provider.answer = completion(content="Hello")
    said = {"message": "Unsupported parameter: seed", "code": "unsupported_parameter", "param": "seed"}
    provider.refusals = [{"error": said}]
    await read(chatting(url), asking(seed=1))
    assert [body.get("seed") for body in provider.asked] == [1, None]


async def test_an_option_that_a_model_lacks_is_the_callers_to_change(url: str) -> None:
    with pytest.raises(PromptRefusedError) as caught:
        await read(messaging(url), asking(max_tokens=9, logit_bias={"1": 1}))
    assert "logit_bias" in caught.value.refusal.message
    assert provider.asked == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": ["x"]},
        {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
        {"tools": [{}]},
    ],
)
async def test_a_request_that_cannot_be_written_is_the_callers(url: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(PromptRefusedError):
        await read(messaging(url), asking(max_tokens=9, **wrong))
    assert provider.asked == []


async def test_no_image_is_fetched_by_its_address(url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"{url}/v1/messages"}}
    generator = of_kind("gemini/gemini-2.5-pro", url)
    with pytest.raises(PromptRefusedError) as caught:
        await read(generator, asking(messages=[{"role": "user", "content": [image]}]))
    assert "download is disabled" in caught.value.refusal.message
    assert provider.sent == []


# What is answered.


async def test_a_whole_answer_has_calls_reasoning_and_usage(url: str) -> None:
    provider.answer = completion(tool_calls=[CALL], reasoning_content="why")
    first, last = await read(chatting(url), asking(tools=TOOLS))
    assert (first.reasoning, [call["id"] for call in first.tool_calls]) == ("why", ["call_a"])
    assert first.native is not None
    message = first.native.document["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "why")
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens) == ("tool_calls", 5, 7)
    assert "call_a" in last.marks


async def test_a_stream_has_calls_reasoning_and_usage(url: str) -> None:
    provider.events = STREAM
    *pieces, last = await read(chatting(url), asking(tools=TOOLS, streams=True))
    assert "".join(one.text for one in pieces) == "Hello"
    assert "".join(one.reasoning for one in pieces) == "why"
    assert [call["id"] for one in pieces for call in one.tool_calls] == ["call_a"]
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens) == ("tool_calls", 5, 7)
    assert provider.asked[0]["stream_options"] == {"include_usage": True}


async def test_a_message_of_anthropic_becomes_a_chat_completion(url: str) -> None:
    provider.answer = MESSAGE
    first, last = await read(messaging(url), asking(max_tokens=9, tools=TOOLS))
    assert (first.text, first.reasoning, first.tool_calls[0]["id"]) == ("Hello", "why", "toolu_1")
    assert first.native is not None
    blocks = first.native.document["choices"][0]["message"]["thinking_blocks"]
    assert blocks == [{"type": "thinking", "thinking": "why", "signature": "SIG"}]
    assert (last.prompt_tokens, last.cached_tokens, last.cache_written_tokens) == (16, 3, 4)


async def test_thinking_comes_back_to_the_provider_that_signed_it(url: str) -> None:
    provider.answer = MESSAGE
    blocks = [{"type": "thinking", "thinking": "why", "signature": "SIG"}]
    said = {"role": "assistant", "content": "A", "thinking_blocks": blocks}
    await read(messaging(url), asking(max_tokens=9, messages=[*HEY, said, *HEY]))
    assert provider.asked[0]["messages"][1]["content"][0] == blocks[0]


async def test_a_stream_of_anthropic_becomes_chunks(url: str) -> None:
    provider.events = MESSAGE_EVENTS
    *pieces, last = await read(messaging(url), asking(max_tokens=9, streams=True))
    assert "".join(one.text for one in pieces) == "Hello"
    assert "".join(one.reasoning for one in pieces) == "why"
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens) == ("stop", 16, 2)


async def test_configured_prices_hold_against_the_librarys(url: str) -> None:
    provider.events, provider.answer = MESSAGE_EVENTS, MESSAGE
    prices = {"usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 100.0}
    for streams in (True, False):
        *_, last = await read(messaging(url, **prices), asking(max_tokens=9, streams=streams))
        assert last.usd == pytest.approx(0.016 + 0.2)


async def test_a_bill_of_the_provider_is_the_price(url: str) -> None:
    provider.answer = {**completion(content="Hello"), "usage": {**COUNTED, "cost": 0.25}}
    provider.events = [*STREAM[:-1], {**STREAM[-1], "usage": {**COUNTED, "cost": 0.25}}]
    for model in ("openai/m", "openai/gpt-4o"):  # LiteLLM has a price of the second
        for streams in (True, False):
            *_, last = await read(of_kind(model, f"{url}/v1"), asking(streams=streams))
            assert last.usd == 0.25


# What fails.


@pytest.mark.parametrize("streams", [False, True])
async def test_a_refusal_says_what_the_provider_says(url: str, *, streams: bool) -> None:
    provider.status = 400
    provider.answer = {"error": {"message": "x is bad", "type": "invalid", "code": "bad_x", "param": "x"}}
    with pytest.raises(PromptRefusedError) as caught:
        await read(chatting(url), asking(streams=streams))
    assert caught.value.refusal == Refusal("x is bad", "bad_x", "x", "invalid")
    assert "x is bad" not in str(caught.value)


async def test_a_refusal_of_anthropic_says_what_it_says(url: str) -> None:
    provider.status = 400
    provider.answer = {"type": "error", "error": {"type": "invalid_request_error", "message": "x is bad"}}
    with pytest.raises(PromptRefusedError) as caught:
        await read(messaging(url), asking(max_tokens=9))
    assert caught.value.refusal == Refusal("x is bad", type="invalid_request_error")


async def test_a_long_prompt_is_named_as_one(url: str) -> None:
    provider.status = 400
    said = {"message": "This model's maximum context length is 8", "code": "context_length_exceeded"}
    provider.answer = {"error": said}
    with pytest.raises(PromptTooLongError):
        await read(chatting(url), asking())


@pytest.mark.parametrize("build", [chatting, messaging])
async def test_a_used_up_rate_is_waited_for_as_the_provider_says(url: str, build: Any) -> None:
    provider.status, provider.headers = 429, {"retry-after": "17"}
    provider.answer = {"error": {"message": "slow down", "type": "rate_limit_error"}}
    with pytest.raises(GeneratorBusyError) as caught:
        await read(build(url, max_retries=2), asking(max_tokens=9))
    assert caught.value.retry_after_s == 17
    assert len(provider.asked) == 1


async def test_a_wrong_key_is_the_services(url: str) -> None:
    provider.status, provider.answer = 401, {"error": {"message": "no such key sk-1"}}
    with pytest.raises(GeneratorRefusedError, match=r"^openai/m: HTTP 401$"):
        await read(chatting(url), asking())


async def test_what_fails_for_a_moment_is_asked_again(url: str) -> None:
    provider.status, provider.headers = 503, {"retry-after-ms": "1"}
    provider.answer = {"error": {"message": "no"}}
    with pytest.raises(GeneratorError, match="HTTP 503"):
        await read(chatting(url, max_retries=2), asking())
    assert len(provider.asked) == 3


@pytest.mark.parametrize("build", [chatting, messaging])
async def test_a_stream_without_its_end_is_no_answer(url: str, build: Any) -> None:
    provider.events = (STREAM if build is chatting else MESSAGE_EVENTS)[:3]
    with pytest.raises(GeneratorError) as caught:
        await read(build(url), asking(max_tokens=9, streams=True))
    assert not isinstance(caught.value, PromptRefusedError)


async def test_an_error_within_a_stream_is_a_failure(url: str) -> None:
    provider.events = [*STREAM[:2], {"error": {"message": "broken", "code": 500}}]
    with pytest.raises(GeneratorError):
        await read(chatting(url), asking(streams=True))


@pytest.mark.parametrize("build", [chatting, messaging])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_silent_provider_is_given_up(
    build: Any, silent: str, monkeypatch: pytest.MonkeyPatch, *, streams: bool
) -> None:
    monkeypatch.setattr(litellm_engine, "SILENCE_S", 0.3)
    with pytest.raises(GeneratorTimeoutError, match="sent nothing for too long"):
        await read(build(silent), asking(max_tokens=9, streams=streams))


async def test_a_provider_that_is_away_is_no_fault_of_the_request(unused_tcp_port: int) -> None:
    away = f"http://127.0.0.1:{unused_tcp_port}"
    for build in (chatting, messaging):
        with pytest.raises(GeneratorError) as caught:
            await read(build(away), asking(max_tokens=9))
        assert type(caught.value) is GeneratorError


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(GeneratorError, match="set the environment variable NO_KEY"):
        build_generator(EndpointSpec(engine="litellm", model="openai/m", api_key_env="NO_KEY"))


async def test_missing_credentials_of_a_cloud_are_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    spec = EndpointSpec(
        engine="litellm",
        model="bedrock/anthropic.claude-3-haiku-20240307-v1:0",
        request={"aws_region_name": "us-east-1"},
    )
    with pytest.raises(GeneratorRefusedError):
        await read(build_generator(spec), asking(max_tokens=9))


def test_a_name_without_a_provider_is_refused_at_the_start() -> None:
    with pytest.raises(GeneratorError, match=r"knows no provider of 'my-model'"):
        build_generator(EndpointSpec(engine="litellm", model="my-model"))


# What the library does to the process.

IMPORT = """
import logging, os, sys, warnings
logging.getLogger("httpx").setLevel(logging.INFO)
before = list(warnings.filters), list(logging.root.handlers), logging.root.level, dict(os.environ)
sockets = []
asked = ("socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, _: sockets.append(event) if event in asked else None)
from armwise.arms.llm import litellm_engine
from armwise.arms.llm.catalog import EndpointSpec, build_generator
build_generator(EndpointSpec(engine="litellm", model="openai/m"))
assert "litellm" in sys.modules
assert list(logging.root.handlers) == before[1] and logging.root.level == before[2]
assert logging.getLogger("httpx").level == logging.INFO
assert not [one for one in warnings.filters if "protected namespace" in str(one) or "ReadOnly" in str(one)]
assert "FROM_A_FILE" not in os.environ
from litellm.anthropic_beta_headers_manager import update_headers_with_filtered_beta
update_headers_with_filtered_beta({"anthropic-beta": "some-beta"}, "anthropic")
assert not sockets, sockets
logging.getLogger("LiteLLM").error("a prompt")
"""


def test_the_import_asks_nobody_and_leaves_logs_and_warnings(tmp_path: Any) -> None:
    (tmp_path / ".env").write_text("FROM_A_FILE=1\n")
    run = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
