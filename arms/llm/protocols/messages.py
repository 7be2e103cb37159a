"""Anthropic's messages."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import (
    AnswerLimits,
    AnswerReader,
    FailedAnswerError,
    call_piece,
    digest_state,
    read_refusal,
)
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.translate.chat import text_part
from armwise.arms.llm.translate.documents import (
    Document,
    object_at,
    objects,
    text_at,
    without,
    write_document,
)
from armwise.arms.llm.translate.messages import BUDGETS, STATE, limit_temperature, read_block
from armwise.arms.upstream import UpstreamError

PATH = "/messages"

MOST_TOKENS = 4096
"""Limit of an answer, which the protocol requires, if neither the request nor the configuration has one."""

LEAST_BUDGET = 1024
"""Fewest tokens of reasoning that a request may ask for."""

_BUDGETED = re.compile(
    r"claude-(3[-.]7|(opus|sonnet)-4([-.][01]\b|[-@]20\d{6}|$)|(sonnet|haiku)-4[-.]5\b)", re.IGNORECASE
)
"""Names of the models that reason for a number of tokens, and know no effort."""

_SAMPLING = ("temperature", "top_p", "top_k")


def write(body: Document, patch: Patch) -> Document:
    """Return a document as it is sent."""
    written = patch.begin(body)
    if patch.instructions:
        written["system"] = _add_instructions(body.get("system"), patch.instructions)
    if body.get("max_tokens") is None:
        written["max_tokens"] = patch.max_tokens or MOST_TOKENS
    asked = written.pop("reasoning_effort", None)  # of a translation: this protocol has no such field
    if isinstance(asked, str):
        written = _reasoning(written, asked)
    elif patch.effort and not _reasons(body):
        reasoning = _reasoning(written, patch.effort)
        if reasoning.keys() >= written.keys():  # a default replaces nothing that the client asked for
            written = reasoning
    if patch.temperature is not None and body.get("temperature") is None and "thinking" not in written:
        written["temperature"] = limit_temperature(patch.temperature)
    return written


def _add_instructions(system: Any, text: str) -> Any:
    if isinstance(system, list):
        return [*system, text_part(text)]
    return f"{system}\n\n{text}" if isinstance(system, str) and system else text


def _reasons(body: Document) -> bool:
    return "thinking" in body or bool(object_at(body, "output_config").get("effort"))


def _reasoning(body: Document, effort: str) -> Document:
    """Return a document that asks for an effort of reasoning, in the way that its model knows.

    A number of tokens is left out where the model would refuse it: with a forced call, and for the results of
    calls, as these would have to follow the reasoning that led to the calls.
    """
    effort = "low" if effort == "minimal" else effort
    if effort not in BUDGETS:
        return body
    if not _BUDGETED.search(text_at(body, "model")):
        return {**body, "output_config": {**object_at(body, "output_config"), "effort": effort}}
    limit = read_limit(body) or 0
    budget = min(BUDGETS[effort], limit // 2)
    forced = object_at(body, "tool_choice").get("type") in ("any", "tool")
    last = next(iter([*objects(body.get("messages"))][-1:]), {})
    answers = any(block.get("type") == "tool_result" for block in objects(last.get("content")))
    if budget < LEAST_BUDGET or forced or answers or last.get("role") == "assistant":
        return body
    kept = without(body, *_SAMPLING)
    return {**kept, "thinking": {"type": "enabled", "budget_tokens": budget}}


def read_limit(body: Document) -> int | None:
    """Return the most tokens of an answer that a document names; None for no limit."""
    limit = body.get("max_tokens")
    return limit if type(limit) is int and limit > 0 else None


def read_marks(body: Document) -> list[str]:
    """Return the marks of the answers in a conversation, oldest first."""
    return [mark for message in objects(body.get("messages")) for mark in _marks(message)]


def _marks(message: Mapping[str, Any]) -> list[str]:
    if message.get("role") != "assistant":
        return []
    return [mark for block in objects(message.get("content")) if (mark := _read_mark(block))]


def _read_mark(block: Mapping[str, Any]) -> str:
    """Return the mark of a block; empty for none."""
    match text_at(block, "type"):
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            return text_at(block, "id")
        case "thinking":
            return digest_state(signature) if (signature := text_at(block, "signature")) else ""
        case "redacted_thinking":
            return digest_state(data) if (data := text_at(block, "data")) else ""
    return ""


def without_state(body: Document, is_foreign: Callable[[str], bool]) -> Document:
    """Return a document without the state of models that another one wrote.

    A message without a block left is left out: the turns around it then count as one.

    Args:
        body: The document.
        is_foreign: Whether another model wrote the answer with a mark.
    """
    given = body.get("messages")
    if not isinstance(given, list):
        return body
    messages, changed = [], False
    for message in given:
        if isinstance(message, dict) and any(map(is_foreign, _marks(message))):
            content = [*_stateless(message["content"])]
            if content != message["content"]:
                changed = True
                message = {**message, "content": content}
                if not content:
                    continue
        messages.append(message)
    return {**body, "messages": messages} if changed else body


def _stateless(content: Any) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a message without reasoning; those with encrypted content become their texts."""
    blocks = [block for block in objects(content) if block.get("type") not in STATE]
    gone = {text_at(block, "tool_use_id") for block in blocks if _is_encrypted(block)} - {""}
    for block in blocks:
        if _is_encrypted(block):
            yield from (part for part in read_block(block) if part["type"] == "text")
        elif block.get("type") in ("server_tool_use", "mcp_tool_use") and text_at(block, "id") in gone:
            continue
        elif text_at(object_at(block, "caller"), "tool_id") in gone:
            yield without(block, "caller")
        else:
            yield block


