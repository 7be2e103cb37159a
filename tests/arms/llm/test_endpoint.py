"""Endpoints that refuse, fail, stall or report no usage, over real HTTP."""

import asyncio
import gc
import json
import pickle
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from hypothesis import given
from hypothesis import strategies as st
from tenacity import AsyncRetrying, RetryCallState

from armwise.arms.async_bridge import Blocking
from armwise.arms.llm import endpoint as endpoints
from armwise.arms.llm import protocols
from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorBusyError,
    GeneratorError,
    GeneratorRefusedError,
    GeneratorTimeoutError,
    Message,
    Native,
    Prompt,
    PromptRefusedError,
    PromptTooLongError,
    Refusal,
    complete,
)
from armwise.arms.llm.catalog import EndpointSpec, build_generator, list_options
from armwise.arms.llm.endpoint import EndpointGenerator, StatusError, _passes, choose_pause, read_reset_s
from armwise.arms.llm.pricing import PricedGenerator, TokenPrices
from armwise.arms.llm.protocols.answer import estimate_tokens
from armwise.arms.llm.translate.documents import read_document
from tests.arms.llm.translate.test_documents import TEXTS, VALUES, same, whole

PROMPT = Prompt(({"role": "user", "content": "What is the capital of France?"},), seed=3)


async def ask(generator: Generator, prompt: Prompt = PROMPT) -> tuple[str, Chunk]:
    """Return the whole answer of a model, and close the model."""
    try:
        return await complete(generator, prompt)
    finally:
        await generator.close()


endpoint = FastAPI()

seen: Counter[str] = Counter()
"""Requests of each endpoint."""


def _delta(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


def _stream(*events: dict[str, Any], stall: bool = False, tear: bool = False) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        for event in events:
            yield b"data: " + orjson.dumps({"id": "1", "object": "chat.completion.chunk", **event}) + b"\n\n"
        if stall:
            await asyncio.Event().wait()
        if tear:
            raise ConnectionError("the endpoint dies")
        yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status, headers={"retry-after-ms": "1"})


@endpoint.post("/busy/chat/completions")
async def _busy() -> JSONResponse:
    return _refusal(429, "slow down")


@endpoint.post("/broken/chat/completions")
async def _broken() -> JSONResponse:
    seen["broken"] += 1
    return _refusal(500, "out of memory")


@endpoint.post("/limited/chat/completions")
async def _limited() -> JSONResponse:
    seen["limited"] += 1
    return JSONResponse({"error": {"message": "slow down"}}, 429)


@endpoint.post("/refusing/chat/completions")
async def _refusing() -> JSONResponse:
    return _refusal(400, "no such model")


@endpoint.post("/blind/{status}/chat/completions")
async def _blind(status: int) -> JSONResponse:
    return _refusal(status, "this model does not support image input")


@endpoint.post("/long/chat/completions")
async def _long() -> JSONResponse:
    return _refusal(400, "this model's maximum context length is 64 tokens")


@endpoint.post("/silent/chat/completions")
async def _silent() -> None:
    await asyncio.Event().wait()


@endpoint.post("/stalling/chat/completions")
async def _stalling() -> StreamingResponse:
    return _stream(_delta("One"), stall=True)


@endpoint.post("/torn/chat/completions")
async def _torn() -> StreamingResponse:
    return _stream(_delta("One"), tear=True)


@endpoint.post("/failing/chat/completions")
async def _failing() -> StreamingResponse:
    return _stream(_delta("One"), {"error": {"message": "worker died"}})


@endpoint.post("/cut/chat/completions")
async def _cut() -> StreamingResponse:
    return _stream(_delta("One"))


@endpoint.post("/paid/chat/completions")
async def _paid() -> StreamingResponse:
    usage = {"prompt_tokens": 1000, "completion_tokens": 2000, "total_tokens": 3000}
    return _stream(_delta("One"), _delta("", "stop"), {"choices": [], "usage": usage}, {"choices": []})


@endpoint.post("/recovering/{status}/chat/completions")
async def _recovering(status: int) -> Any:
    seen["recovering"] += 1
    return _refusal(status, "starting") if seen["recovering"] < 3 else _stream(_delta("One", "stop"))


@endpoint.post("/patient/{status}/{after_ms}/chat/completions")
async def _patient(status: int, after_ms: str) -> Any:
    seen["patient"] += 1
    if seen["patient"] > 1:
        return _stream(_delta("One", "stop"))
    return JSONResponse({"error": {"message": "later"}}, status, headers={"retry-after-ms": after_ms})


