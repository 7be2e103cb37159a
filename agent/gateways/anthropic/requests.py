"""Requests of Anthropic's protocol, and the chats that they are read as.

A field that is not here is ignored, as clients add fields. Blocks of reasoning are left out: they are of the
model that wrote them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import Field, StrictBool, Tag, ValidationError

from armwise.agent.api.errors import ApiError, translate
from armwise.agent.api.openai.schemas import (
    CacheControl,
    ChatRequest,
    Document,
    FunctionName,
    Nullable,
    Open,
    Stop,
)
from armwise.agent.api.schemas import AgentOptions, Count, Finite, Many, Name, OneOrMany, Text

MODELS = ("claude-", "anthropic/claude-")
"""Beginnings of names of Anthropic's models. Its clients always send one: the policy chooses nevertheless."""

REASONING = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Efforts of reasoning by those of the protocol."""

_SESSION = re.compile("[0-9a-f-]{36}")


class Source(Open):
    """Where an image or a document is."""

    type: Name
    media_type: Name | None = None
    data: Text | None = None
    url: Text | None = None
    content: Any = None


class InnerBlock(Open):
    """A block of a system prompt, of a document or of the result of a tool."""

    type: Name
    text: Text | None = None
    source: Source | None = None
    title: Text | None = None
    context: Text | None = None
    cache_control: CacheControl | None = None


InnerBlocks = Annotated[
    Annotated[Text, Tag("<one>")] | Annotated[Many[InnerBlock], Field(max_length=1000), Tag("<many>")],
    OneOrMany,
]


class MessageBlock(InnerBlock):
    """A block of a message."""

    id: Text | None = None
    name: Text | None = None
    input: Document | None = None
    tool_use_id: Text | None = None
    is_error: StrictBool | None = None
    content: InnerBlocks | None = None


class MessageParam(Open):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[Text, Tag("<one>")] | Annotated[Many[MessageBlock], Field(max_length=1000), Tag("<many>")],
        OneOrMany,
    ]


class ToolParam(Open):
    """A tool of the client; those that Anthropic runs, which have another `type`, are refused."""

    name: FunctionName
    type: Name | None = None
    description: Text | None = None
    input_schema: Document | None = None
    cache_control: CacheControl | None = None


class ToolChoiceParam(Open):
    """Whether a tool is called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: StrictBool | None = None


class Thinking(Open):
    """How much the model reasons."""

    type: Name
    budget_tokens: Count | None = None


class OutputFormat(Open):
    """The form of an answer."""

    type: Literal["json_schema"]
    schema_: Document = Field(alias="schema")


class OutputConfig(Open):
    """The form of an answer, and how much the model reasons for it."""

    effort: Name | None = None
    format: OutputFormat | None = None


class MessageMetadata(Open):
    """Who asks."""

    user_id: Text | None = Field(
        default=None, description="The end user; coding agents name their session in it."
    )


class Conversation(Nullable):
    """`POST /v1/messages/count_tokens`."""

    model: Name = Field(
        default="auto",
        description="`auto` or `arm/<name>`; a name of Anthropic's models is `auto`.",
    )
    messages: Many[MessageParam] = Field(min_length=1, max_length=4000)
    system: InnerBlocks | None = None
    tools: Many[ToolParam] = Field(default_factory=list, max_length=512)
    tool_choice: ToolChoiceParam | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = Field(default=None, description="Marks the last block.")
    mcp_servers: list[Any] | None = None
    agent: AgentOptions = Field(default_factory=AgentOptions)


