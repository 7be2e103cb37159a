"""A provider of a language model that plays a scripted coding session in three protocols.

It answers `/v1/chat/completions`, `/v1/messages` and `/v1/responses`, whole and streamed. To each request it
replies with reasoning and the next call of its script, by how many results the conversation holds, and at
the end with a text. Like real providers, it answers 400 where a conversation comes back changed.
"""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Json = dict[str, Any]

DONE = "The sum is right now, and the test passes."
"""The text that ends a session."""

ASIDE = "Fix the sum"
"""The answer to other requests, such as one for a title; as JSON, where a schema is given."""

USAGE = (120, 40)
"""The tokens of each prompt and of each answer."""


@dataclass(frozen=True)
class Call:
    """A call of the script: a tool of the agent and its arguments, or the text that a custom tool takes."""

    tool: str
    arguments: Json | str


@dataclass(frozen=True)
class Turn:
    """What the model said in one turn, in the form in which an agent has to send it back."""

    state: Any
    """Reasoning as the protocol carries it."""
    id: str
    tool: str
    arguments: Json | str


@dataclass(frozen=True)
class Conversation:
    """What a request says of the session so far."""

    tools: Json
    """Definition by name."""
    fixed: str
    """Tools and instructions, which stay the same through a session."""
    turns: list[Turn]
    results: list[str]
    """Ids of the calls that have a result, in their order."""


@dataclass
class Session:
    """One scripted session.

    Attributes:
        script: The calls to make, one a turn.
        keeps_reasoning: Whether reasoning has to come back with the call that it led to.
        said: What was said so far.
        requests: Each request of the session and its fault, or None where it had none.
        asides: The bodies of other requests.
    """

    script: list[Call]
    keeps_reasoning: bool = True
    said: list[Turn] = field(default_factory=list)
    requests: list[tuple[Json, str | None]] = field(default_factory=list)
    asides: list[Json] = field(default_factory=list)
    fixed: str | None = None
    lock: Lock = field(default_factory=Lock)

    def begin(self, script: list[Call]) -> None:
        """Forget a session, and begin another one."""
        self.script, self.said, self.requests, self.asides, self.fixed = script, [], [], [], None

    @property
    def faults(self) -> list[str]:
        """What was wrong with the requests."""
        return [fault for _, fault in self.requests if fault is not None]

    def check(self, asked: Conversation) -> str | None:
        """Return what is wrong with a conversation, or None."""
        for turn, sent in zip(asked.turns, self.said, strict=False):
            if turn.id != sent.id:
                return f"call {turn.id} was never made: it was {sent.id}"
            if (turn.tool, turn.arguments) != (sent.tool, sent.arguments):
                return f"call {turn.id} was {sent.tool} {sent.arguments}, not {turn.tool} {turn.arguments}"
            if self.keeps_reasoning and turn.state != sent.state:
                return f"the reasoning of call {turn.id} must come back: sent {sent.state}, got {turn.state}"
        if len(asked.turns) > len(self.said):
            return f"{len(asked.turns)} calls came back, and {len(self.said)} were made"
        if [turn.id for turn in asked.turns] != asked.results:
            return f"results of {asked.results} do not answer calls {[turn.id for turn in asked.turns]}"
        if self.fixed not in (None, asked.fixed):
            return f"tools or instructions changed within the session: {difference(self.fixed, asked.fixed)}"
        return None


def difference(before: str | None, after: str) -> str:
    """Return where two texts part."""
    before = before or ""
    at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), -1)
    return f"{before[max(0, at - 60) : at + 120]!r} became {after[max(0, at - 60) : at + 120]!r}"


# ---- chat


def read_chat(body: Json) -> Conversation:
    turns, results, fixed, asked = [], [], [], False
    for message in body["messages"]:
        if message["role"] in ("system", "developer") and not asked:
            fixed.append(text_of(message["content"]))  # later ones come as the session goes on
        asked = asked or message["role"] == "user"
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = json.loads(function["arguments"])
            turns.append(Turn(message.get("reasoning_content"), call["id"], function["name"], arguments))
        if message["role"] == "tool":
            results.append(message["tool_call_id"])
    tools = {tool["function"]["name"]: tool["function"].get("parameters") for tool in body.get("tools") or ()}
    return Conversation(tools, constant([body.get("tools"), fixed]), turns, results)