@endpoint.post("/rated/chat/completions")
async def _rated() -> StreamingResponse:
    seen["rated"] += 1
    usage = {"prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001}
    cached = {**usage, "prompt_tokens_details": {"cached_tokens": 600}}
    response = _stream(_delta("One", "stop"), {"choices": [], "usage": cached})
    response.headers["x-ratelimit-remaining-requests"] = "0"
    response.headers["x-ratelimit-reset-requests"] = "1m30s"
    return response


@endpoint.post("/echo/chat/completions")
async def _echo(request: Request) -> StreamingResponse:
    return _stream(_delta((await request.body()).decode(), "stop"))


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("busy", GeneratorBusyError, "HTTP 429"),
        ("broken", GeneratorError, "HTTP 500"),
        ("refusing", PromptRefusedError, "HTTP 400$"),
        ("long", PromptTooLongError, "HTTP 400: the conversation is longer than"),
        ("failing", GeneratorError, "sent an error instead of the answer"),
        ("torn", GeneratorError, r"the connection failed \(ClientPayloadError\)"),
        ("cut", GeneratorError, "no finish reason of choice 0"),
        ("silent", GeneratorTimeoutError, "sent nothing for 0.3 s"),
        ("stalling", GeneratorTimeoutError, "sent nothing for 0.3 s"),
    ],
)
@pytest.mark.slow
async def test_a_failure_names_the_model_the_endpoint_and_the_reason(
    url: str, case: str, error: type[GeneratorError], message: str
) -> None:
    with pytest.raises(error, match=f"^m at {re.escape(url)}/{case}.*{message}") as caught:
        await ask(EndpointGenerator("chat", f"{url}/{case}", "m", timeout_s=0.3, max_retries=1))
    assert type(caught.value) is error


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503, 599])
async def test_what_fails_for_a_moment_is_tried_again(url: str, status: int) -> None:
    seen.clear()
    assert (await ask(EndpointGenerator("chat", f"{url}/recovering/{status}", "m")))[0] == "One"
    assert seen["recovering"] == 3


@pytest.mark.parametrize(
    ("path", "status", "requests"),
    [*((f"recovering/{status}", status, 1) for status in (400, 404, 410, 499)), ("broken", 500, 3)],
)
async def test_what_fails_again_ends_in_an_error(url: str, path: str, status: int, requests: int) -> None:
    seen.clear()
    with pytest.raises(GeneratorError, match=f"HTTP {status}"):
        await ask(EndpointGenerator("chat", f"{url}/{path}", "m"))
    assert seen.total() == requests


async def test_an_endpoint_that_names_no_pause_has_no_rest(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/limited", "m", max_retries=0)
    for _ in range(2):
        with pytest.raises(GeneratorBusyError, match="HTTP 429") as caught:
            await complete(generator, PROMPT)
        assert caught.value.retry_after_s == 0.0
    await generator.close()
    assert seen["limited"] == 2


async def test_a_shorter_rest_does_not_end_a_longer_one(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/limited", "m")
    generator._rest(90.0)  # noqa: SLF001
    generator._rest(1.0)  # noqa: SLF001
    with pytest.raises(GeneratorBusyError) as caught:
        await complete(generator, PROMPT)
    await generator.close()
    assert caught.value.retry_after_s > 60.0


@pytest.mark.parametrize(("asked_s", "waited_s"), [("30", 30.0), ("60", 60.0), ("3600", 60.0)])
def test_a_pause_is_kept_up_to_a_minute(asked_s: str, waited_s: float) -> None:
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.set_exception((StatusError, StatusError(429, {"retry-after": asked_s}, Refusal()), None))
    assert choose_pause(state) == waited_s


@pytest.mark.parametrize(("attempt", "most_s"), [(1, 0.5), (2, 1.0), (9, 8.0)])
def test_a_pause_that_nobody_names_doubles_up_to_8_s(attempt: int, most_s: float) -> None:
    state: Any = SimpleNamespace(attempt_number=attempt, outcome=None)
    pauses = [choose_pause(state) for _ in range(200)]
    assert 0.0 <= min(pauses) < most_s / 2 < max(pauses) <= most_s


def test_a_rate_is_used_up_until_its_reset() -> None:
    tokens = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0.5h2m3.5s"}
    assert read_reset_s(tokens) == 1923.5
    requests = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "250ms"}
    assert read_reset_s(requests) == 0.25
    assert read_reset_s(tokens | requests) == 1923.5
    assert read_reset_s(requests | tokens | {"x-ratelimit-remaining-tokens": "1"}) == 0.25
    far = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "999999999d"}
    assert read_reset_s(far) == 3600.0, "an hour at most"


@pytest.mark.parametrize("status", [429, 529])
async def test_a_rate_that_is_used_up_for_long_is_not_waited_for(url: str, status: int) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/patient/{status}/30000", "m", max_retries=2)
    with pytest.raises(GeneratorBusyError, match=f"HTTP {status}") as caught:
        await complete(generator, PROMPT)
    assert 29.0 < caught.value.retry_after_s <= 30.0
    with pytest.raises(GeneratorBusyError, match="rate limit is used up"):  # without another request
        await complete(generator, PROMPT)
    await generator.close()
    assert seen["patient"] == 1
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.retry_after_s) == (str(caught.value), caught.value.retry_after_s)


@pytest.mark.parametrize("status", [429, 529, 503])
async def test_a_short_pause_is_waited_for(url: str, status: int) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/patient/{status}/9", "m")
    assert (await ask(generator))[0] == "One"
    assert seen["patient"] == 2


@pytest.mark.parametrize(("retry_after", "waits"), [("2", True), ("2.1", False), ("", True)])
def test_a_used_up_rate_is_waited_for_up_to_two_seconds(retry_after: str, waits: bool) -> None:
    headers = {"retry-after": retry_after}
    assert [_passes(StatusError(status, headers, Refusal())) for status in (429, 529)] == [waits] * 2
    assert _passes(StatusError(503, headers, Refusal())), "a failure has no other arm's rate"


