"""Any endpoint with Anthropic's messages protocol.

    Prompt --_body--> POST /messages --events--> MessageStream --> Chunk

The connection, its retries and its bounds are those of `openai_api`. Marks of what may be cached are passed
on, with images and files. Reasoning is not asked for: its blocks would have to come back unchanged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import override

from armwise.arms.llm import tool_calls
from armwise.arms.llm.base import Chunk, Message, Prompt, PromptRefusedError
from armwise.arms.llm.completion_stream import (
    LENGTHS,
    MOST_CALLS,
    AnswerLimits,
    AnswerStream,
    Refusal,
    ReportedUsage,
    estimate_tokens,
    place_in,
)
from armwise.arms.llm.openai_api import OpenAIGenerator
from armwise.arms.upstream import UpstreamError

VERSION = "2023-06-01"
"""Version of the protocol, which a request names."""

LARGEST_TEMPERATURE = 1.0

SAMPLING = ("top_p", "temperature")
"""Parameters that some models do not take, or not together: the first is left out first."""

_REFUSED = re.compile(r"deprecated|not permitted|not support|unsupported|cannot both", re.IGNORECASE)

_DATA = re.compile(r"data:([a-z]{1,20}/[A-Za-z0-9.+-]{1,100});base64,(.*)", re.DOTALL)

_EMPTY = "(empty)"
"""Text in the place of a message without any, which the protocol refuses."""


class AnthropicGenerator(OpenAIGenerator):
    """Writes answers with the model of an endpoint; its arguments are those of `OpenAIGenerator`."""

    path = "/messages"
    omissible = frozenset(SAMPLING)

    @override
    def _present(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    @override
    def _add_headers(self) -> dict[str, str]:
        return {"anthropic-version": VERSION}

    @override
    def _body(self, prompt: Prompt) -> dict[str, Any]:
        instructions, messages = write_conversation(prompt.messages)
        temperature = None if prompt.temperature is None else min(prompt.temperature, LARGEST_TEMPERATURE)
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "system": instructions or None,
            "messages": messages,
            "temperature": temperature,
            "top_p": None if prompt.top_p == 1.0 else prompt.top_p,
            "stop_sequences": list(prompt.stop) or None,
            "output_config": _form(prompt.options),
            "stream": True,
            **_tools(prompt.options),
        }
        kept = {name: value for name, value in body.items() if name not in self._unsupported}
        return {name: value for name, value in (kept | self._request).items() if value is not None}

    @override
    def _find_unsupported(self, refusal: Refusal) -> str:
        named = (name for name in SAMPLING if name in refusal.message and name not in self._unsupported)
        return next(named, "") if _REFUSED.search(refusal.message) else ""

    @override
    def _read_answer(self, limits: AnswerLimits, read: Sequence[str]) -> AnswerStream:
        return MessageStream(limits, read)


def _form(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the form of an answer; None for text. Raises PromptRefusedError for one that has no schema."""
    schema = tool_calls.answer_schema(options)
    if schema is None:
        return None
    if options["response_format"]["type"] != "json_schema":
        raise PromptRefusedError("the engine 'anthropic' writes JSON by a schema: 'json_schema' was expected")
    return {"format": {"type": "json_schema", "schema": schema}}


