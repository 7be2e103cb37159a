"""Anthropic's messages protocol, and its translations to and from chat completions.

A translation keeps every text of a conversation. Blocks that chat completions do not have become their texts.
The reasoning of a model is left out, because only the model that wrote it can read it.
"""

import base64
import hashlib
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols.answer import (
    MOST_CALLS,
    AnswerLimits,
    AnswerReader,
    FailedAnswerError,
    call_piece,
    digest_state,
    read_refusal,
)
from armwise.arms.llm.protocols.chat import custom_arguments, custom_function, read_text
from armwise.arms.llm.protocols.chat import read_limit as read_chat_limit
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.protocols.request import (
    MOST_MEMBERS,
    Document,
    DocumentError,
    count_members,
    object_at,
    objects,
    read_document,
    text_at,
    write_document,
)
from armwise.arms.upstream import UpstreamError

PATH = "/messages"

MOST_TOKENS = 4096
"""Limit of an answer, which the protocol requires, if neither the request nor the configuration has one."""

LARGEST_TEMPERATURE = 1.0

LONGEST_USER, LONGEST_NAMES = 256, 4096
"""Most characters of the name of an end user, and of JSON that names the user and the session."""

BUDGETS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768, "max": 65_536}
"""Tokens of reasoning for each effort, for the models that take a number of tokens instead of an effort."""

LEAST_BUDGET = 1024
"""Fewest tokens of reasoning that a request may ask for."""

EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Efforts of chat completions by those of this protocol."""

STATE = ("thinking", "redacted_thinking")
"""Types of the blocks that only the model that wrote them can read."""

CLIENT_TOOLS = {
    "bash_": "Runs a shell command on the user's machine. Arguments: `command`, or `restart`: true.",
    "text_editor_": "Views and edits text files. Arguments: `command` (`view`, `create`, `str_replace` or "
    "`insert`), `path`, and those of the command: `view_range`, `file_text`, `old_str`, `new_str`, "
    "`insert_line`, `insert_text`.",
    "memory_": "Keeps notes in files below `/memories`. Arguments: `command` (`view`, `create`, "
    "`str_replace`, `insert`, `delete` or `rename`), `path`, and those of the command: `view_range`, "
    "`file_text`, `old_str`, `new_str`, `insert_line`, `insert_text`, `old_path`, `new_path`.",
    "computer_": "Controls a screen, a mouse and a keyboard. Arguments: `action` (such as `screenshot`, "
    "`left_click`, `type`, `key` or `scroll`), and those of the action: `coordinate` ([x, y] in pixels), "
    "`text`, `scroll_direction`, `scroll_amount`, `duration`.",
}
"""Tools that the client runs, by the beginning of their type: Anthropic's models know their arguments."""

_BUDGETED = re.compile(
    r"claude-(3[-.]7|(opus|sonnet)-4([-.][01]\b|[-@]20\d{6}|$)|(sonnet|haiku)-4[-.]5\b)", re.IGNORECASE
)
"""Names of the models that reason for a number of tokens, and know no effort."""

_PROVIDER_TOOL = re.compile(r"(?!tool_search)[a-z]{1,40}(?:_[a-z]{1,40}){0,8}_\d{8}")

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_DATA = re.compile(
    r"data:([A-Za-z]{1,20}/[A-Za-z0-9.+-]{1,100})(?:;[A-Za-z0-9=._-]{1,100})?;base64,(.*)", re.DOTALL
)

_SESSION = re.compile("[0-9a-f-]{36}")

_EMPTY = "(empty)"
"""Text of a message without any content, which providers refuse."""

_SAMPLING = ("temperature", "top_p", "top_k")


