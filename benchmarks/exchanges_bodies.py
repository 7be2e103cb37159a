"""Reads and writes the bodies of three protocols: chat completions, Anthropic's messages and responses.

Turns an answer into the events of its stream and back, and finds the texts of a conversation. It knows no
service: `exchanges.py` compares what a gateway makes of recorded bodies.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

PATHS = {"chat": "chat/completions", "messages": "messages", "responses": "responses"}
"""Where a protocol is asked, after `/v1/`."""

Body = dict[str, Any]


class Event(NamedTuple):
    """An event of a stream.

    Attributes:
        name: The field `event`; empty without one.
        data: The field `data`, parsed where it is JSON.
    """

    name: str
    data: Any


def read_events(text: str) -> list[Event]:
    r"""Return the events of a stream, without comments, pings and the mark `[DONE]`.

    >>> read_events(': wait\n\nevent: ping\ndata: {}\n\nevent: x\ndata: {"a":\ndata: 1}\n\ndata: [DONE]\n\n')
    [Event(name='x', data={'a': 1})]
    """
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = [line.partition(":") for line in block.split("\n")]
        name = "".join(value.strip() for field, _, value in fields if field == "event")
        data = "\n".join(value.removeprefix(" ") for field, _, value in fields if field == "data")
        if data and data.strip() != "[DONE]" and name != "ping":
            try:
                found.append(Event(name, json.loads(data)))
            except ValueError:
                found.append(Event(name, data))
    return [one for one in found if not (isinstance(one.data, dict) and one.data.get("type") == "ping")]


def write_events(protocol: str, datas: Iterable[Body]) -> str:
    """Return the text of a stream of events."""
    if protocol == "chat":
        return "".join(f"data: {json.dumps(data)}\n\n" for data in datas) + "data: [DONE]\n\n"
    return "".join(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n" for data in datas)


# -- from an answer to its events ------------------------------------------------------------------


def stream(protocol: str, answer: Body) -> list[Body]:
    """Return the events that carry each field of an answer.

    `whole` makes the same answer of them, except for an `index` of calls that a chat completion lacks.
    """
    return list({"chat": _chunks, "messages": _blocks, "responses": _items}[protocol](deepcopy(answer)))


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _chunks(answer: Body) -> Iterator[Body]:
    choices, usage = answer.pop("choices"), answer.pop("usage", None)
    base = answer | {"object": "chat.completion.chunk"}
    for choice in choices:
        message = choice.pop("message")
        index, reason = choice.pop("index"), choice.pop("finish_reason", None)
        logprobs = {"logprobs": choice.pop("logprobs")} if "logprobs" in choice else {}
        deltas: list[Body] = [{**message}]
        for name in ("content", "reasoning", "reasoning_content"):
            if isinstance(message.get(name), str):
                deltas[0][name], rest = _halves(message[name])
                deltas.append({name: rest})
        if message.get("tool_calls"):
            calls = deltas[0]["tool_calls"] = [
                {"index": at, **call} for at, call in enumerate(message["tool_calls"])
            ]
            for call in calls:
                if "arguments" in call.get("function", ()):
                    start, rest = _halves(call["function"]["arguments"])
                    call["function"] = call["function"] | {"arguments": start}
                    piece = {"index": call["index"], "function": {"arguments": rest}}
                    deltas.append({"tool_calls": [piece]})
        for number, delta in enumerate(deltas):
            own = logprobs if number == 0 else {}
            yield {**base, "choices": [{"index": index, "delta": delta, **own, "finish_reason": None}]}
        yield {**base, "choices": [{"index": index, "delta": {}, **choice, "finish_reason": reason}]}
    if usage is not None:
        yield {**base, "choices": [], "usage": usage}


LATE = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Fields of a message that are known at its end."""

TEXTS = {"text": "text_delta", "thinking": "thinking_delta", "signature": "signature_delta"}
"""Fields of a block that arrive in pieces, and the types of the pieces."""


