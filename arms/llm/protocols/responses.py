"""OpenAI's responses: a conversation of items, with messages, calls, their results, and a model's state."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import (
    LENGTHS,
    AnswerReader,
    FailedAnswerError,
    call_piece,
    digest_state,
    read_refusal,
)
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.translate.chat import custom_arguments
from armwise.arms.llm.translate.documents import Document, object_at, objects, text_at, without
from armwise.arms.llm.translate.responses import (
    CALLS,
    STATE,
    as_json,
    client_arguments,
    name_call,
    read_call_id,
)
from armwise.arms.upstream import UpstreamError

PATH = "/responses"

LONGEST_MARK = 256
"""Most characters of a mark that is kept."""


def write(body: Document, patch: Patch) -> Document:
    """Return a document as it is sent."""
    written = patch.begin(body)
    if not patch.streams:
        written.pop("stream_options", None)
    if patch.instructions:
        given = text_at(body, "instructions")
        written["instructions"] = f"{given}\n\n{patch.instructions}" if given else patch.instructions
    if patch.max_tokens is not None and read_limit(body) is None:
        written["max_output_tokens"] = patch.max_tokens
    if patch.temperature is not None and body.get("temperature") is None:
        written["temperature"] = patch.temperature
    reasoning = object_at(body, "reasoning")
    if patch.effort is not None and reasoning.get("effort") is None:
        written["reasoning"] = {**reasoning, "effort": patch.effort}
    return written


def read_limit(body: Document) -> int | None:
    """Return the most tokens of an answer that a document names; None for no limit."""
    limit = body.get("max_output_tokens")
    return limit if type(limit) is int and limit > 0 else None


def read_marks(body: Document) -> list[str]:
    """Return the marks of the answers in a conversation, oldest first."""
    previous = text_at(body, "previous_response_id")[:LONGEST_MARK]
    marks = (mark for item in objects(body.get("input")) for mark in _marks(item))
    return [*dict.fromkeys([*([previous] if previous else []), *marks])]


def _marks(item: Document) -> Iterator[str]:
    for name in ("id", "call_id"):
        if mark := text_at(item, name)[:LONGEST_MARK]:
            yield mark
    if state := text_at(item, "encrypted_content"):
        yield digest_state(state)


def without_state(body: Document, is_foreign: Callable[[str], bool]) -> Document:
    """Return a document without the state of models that another one wrote.

    Reasoning whose own marks say nothing belongs to what the model wrote after it, up to the next message of
    the user or the next result of a call. The ids of foreign messages and calls are left out, as a provider
    would look them up.

    Args:
        body: The document.
        is_foreign: Whether another model wrote the answer with a mark.
    """
    left = body
    previous = text_at(body, "previous_response_id")[:LONGEST_MARK]
    if previous and is_foreign(previous):
        left = without(body, "previous_response_id")
    given = body.get("input")
    if not isinstance(given, list):
        return left
    kept, follows = list[Any](), False  # whether a foreign item of the same answer follows
    for item in reversed(given):
        if not isinstance(item, dict):
            kept.append(item)
            continue
        kind = text_at(item, "type") or "message"
        foreign = any(map(is_foreign, _marks(item)))
        if kind.endswith("_call_output") or (kind == "message" and item.get("role") != "assistant"):
            follows = False
        else:
            follows = follows or foreign
        if kind in STATE and (foreign or (kind == "reasoning" and follows)):
            continue
        if foreign and "id" in item and kind in ("message", "function_call", "custom_tool_call"):
            item = without(item, "id")
        kept.append(item)
    kept.reverse()
    same = len(kept) == len(given) and all(map(lambda a, b: a is b, kept, given))
    return left if same else {**left, "input": kept}


@dataclass(slots=True)
class _BegunCall:
    """A call that has begun.

    Attributes:
        index: Number of the call in the answer, from 0.
        call_id: Id of the call.
        read: Characters of its arguments that were read.
        waiting: The input of a custom tool, whose arguments are written once it is complete.
        custom: Whether it is of a custom tool.
    """

    index: int
    call_id: str
    read: int = 0
    waiting: str = ""
    custom: bool = False


_ENDS = frozenset(f"response.{name}" for name in ("completed", "incomplete", "cancelled", "done"))

_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "summary",
}
"""Events that have a piece of a part, with the kind of the part."""


class ResponseReader(AnswerReader):
    """Reads a response, or its events."""

    protocol = "responses"

    def __init__(self, limits: Any, read: Sequence[str]) -> None:
        super().__init__(limits, read)
        self._refused = False
        self._calls: dict[Any, _BegunCall] = {}
        self._written: dict[tuple[Any, str, Any], int] = {}
        self._waiting = 0

    @property
    @override
    def closed(self) -> bool:
        return bool(self._ended)

    @override
    def _reasons(self) -> list[str]:
        if self._ended in LENGTHS:
            return ["length"]
        if self._ended == "content_filter":
            return ["content_filter"]
        return ["refusal" if self._refused else "tool_calls" if self._calls else "stop"]

    @override
    def _pieces(self, event: Document) -> Iterator[Chunk]:
        kind = text_at(event, "type")
        response = object_at(event, "response") if kind else event
        if kind == "error" or kind == "response.failed" or response.get("status") == "failed":
            raise FailedAnswerError(read_refusal(response or event))
        if response.get("error") is not None:
            raise FailedAnswerError(read_refusal(response))
        self.answer_id = self.answer_id or text_at(response, "id")[:LONGEST_MARK]
        self._count(response.get("usage"), response.get("service_tier"))
        key = event.get("output_index")
        key = key if type(key) is int else text_at(event, "item_id")
        if kind in _DELTAS:
            yield self._delta(event, key, _DELTAS[kind])
        elif kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            yield from self._call_delta(key, text_at(event, "delta"))
        elif kind == "response.output_item.added":
            item = object_at(event, "item")
            if item.get("type") in ("function_call", "custom_tool_call") and text_at(item, "name"):
                yield self._begin_call(item, key, name_call(item))
        elif kind == "response.output_item.done":
            yield from self._item(object_at(event, "item"), key)
        elif kind in _ENDS or (not kind and ("status" in event or isinstance(event.get("output"), list))):
            yield from self._end(response)

    def _delta(self, event: Document, key: Any, part: str) -> Chunk:
        at = event.get("summary_index" if part == "summary" else "content_index")
        return self._read_rest(
            key, part, at if type(at) is int else 0, text_at(event, "delta"), event, is_delta=True
        )

    def _read_rest(
        self, key: Any, part: str, at: int, text: str, of: Document, *, is_delta: bool = False
    ) -> Chunk:
        """Return what a part has beyond what was read of it; `text` is the whole part, or a delta."""
        read = self._written.get((key, part, at), 0)
        new = text if is_delta else text[read:]
        if new:
            self._written[key, part, at] = read + len(new)
        if part in ("reasoning", "summary"):
            return Chunk(reasoning=new)
        self._refused = self._refused or part == "refusal"
        return Chunk(
            new, logprobs=tuple(objects(of.get("logprobs"))) if new and (is_delta or not read) else ()
        )

    def _begin_call(self, item: Document, key: Any, name: str) -> Chunk:
        number = len(self._calls)
        piece = call_piece(number, read_call_id(item), name, "")
        self._calls[key] = _BegunCall(number, piece["id"], custom=item.get("type") == "custom_tool_call")
        return Chunk(tool_calls=(piece,))

    def _call_delta(self, key: Any, delta: str) -> Iterator[Chunk]:
        call = self._calls.get(key)
        if call is None:  # the item that is done has the arguments
            return
        if call.custom:
            self._waiting += len(delta)
            if self._waiting > self._limits.characters:
                raise UpstreamError(f"tool inputs of more than {self._limits.characters:,} characters")
            call.waiting += delta
        else:
            yield self._extend_call(call, delta)

    def _extend_call(self, call: _BegunCall, arguments: str) -> Chunk:
        call.read += len(arguments)
        return Chunk(tool_calls=({"index": call.index, "function": {"arguments": arguments}},))

    def _item(self, item: Document, key: Any, known: frozenset[str] = frozenset()) -> Iterator[Chunk]:
        """Yield what an item that is complete has beyond what was read of it.

        Args:
            item: The item.
            key: Number of the item in the answer, or its id.
            known: Kinds of parts that are not read, as events had them.
        """
        for mark in _marks(item):
            if mark not in self.marks:
                self._mark(mark)
        match item.get("type"):
            case "message" | "reasoning":
                for field in ("summary", "content"):
                    for at, part in enumerate(objects(item.get(field))):
                        kind = _kind(item, field, part)
                        if kind not in known:
                            text = text_at(part, "refusal" if kind == "refusal" else "text")
                            yield self._read_rest(key, kind, at, text, part)
            case "function_call":
                yield from self._complete(item, key, name_call(item), as_json(item.get("arguments")))
            case "custom_tool_call":
                call = self._calls.get(key)
                text = text_at(item, "input") or (call.waiting if call else "")
                yield from self._complete(item, key, name_call(item), custom_arguments(text))
            case str(kind) if kind in CALLS:
                yield from self._complete(item, key, CALLS[kind], client_arguments(item))

    def _complete(self, item: Document, key: Any, name: str, arguments: str) -> Iterator[Chunk]:
        same = (call for call in self._calls.values() if call.call_id == read_call_id(item))
        call = self._calls.get(key) or next(same, None)
        if call is None:
            yield self._begin_call(item, key, name)
            call = self._calls[key]
        if rest := arguments[call.read :]:
            yield self._extend_call(call, rest)

    def _end(self, response: Document) -> Iterator[Chunk]:
        """Yield what only the whole response has, and note why it has ended."""
        begun = {part for _, part, _ in self._written}
        known = frozenset(("text", "refusal")) if begun & {"text", "refusal"} else frozenset[str]()
        known |= frozenset(("reasoning", "summary")) if begun & {"reasoning", "summary"} else frozenset()
        for at, item in enumerate(objects(response.get("output"))):
            yield from self._item(item, ("end", at), known)
        for call in self._calls.values():
            if call.custom and not call.read:
                yield self._extend_call(call, custom_arguments(call.waiting))
        reason = text_at(object_at(response, "incomplete_details"), "reason")
        self._ended = reason or "stop"


def _kind(item: Document, field: str, part: Document) -> str:
    if item.get("type") == "reasoning":
        return "summary" if field == "summary" else "reasoning"
    return "refusal" if part.get("type") == "refusal" else "text"


Reader = ResponseReader