def to_chat(body: Document) -> Document:
    """Return a document as a chat completion, whatever its values are."""
    choice = object_at(body, "tool_choice")
    chat = {
        "model": body.get("model"),
        "messages": _read_conversation(body),
        "tools": [*_read_tools(body)] or None,
        "tool_choice": _read_choice(choice),
        "parallel_tool_calls": False if choice.get("disable_parallel_tool_use") is True else None,
        "response_format": _read_form(body),
        "reasoning_effort": _read_effort(body),
        "max_completion_tokens": body.get("max_tokens"),
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "stop": body.get("stop_sequences") or None,
        "stream": body.get("stream"),
        **_read_user(text_at(object_at(body, "metadata"), "user_id")),
    }
    return {name: value for name, value in chat.items() if value is not None}


def _read_conversation(body: Document) -> list[dict[str, Any]]:
    messages = list[dict[str, Any]]()
    if system := _read_blocks(body.get("system")):
        messages.append({"role": "system", "content": _shorten(system)})
    for message in objects(body.get("messages")):
        messages += _read_message(message)
    if (mark := object_at(body, "cache_control")) and messages:
        _mark_last(messages[-1], mark)
    return messages


def _read_message(message: Document) -> Iterator[dict[str, Any]]:
    """Yield a message: the results of calls first. One that has nothing a model can read is left out."""
    given, content = text_at(message, "role"), message.get("content")
    role = {"assistant": "assistant", "system": "system", "developer": "system"}.get(given, "user")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    parts, calls, answered = list[dict[str, Any]](), list[dict[str, Any]](), False
    for block in objects(content):
        match text_at(block, "type"), role:
            case "tool_use", "assistant":
                calls.append(_read_call(block))
            case "tool_result", "user":
                answered = True
                yield _read_result(block)
            case _:
                parts += _read_block(block)
    if calls:
        yield {"role": role, "content": _shorten(parts) or None, "tool_calls": calls}
    elif parts:
        yield {"role": role, "content": _shorten(parts)}
    elif role == "user" and not answered:
        yield {"role": role, "content": _EMPTY}


def _read_call(block: Document) -> dict[str, Any]:
    given = block.get("input")
    arguments = given if isinstance(given, str) else write_document(given or {}).decode()
    function = {"name": text_at(block, "name"), "arguments": arguments}
    return {"id": text_at(block, "id"), "type": "function", "function": function, **_mark(block)}


def _read_result(block: Document) -> dict[str, Any]:
    parts = _copy_mark(_read_blocks(block.get("content")), block)
    failed = {"is_error": True} if block.get("is_error") is True else {}
    return {
        "role": "tool",
        "tool_call_id": text_at(block, "tool_use_id"),
        "content": _shorten(parts),
        **failed,
    }


def _read_blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [_text(content)] if content else []
    return [part for block in objects(content) for part in _read_block(block)]


def _read_block(block: Document) -> list[dict[str, Any]]:
    """Return a block as parts of a message of a chat: none where it has nothing that can be read."""
    kind, source = text_at(block, "type"), object_at(block, "source")
    if kind in STATE:
        return []
    url = text_at(source, "url")
    if source.get("type") == "base64":
        url = f"data:{text_at(source, 'media_type')};base64,{text_at(source, 'data')}"
    if file_id := text_at(source, "file_id") or text_at(block, "file_id"):
        parts = [_text(f"[a file of the provider: {file_id}]")]
    elif kind == "image" and url:
        parts = [{"type": "image_url", "image_url": {"url": url}}]
    elif kind == "document" and url:
        file = {"file_data": url} if source.get("type") == "base64" else {"file_url": url}
        named = {"filename": text_at(block, "title") or "document.pdf"}  # some providers require a name
        context = text_at(block, "context")
        parts = [*([_text(context)] if context else ()), {"type": "file", "file": {**named, **file}}]
    else:
        text = "\n".join(_texts(block))
        parts = [_text(text)] if text else []
    return _copy_mark(parts, block)