class MessagesRequest(Conversation):
    """`POST /v1/messages`."""

    max_tokens: Count = Field(description="At most `limits.completion_tokens` are written.")
    stream: StrictBool | None = False
    temperature: Annotated[Finite, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Count | None = None
    stop_sequences: Many[Stop] = Field(default_factory=list, max_length=16)
    metadata: MessageMetadata | None = None
    container: Any = None


_REFUSED = {
    "top_k": "name 'top_p'",
    "mcp_servers": "have the client call the servers, as tools",
    "container": "no code is run here",
}


@dataclass(frozen=True, slots=True)
class ReadChat:
    """A request as chat reads it.

    Attributes:
        body: The chat.
        origins: Field of the request that each message of the chat is from.
    """

    body: ChatRequest
    origins: Sequence[str]

    def name_field(self, error: ApiError) -> ApiError:
        """Return an error of the chat with the name of the field of the request."""
        return _renamed(error, self.origins)


_FIELDS = {
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "reasoning_effort": "thinking",
}


def _renamed(error: ApiError, origins: Sequence[str]) -> ApiError:
    first, *rest = (error.param or "").split(".")
    if first == "messages" and rest and rest[0].isdigit() and int(rest[0]) < len(origins):
        return replace(error, param=origins[int(rest[0])])
    return replace(error, param=".".join([_FIELDS.get(first, first), *rest]) or None)


def read_chat(body: Conversation, most_tokens: int) -> ReadChat:
    """Return the chat that a request is read as. Raises ApiError.

    Args:
        body: The request.
        most_tokens: Most tokens of an answer. A request names the most that its model could write, so that
            more is no error.
    """
    for name, instead in _REFUSED.items():
        if getattr(body, name, None):
            raise ApiError("unsupported_parameter", f"{name!r} is not supported: {instead}", name)
    messages, origins = _messages(body)
    fields: dict[str, Any] = {
        "model": "auto" if body.model.startswith(MODELS) else body.model,
        "messages": messages,
        "tools": [_tool(tool, i) for i, tool in enumerate(body.tools)],
        **_tool_choice(body.tool_choice),
        **_form(body),
        "reasoning_effort": _effort(body),
        "agent": body.agent,
    }
    if isinstance(body, MessagesRequest):
        fields |= {
            "max_tokens": min(body.max_tokens, most_tokens),
            "temperature": body.temperature,
            "top_p": body.top_p,
            "stop": body.stop_sequences or None,
            **_who(body.metadata),
        }
    try:
        return ReadChat(ChatRequest.model_validate(fields), origins)
    except ValidationError as error:
        raise _renamed(translate(RequestValidationError(error.errors())), origins) from None


def _tool(tool: ToolParam, i: int) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        text = f"a tool of the type {tool.type!r} is run by Anthropic: one with 'input_schema' was expected"
        raise ApiError("unsupported_parameter", text, f"tools.{i}.type")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function, **_mark(tool)}