def _tools(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions that may be called, and how."""
    if not (tools := options.get("tools")):
        return {}
    choice, alone = options.get("tool_choice", "auto"), options.get("parallel_tool_calls") is False
    if isinstance(choice, dict):
        chosen: dict[str, Any] = {"type": "tool", "name": choice["function"]["name"]}
    else:
        chosen = {"type": {"required": "any"}.get(choice, choice)}
    if alone and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return {"tools": [*map(_tool, tools)], "tool_choice": chosen}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], **described, "input_schema": schema, **_mark(tool)}


def _mark(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"cache_control": part["cache_control"]} if "cache_control" in part else {}


def write_conversation(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the instructions and the turns of a conversation: roles in turn, results of calls first.

    >>> instructions, _ = write_conversation(({"role": "system", "content": "Be brief."},))
    >>> instructions
    [{'type': 'text', 'text': 'Be brief.'}]
    """
    instructions = list[dict[str, Any]]()
    turns = list[dict[str, Any]]()
    for message in messages:
        if message["role"] == "system":
            instructions += _blocks(message)
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = [_result(message)] if message["role"] == "tool" else [*_blocks(message), *_calls(message)]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")  # the sort is stable
        turn["content"] = turn["content"] or [{"type": "text", "text": _EMPTY}]
    return instructions, turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    """Return the text, the images and the files of a message; a text without a character is left out."""
    parts = message.get("parts") or [{"type": "text", "text": message["content"]}]
    return [_block(part) for part in parts if part["type"] != "text" or part["text"].strip()]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"], **_mark(part)}
    if part["type"] == "image_url":
        return {"type": "image", "source": _source(part["image_url"]["url"]), **_mark(part)}
    file = part["file"]
    titled = {"title": file["filename"]} if file.get("filename") else {}
    return {"type": "document", "source": _source(file["file_data"]), **titled, **_mark(part)}


def _source(url: str) -> dict[str, Any]:
    if (data := _DATA.fullmatch(url)) is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[1], "data": data[2]}