def _blocks(answer: Body) -> Iterator[Body]:
    late = {name: answer[name] for name in LATE if name in answer}
    content = answer["content"]
    yield {"type": "message_start", "message": {**answer, **dict.fromkeys(late), "content": []}}
    for index, block in enumerate(content):
        deltas: list[Body] = []
        for name in TEXTS:
            if isinstance(block.get(name), str):
                deltas += ({"type": TEXTS[name], name: piece} for piece in _halves(block[name]))
                block[name] = ""
        if isinstance(block.get("input"), dict):
            pieces = _halves(json.dumps(block["input"]))
            deltas += ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
            block["input"] = {}
        if block.get("citations"):
            deltas += ({"type": "citations_delta", "citation": one} for one in block["citations"])
            block["citations"] = []
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": late, "usage": answer.get("usage")}
    yield {"type": "message_stop"}


def _items(answer: Body) -> Iterator[Body]:
    begun = answer | {"status": "in_progress", "output": [], "usage": None}
    status = answer.get("status", "completed")
    events: list[Body] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(answer.get("output") or ()):
        parts = (item.get("content") or ()) if item["type"] == "message" else ()
        started = item | ({"content": []} if parts else {})
        if item["type"] == "function_call":
            started = item | {"arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": started})
        place = {"item_id": item.get("id"), "output_index": index}
        for number, part in enumerate(parts):
            at = place | {"content_index": number}
            if isinstance(part.get("text"), str):
                events.append({"type": "response.content_part.added", **at, "part": part | {"text": ""}})
                said = [
                    {"type": "response.output_text.delta", **at, "delta": d} for d in _halves(part["text"])
                ]
                events += [*said, {"type": "response.output_text.done", **at, "text": part["text"]}]
            else:
                events.append({"type": "response.content_part.added", **at, "part": part})
            events.append({"type": "response.content_part.done", **at, "part": part})
        if item["type"] == "function_call":
            kind, text = "response.function_call_arguments", item["arguments"]
            events += [{"type": f"{kind}.delta", **place, "delta": piece} for piece in _halves(text)]
            events.append({"type": f"{kind}.done", **place, "arguments": text})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{status}", "response": answer})
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}


# -- from events to an answer ----------------------------------------------------------------------


def whole(protocol: str, datas: Sequence[Body]) -> Body:
    """Return the answer that the events of a stream carry. Raises ValueError without an event."""
    if not datas:
        raise ValueError("a stream without an event has no answer")
    return {"chat": _of_chunks, "messages": _of_blocks, "responses": _of_items}[protocol](deepcopy([*datas]))