async def test_a_pause_beyond_the_patience_is_not_waited_for(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/patient/503/30000", "m", max_retries=2)
    with pytest.raises(GeneratorError, match="HTTP 503"):
        await ask(generator, replace(PROMPT, patience_s=5.0))
    assert seen["patient"] == 1


async def test_a_used_up_rate_rests_and_cached_tokens_are_priced(
    url: str,
) -> None:
    seen.clear()
    prices = {"usd_per_kilotoken_in": 1.0, "usd_per_kilotoken_out": 0.0, "usd_per_kilotoken_cached": 0.1}
    generator = build_generator(
        EndpointSpec.model_validate({"engine": "openai", "base_url": f"{url}/rated", "model": "m", **prices})
    )
    _, last = await complete(generator, PROMPT)
    assert (last.prompt_tokens, last.cached_tokens) == (1000, 600)
    assert last.usd == pytest.approx(0.4 + 0.06)
    with pytest.raises(GeneratorBusyError) as caught:
        await complete(generator, PROMPT)
    await generator.close()
    assert 89.0 < caught.value.retry_after_s <= 90.0
    assert seen["rated"] == 1


async def test_a_paid_endpoint_charges_by_its_own_count(url: str) -> None:
    prices = TokenPrices(usd_per_kilotoken_in=0.5, usd_per_kilotoken_out=2.0)
    generator = PricedGenerator(EndpointGenerator("chat", f"{url}/paid", "m"), prices)
    text, last = await ask(generator)
    assert (text, last.prompt_tokens, last.completion_tokens) == ("One", 1000, 2000)
    assert last.usd == pytest.approx(0.5 + 4.0)


async def test_an_endpoint_without_usage_is_not_free(url: str) -> None:
    prices = TokenPrices(usd_per_kilotoken_in=1.0, usd_per_kilotoken_out=1.0)
    generator = PricedGenerator(EndpointGenerator("chat", f"{url}/echo", "m"), prices)
    text, last = await ask(generator)
    assert last.prompt_tokens == 8
    assert last.completion_tokens == round(len(text) / 4)
    assert last.usd == pytest.approx((last.prompt_tokens + last.completion_tokens) / 1000)


@endpoint.post("/pieces/chat/completions")
async def _pieces() -> StreamingResponse:
    return _stream(_delta("Four"), _delta(" words"), _delta(" of text.", "stop"))


async def test_an_estimate_is_of_all_messages_and_of_all_pieces(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/pieces", "m")
    system: Message = {"role": "system", "content": "You are brief."}
    text, last = await complete(generator, Prompt((system, *PROMPT.messages)))
    await generator.close()
    assert (text, last.completion_tokens) == ("Four words of text.", 5)
    assert last.prompt_tokens == 11, "44 characters"
    assert estimate_tokens(0) == estimate_tokens(1) == 1


async def test_request_fields_are_laid_over_the_body(url: str) -> None:
    spec = EndpointSpec.model_validate(
        {
            "engine": "openai",
            "base_url": f"{url}/echo",
            "model": "m",
            "request": {"max_tokens": None, "max_completion_tokens": 7},
        }
    )
    generator = build_generator(spec)
    body = orjson.loads((await ask(generator, replace(PROMPT, stop=("\n",), top_p=0.9)))[0])
    assert "max_tokens" not in body
    assert (body["stop"], body["top_p"], body["temperature"]) == (["\n"], 0.9, 0.0)
    assert (body["max_completion_tokens"], body["seed"], body["messages"]) == (7, 3, list(PROMPT.messages))


@endpoint.post("/calling/chat/completions")
async def _calling() -> StreamingResponse:
    def of(index: int, finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}

    call = {"index": 0, "id": "c-1", "type": "function", "function": {"name": "now", "arguments": ""}}
    return _stream(
        of(0, tool_calls=[call]),
        of(1, content="Noon"),
        of(0, tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
        of(1, "stop"),
        of(0, "tool_calls"),
    )


async def test_calls_and_choices_are_read_piece_by_piece(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/calling", "m")
    two = replace(PROMPT, options={"n": 2})
    first, text, arguments, *ends, last = [chunk async for chunk in generator.stream(two)]
    await generator.close()
    assert [(end.index, end.text, end.ended) for end in ends] == [(1, "", False), (0, "", True)]
    assert first.tool_calls[0]["id"] == "c-1"
    assert first.tool_calls[0]["function"]["name"] == "now"
    assert arguments.tool_calls == ({"index": 0, "function": {"arguments": "{}"}},)
    assert (text.index, text.text) == (1, "Noon")
    assert (last.finish_reason, last.finish_reasons) == ("tool_calls", ("stop",))


@endpoint.post("/whole/chat/completions")
async def _whole(request: Request) -> JSONResponse:
    """Answer without a stream, though one was asked for."""
    assert (await request.json())["stream"]
    call = {"id": "c-1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    said = {"role": "assistant", "content": "Paris"}
    choices = [
        {"index": 0, "message": said, "finish_reason": "length"},
        {"index": 1, "message": called, "finish_reason": "tool_calls"},
    ]
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    return JSONResponse({"id": "1", "object": "chat.completion", "choices": choices, "usage": usage})


@endpoint.post("/rapid/chat/completions")
async def _rapid() -> Response:
    event = b"data: " + orjson.dumps(_delta("a")) + b"\n\n"
    return Response(event * 500 + b"data: " + orjson.dumps(_delta("", "stop")) + b"\n\n")


async def test_others_have_their_turn_while_events_arrive_at_full_speed(url: str) -> None:
    turns, ended = list[int](), asyncio.Event()  # pieces that were read before each turn

    async def count_turns() -> None:
        while not ended.is_set():
            turns.append(len(pieces))
            await asyncio.sleep(0)

    pieces = list[Chunk]()
    generator = EndpointGenerator("chat", f"{url}/rapid", "m")
    other = asyncio.create_task(count_turns())
    async with aclosing(generator.stream(PROMPT)) as chunks:
        async for piece in chunks:
            pieces.append(piece)
    ended.set()
    await asyncio.gather(other, generator.close())
    assert len(pieces) == 502
    assert max(later - before for before, later in pairwise(turns)) <= 16


async def test_an_answer_that_is_sent_whole_is_read(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/whole", "m")
    text, calls, last = [chunk async for chunk in generator.stream(replace(PROMPT, options={"n": 2}))]
    await generator.close()
    assert (text.index, text.text) == (0, "Paris")
    assert calls.tool_calls == (
        {"index": 0, "id": "c-1", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    )
    assert (last.finish_reason, last.finish_reasons) == ("length", ("tool_calls",))
    assert (last.prompt_tokens, last.completion_tokens) == (9, 5)


@endpoint.post("/calling-twice/chat/completions")
async def _calling_twice() -> StreamingResponse:
    function = {"name": "now", "arguments": ""}
    calls = [{"index": at, "id": f"c-{at}", "type": "function", "function": function} for at in (0, 1)]
    delta = {"tool_calls": calls}
    return _stream({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})


async def test_an_estimate_counts_all_calls_of_a_piece(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/calling-twice", "m")
    *_, last = [chunk async for chunk in generator.stream(PROMPT)]
    await generator.close()
    assert last.completion_tokens == 2, "two names of 3 characters"


async def test_options_are_passed_on_and_empty_ones_are_not(url: str) -> None:
    call = {"id": "call00000", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages: tuple[Message, ...] = (
        *PROMPT.messages,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "call00000"},
        {"role": "user", "content": ""},
    )
    generator = EndpointGenerator("chat", f"{url}/echo", "m")
    prompt = Prompt(messages, options={"tool_choice": "auto", "n": 2})
    body = orjson.loads((await ask(generator, prompt))[0])
    assert (body["tool_choice"], body["n"], body["max_tokens"]) == ("auto", 2, 256)
    assert "top_p" not in body, "it is what happens anyway"
    assert body.keys().isdisjoint({"stop", "seed"}), "what is empty is left out"
    assert [message["content"] for message in body["messages"]] == [
        PROMPT.messages[0]["content"],
        None,
        "12:00",
        "",
    ]


async def test_images_are_passed_on_and_marks_of_the_cache_are_not(url: str) -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "now"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    said: list[dict[str, Any]] = [{"type": "text", "text": "a", **marked}, {"type": "text", "text": "b"}]
    messages: tuple[Message, ...] = (
        {"role": "user", "content": "a\nb", "parts": said},
        {"role": "assistant", "content": "", "tool_calls": [call | marked]},
        {"role": "tool", "content": "a", "parts": [said[0]], "tool_call_id": "c", "is_error": True},
        {"role": "user", "content": "a", "parts": [said[0], image | marked]},
    )
    generator = EndpointGenerator("chat", f"{url}/echo", "m")
    prompt = Prompt(messages, options={"tools": [tool | marked]})
    body = orjson.loads((await ask(generator, prompt))[0])
    assert body["tools"] == [tool]
    assert body["messages"] == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a", "tool_call_id": "c"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
    ]


SEEN: Message = {
    "role": "user",
    "content": "",
    "parts": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
}


@pytest.mark.parametrize(
    ("path", "messages", "error"),
    [
        ("blind/400", (SEEN,), PromptRefusedError),
        ("blind/415", (SEEN,), PromptRefusedError),
        ("blind/413", PROMPT.messages, PromptRefusedError),
        ("blind/422", PROMPT.messages, PromptRefusedError),
        ("blind/404", (SEEN,), GeneratorRefusedError),
        ("blind/418", (SEEN,), PromptRefusedError),
        ("blind/424", (SEEN,), PromptRefusedError),
        ("blind/500", (SEEN,), GeneratorError),
        ("long", (SEEN,), PromptTooLongError),
    ],
)
async def test_a_request_that_a_model_refuses_is_its_own_error(
    url: str, path: str, messages: tuple[Message, ...], error: type[GeneratorError]
) -> None:
    with pytest.raises(GeneratorError) as raised:
        await ask(EndpointGenerator("chat", f"{url}/{path}", "m", max_retries=0), Prompt(messages))
    assert type(raised.value) is error
    assert "support" not in str(raised.value), "nothing of the body is shown"
    if isinstance(raised.value, PromptRefusedError):
        assert raised.value.status == int(path.partition("/")[2] or 400)
        assert raised.value.refusal.message, "as the endpoint puts it, for who asked"


def test_a_field_that_an_endpoint_refuses_is_no_option() -> None:
    spec = {"engine": "openai", "base_url": "http://h/v1", "model": "m"}
    everything = list_options(EndpointSpec.model_validate(spec))
    fewer = list_options(EndpointSpec.model_validate({**spec, "request": {"tools": None, "seed": 1, "n": 1}}))
    assert everything - fewer == {"tools"}


@endpoint.post("/particular/chat/completions")
async def _particular(request: Request) -> Any:
    """Refuses what models that reason refuse, a parameter at a time."""
    body = await request.json()
    seen["particular"] += 1
    for param in ("max_tokens", "temperature", "stop"):
        if param in body:
            message = f"Unsupported parameter: {param!r} is not supported with this model."
            said = {"message": message, "param": param, "code": "unsupported_parameter"}
            return JSONResponse({"error": said}, 400)
    return _stream(_delta(orjson.dumps(body).decode(), "stop"))


async def test_a_parameter_that_a_model_refuses_is_not_sent_again(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/particular", "m")
    for requests in (3, 4):
        body = orjson.loads((await complete(generator, PROMPT))[0])
        assert seen["particular"] == requests
        assert (body["max_completion_tokens"], body["seed"]) == (256, 3)
        assert body.keys().isdisjoint({"max_tokens", "temperature"})
    await generator.close()


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("chat", "Unsupported parameter: 'seed' is not supported with this model."),
        ("messages", "messages.0.content: 'temperature and top_p are deprecated' is not permitted"),
    ],
)
async def test_a_message_that_may_quote_the_request_says_nothing_of_a_model(
    url: str, protocol: protocols.ProtocolName, message: str
) -> None:
    seen.clear()
    quoting[:] = [{"message": message, "param": "temperature"}]
    body = {"messages": [], "temperature": 0.5, "top_p": 0.5, "seed": 3}
    with pytest.raises(PromptRefusedError):
        await ask(
            EndpointGenerator(protocol, f"{url}/quoting", "m"),
            replace(BARE, request=protocols.Request(protocol, body)),
        )
    assert seen["quoting"] == 1, "nothing was left out"


async def test_a_parameter_of_meaning_is_never_left_out(url: str) -> None:
    seen.clear()
    with pytest.raises(GeneratorError, match="HTTP 400"):
        await ask(EndpointGenerator("chat", f"{url}/particular", "m"), replace(PROMPT, stop=("x",)))
    assert seen["particular"] == 3


async def test_a_configured_parameter_is_sent_as_it_is(url: str) -> None:
    seen.clear()
    with pytest.raises(GeneratorError, match="HTTP 400"):
        await ask(EndpointGenerator("chat", f"{url}/particular", "m", request={"temperature": 0.5}))
    assert seen["particular"] == 2, "the limit of tokens is learned, the temperature is not"


quoting = list[Any]()
"""What an endpoint says of each request."""


@endpoint.post("/quoting/{path:path}")
async def _quoting(path: str) -> JSONResponse:
    del path
    seen["quoting"] += 1
    return JSONResponse({"error": quoting[0]}, 400)


@endpoint.post("/choosy/chat/completions")
async def _choosy(request: Request) -> Any:
    param = "max_tokens" if "max_tokens" in await request.json() else "max_completion_tokens"
    seen["choosy"] += 1
    code = "invalid_value" if seen["choosy"] > 2 else "unsupported_parameter"
    return JSONResponse({"error": {"message": "no", "code": code, "param": param}}, 400)


async def test_no_limit_of_tokens_is_not_asked_for_ever(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/choosy", "m")
    with pytest.raises(GeneratorError, match="HTTP 400, unsupported_parameter"):
        await complete(generator, PROMPT)
    assert seen["choosy"] == 2
    with pytest.raises(GeneratorError, match="HTTP 400, invalid_value"):
        await complete(generator, PROMPT)
    await generator.close()
    assert seen["choosy"] == 3, "a wrong value says nothing of the model"


async def test_the_limit_of_tokens_has_the_callers_name(
    url: str,
) -> None:
    generator = EndpointGenerator("chat", f"{url}/echo", "m")
    named = replace(PROMPT, options={"max_completion_tokens": 256}, temperature=None)
    body = orjson.loads((await ask(generator, named))[0])
    assert body["max_completion_tokens"] == 256
    assert body.keys().isdisjoint({"max_tokens", "temperature", "top_p"})


@endpoint.post("/lasting/{status}/chat/completions")
async def _lasting(status: int) -> JSONResponse:
    seen["lasting"] += 1
    return _refusal(status, "the prompt was: secret")


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_a_wrong_key_account_or_model_is_its_own_error(
    url: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen.clear()
    with pytest.raises(GeneratorRefusedError, match=f"HTTP {status}$") as caught:
        await ask(EndpointGenerator("chat", f"{url}/lasting/{status}", "m"))
    assert (seen["lasting"], "secret" in str(caught.value)) == (1, False)
    assert "secret" in caplog.text, "operators see it"


@endpoint.post("/resting/{after}/chat/completions")
async def _resting(after: str) -> JSONResponse:
    return JSONResponse({}, 429, headers={"retry-after": after})


@pytest.mark.parametrize(("after", "rest_s"), [("inf", 3600.0), ("1e300", 3600.0), ("nan", 0.0), ("-5", 0.0)])
async def test_a_rest_is_an_hour_at_most(url: str, after: str, rest_s: float) -> None:
    with pytest.raises(GeneratorBusyError) as caught:
        await ask(EndpointGenerator("chat", f"{url}/resting/{after}", "m", max_retries=0))
    assert rest_s - 1.0 < caught.value.retry_after_s <= rest_s, "one that cannot be read is none"


@endpoint.post("/elsewhere/chat/completions")
async def _elsewhere() -> Response:
    return Response(status_code=307, headers={"location": "/inner/chat/completions"})


@endpoint.post("/inner/chat/completions")
async def _inner() -> None:
    seen["inner"] += 1


async def test_a_redirect_is_not_followed(url: str) -> None:
    seen.clear()
    with pytest.raises(GeneratorError, match="HTTP 307: redirects are not followed"):
        await ask(EndpointGenerator("chat", f"{url}/elsewhere", "m"))
    assert not seen["inner"]


def test_a_key_that_no_header_can_hold_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINE_KEY", "two\nlines")
    with pytest.raises(GeneratorError, match="the variable LINE_KEY"):
        EndpointGenerator("chat", "http://h/v1", "m", api_key_env="LINE_KEY")


@endpoint.post("/keyed/chat/completions")
async def _keyed(request: Request) -> StreamingResponse:
    told = f"{request.headers.get('authorization')} {request.url.query}{request.headers.get('cookie', '')}"
    response = _stream(_delta(told, "stop"))
    response.set_cookie("seen", "before")
    return response


@pytest.mark.slow
async def test_the_key_is_sent_and_the_query_of_the_base_url_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    keyed = EndpointGenerator("chat", f"{url}/keyed/?api-version=2", "m", api_key_env="SOME_KEY")
    assert (await ask(keyed))[0] == "Bearer sk-1 api-version=2"
    generator = EndpointGenerator("chat", f"{url.replace('127.0.0.1', 'localhost')}/keyed", "m")
    for _ in range(2):
        assert (await complete(generator, PROMPT))[0] == "None ", "no cookie is kept"
    await generator.close()


async def test_a_password_of_the_base_url_is_sent_without_a_key(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    named = f"{url.replace('//', '//me:secret@')}/keyed"
    for variable, sent in ((None, "Basic bWU6c2VjcmV0 "), ("SOME_KEY", "Bearer sk-1 ")):
        assert (await ask(EndpointGenerator("chat", named, "m", api_key_env=variable)))[0] == sent
    with pytest.raises(GeneratorError) as raised:
        await ask(
            EndpointGenerator("chat", f"{url.replace('//', '//me:secret@')}/broken", "m", max_retries=0)
        )
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
async def test_an_endpoint_is_asked_through_the_proxy(
    url: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, url)
    assert (await ask(EndpointGenerator("chat", "http://other.invalid/keyed", "m")))[0] == "None "
    monkeypatch.setenv("no_proxy", "other.invalid")
    for directly in ("http://other.invalid/keyed", "http://127.0.0.1:1/keyed"):
        with pytest.raises(GeneratorError, match="ClientConnector"):
            await ask(EndpointGenerator("chat", directly, "m", max_retries=0))


async def test_connections_are_kept_unless_they_are_hung_up(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/peer", "m", max_retries=0)
    first, second = [(await complete(generator, PROMPT))[0] for _ in range(2)]
    assert first == second, "the port of this side"
    async with aclosing(generator.stream(replace(PROMPT, seed=HANGS))) as chunks:
        assert (await anext(chunks)).text == first
    assert (await complete(generator, PROMPT))[0] != first
    await generator.close()


HANGS = 404
"""Seed of a request that is not answered to its end."""


def test_connections_of_a_model_that_nobody_closes_end_with_it(url: str) -> None:
    """Aiohttp warns of what is left open, and a warning is an error."""
    bridge = Blocking()
    assert bridge.run(_asked_and_forgotten(url))
    gc.collect()
    bridge.run(asyncio.sleep(0.1))
    gc.collect()


async def _asked_and_forgotten(url: str) -> str:
    return (await complete(EndpointGenerator("chat", f"{url}/peer", "m"), PROMPT))[0]


@endpoint.post("/peer/chat/completions")
async def _peer(request: Request) -> StreamingResponse:
    port = _delta(f"{request.client.port if request.client else 0}")
    if (await request.json())["seed"] == HANGS:
        return _stream(port, stall=True)
    return _stream(port, _delta("", "stop"))


# A request of a client.

passed: list[tuple[dict[str, str], bytes]] = []
"""Headers and bodies of the requests that were passed on, oldest first."""


@endpoint.post("/passing/chat/completions")
async def _passing(request: Request) -> StreamingResponse:
    passed.append((dict(request.headers), await request.body()))
    return _stream(_delta("One", "stop"))


@endpoint.post("/passing-whole/chat/completions")
async def _passing_whole(request: Request) -> JSONResponse:
    passed.append((dict(request.headers), await request.body()))
    return JSONResponse({"id": "1", "choices": [{"message": {"content": "One"}, "finish_reason": "stop"}]})


@pytest.fixture(scope="module")
def pass_on(url: str) -> Iterator[Callable[[Prompt], bytes]]:
    """Return what an endpoint of chat completions is sent for a prompt."""
    bridge = Blocking()
    generator = EndpointGenerator("chat", f"{url}/passing", "m")

    def send(prompt: Prompt) -> bytes:
        assert bridge.run(complete(generator, prompt))[0] == "One"
        return passed.pop()[1]

    yield send
    bridge.run(generator.close())


BARE = replace(PROMPT, temperature=None, sets_limit=False)
"""A prompt of an arm that adds nothing."""


@given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=4),
    st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=3),
    st.sampled_from([None, True, {}, {"include_obfuscation": False}]),
)
def test_a_request_reaches_its_protocol_as_it_came(
    pass_on: Callable[[Prompt], bytes], fields: Any, messages: Any, tools: Any, stream_options: Any
) -> None:
    """Fields, blocks and tools that nothing here knows, integers of 70 bits, and halves of pairs."""
    body = {"model": "auto", **fields, "messages": messages, "tools": tools, "stream_options": stream_options}
    request = read_document(json.dumps(body).encode())
    sent = json.loads(pass_on(replace(BARE, request=protocols.Request("chat", request))))
    options = stream_options if isinstance(stream_options, dict) else {}
    changed = {"model": "m", "stream": True, "stream_options": {**options, "include_usage": True}}
    assert same(sent, {**whole(body), **changed}), "to the order of keys, and the types of numbers"


def test_a_prompt_fills_what_its_request_leaves_open(pass_on: Callable[[Prompt], bytes]) -> None:
    request = protocols.Request("chat", {"messages": [{"role": "user", "content": "Why?"}], "stop": None})
    prompt = replace(PROMPT, request=request, instructions="Be brief.", stop=("x",), max_tokens=9)
    assert json.loads(pass_on(prompt)) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}],
        "stop": None,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "temperature": 0.0,
    }
    named = protocols.Request("chat", {"messages": [], "max_completion_tokens": 5, "temperature": 1})
    sent = json.loads(pass_on(replace(PROMPT, request=named)))
    assert (sent["max_completion_tokens"], sent["temperature"], "max_tokens" in sent) == (5, 1, False)


@pytest.mark.parametrize(("size", "in_thread"), [(0, 0), (300_000, 2)])
async def test_a_large_request_is_translated_and_written_in_a_thread(
    url: str, monkeypatch: pytest.MonkeyPatch, size: int, in_thread: int
) -> None:
    threads = list[str]()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (threads.append(threading.current_thread().name), call(*given))[1]

    monkeypatch.setattr(endpoints, "write_document", noted(endpoints.write_document))
    monkeypatch.setattr(protocols.chat, "write", noted(protocols.chat.write))
    request = protocols.Request("messages", {"max_tokens": 5, "messages": []}, size)
    generator = EndpointGenerator("chat", f"{url}/passing-whole", "m")
    await ask(generator, replace(BARE, request=request, streams=False))
    assert threads.count("large-document_0") == in_thread


async def test_a_whole_answer_is_asked_for_where_nobody_streams(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/passing-whole", "m")
    body = {"messages": [], "stream_options": {"include_usage": True}}
    prompt = replace(BARE, request=protocols.Request("chat", body), streams=False, headers={"x-trace": "5"})
    piece, last = [chunk async for chunk in generator.stream(prompt)]
    await generator.close()
    headers, sent = passed.pop()
    assert json.loads(sent) == {"messages": [], "model": "m"}
    assert (headers["accept"], headers["x-trace"]) == ("application/json", "5")
    assert (piece.text, piece.ended, last.marks) == ("One", True, ())
    assert piece.native is not None
    assert (piece.native.whole, piece.native.document["id"]) == (True, "1")


async def test_a_whole_answer_may_take_as_long_as_the_turn(url: str) -> None:
    for streams, silent_s in ((False, 0.2), (True, 0.05)):
        generator = EndpointGenerator("chat", f"{url}/silent", "m", timeout_s=0.05, max_retries=0)
        with pytest.raises(GeneratorTimeoutError, match=f"sent nothing for {silent_s} s"):
            await ask(generator, replace(PROMPT, streams=streams, patience_s=0.2))


async def test_what_an_answer_fails_with_is_kept_for_its_caller(url: str) -> None:
    with pytest.raises(GeneratorError) as raised:
        await ask(EndpointGenerator("chat", f"{url}/failing", "m"))
    assert raised.value.refusal == Refusal("worker died")
    assert raised.value.native is not None
    assert raised.value.native.document["error"] == {"message": "worker died"}
    assert "worker" not in str(raised.value)


async def test_what_an_endpoint_refuses_crosses_processes(url: str) -> None:
    with pytest.raises(PromptRefusedError) as raised:
        await ask(EndpointGenerator("chat", f"{url}/blind/422", "m"))
    again = pickle.loads(pickle.dumps(raised.value))
    assert type(again) is PromptRefusedError
    assert (str(again), again.status) == (str(raised.value), 422)
    assert again.refusal == Refusal("this model does not support image input")


@pytest.mark.parametrize(("model", "short"), [("Mistral-small", True), ("m", False)])
async def test_ids_of_calls_are_short_for_mistral_alone(url: str, model: str, short: bool) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    conversation = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "call_1"},
    ]
    prompt = replace(BARE, request=protocols.Request("chat", {"messages": conversation}))
    await ask(EndpointGenerator("chat", f"{url}/passing", model), prompt)
    called, answered = json.loads(passed.pop()[1])["messages"]
    assert (called["tool_calls"][0]["id"] == "call_1") is not short
    assert called["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) == (9 if short else 6)


async def test_a_request_without_a_refused_parameter_is_passed_on(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("chat", f"{url}/particular", "m")
    body = {"temperature": 1, "max_tokens": 5, "odd": [1], "messages": []}
    for requests in (3, 4):
        prompt = replace(BARE, request=protocols.Request("chat", body))
        sent = orjson.loads((await complete(generator, prompt))[0])
        assert seen["particular"] == requests
        assert [*sent] == ["max_completion_tokens", "odd", "messages", "model", "stream", "stream_options"]
    await generator.close()
    assert body["temperature"] == 1, "it is not changed in place"


# The other protocols.

SAID: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 5}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "One"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "One"},
        {
            "type": "response.completed",
            "response": {"id": "resp_1", "usage": {"input_tokens": 5, "output_tokens": 2}},
        },
    ],
}
"""Events of an answer in each protocol."""


def _said(protocol: str) -> StreamingResponse:
    events = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in SAID[protocol])
    return StreamingResponse(events, media_type="text/event-stream")