def _calls(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the calls of functions of a message."""
    for call in message.get("tool_calls", ()):
        function = call["function"]
        named = {
            "id": call["id"],
            "name": function["name"],
            "input": tool_calls.read_arguments(function["arguments"]),
        }
        yield {"type": "tool_use", **named, **_mark(call)}


def _result(message: Message) -> dict[str, Any]:
    parts = message.get("parts", ())
    marks = next((_mark(part) for part in reversed(parts) if "cache_control" in part), {})
    text = {"content": message["content"]} if message["content"] else {}
    failed = {"is_error": True} if message.get("is_error") else {}
    return {"type": "tool_result", "tool_use_id": message["tool_call_id"], **text, **failed, **marks}


class _MessageField(BaseModel):
    """A part of an event; fields that are not named here are left out."""

    model_config = ConfigDict(strict=True, frozen=True)


Tokens = Annotated[int, Field(ge=0)]


class _Usage(_MessageField):
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class _Block(_MessageField):
    type: str
    text: str | None = None
    id: Annotated[str, Field(max_length=256)] | None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    input: dict[str, Any] | None = None


class _MessageDelta(_MessageField):
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Message(_MessageField):
    content: Annotated[list[_Block], Field(max_length=4 * MOST_CALLS)] = []
    stop_reason: str | None = None
    usage: Any = None


class _MessageEvent(_Message):
    type: str
    message: _Message | None = None
    index: Tokens | None = None
    content_block: _Block | None = None
    delta: _MessageDelta | None = None


class MessageStream(AnswerStream):
    """Reads the events of one message; an endpoint that does not stream sends it as the only event.

    Args:
        limits: What the request lets the endpoint write.
        read: Texts of the request, of which tokens are estimated without usage.
    """

    def __init__(self, limits: AnswerLimits, read: Sequence[str]) -> None:
        self.doubted = False
        self._limits, self._read = limits, read
        self._characters = 0
        self._calls: dict[int, int] = {}  # number of a call by the index of its block
        self._ended: str | None = None
        self._closed = False
        self._usage: dict[str, int] = {}

    @override
    def pieces(self, data: bytes) -> Iterator[Chunk]:
        try:
            event = _MessageEvent.model_validate_json(data)
        except ValidationError as error:
            raise UpstreamError(f"an event that cannot be read: {place_in(error)}") from None
        for piece in self._pieces(event):
            parts = (part for call in piece.tool_calls for part in call["function"].values())
            self._characters += len(piece.text) + sum(map(len, parts))
            if self._characters > self._limits.characters:
                limit = f"{self._limits.characters:,} characters, for {self._limits.tokens:,} tokens"
                raise UpstreamError(f"the answer has more than {limit}")
            yield piece

    @property
    @override
    def closed(self) -> bool:
        return self._closed

    @property
    @override
    def unfinished(self) -> int | None:
        return None if self._ended else 0

    @override
    def last(self) -> Chunk:
        if self._ended is None:
            raise UpstreamError("no stop reason")
        usage = self._counted()
        reason = "tool_calls" if self._calls else "stop"
        return Chunk(
            finish_reason="length" if self._ended in _LENGTHS else reason,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cache_written_tokens=self._usage.get("cache_creation_input_tokens", 0),
        )

    def _pieces(self, event: _MessageEvent) -> Iterator[Chunk]:
        """Yield the pieces of the answer in an event. Raises UpstreamError."""
        match event.type:
            case "error":
                raise UpstreamError("an error in the place of the answer")
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                yield from self._begin(event.index or 0, event.content_block)
            case "content_block_delta" if event.delta is not None:
                yield from self._continue(event.index or 0, event.delta)
            case "message_delta":
                self._count(event.usage)
                self._ended = (event.delta and event.delta.stop_reason) or self._ended
            case "message":
                self._count(event.usage)
                self._ended, self._closed = event.stop_reason, True
                for index, block in enumerate(event.content):
                    yield from self._begin(index, block)
            case "message_stop":
                self._closed = True

    def _begin(self, index: int, block: _Block) -> Iterator[Chunk]:
        """Yield the beginning of a block: text, or the call of a function; other blocks are passed over."""
        if block.type == "text" and block.text:
            yield Chunk(block.text)
        if block.type != "tool_use":
            return
        if not block.name:
            raise UpstreamError("a call of a function without its name")
        if len(self._calls) == MOST_CALLS:
            raise UpstreamError(f"more than {MOST_CALLS} calls of functions")
        number = self._calls[index] = len(self._calls)
        arguments = orjson.dumps(block.input).decode() if block.input else ""
        function = {"name": block.name, "arguments": arguments}
        call = {"id": block.id or f"call-{number}", "type": "function", "function": function}
        yield Chunk(tool_calls=({"index": number, **call},))

    def _continue(self, index: int, delta: _MessageDelta) -> Iterator[Chunk]:
        """Yield a piece of a block. Raises UpstreamError."""
        if delta.text:
            yield Chunk(delta.text)
        if delta.partial_json:
            if index not in self._calls:
                raise UpstreamError("arguments of no function")
            function = {"arguments": delta.partial_json}
            yield Chunk(tool_calls=({"index": self._calls[index], "function": function},))

    def _count(self, reported: Any) -> None:
        """Keep the counts of an event; later ones are of the whole answer."""
        if reported is None:
            return
        try:
            usage = _Usage.model_validate(reported)
        except ValidationError:
            self.doubted = True
            return
        self._usage |= usage.model_dump(exclude_none=True)

    def _counted(self) -> ReportedUsage:
        """Return the usage, tokens of the cache among those read: an estimate if it cannot be true."""
        counts = [self._usage.get(name, 0) for name in ("input_tokens", *_CACHED)]
        written = self._usage.get("output_tokens", 0)
        usage = ReportedUsage.model_validate(
            {
                "prompt_tokens": sum(counts),
                "completion_tokens": written,
                "prompt_tokens_details": {"cached_tokens": counts[1]},
            }
        )
        if {"input_tokens", "output_tokens"} <= self._usage.keys() and self._limits.allow(usage):
            return usage
        self.doubted, self._usage = self.doubted or bool(self._usage), {}
        return ReportedUsage(
            prompt_tokens=estimate_tokens(sum(map(len, self._read))),
            completion_tokens=estimate_tokens(self._characters),
        )


_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")

_LENGTHS = LENGTHS | {"model_context_window_exceeded"}