_READABLE = ("title", "context", "url", "source", "text", "stdout", "stderr", "content", "data", "lines")
"""Fields of blocks, of results of tools and of sources that have texts."""


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a block of any type.

    >>> [*_texts({"type": "x", "content": [{"stdout": "1", "data": {"type": "base64", "data": "aGk="}}]})]
    ['1']
    """
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict) and value.get("type") not in ("base64", *STATE):
        for name in _READABLE:
            yield from _texts(value.get(name))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _mark(block: Mapping[str, Any]) -> dict[str, Any]:
    return {"cache_control": mark} if (mark := object_at(block, "cache_control")) else {}


def _copy_mark(parts: list[dict[str, Any]], block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return parts of which the last one has the mark of a block."""
    return [*parts[:-1], parts[-1] | _mark(block)] if parts else []


def _mark_last(message: dict[str, Any], mark: Document) -> None:
    """Mark the end of a message, unless it has a mark."""
    content = message["content"]
    parts = [_text(content)] if isinstance(content, str) and content else content
    last = parts or message.get("tool_calls")
    if last:
        marked = [*last[:-1], {"cache_control": mark, **last[-1]}]
        message["content" if parts else "tool_calls"] = marked


def _shorten(parts: list[dict[str, Any]]) -> Any:
    """Return parts, or blocks, as a text if they are a single one without a mark."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def _read_tools(body: Document) -> Iterator[dict[str, Any]]:
    """Yield functions, and the tools that only a provider runs as they came."""
    for tool in objects(body.get("tools")):
        kind = text_at(tool, "type")
        if about := next((CLIENT_TOOLS[name] for name in CLIENT_TOOLS if kind.startswith(name)), None):
            function = {"name": text_at(tool, "name"), "description": about, "parameters": {"type": "object"}}
        elif kind in ("", "custom") or "input_schema" in tool:
            fields = {"description": "description", "parameters": "input_schema", "strict": "strict"}
            given = {name: tool[field] for name, field in fields.items() if tool.get(field) is not None}
            function = {"name": text_at(tool, "name"), **given}
        else:
            yield tool
            continue
        yield {"type": "function", "function": function, **_mark(tool)}
    for server in objects(body.get("mcp_servers")):
        tool = {
            "type": "mcp",
            "server_label": server.get("name"),
            "server_url": server.get("url"),
            "authorization": server.get("authorization_token"),
            "allowed_tools": object_at(server, "tool_configuration").get("allowed_tools"),
            "require_approval": "never",
        }
        yield {name: value for name, value in tool.items() if value is not None}


def _read_choice(choice: Document) -> Any:
    if choice.get("type") == "tool" and (name := text_at(choice, "name")):
        return {"type": "function", "function": {"name": name}}
    kinds = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
    return kinds.get(text_at(choice, "type"))


def _read_form(body: Document) -> dict[str, Any] | None:
    given = object_at(object_at(body, "output_config"), "format") or object_at(body, "output_format")
    schema = object_at(given, "schema")
    if given.get("type") != "json_schema" or not schema:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _read_effort(body: Document) -> str | None:
    if effort := text_at(object_at(body, "output_config"), "effort"):
        return EFFORTS.get(effort)
    budget = object_at(body, "thinking").get("budget_tokens")
    if type(budget) is not int:
        return None
    return next((effort for effort in ("high", "medium") if budget >= BUDGETS[effort]), "low")


def _read_user(user: str) -> dict[str, Any]:
    """Return the user and the session of a request, which coding agents name together.

    >>> session = "0a1b2c3d-0000-4000-8000-000000000000"
    >>> _read_user(f"user_1_account__session_{session}")["user"]
    'user_1_account_'
    >>> _read_user('{"account_uuid": "a", "session_id": "s"}')
    {'metadata': {'session_id': 's'}, 'user': 'a'}
    """
    account, _, session = user.rpartition("_session_")
    if account and _SESSION.fullmatch(session):
        return {"user": account, "metadata": {"session_id": session}}
    document: Document = {}
    if user.startswith("{") and len(user) <= LONGEST_NAMES:
        with suppress(DocumentError):
            document = read_document(user.encode(errors="replace"))
    if named := text_at(document, "session_id"):
        name = text_at(document, "account_uuid") or text_at(document, "device_id")
        return {"metadata": {"session_id": named}, **({"user": name} if name else {})}
    return {"user": user} if user else {}


def from_chat(chat: Document) -> Document:
    """Return the document of a chat completion, or of a translation to one, whatever its values are.

    `reasoning_effort` stays as it is: `write` knows the model, and what that takes in its place.
    """
    system, turns = _write_conversation(chat.get("messages"))
    form, stop, top_p = object_at(chat, "response_format"), chat.get("stop"), chat.get("top_p")
    if form.get("type") == "json_object":
        system.append(_text("Answer with a JSON object."))
    schema = object_at(object_at(form, "json_schema"), "schema")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    user = text_at(chat, "user")
    body = {
        "model": chat.get("model"),
        "max_tokens": read_chat_limit(chat),
        "system": _shorten(system) or None,
        "messages": turns,
        **_write_tools(chat),
        "output_config": {"format": {"type": "json_schema", "schema": schema}} if schema else None,
        "reasoning_effort": chat.get("reasoning_effort"),
        "temperature": _limit_temperature(chat.get("temperature")),
        "top_p": None if top_p == 1 else top_p,  # some models do not take it beside a temperature
        "stop_sequences": [text for text in stops if isinstance(text, str) and text.strip()] or None,
        "metadata": {"user_id": user} if 0 < len(user) <= LONGEST_USER else None,
        "stream": chat.get("stream"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _limit_temperature(temperature: Any) -> Any:
    """Return a temperature that the protocol allows; that of chat completions is at most 2."""
    return min(temperature, LARGEST_TEMPERATURE) if type(temperature) in (int, float) else None


class _Calls:
    """Ids of the calls of a conversation. The protocol wants them plain, unique and answered at once."""

    def __init__(self) -> None:
        self._seen = Counter[str]()
        self._open = defaultdict[str, deque[str]](deque)
        self._members = 0

    def begin_turn(self) -> None:
        """Forget the calls of earlier turns, which can have no result any more."""
        self._open.clear()

    def add(self, call_id: str) -> str:
        """Return the id under which a call is written: its own unless it is taken or has other letters."""
        count = self._seen[call_id]
        self._seen[call_id] += 1
        written = call_id
        if count or not _ID.fullmatch(call_id):
            digest = hashlib.sha256(f"{count} {call_id}".encode(errors="replace")).hexdigest()
            written = f"call_{digest[:32]}"
        self._open[call_id].append(written)
        return written

    def read(self, arguments: str) -> Document:
        """Return the arguments of a call, as a text once those of all calls have too many members."""
        self._members += count_members(arguments.encode(errors="replace"))
        return read_arguments(arguments) if self._members <= MOST_MEMBERS else {"arguments": arguments}

    def answer(self, call_id: str) -> str | None:
        """Return the id of the call that a result is for; None if the turn has no such call left."""
        waiting = self._open.get(call_id)
        return waiting.popleft() if waiting else None


_ORDER = {"tool_result": -1, "tool_use": 1}
"""Results are the first blocks of a turn, and calls the last."""


def _write_conversation(messages: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the instructions and the turns of a conversation: roles in turn, the user first."""
    instructions, turns = list[dict[str, Any]](), list[dict[str, Any]]()
    calls = _Calls()
    for message in objects(messages):
        blocks = _write_blocks(message.get("content"))
        given = text_at(message, "role")
        if given in ("system", "developer"):
            instructions += (block for block in blocks if block["type"] == "text")
            continue
        role = "assistant" if given == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
            if role == "assistant":
                calls.begin_turn()
        if given == "assistant":
            blocks += _write_blocks(message.get("refusal"))
            blocks += (_write_call(call, calls) for call in objects(message.get("tool_calls")))
        elif given == "tool" and (call_id := calls.answer(text_at(message, "tool_call_id"))):
            blocks = [_write_result(call_id, blocks, message)]
        turns[-1]["content"] += blocks
    for turn in turns:
        turn["content"].sort(key=lambda block: _ORDER.get(block["type"], 0))  # the sort is stable
        turn["content"] = _shorten(turn["content"]) or _EMPTY
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": _EMPTY})
    return instructions, turns


