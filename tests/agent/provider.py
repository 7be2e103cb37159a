"""A provider of language models on this machine: it answers in any protocol, as a test tells it to."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web
from pydantic import TypeAdapter

from armwise.arms.base import Query, Retrieval
from armwise.arms.deployments.generator_host import AddressedGenerator
from armwise.arms.llm import LlmSpec
from benchmarks.exchanges_bodies import read_events, stream, whole, write_events
from tests.agent.fakes import Service

Body = dict[str, Any]

ENGINES = {"chat": "openai", "messages": "anthropic", "responses": "responses"}
"""Engines by the protocol that they speak."""

DOORS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
"""Paths of the service by the protocol that is spoken there."""

QUESTION = "Is the bridge open?"

FUNCTION: Body = {
    "name": "traffic",
    "parameters": {"type": "object", "properties": {"road": {"type": "string"}}},
}

TOOL: Mapping[str, Body] = {
    "chat": {"type": "function", "function": FUNCTION},
    "messages": {"name": "traffic", "input_schema": FUNCTION["parameters"]},
    "responses": {"type": "function", **FUNCTION},
}
"""A tool in the words of each protocol."""


def request(protocol: str, *later: Body, **fields: Any) -> Body:
    """Return a request that asks `QUESTION`, and goes on with messages or items."""
    conversation = [{"role": "user", "content": QUESTION}, *later]
    if protocol == "responses":
        return {"input": conversation, **fields}
    return {"messages": conversation, **({"max_tokens": 500} if protocol == "messages" else {}), **fields}


def completion(
    message: Body | None = None, finish_reason: str = "stop", *, usage: Body | None = None, **choice: Any
) -> Body:
    """Return an answer of chat completions."""
    said = {"role": "assistant", **({"content": "It is."} if message is None else message)}
    used = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18} | (usage or {})
    return {
        "id": "gen-1",
        "object": "chat.completion",
        "created": 5,
        "model": "m-2026",
        "choices": [{"index": 0, "message": said, "finish_reason": finish_reason, **choice}],
        "usage": used,
    }


def message(*blocks: Body, stop_reason: str = "end_turn", usage: Body | None = None, **fields: Any) -> Body:
    """Return an answer of Anthropic's messages."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "m-2026",
        "content": [*blocks],
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 7} | (usage or {}),
        **fields,
    }


def said(text: str) -> Body:
    """Return a block of text."""
    return {"type": "text", "text": text}


def response(*items: Body, status: str = "completed", **fields: Any) -> Body:
    """Return an answer of responses; without items one that says a word."""
    text = {"type": "output_text", "text": "It is.", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "resp_abc",
        "object": "response",
        "created_at": 5,
        "status": status,
        "model": "m-2026",
        "output": [*items] or [item],
        "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18},
        **fields,
    }


ANSWERS: Mapping[str, Body] = {
    "chat": completion(),
    "messages": message(said("It is.")),
    "responses": response(),
}
"""The same answer in each protocol."""


@dataclass(frozen=True)
class Received:
    """A request that the provider got.

    Attributes:
        path: Its path.
        headers: Its headers, in lower case.
        raw: Its body.
    """

    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        """The body, parsed."""
        return json.loads(self.raw)


