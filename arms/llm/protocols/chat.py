"""Chat completions, OpenAI's protocol that most providers offer."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from armwise.arms.llm.base import Chunk, Message, Prompt
from armwise.arms.llm.protocols.answer import (
    LENGTHS,
    MOST_CALLS,
    AnswerReader,
    FailedAnswerError,
    call_piece,
    digest_state,
    read_refusal,
)
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.translate.chat import (
    custom_arguments,
    custom_function,
    from_chat,
    is_instruction,
    read_text,
)
from armwise.arms.llm.translate.chat import read_limit as read_limit  # also of the protocol
from armwise.arms.llm.translate.documents import (
    Document,
    object_at,
    objects,
    storable,
    text_at,
    without,
    without_nulls,
)
from armwise.arms.upstream import UpstreamError

PATH = "/chat/completions"

STATE = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "extra_content")
"""Fields of a message that hold the state of the model that wrote it."""


def write(body: Document, patch: Patch) -> Document:
    """Return a document as it is sent."""
    written = patch.begin(body)
    if not patch.streams:
        written.pop("stream_options", None)
    else:
        written["stream_options"] = {**object_at(body, "stream_options"), "include_usage": True}
    if patch.instructions:
        written["messages"] = _add_instructions(body.get("messages"), patch.instructions)
    if patch.max_tokens is not None and read_limit(body) is None:
        written["max_tokens"] = patch.max_tokens
    if patch.temperature is not None and body.get("temperature") is None:
        written["temperature"] = patch.temperature
    if patch.effort is not None and body.get("reasoning_effort") is None:
        written["reasoning_effort"] = patch.effort
    return written


def _add_instructions(messages: Any, text: str) -> list[Any]:
    """Return messages whose instructions end with a text: many models take only one message of them."""
    given = list(messages) if isinstance(messages, list) else []
    if not given or not is_instruction(given[0]):
        return [{"role": "system", "content": text}, *given]
    first = given[0]
    content = first.get("content")
    if isinstance(content, list):
        added: Any = [*content, {"type": "text", "text": text}]
    else:
        added = f"{content}\n\n{text}" if isinstance(content, str) and content else text
    return [{**first, "content": added}, *given[1:]]


def read_marks(body: Document) -> list[str]:
    """Return the marks of the answers in a conversation, oldest first."""
    return [mark for message in objects(body.get("messages")) for mark in _marks(message)]


def _marks(message: Mapping[str, Any]) -> Iterator[str]:
    for call in objects(message.get("tool_calls")):
        if name := text_at(call, "id"):
            yield name
    if reasoning := _reasoning(message):
        yield digest_state(reasoning)


def without_state(body: Document, is_foreign: Callable[[str], bool]) -> Document:
    """Return a document without the state of models that another one wrote.

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
            message, changed = _stateless(message), True
        messages.append(message)
    return {**body, "messages": messages} if changed else body


def _stateless(message: Document) -> Document:
    left = without(message, *STATE)
    if calls := left.get("tool_calls"):
        left["tool_calls"] = [without(call, *STATE) for call in objects(calls)]
    if isinstance(content := left.get("content"), list):
        left["content"] = [part for part in content if not _is_thought(part)] or None
    return left


def _reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning of a message, or of a piece of one; Mistral's models have it in the content."""
    parts = filter(_is_thought, objects(message.get("content")))
    thoughts = (read_text(part.get("thinking"), "") for part in parts)
    return text_at(message, "reasoning_content") or text_at(message, "reasoning") or "".join(thoughts)


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking"


def read_messages(chat: Document) -> tuple[Message, ...]:
    """Return the conversation as engines of this process read it, and policies, prices and signals."""
    read = []
    for message in objects(chat.get("messages")):
        role = _ROLES.get(text_at(message, "role"), "user")
        content = message.get("content")
        item = Message(role=role, content=storable(read_text(content)))
        parts = [part for part in map(_part, objects(content)) if part]
        if any(part["type"] != "text" or "cache_control" in part for part in parts):
            item["parts"] = parts
        if role == "assistant" and (calls := [*map(_call, objects(message.get("tool_calls")))]):
            item["tool_calls"] = calls
        if role == "tool":
            item["tool_call_id"] = text_at(message, "tool_call_id")
            if message.get("is_error") is True:
                item["is_error"] = True
        read.append(item)
    return tuple(read)


_ROLES: Mapping[str, Any] = {
    **{role: role for role in ("system", "user", "assistant", "tool")},
    "developer": "system",
    "function": "tool",
}