def _write_blocks(content: Any) -> list[dict[str, Any]]:
    """Return the texts, images and files of a message, without blank texts, which providers refuse."""
    parts = [_text(content)] if isinstance(content, str) else objects(content)
    return [block for part in parts if (block := _write_block(part))]


def _write_block(part: Mapping[str, Any]) -> dict[str, Any] | None:
    if text := read_text([part]):
        return {**_text(text), **_mark(part)} if text.strip() else None
    kind, file = text_at(part, "type"), object_at(part, "file")
    if file_id := text_at(file, "file_id"):
        return {**_text(f"[a file of the provider: {file_id}]"), **_mark(part)}
    if kind == "file":
        url = text_at(file, "file_data") or text_at(file, "file_url")
    elif kind in ("image_url", "document_url"):
        url = text_at(part, kind) or text_at(object_at(part, kind), "url")
    else:
        return None
    if not url:
        return None
    source = _source(url)
    is_image = kind == "image_url" or source.get("media_type", "").startswith("image/")
    if not is_image and source.get("media_type", "").startswith("text/"):
        source = _decode_text(source)
    title = text_at(file, "filename")
    titled = {"title": title} if title and not is_image else {}
    return {"type": "image" if is_image else "document", "source": source, **titled, **_mark(part)}


def _source(url: str) -> dict[str, Any]:
    if (data := _DATA.fullmatch(url)) is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data[1], "data": data[2]}