@dataclass
class Provider:
    """Answers each request.

    Attributes:
        answer: The whole answer, of which the events of a stream are made.
        events: Events in the place of these: an object, bytes as they are, or something that is awaited.
        whole: Events that are answered where no stream was asked for.
        error: Status and body of an error that is answered instead.
        headers: Headers of the answer.
        received: The requests.
        url: Where it listens, once it does.
    """

    answer: Body = field(default_factory=completion)
    events: Sequence[Body | bytes | asyncio.Event] | None = None
    whole: Sequence[Body] | None = None
    error: tuple[int, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    url: str = ""

    @property
    def body(self) -> Any:
        """The body of the latest request."""
        return self.received[-1].body

    def says(self, answer: Body) -> None:
        """Answer with this from now on."""
        self.answer, self.events, self.error, self.headers = answer, None, None, {}

    def refuses(self, status: int, body: Any, **headers: str) -> None:
        """Answer with an error from now on."""
        self.error = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Provider"]:
        """Listen on a free port of this machine."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, asked: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        self.received.append(Received(asked.path, headers, await asked.read()))
        if self.error is not None:
            status, body = self.error
            return web.json_response(body, status=status, headers=self.headers)
        if self.whole is not None:
            text = b"".join(map(framed, self.whole))
            return web.Response(body=text, content_type="text/event-stream")
        if not self.body.get("stream"):
            return web.json_response(self.answer, headers=self.headers)
        reply = web.StreamResponse(headers={"content-type": "text/event-stream", **self.headers})
        await reply.prepare(asked)
        protocol = next(name for name, path in DOORS.items() if path == asked.path)
        if self.events is None:
            await reply.write(write_events(protocol, stream(protocol, self.answer)).encode())
        for event in self.events or ():
            if isinstance(event, asyncio.Event):
                await event.wait()
            else:
                await reply.write(event if isinstance(event, bytes) else framed(event))
        return reply


def framed(event: Body) -> bytes:
    """Return an event as it is sent, with its name if it has one."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


@asynccontextmanager
async def serving(
    folder: Path,
    protocol: str,
    answer: Body | None = None,
    *,
    spec: Body | None = None,
    others: Mapping[str, str] | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[Service, Provider]]:
    """Serve an arm without retrieval, `direct`, whose language model is at a provider.

    Args:
        folder: Where the log is.
        protocol: The protocol that the model speaks.
        answer: What it answers.
        spec: Further settings of the model.
        others: Further arms without retrieval, with the protocols of their models at the same provider.
        changes: Further settings of the service.
    """
    async with Provider(answer or ANSWERS[protocol]).listening() as provider:
        specs = {"m": protocol, **(others or {})}
        models = {
            name: {"engine": ENGINES[spoken], "base_url": provider.url, "model": name, "max_retries": 0}
            for name, spoken in specs.items()
        }
        models["m"] |= {"usd": 0} | (spec or {})
        generators = {
            name: AddressedGenerator(TypeAdapter[Any](LlmSpec).validate_python(one))
            for name, one in models.items()
        }
        arms: Body = {name: {"kind": "none", "answering": {"llm": name}} for name in others or ()}
        settings: Body = {
            "llm": models.pop("m"),
            "llms": models,
            "arms": {"direct": {"kind": "none"}, **arms},
            "limits": {"in_flight": 4, "question_chars": 1000, "body_bytes": 1 << 20},
            **changes,
        }
        own = generators.pop("m")
        try:
            async with Service(folder, own, generators, **settings).running() as service:
                service.arms.behaviour = dict.fromkeys(("direct", *arms), _nothing)
                yield service, provider
        finally:
            for one in (own, *generators.values()):
                await one.close()


async def _nothing(_query: Query, _k: int) -> Retrieval:
    return Retrieval(steps=0)


async def send(service: Service, protocol: str, body: Body, **headers: str) -> httpx.Response:
    """Send a request to the door of a protocol."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await service.client.post(DOORS[protocol], json=body, headers=named)


async def answered(
    service: Service, protocol: str, body: Body, *, streamed: bool = False, **headers: str
) -> Body:
    """Return the answer to a request, put together where it was streamed."""
    reply = await send(service, protocol, body | ({"stream": True} if streamed else {}), **headers)
    assert reply.status_code == 200, reply.text
    if not streamed:
        found: Body = reply.json()
        return found
    return whole(protocol, events_of(reply))


def events_of(reply: httpx.Response) -> list[Body]:
    """Return the events of a stream."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [event.data for event in read_events(reply.text)]
