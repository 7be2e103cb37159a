"""Endpoints that send without end, and what callers make them refuse, over real HTTP."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from armwise.arms import upstream
from armwise.arms.llm import endpoint as endpoints
from armwise.arms.llm import protocols
from armwise.arms.llm.base import GeneratorError, GeneratorRefusedError, Prompt, Refusal, complete
from armwise.arms.llm.endpoint import EndpointGenerator

PROMPT = Prompt(({"role": "user", "content": "What is the capital of France?"},))

endpoint = FastAPI()

seen: Counter[str] = Counter()
"""Requests of each endpoint."""


def _delta(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


ANSWER = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}


@endpoint.post("/conditional/chat/completions")
async def _conditional(request: Request) -> Response:
    sent = await request.json()
    seen[f"conditional {sent.get('reasoning_effort')} {'tools' in sent}"] += 1
    if "tools" in sent and "reasoning_effort" in sent:
        error = {"message": "not with tools", "param": "reasoning_effort", "code": "unsupported_parameter"}
        return JSONResponse({"error": error}, 400)
    return JSONResponse(ANSWER)


async def test_what_is_learned_of_one_form_holds_for_it_alone(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/conditional", "m", max_retries=0)
    seen.clear()
    tools = [{"type": "function", "function": {"name": "f"}}]
    with_tools = replace(PROMPT, options={"reasoning_effort": "high", "tools": tools})
    for prompt in (with_tools, with_tools, replace(PROMPT, options={"reasoning_effort": "high"})):
        assert (await complete(generator, prompt))[0] == "Paris"
    await generator.close()
    refused, without, kept = "conditional high True", "conditional None True", "conditional high False"
    assert seen == {refused: 1, without: 2, kept: 1}


async def test_few_forms_are_remembered(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MOST_LEARNED", 2)
    generator = EndpointGenerator("chat", f"{url}/conditional", "m", max_retries=0)
    tools = [{"type": "function", "function": {"name": "f"}}]
    for effort in ("a", "b", "c", "a"):
        seen.clear()
        await complete(generator, replace(PROMPT, options={"reasoning_effort": effort, "tools": tools}))
        assert seen[f"conditional {effort} True"] == 1
    await generator.close()


@endpoint.post("/endless/chat/completions")
async def _endless() -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        yield b"data: " + orjson.dumps(_delta("Paris", "stop")) + b"\n\n"
        while True:
            seen["endless"] += 1
            yield b"data: " + orjson.dumps(_delta("")) + b"\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(lines(), media_type="text/event-stream")


async def test_events_without_an_end_are_not_kept(url: str) -> None:
    generator = EndpointGenerator("chat", f"{url}/endless", "m", max_retries=0)
    async with asyncio.timeout(20.0), aclosing(generator.stream(PROMPT)) as chunks:
        pieces = [chunk async for chunk in chunks]
    await generator.close()
    assert len(pieces) == 1 + endpoints.MOST_AFTER + 1
    assert pieces[-1].finish_reason == "stop"


@endpoint.post("/object/chat/completions")
async def _object() -> JSONResponse:
    return JSONResponse({"choices": [{"message": {"content": "x" * 5000}, "finish_reason": "stop"}]})


async def test_an_object_is_not_held_whatever_its_size(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = EndpointGenerator("chat", f"{url}/object", "m", max_retries=0)
    assert (await complete(generator, PROMPT))[0] == "x" * 5000
    monkeypatch.setattr(upstream, "OBJECT_BYTES", 5000)
    with pytest.raises(GeneratorError, match="an object of more than 5,000 bytes"):
        await complete(generator, PROMPT)
    await generator.close()


@pytest.mark.parametrize(
    ("status", "refusal", "asked"),
    [
        (401, Refusal("file not found"), False),
        (403, Refusal("the input was flagged"), True),
        (404, Refusal("file file-1 not found"), True),
        (404, Refusal("no such thing", "model_not_found"), False),
        (404, Refusal(), True),
    ],
)
def test_a_request_may_be_why_something_is_not_found(status: int, refusal: Refusal, asked: bool) -> None:
    failure = endpoints.error_of_status("m", endpoints.StatusError(status, {}, refusal), 0.0)
    assert isinstance(failure, GeneratorRefusedError)
    assert failure.may_be_asked_for == asked


@endpoint.post("/kept/{path:path}")
async def _kept() -> JSONResponse:
    usage = {"input_tokens": 900_000, "output_tokens": 2, "total_tokens": 900_002}
    return JSONResponse({"id": "r", "object": "response", "status": "completed", "usage": usage})


async def test_a_conversation_that_its_provider_keeps_is_charged(url: str) -> None:
    generator = EndpointGenerator("responses", f"{url}/kept", "m", max_retries=0)
    body = {"previous_response_id": "resp_1", "input": "Why?", "n": 10**9}
    _, last = await complete(generator, replace(PROMPT, request=protocols.Request("responses", body)))
    await generator.close()
    assert last.prompt_tokens == 900_000