def _part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a part as `Message` has it; None for one of another type than text and `base.INPUTS`."""
    mark = {"cache_control": part["cache_control"]} if part.get("cache_control") else {}
    if text := read_text([part]):
        return {"type": "text", "text": storable(text), **mark}
    match part.get("type"):
        case "image_url":
            image = part.get("image_url")
            return {
                "type": "image_url",
                "image_url": image if isinstance(image, dict) else {"url": image},
                **mark,
            }
        case "file":
            return {"type": "file", "file": object_at(part, "file"), **mark}
        case "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part, "input_audio"), **mark}
    return None


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    custom, function = object_at(call, "custom"), object_at(call, "function")
    name = text_at(custom, "name") or text_at(function, "name")
    arguments = custom_arguments(text_at(custom, "input")) if custom else text_at(function, "arguments")
    marked = {"cache_control": call["cache_control"]} if call.get("cache_control") else {}
    written = {"name": name, "arguments": arguments}
    return {"id": text_at(call, "id"), "type": "function", "function": written, **marked}


@dataclass(slots=True)
class _Written:
    """What a choice has so far: its calls by the index and id that they came with, reasoning, its end."""

    calls: list[tuple[Any, str]] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def reason(self) -> str:
        """Why it has ended, in the words of `Chunk`, whatever the endpoint calls it."""
        if self.ended in LENGTHS:
            return "length"
        if self.ended in ("content_filter", "refusal"):
            return self.ended
        return "tool_calls" if self.calls else "stop"


class ChatReader(AnswerReader):
    """Reads a chat completion, or its chunks."""

    protocol = "chat"

    def __init__(self, limits: Any, read: Sequence[str]) -> None:
        super().__init__(limits, read)
        self._choices: dict[int, _Written] = {}

    @property
    @override
    def unfinished(self) -> int | None:
        """The first choice that has not ended, of those up to the last one that has begun; None for none."""
        missing = _Written()
        indices = range(max(self._choices, default=0) + 1)
        return next((index for index in indices if not self._choices.get(index, missing).ended), None)

    @override
    def _end_choice(self, index: int) -> None:
        self._choices[index].ended = self._choices[index].ended or "stop"

    @override
    def _reasons(self) -> list[str]:
        return [choice.reason for _, choice in sorted(self._choices.items())]

    @override
    def last(self) -> Chunk:
        for choice in self._choices.values():
            if choice.reasoning:
                self._mark(digest_state("".join(choice.reasoning)))
                choice.reasoning.clear()
        return super().last()

    @override
    def _pieces(self, event: Document) -> Iterator[Chunk]:
        if event.get("error") is not None and self.unfinished is not None:
            raise FailedAnswerError(read_refusal(event))
        self._count(event.get("usage"), event.get("service_tier"))
        choices = event.get("choices")
        if isinstance(choices, list) and len(choices) > MOST_CALLS:
            raise UpstreamError(f"more than {MOST_CALLS} choices")
        for choice in objects(choices):
            yield self._piece(choice)

    def _piece(self, choice: Document) -> Chunk:
        """Return what an event says of a choice. Raises UpstreamError."""
        if choice.get("error") is not None:
            raise FailedAnswerError(read_refusal(choice))
        index, delta = read_index(choice), object_at(choice, "delta") or object_at(choice, "message")
        if not 0 <= index < self._limits.choices:
            raise UpstreamError(f"choice {index}, but only {self._limits.choices} were requested")
        written = self._choices.setdefault(index, _Written())
        written.ended = text_at(choice, "finish_reason") or written.ended
        if written.ended == "error":
            raise FailedAnswerError(read_refusal(choice))
        text = read_text(delta.get("content"), "") + text_at(delta, "refusal")
        if reasoning := _reasoning(delta):
            written.reasoning.append(reasoning)
        calls = tuple(self._renumber(written, call) for call in objects(delta.get("tool_calls")))
        logprobs = objects(object_at(choice, "logprobs").get("content"))
        return Chunk(text, index=index, tool_calls=calls, logprobs=tuple(logprobs), reasoning=reasoning)

    def _renumber(self, written: _Written, call: Document) -> Mapping[str, Any]:
        """Return a piece of a call under the number of the call in its choice. Raises UpstreamError.

        A piece with another id, or without one but with a name, begins a call: some endpoints give parallel
        calls the same index, or none.
        """
        function = object_at(call, "function") or object_at(call, "custom")
        name, arguments = (
            text_at(function, "name"),
            text_at(function, "arguments") or text_at(function, "input"),
        )
        index, call_id = call.get("index"), text_at(call, "id")
        more = {name: value for name, value in call.items() if name not in _CALL}
        same = [at for at, (number, _) in enumerate(written.calls) if index in (None, number)]
        at = same[-1] if same else None
        begins = call_id != written.calls[at][1] if at is not None and call_id else bool(name)
        if at is not None and not begins:
            return {**more, "index": at, "function": {"arguments": arguments}}
        begun = call_piece(len(written.calls), call_id, name, arguments)
        written.calls.append((index, call_id))
        self._mark(call_id)
        return more | begun


_CALL = frozenset(("index", "id", "type", "function", "custom"))
"""Fields of a piece of a call that are read; others, such as a model's signature, are kept as they came."""