def _of_chunks(datas: list[Body]) -> Body:
    answer: Body = {}
    choices: dict[int, Body] = {}
    for data in datas:
        pieces, usage = data.pop("choices", None) or (), data.pop("usage", None)
        answer |= data | ({} if usage is None else {"usage": usage})
        for piece in pieces:
            choice = choices.setdefault(piece["index"], {"index": piece["index"], "message": {}})
            _join(choice["message"], piece.pop("delta", None) or {})
            if "logprobs" in piece:
                _join(choice, {"logprobs": piece.pop("logprobs")})
            choice |= piece
    for choice in choices.values():
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
    return answer | {"object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


NAMES = frozenset({"role", "type", "id", "name", "format"})
"""Fields of a delta whose later value stands in place of the earlier one, though both are texts."""


def _join(message: Body, delta: Body) -> None:
    """Append a delta to a message."""
    for key, value in delta.items():
        old = message.get(key)
        if isinstance(old, str) and isinstance(value, str) and key not in NAMES:
            message[key] = old + value
        elif isinstance(old, dict) and isinstance(value, dict):
            _join(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            for item in value:
                at = item.get("index") if isinstance(item, dict) else None
                same = [one for one in old if at is not None and one.get("index") == at]
                _join(same[0], item) if same else old.append(item)
        elif value is not None or key not in message:
            message[key] = value


def _of_blocks(datas: list[Body]) -> Body:
    answer: Body = {}
    pieces: dict[int, str] = {}
    for data in datas:
        kind = data["type"]
        if kind == "message_start":
            answer = data["message"]
        elif kind == "content_block_start":
            answer["content"].append(data["content_block"])
        elif kind == "content_block_delta":
            block, delta = answer["content"][data["index"]], data["delta"]
            if delta["type"] == "input_json_delta":
                pieces[data["index"]] = pieces.get(data["index"], "") + delta["partial_json"]
            elif delta["type"] == "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            else:
                _join(block, {name: value for name, value in delta.items() if name != "type"})
        elif kind == "message_delta":
            answer["usage"] = (answer.get("usage") or {}) | (data.get("usage") or {})
            answer |= data["delta"] | {n: v for n, v in data.items() if n not in ("type", "delta", "usage")}
    for index, text in pieces.items():
        answer["content"][index]["input"] = json.loads(text) if text else {}
    return answer


def _of_items(datas: list[Body]) -> Body:
    responses: list[Body] = [data["response"] for data in datas if "response" in data]
    if not responses:
        raise ValueError("a stream without an event that has a response has no answer")
    return responses[-1]


# -- the texts of a conversation -------------------------------------------------------------------


class Words(NamedTuple):
    """A piece of a conversation that a model must read.

    Attributes:
        kind: `instructions`, `text`, `tool result`, `arguments` or `document`.
        value: A text, or the parsed arguments of a call.
    """

    kind: str
    value: Any


def words_of(protocol: str, request: Mapping[str, Any]) -> list[Words]:
    """Return the texts and the arguments of calls in the conversation of a request.

    What a model only thought, and what a provider's own tools did, is left out: other models cannot read it.
    """
    found = {"chat": _of_chat, "messages": _of_messages, "responses": _of_responses}[protocol](request)
    return [one for one in found if not isinstance(one.value, str) or one.value.strip()]


def _texts(kind: str, content: Any) -> Iterator[Words]:
    """Yield the texts of a content: a text, or a list of parts or blocks."""
    if isinstance(content, str):
        yield Words(kind, content)
    for part in content if isinstance(content, list) else ():
        yield from (Words(kind, part[n]) for n in ("text", "refusal") if isinstance(part.get(n), str))


def _arguments(text: str) -> Words:
    try:
        return Words("arguments", json.loads(text or "{}"))
    except ValueError:
        return Words("arguments", text)


def _kind(role: str) -> str:
    return {"system": "instructions", "developer": "instructions", "tool": "tool result"}.get(role, "text")


def _of_chat(request: Mapping[str, Any]) -> Iterator[Words]:
    for message in request["messages"]:
        yield from _texts(_kind(message["role"]), message.get("content"))
        for call in message.get("tool_calls") or ():
            if "custom" in call:
                yield Words("text", call["custom"]["input"])
            else:
                yield _arguments(call["function"].get("arguments", ""))


def _of_messages(request: Mapping[str, Any]) -> Iterator[Words]:
    yield from _texts("instructions", request.get("system"))
    for message in request["messages"]:
        content = message["content"]
        yield from _texts(_kind(message["role"]), content)
        for block in content if isinstance(content, list) else ():
            if block["type"] == "tool_use":
                yield Words("arguments", block["input"])
            elif block["type"] == "tool_result":
                yield from _texts("tool result", block.get("content"))
                within = block.get("content")
                for inner in within if isinstance(within, list) else ():
                    yield from _documents(inner)
            else:
                yield from _documents(block)


def _documents(block: Mapping[str, Any]) -> Iterator[Words]:
    """Yield the texts of a document or of a result of a search."""
    source = block.get("source")
    if block["type"] == "search_result":
        yield from _texts("document", block.get("content"))
    elif block["type"] == "document" and isinstance(source, dict):
        if source["type"] == "text":
            yield Words("document", source["data"])
        elif source["type"] == "content":
            yield from _texts("document", source["content"])


def _of_responses(request: Mapping[str, Any]) -> Iterator[Words]:
    yield from _texts("instructions", request.get("instructions"))
    given = request.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given or ():
        kind = item.get("type", "message")
        if kind == "message":
            yield from _texts(_kind(item["role"]), item.get("content"))
        elif kind == "function_call":
            yield _arguments(item["arguments"])
        elif kind == "custom_tool_call":
            yield Words("text", item["input"])
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield from _texts("tool result", item.get("output"))