def _decode_text(source: dict[str, Any]) -> dict[str, Any]:
    """Return a text that came as base64, which the protocol takes only for PDF files."""
    try:
        text = base64.b64decode(source["data"]).decode(errors="replace")
    except ValueError:
        return source
    return {"type": "text", "media_type": "text/plain", "data": text}


def _write_call(call: Mapping[str, Any], calls: _Calls) -> dict[str, Any]:
    custom, function = object_at(call, "custom"), object_at(call, "function")
    name = text_at(custom, "name") or text_at(function, "name")
    arguments = custom_arguments(text_at(custom, "input")) if custom else text_at(function, "arguments")
    named = {"id": calls.add(text_at(call, "id")), "name": name, "input": calls.read(arguments)}
    return {"type": "tool_use", **named, **_mark(call)}


def read_arguments(text: str) -> Document:
    """Return the arguments of a call; those that are no object are its one argument, `arguments`.

    >>> read_arguments('{"zone": "UTC"}'), read_arguments(""), read_arguments("{")
    ({'zone': 'UTC'}, {}, {'arguments': '{'})
    """
    try:
        return read_document(text.encode(errors="replace") or b"{}")
    except DocumentError:
        return {"arguments": text}


def _write_result(call_id: str, blocks: Sequence[dict[str, Any]], message: Document) -> dict[str, Any]:
    marks = next((mark for block in reversed(blocks) if (mark := _mark(block))), {})
    plain = [{name: block[name] for name in block if name != "cache_control"} for block in blocks]
    content = {"content": _shorten(plain)} if plain else {}
    failed = {"is_error": True} if message.get("is_error") is True else {}
    return {"type": "tool_result", "tool_use_id": call_id, **content, **failed, **marks}


def _write_tools(chat: Document) -> Document:
    """Return the tools that may be called, and how."""
    tools, servers, names = list[dict[str, Any]](), list[dict[str, Any]](), set[str]()
    searches = [{"type": "web_search"}] if isinstance(chat.get("web_search_options"), dict) else []
    for tool in (*objects(chat.get("tools")), *searches):
        if tool.get("type") == "mcp":
            servers.append(_write_server(tool))
        elif (written := _write_tool(tool)) and not ("type" in written and _tool_name(written) in names):
            names.add(_tool_name(written))
            tools.append(written)
    choice = chat.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = object_at(choice, "allowed_tools")
        names = {_tool_name(tool) for tool in objects(allowed.get("tools"))}
        tools = [tool for tool in tools if _tool_name(tool) in names]
        choice = allowed.get("mode")
    body: Document = {"tools": tools} if tools else {}
    if tools and (chosen := _write_choice(choice, alone=chat.get("parallel_tool_calls") is False)):
        body["tool_choice"] = chosen
    return body | ({"mcp_servers": servers} if servers else {})