def _is_encrypted(value: Any) -> bool:
    if isinstance(value, dict):
        return any(name.startswith("encrypted_") or _is_encrypted(value[name]) for name in value)
    return isinstance(value, list) and any(map(_is_encrypted, value))


_REASONS = {
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause_turn",
    "model_context_window_exceeded": "context_window",
}
"""Finish reasons by the protocol's stop reasons; any other is the end of the answer."""


class MessageReader(AnswerReader):
    """Reads a message, or the events of one."""

    protocol = "messages"

    def __init__(self, limits: AnswerLimits, read: Sequence[str]) -> None:
        super().__init__(limits, read)
        self._calls: dict[int, int] = {}  # number of a call by the index of its block
        self._bare: set[int] = set()  # indices of calls without arguments so far
        self._passed: int | None = None  # index of the latest block whose pieces are passed over
        self._closed = False

    @property
    @override
    def closed(self) -> bool:
        return self._closed

    @override
    def _reasons(self) -> list[str]:
        return [_REASONS.get(self._ended, "tool_calls" if self._calls else "stop")]

    @override
    def _pieces(self, event: Document) -> Iterator[Chunk]:
        kind, index = text_at(event, "type"), event.get("index")
        index = index if type(index) is int else 0
        if (kind == "error" or event.get("error") is not None) and self.unfinished is not None:
            raise FailedAnswerError(read_refusal(event))
        match kind:
            case "message_start":
                message = object_at(event, "message")
                self._count(message.get("usage"))
            case "content_block_start":
                yield from self._begin(index, object_at(event, "content_block"))
            case "content_block_delta":
                yield from self._continue(index, object_at(event, "delta"))
            case "content_block_stop":
                yield from self._end(index)
            case "message_delta":
                self._count(event.get("usage"))
                self._ended = text_at(object_at(event, "delta"), "stop_reason") or self._ended
            case "message_stop":
                self._closed = True
            case "message":
                self._count(event.get("usage"))
                for number, block in enumerate(objects(event.get("content"))):
                    yield from self._begin(number, block)
                    yield from self._end(number)
                self._ended, self._closed = text_at(event, "stop_reason"), True

    def _begin(self, index: int, block: Document) -> Iterator[Chunk]:
        """Yield the beginning of a block. Raises UpstreamError."""
        self._mark(_read_mark(block))
        match text_at(block, "type"):
            case "text":
                if text := text_at(block, "text"):
                    yield Chunk(text)
            case "thinking":
                if reasoning := text_at(block, "thinking"):
                    yield Chunk(reasoning=reasoning)
            case "tool_use":
                given = object_at(block, "input")
                arguments = write_document(given).decode() if given else ""
                number = len(self._calls)
                piece = call_piece(number, text_at(block, "id"), text_at(block, "name"), arguments)
                self._calls[index] = number
                if not given:
                    self._bare.add(index)
                yield Chunk(tool_calls=(piece,))
            case _:
                self._passed = index

    def _continue(self, index: int, delta: Document) -> Iterator[Chunk]:
        """Yield a piece of a block. Raises UpstreamError."""
        if signature := text_at(delta, "signature"):
            self._mark(digest_state(signature))
        text, reasoning = text_at(delta, "text"), text_at(delta, "thinking")
        if text or reasoning:
            yield Chunk(text, reasoning=reasoning)
        if (arguments := text_at(delta, "partial_json")) and index != self._passed:
            if index not in self._calls:
                raise UpstreamError("arguments without a function")
            self._bare.discard(index)
            yield self._piece(index, arguments)

    def _end(self, index: int) -> Iterator[Chunk]:
        """Yield what a call without arguments lacks to be JSON."""
        if index in self._bare:
            self._bare.discard(index)
            yield self._piece(index, "{}")

    def _piece(self, index: int, arguments: str) -> Chunk:
        return Chunk(tool_calls=({"index": self._calls[index], "function": {"arguments": arguments}},))


Reader = MessageReader