def think_chat(number: int) -> tuple[str, str]:
    return f"call_{number:02}_{secrets.token_hex(10)}", f"Step {number} of the work.\nThen I shall see."


def write_chat(turn: Turn | None, text: str | None) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if turn is not None:
        function = {"name": turn.tool, "arguments": json.dumps(turn.arguments)}
        message["reasoning_content"] = turn.state
        message["tool_calls"] = [{"id": turn.id, "type": "function", "function": function}]
    usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "stand-in",
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "stop" if turn is None else "tool_calls",
                "logprobs": None,
            }
        ],
        "usage": usage,
    }


def stream_chat(whole: Json) -> Iterator[str]:
    (choice,) = whole["choices"]
    message = choice["message"]
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in pieces(message.get("reasoning_content"))]
    deltas += [{"content": piece} for piece in pieces(message["content"])]
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"] | {"arguments": ""}
        deltas.append({"tool_calls": [{"index": index, **call, "function": function}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in pieces(call["function"]["arguments"])
        ]
    shared = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for delta in deltas:
        yield data(shared | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    end = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield data(shared | {"choices": [end]})
    yield data(shared | {"choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


# ---- messages


def read_messages(body: Json) -> Conversation:
    turns, results = [], []
    for message in body["messages"]:
        state: list[Json] = []
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] in ("thinking", "redacted_thinking"):
                state.append(block)
            elif block["type"] == "tool_use":
                turns.append(Turn(state, block["id"], block["name"], block["input"]))
            elif block["type"] == "tool_result":
                results.append(block["tool_use_id"])
    tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools") or () if "input_schema" in tool}
    fixed = constant([body.get("tools"), text_of(body.get("system") or "")])
    return Conversation(tools, fixed, turns, results)


def think_messages(number: int) -> tuple[str, list[Json]]:
    blocks: list[Json] = [
        {"type": "thinking", "thinking": f"Step {number}.", "signature": secrets.token_urlsafe(96)}
    ]
    if number == 3:
        blocks.append({"type": "redacted_thinking", "data": secrets.token_urlsafe(48)})
    return f"toolu_{secrets.token_hex(12)}", blocks


def write_messages(turn: Turn | None, text: str | None) -> Json:
    blocks: list[Json] = [{"type": "text", "text": text}] if text is not None else []
    if turn is not None:
        blocks = [
            *turn.state,
            *blocks,
            {"type": "tool_use", "id": turn.id, "name": turn.tool, "input": turn.arguments},
        ]
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": "stand-in",
        "content": blocks,
        "stop_reason": "end_turn" if turn is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": USAGE[0], "output_tokens": USAGE[1]},
    }


def stream_messages(whole: Json) -> Iterator[str]:
    started = whole | {"content": [], "stop_reason": None, "usage": whole["usage"] | {"output_tokens": 1}}
    yield event({"type": "message_start", "message": started})
    for index, block in enumerate(whole["content"]):
        empty, deltas = block, []
        match block["type"]:
            case "text":
                empty = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [
                    {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])
                ]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                empty = block | {"input": {}}
                deltas = [
                    {"type": "input_json_delta", "partial_json": piece}
                    for piece in pieces(json.dumps(block["input"]))
                ]
        yield event({"type": "content_block_start", "index": index, "content_block": empty})
        if index == 0:
            yield event({"type": "ping"})
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    reason = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event({"type": "message_delta", "delta": reason, "usage": {"output_tokens": USAGE[1]}})
    yield event({"type": "message_stop"})


# ---- responses


def read_responses(body: Json) -> Conversation:
    turns, results, fixed, state, asked = [], [], [body.get("instructions")], [], False
    offered = list(body.get("tools") or ())
    for item in body["input"] if isinstance(body["input"], list) else ():
        match item.get("type", "message"):
            case "reasoning":
                state = [{name: item.get(name) for name in ("summary", "encrypted_content")}]
            case "function_call":
                turns.append(Turn(state, item["call_id"], item["name"], json.loads(item["arguments"])))
                state = []
            case "custom_tool_call":
                turns.append(Turn(state, item["call_id"], item["name"], item["input"]))
                state = []
            case "function_call_output" | "custom_tool_call_output":
                results.append(item["call_id"])
            case "message" if item["role"] == "user":
                asked = True
            case "message" if item["role"] in ("system", "developer") and not asked:
                fixed.append(text_of(item["content"]))
            case "additional_tools":
                offered += item["tools"]
    flat = [inner for tool in offered for inner in tool.get("tools", [tool])]  # of namespaces, too
    tools = {tool["name"]: tool.get("parameters") for tool in flat if "name" in tool}
    return Conversation(tools, constant([offered, fixed]), turns, results)


def think_responses(number: int) -> tuple[str, list[Json]]:
    summary = [{"type": "summary_text", "text": f"**Step {number}**"}]
    state = [{"summary": summary, "encrypted_content": secrets.token_urlsafe(96)}]
    return f"call_{secrets.token_hex(12)}", state


def write_responses(turn: Turn | None, text: str | None) -> Json:
    output: list[Json] = []
    if turn is not None:
        output = [
            {"type": "reasoning", "id": f"rs_{secrets.token_hex(12)}", "content": None, **state}
            for state in turn.state
        ]
        call: Json = {"status": "completed", "call_id": turn.id, "name": turn.tool}
        if isinstance(turn.arguments, str):
            call = {
                "type": "custom_tool_call",
                "id": f"ctc_{secrets.token_hex(12)}",
                **call,
                "input": turn.arguments,
            }
        else:
            arguments = json.dumps(turn.arguments)
            call = {
                "type": "function_call",
                "id": f"fc_{secrets.token_hex(12)}",
                **call,
                "arguments": arguments,
            }
        output.append(call)
    if text is not None:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        identity = {"type": "message", "id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
        output.append({**identity, "status": "completed", "content": [part]})
    return {
        "id": f"resp_{secrets.token_hex(12)}",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "stand-in",
        "output": output,
        "usage": {
            "input_tokens": USAGE[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": USAGE[1],
            "output_tokens_details": {"reasoning_tokens": 10},
            "total_tokens": sum(USAGE),
        },
    }


def stream_responses(whole: Json) -> Iterator[str]:
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    frames: list[Json] = [
        {"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")
    ]
    for index, item in enumerate(whole["output"]):
        where = {"item_id": item["id"], "output_index": index}
        field, kind = {
            "reasoning": ("summary", "response.reasoning_summary_text"),
            "function_call": ("arguments", "response.function_call_arguments"),
            "custom_tool_call": ("input", "response.custom_tool_call_input"),
            "message": ("content", "response.output_text"),
        }[item["type"]]
        empty = item | {field: [] if isinstance(item[field], list) else ""}
        frames.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if isinstance(item[field], str):
            frames += [{"type": f"{kind}.delta", **where, "delta": piece} for piece in pieces(item[field])]
            frames.append({"type": f"{kind}.done", **where, field: item[field]})
        else:
            part_kind, place = kind.rsplit("_", 1)[0] + "_part", f"{field}_index"
            if item["type"] == "message":
                part_kind = "response.content_part"
            for number, part in enumerate(item[field]):
                spot = where | {place: number}
                frames.append({"type": f"{part_kind}.added", **spot, "part": part | {"text": ""}})
                frames += [
                    {"type": f"{kind}.delta", **spot, "delta": piece} for piece in pieces(part["text"])
                ]
                frames.append({"type": f"{kind}.done", **spot, "text": part["text"]})
                frames.append({"type": f"{part_kind}.done", **spot, "part": part})
        frames.append({"type": "response.output_item.done", "output_index": index, "item": item})
    frames.append({"type": "response.completed", "response": whole})
    for number, frame in enumerate(frames):
        yield event(frame | {"sequence_number": number})


# ---- all


PROTOCOLS: dict[str, Any] = {
    "chat": (read_chat, think_chat, write_chat, stream_chat),
    "messages": (read_messages, think_messages, write_messages, stream_messages),
    "responses": (read_responses, think_responses, write_responses, stream_responses),
}
ENGINES = {"chat": "openai", "messages": "anthropic", "responses": "responses"}
"""The engine of a service that asks for each protocol."""

PATHS = {"/v1/chat/completions": "chat", "/v1/messages": "messages", "/v1/responses": "responses"}


def text_of(content: Any) -> str:
    """Return the text of a content, which is a text or a list of parts."""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def constant(value: Any) -> str:
    """Return a value as text, without marks of caches, which move from turn to turn."""

    def bare(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {name: bare(held) for name, held in inner.items() if name != "cache_control"}
        return [bare(held) for held in inner] if isinstance(inner, list) else inner

    return json.dumps(bare(value))


def pieces(text: str | None, length: int = 17) -> list[str]:
    """Return a text in pieces, as a stream brings it."""
    return [text[start : start + length] for start in range(0, len(text or ""), length)] if text else []


def data(frame: Json) -> str:
    return f"data: {json.dumps(frame)}\n\n"


def event(frame: Json) -> str:
    return f"event: {frame['type']}\n{data(frame)}"


def offered(call: Call, tools: Json) -> str | None:
    """Return the name under which a request offers the tool of a call: its namespace may stand before it."""
    return next((name for name in tools if name == call.tool or name.endswith(f"__{call.tool}")), None)


def fill(call: Call, schema: Any) -> Json | str:
    """Return the arguments of a call: a text for a function goes into the only argument that it has."""
    if isinstance(call.arguments, str) and isinstance(schema, dict):
        (name,) = schema["properties"]
        return {name: call.arguments}
    return call.arguments


def answer(session: Session, protocol: str, body: Json) -> tuple[int, Json]:
    """Return the status and the whole answer to one request."""
    read, think, write, _ = PROTOCOLS[protocol]
    asked: Conversation = read(body)
    names = [name for call in session.script if (name := offered(call, asked.tools)) is not None]
    if not names or len(names) < len(session.script):
        session.asides.append(body)
        shaped = '"json_schema"' in json.dumps(body)
        return 200, write(None, json.dumps({"title": ASIDE}) if shaped else ASIDE)
    fault = session.check(asked)
    session.requests.append((body, fault))
    if fault is not None:
        error = {"type": "invalid_request_error", "message": fault}
        return 400, {"type": "error", "error": error}
    session.fixed = session.fixed or asked.fixed
    number = len(asked.turns)
    if number == len(session.script):
        return 200, write(None, DONE)
    if number == len(session.said):
        call, name = session.script[number], names[number]
        made, state = think(number)
        session.said.append(Turn(state, made, name, fill(call, asked.tools[name])))
    return 200, write(session.said[number], None)


@contextmanager
def provider(session: Session) -> Iterator[str]:
    """Serve a session at a free port of this machine; yield the address, without `/v1`."""

    async def post(request: Request) -> Response:
        protocol = PATHS[request.url.path]
        body = json.loads(await request.body())
        with session.lock:
            status, whole = answer(session, protocol, body)
        if status != 200 or not body.get("stream"):
            return JSONResponse(whole, status)
        frames = PROTOCOLS[protocol][3](whole)

        async def send() -> AsyncIterator[str]:
            for frame in frames:
                yield frame

        return StreamingResponse(send(), media_type="text/event-stream")

    async def count(request: Request) -> Response:
        return JSONResponse({"input_tokens": len(await request.body()) // 4})

    routes = [Route(path, post, methods=["POST"]) for path in PATHS]
    routes.append(Route("/v1/messages/count_tokens", count, methods=["POST"]))
    config = uvicorn.Config(
        Starlette(routes=routes), host="127.0.0.1", port=0, log_level="warning", ws="none"
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