@endpoint.post("/passing/{protocol}")
async def _passing_other(protocol: str, request: Request) -> StreamingResponse:
    passed.append((dict(request.headers), await request.body()))
    return _said(protocol)


@endpoint.post("/particular/messages")
async def _particular_messages(request: Request) -> Any:
    """Refuse as some of Anthropic's models do: both together, then one of them."""
    body = await request.json()
    seen["particular"] += 1
    if {"temperature", "top_p"} <= body.keys():
        return _refusal(400, "`temperature` and `top_p` cannot both be specified for this model.")
    if "temperature" in body:
        return _refusal(400, "`temperature` is deprecated for this model.")
    return _said("messages")


@endpoint.post("/wrong/messages")
async def _wrong_messages() -> JSONResponse:
    seen["wrong"] += 1
    return _refusal(400, "temperature: Input should be less than or equal to 1")


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        (
            "messages",
            {
                "max_tokens": 5,
                "thinking": {"type": "adaptive"},
                "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                "messages": [{"role": "user", "content": [{"type": "of tomorrow", "n": 2**70}]}],
                "tools": [{"type": "web_search_20250305", "name": "web_search", "defer_loading": True}],
            },
        ),
        (
            "responses",
            {
                "input": [
                    {"type": "reasoning", "encrypted_content": "e"},
                    {"type": "of tomorrow", "n": 2**70},
                ],
                "include": ["reasoning.encrypted_content"],
                "previous_response_id": "resp_0",
                "tools": [{"type": "custom", "name": "patch", "format": {"type": "grammar"}}],
            },
        ),
    ],
)
async def test_every_protocol_is_passed_on_and_read(
    url: str, protocol: protocols.ProtocolName, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-1")
    generator = EndpointGenerator(protocol, f"{url}/passing", "m", api_key_env="SOME_KEY")
    prompt = replace(BARE, request=protocols.Request(protocol, body))
    *pieces, last = [chunk async for chunk in generator.stream(prompt)]
    await generator.close()
    headers, sent = passed.pop()
    assert json.loads(sent) == body | {"model": "m", "stream": True}
    key = {"x-api-key": "sk-1", "anthropic-version": "2023-06-01"}
    key = key if protocol == "messages" else {"authorization": "Bearer sk-1"}
    names = {"x-api-key", "anthropic-version", "authorization"}
    assert {name: headers[name] for name in names & headers.keys()} == key
    assert [piece.native for piece in pieces] == [
        Native(protocol, event, name=event["type"].encode()) for event in SAID[protocol]
    ]
    assert "".join(piece.text for piece in pieces) == "One"
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens) == ("stop", 5, 2)
    assert last.marks[:1] == (() if protocol == "messages" else ("resp_1",))


async def test_sampling_that_anthropic_refuses_is_not_sent_again(url: str) -> None:
    seen.clear()
    generator = EndpointGenerator("messages", f"{url}/particular", "m")
    body = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "messages": []}
    for requests in (3, 4):
        prompt = replace(BARE, request=protocols.Request("messages", body))
        assert (await complete(generator, prompt))[0] == "One"
        assert seen["particular"] == requests
    await generator.close()


async def test_a_wrong_value_for_anthropic_is_not_left_out(url: str) -> None:
    seen.clear()
    body = {"max_tokens": 5, "temperature": 1.5, "messages": []}
    with pytest.raises(PromptRefusedError, match="HTTP 400"):
        await ask(
            EndpointGenerator("messages", f"{url}/wrong", "m"),
            replace(BARE, request=protocols.Request("messages", body)),
        )
    assert seen["wrong"] == 1