def read_index(choice: Document) -> int:
    """Return the number of a choice; 0 where it has none."""
    index = choice.get("index")
    return index if type(index) is int else 0


SAMPLING = ("n", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs")

_NOTHING: Mapping[str, Any] = {"n": 1, "parallel_tool_calls": True, "tool_choice": "auto"}
"""Values that ask for what happens anyway; of other options null, 0, false and empty ones."""


def read_options(chat: Document) -> dict[str, Any]:
    """Return the options of a chat that ask for something, as engines of this process read them.

    What is not formed as the protocol has it is left out, and so are tools that a provider runs.
    """
    names = (*SAMPLING, "parallel_tool_calls", "reasoning_effort", "verbosity", "max_completion_tokens")
    options = {name: chat[name] for name in names if chat.get(name) and chat[name] != _NOTHING.get(name)}
    if chat.get("parallel_tool_calls") is False:
        options["parallel_tool_calls"] = False
    match object_at(chat, "response_format"):
        case {"type": "json_object"} as form:
            options["response_format"] = form
        case {"type": "json_schema", "json_schema": dict(named)} as form:
            if isinstance(named.get("schema"), dict | None):
                options["response_format"] = form
    tools = [tool for tool in map(_function, objects(chat.get("tools"))) if tool]
    choice = chat.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_at(choice, "allowed_tools")
        names_allowed = {name_of_tool(tool) for tool in objects(allowed.get("tools"))}
        tools = [tool for tool in tools if name_of_tool(tool) in names_allowed]
        choice = allowed.get("mode")
    if not tools:
        options.pop("parallel_tool_calls", None)
        return options
    options["tools"] = tools
    if choice in ("none", "required"):
        options["tool_choice"] = choice
    elif isinstance(choice, dict) and name_of_tool(choice) in map(name_of_tool, tools):
        options["tool_choice"] = {"type": "function", "function": {"name": name_of_tool(choice)}}
    return options


def name_of_tool(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool, or of a choice of one; empty for none."""
    return text_at(object_at(tool, "function") or object_at(tool, "custom"), "name")


def _function(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tool as a function; None for one without a name, or that a provider runs."""
    if not (name := name_of_tool(tool)):
        return None
    if tool.get("type") == "custom":
        return {"type": "function", "function": custom_function(object_at(tool, "custom"))}
    function = object_at(tool, "function")
    parameters = function.get("parameters")
    kept = {"description": function["description"]} if isinstance(function.get("description"), str) else {}
    if isinstance(parameters, dict):
        kept["parameters"] = parameters
    return {"type": "function", "function": {"name": name, **kept}}


def from_prompt(prompt: Prompt) -> Document:
    """Return a prompt of the service itself, or of an engine of this process, as a document."""
    limit = "max_completion_tokens" if "max_completion_tokens" in prompt.options else "max_tokens"
    messages = []
    for message in prompt.messages:
        content = message.get("parts") or message["content"]
        messages.append(without(message, "parts") | {"content": content})
    fields: dict[str, Any] = {
        **prompt.options,
        "messages": messages,
        limit: prompt.max_tokens,
        "temperature": prompt.temperature,
        "top_p": None if prompt.top_p == 1.0 else prompt.top_p,
        "stop": list(prompt.stop) or None,
        "seed": prompt.seed,
    }
    return from_chat(without_nulls(fields))


_SHORT_ID = re.compile("[A-Za-z0-9]{9}")


def shorten_ids(body: Document) -> Document:
    """Return a document whose calls of functions have ids of nine letters and digits, as Mistral wants."""
    messages = []
    for message in objects(body.get("messages")):
        if calls := [*objects(message.get("tool_calls"))]:
            message = {
                **message,
                "tool_calls": [{**call, "id": _short(text_at(call, "id"))} for call in calls],
            }
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": _short(text_at(message, "tool_call_id"))}
        messages.append(message)
    return {**body, "messages": messages}


def _short(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]


Reader = ChatReader