def _tool_choice(choice: ToolChoiceParam | None) -> dict[str, Any]:
    if choice is None:
        return {}
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError("invalid_request", "field 'tool_choice.name' is missing", "tool_choice.name")
        chosen: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        chosen = "required" if choice.type == "any" else choice.type
    return {
        "tool_choice": chosen,
        **({"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}),
    }


def _form(body: Conversation) -> dict[str, Any]:
    given = (body.output_config and body.output_config.format) or body.output_format
    schema = given and {"name": "answer", "schema": given.schema_}
    return {"response_format": {"type": "json_schema", "json_schema": schema}} if schema else {}


def _effort(body: Conversation) -> str | None:
    """Return the effort of reasoning, a hint that models without it are not given."""
    if body.output_config and body.output_config.effort:
        return REASONING.get(body.output_config.effort)
    if body.thinking is None or body.thinking.budget_tokens is None:
        return None
    return (
        "low"
        if body.thinking.budget_tokens < 4096
        else "medium"
        if body.thinking.budget_tokens < 16384
        else "high"
    )


def _who(metadata: MessageMetadata | None) -> dict[str, Any]:
    """Return the user and the session of a request, which coding agents name together.

    >>> session = "0a1b2c3d-0000-4000-8000-000000000000"
    >>> _who(MessageMetadata(user_id=f"user_1_account__session_{session}"))["user"]
    'user_1_account_'
    >>> _who(MessageMetadata(user_id='{"account_uuid": "a", "session_id": "s"}'))
    {'metadata': {'session_id': 's'}, 'user': 'a'}
    """
    if metadata is None or not metadata.user_id:
        return {}
    user = metadata.user_id
    account, _, session = user.rpartition("_session_")
    if account and _SESSION.fullmatch(session):
        return {"user": account, "metadata": {"session_id": session}}
    try:
        document = json.loads(user) if user.startswith("{") else None
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(named := document.get("session_id"), str):
        name = document.get("account_uuid") or document.get("device_id")
        return {"metadata": {"session_id": named}, **({"user": name} if isinstance(name, str) else {})}
    return {"user": user}


def _mark(block: InnerBlock | ToolParam) -> dict[str, Any]:
    return {"cache_control": block.cache_control} if block.cache_control else {}


@dataclass(slots=True)
class _BlocksRead:
    """What a message is read as, so far."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    attached: list[dict[str, Any]] = field(default_factory=list)

    def messages(self, role: str) -> Iterator[dict[str, Any]]:
        """Yield the messages of a chat: the results of calls first, and what came with them last."""
        yield from self.results
        parts = [*self.parts, *self.attached]
        if parts or self.calls or not self.results:
            message = {"role": role, "content": _shortened(parts)}
            yield message | ({"tool_calls": self.calls} if self.calls else {})


def _shortened(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return parts as a text where they are one."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def _messages(body: Conversation) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the messages of a chat, and the field that each came from. Raises ApiError."""
    read: list[tuple[dict[str, Any], str]] = []
    if body.system:
        parts = [*_inner(body.system, "system", text_alone=True)]
        read.append(({"role": "system", "content": _shortened(parts)}, "system"))
    for i, message in enumerate(body.messages):
        origin = f"messages.{i}"
        if isinstance(message.content, str):
            read.append(({"role": message.role, "content": message.content}, origin))
            continue
        blocks = _BlocksRead()
        for j, block in enumerate(message.content):
            _add(blocks, block, message.role, f"{origin}.content.{j}")
        read += ((chat_message, origin) for chat_message in blocks.messages(message.role))
    if body.cache_control:
        _mark_last(read[-1][0], body.cache_control)
    return [message for message, _ in read], [origin for _, origin in read]


def _mark_last(message: dict[str, Any], mark: CacheControl) -> None:
    """Mark the last part of a message."""
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    message["content"] = [*parts[:-1], {"cache_control": mark, **parts[-1]}]


def _add(read: _BlocksRead, block: MessageBlock, role: str, param: str) -> None:
    """Add a block of a message. Raises ApiError."""
    match block.type, role:
        case (("thinking" | "redacted_thinking"), "assistant"):
            return
        case "tool_use", "assistant":
            function = {"name": block.name, "arguments": orjson.dumps(block.input or {}).decode()}
            read.calls.append({"id": block.id, "function": function, **_mark(block)})
        case "tool_result", "user":
            inner = [*_inner(block.content or "", param)]
            texts = [part for part in inner if part["type"] == "text"]
            if block.cache_control:
                texts = [{"type": "text", "text": "\n".join(part["text"] for part in texts), **_mark(block)}]
            result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": _shortened(texts)}
            read.results.append(result | ({"is_error": True} if block.is_error else {}))
            read.attached += (part for part in inner if part["type"] != "text")
        case _:
            read.parts += _inner([block], param, text_alone=role != "user")


def _inner(
    blocks: str | Iterable[InnerBlock], param: str, *, text_alone: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield blocks as the parts of a message of a chat. Raises ApiError."""
    if isinstance(blocks, str):
        if blocks:
            yield {"type": "text", "text": blocks}
        return
    for block in blocks:
        if block.type == "text" and block.text is not None:
            yield {"type": "text", "text": block.text, **_mark(block)}
        elif block.type in ("image", "document") and block.source is not None and not text_alone:
            yield _attached(block, block.source, param) | _mark(block)
        else:
            text = f"a block of the type {block.type!r} is not read here, or lacks its field"
            raise ApiError("unsupported_parameter", text, param)


def _attached(block: InnerBlock, source: Source, param: str) -> dict[str, Any]:
    """Return an image or a document as the part of a message of a chat. Raises ApiError."""
    data = f"data:{source.media_type};base64,{source.data}"
    match block.type, source.type:
        case "image", "base64":
            return {"type": "image_url", "image_url": {"url": data}}
        case "image", "url":
            return {"type": "image_url", "image_url": {"url": source.url}}
        case "document", "base64":
            return {"type": "file", "file": {"filename": block.title, "file_data": data}}
        case "document", "text":
            texts = (block.title, block.context, source.data)
            return {"type": "text", "text": "\n".join(text for text in texts if text)}
    text = (
        f"{block.type} of the source {source.type!r}: its data was expected; nothing is kept or fetched here"
    )
    raise ApiError("unsupported_parameter", text, f"{param}.source.type")