def _tool_name(tool: Mapping[str, Any]) -> str:
    named = (text_at(object_at(tool, kind), "name") for kind in ("function", "custom"))
    return next(filter(None, named), "") or text_at(tool, "name") or text_at(tool, "type")


def _write_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a function, or a tool that the provider runs; None if the protocol has no such tool."""
    kind, function, custom = text_at(tool, "type"), object_at(tool, "function"), object_at(tool, "custom")
    if text_at(function, "name"):
        schema = {"type": "object", **(object_at(function, "parameters") or {"properties": {}})}
        given = {name: function[name] for name in ("description", "strict") if function.get(name) is not None}
        return {"name": function["name"], **given, "input_schema": schema, **_mark(tool)}
    if text_at(custom, "name"):
        function = custom_function(custom)["function"]
        schema = function["parameters"]
        return {"name": function["name"], "description": function["description"], "input_schema": schema} | (
            _mark(tool)
        )
    if kind == "code_interpreter":
        return {"type": "code_execution_20250825", "name": "code_execution"}
    if _PROVIDER_TOOL.fullmatch(kind):
        return dict(tool)
    if kind.removeprefix("openrouter:").startswith("web_search"):
        return {"type": "web_search_20250305", "name": "web_search"}
    return None


def _write_server(tool: Mapping[str, Any]) -> dict[str, Any]:
    allowed = tool.get("allowed_tools")
    server = {
        "type": "url",
        "url": tool.get("server_url"),
        "name": tool.get("server_label"),
        "authorization_token": tool.get("authorization"),
        "tool_configuration": {"allowed_tools": allowed} if isinstance(allowed, list) else None,
    }
    return {name: value for name, value in server.items() if value is not None}


def _write_choice(choice: Any, *, alone: bool) -> dict[str, Any] | None:
    chosen: dict[str, Any] = {"type": "auto"} if alone else {}
    if isinstance(choice, dict) and object_at(choice, text_at(choice, "type")):
        chosen = {"type": "tool", "name": _tool_name(choice)}
    elif isinstance(choice, str):
        kinds = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
        chosen = {"type": kinds[choice]} if choice in kinds else chosen
    if alone and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return chosen or None


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
        written["temperature"] = _limit_temperature(patch.temperature)
    return written


def _add_instructions(system: Any, text: str) -> Any:
    if isinstance(system, list):
        return [*system, _text(text)]
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
    kept = {name: value for name, value in body.items() if name not in _SAMPLING}
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
            yield from (part for part in _read_block(block) if part["type"] == "text")
        elif block.get("type") in ("server_tool_use", "mcp_tool_use") and text_at(block, "id") in gone:
            continue
        elif text_at(object_at(block, "caller"), "tool_id") in gone:
            yield {name: value for name, value in block.items() if name != "caller"}
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
        self._ended = ""
        self._closed = False

    @property
    @override
    def closed(self) -> bool:
        return self._closed

    @property
    @override
    def unfinished(self) -> int | None:
        return None if self._ended else 0

    @override
    def _end_choice(self, index: int) -> None:
        self._ended = self._ended or "end_turn"

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
                if not (name := text_at(block, "name")):
                    raise UpstreamError("a function call without a name")
                if len(self._calls) == MOST_CALLS:
                    raise UpstreamError(f"more than {MOST_CALLS} function calls")
                number = self._calls[index] = len(self._calls)
                given = object_at(block, "input")
                if not given:
                    self._bare.add(index)
                arguments = write_document(given).decode() if given else ""
                call_id = text_at(block, "id") or f"call-{number}"
                yield Chunk(tool_calls=(call_piece(number, call_id, name, arguments),))
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
