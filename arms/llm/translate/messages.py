"""Anthropic's messages to and from chat completions.

Blocks that chat completions do not have become their texts. The reasoning of a model is left out, because
only the model that wrote it can read it.
"""

import base64
import hashlib
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from armwise.arms.llm.translate.chat import (
    custom_arguments,
    custom_function,
    read_limit,
    read_text,
    shorten,
    text_part,
)
from armwise.arms.llm.translate.documents import (
    MOST_MEMBERS,
    Document,
    DocumentError,
    count_members,
    object_at,
    objects,
    read_document,
    text_at,
    without,
    without_nulls,
    write_document,
)

LARGEST_TEMPERATURE = 1.0

LONGEST_USER, LONGEST_NAMES = 256, 4096
"""Most characters of the name of an end user, and of JSON that names the user and the session."""

BUDGETS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768, "max": 65_536}
"""Tokens of reasoning for each effort, for the models that take a number of tokens instead of an effort."""

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

_PROVIDER_TOOL = re.compile(r"(?!tool_search)[a-z]{1,40}(?:_[a-z]{1,40}){0,8}_\d{8}")

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_DATA = re.compile(
    r"data:([A-Za-z]{1,20}/[A-Za-z0-9.+-]{1,100})(?:;[A-Za-z0-9=._-]{1,100})?;base64,(.*)", re.DOTALL
)

_SESSION = re.compile("[0-9a-f-]{36}")

_EMPTY = "(empty)"
"""Text of a message without any content, which providers refuse."""


def to_chat(body: Document) -> Document:
    """Return a document as a chat completion, whatever its values are."""
    messages = list[Document]()
    if system := _read_blocks(body.get("system")):
        messages.append({"role": "system", "content": shorten(system)})
    for message in objects(body.get("messages")):
        messages += _read_message(message)
    if (mark := object_at(body, "cache_control")) and messages:
        _mark_last(messages[-1], mark)
    choice = object_at(body, "tool_choice")
    chat = {
        "model": body.get("model"),
        "messages": messages,
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
    return without_nulls(chat)


def _read_message(message: Document) -> Iterator[Document]:
    """Yield a message: the results of calls first. One that has nothing a model can read is left out."""
    given, content = text_at(message, "role"), message.get("content")
    role = {"assistant": "assistant", "system": "system", "developer": "system"}.get(given, "user")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    parts, calls, answered = list[Document](), list[Document](), False
    for block in objects(content):
        match text_at(block, "type"), role:
            case "tool_use", "assistant":
                called = block.get("input")
                arguments = called if isinstance(called, str) else write_document(called or {}).decode()
                function = {"name": text_at(block, "name"), "arguments": arguments}
                call = {"id": text_at(block, "id"), "type": "function", "function": function}
                calls.append(call | _mark(block))
            case "tool_result", "user":
                answered = True
                result = {"role": "tool", "tool_call_id": text_at(block, "tool_use_id")}
                result["content"] = shorten(_copy_mark(_read_blocks(block.get("content")), block))
                yield result | ({"is_error": True} if block.get("is_error") is True else {})
            case _:
                parts += read_block(block)
    if calls:
        yield {"role": role, "content": shorten(parts) or None, "tool_calls": calls}
    elif parts:
        yield {"role": role, "content": shorten(parts)}
    elif role == "user" and not answered:
        yield {"role": role, "content": _EMPTY}


def _read_blocks(content: Any) -> list[Document]:
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return [part for block in objects(content) for part in read_block(block)]


def read_block(block: Document) -> list[Document]:
    """Return a block as parts of a message of a chat: none where it has nothing that can be read."""
    kind, source = text_at(block, "type"), object_at(block, "source")
    if kind in STATE:
        return []
    url = text_at(source, "url")
    if source.get("type") == "base64":
        url = f"data:{text_at(source, 'media_type')};base64,{text_at(source, 'data')}"
    if file_id := text_at(source, "file_id") or text_at(block, "file_id"):
        parts = [text_part(f"[a file of the provider: {file_id}]")]
    elif kind == "image" and url:
        parts = [{"type": "image_url", "image_url": {"url": url}}]
    elif kind == "document" and url:
        file = {"file_data": url} if source.get("type") == "base64" else {"file_url": url}
        named = {"filename": text_at(block, "title") or "document.pdf"}  # some providers require a name
        context = text_at(block, "context")
        parts = [*([text_part(context)] if context else ()), {"type": "file", "file": {**named, **file}}]
    else:
        text = "\n".join(_texts(block))
        parts = [text_part(text)] if text else []
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


def _mark(block: Document) -> Document:
    return {"cache_control": mark} if (mark := object_at(block, "cache_control")) else {}


def _copy_mark(parts: list[Document], block: Document) -> list[Document]:
    """Return parts of which the last one has the mark of a block."""
    return [*parts[:-1], parts[-1] | _mark(block)] if parts else []


def _mark_last(message: Document, mark: Document) -> None:
    """Mark the end of a message, unless it has a mark."""
    content = message["content"]
    parts = [text_part(content)] if isinstance(content, str) and content else content
    last = parts or message.get("tool_calls")
    if last:
        marked = [*last[:-1], {"cache_control": mark, **last[-1]}]
        message["content" if parts else "tool_calls"] = marked


def _read_tools(body: Document) -> Iterator[Document]:
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
        yield without_nulls(tool)


def _read_choice(choice: Document) -> Any:
    if choice.get("type") == "tool" and (name := text_at(choice, "name")):
        return {"type": "function", "function": {"name": name}}
    kinds = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}
    return kinds.get(text_at(choice, "type"))


def _read_form(body: Document) -> Document | None:
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


def _read_user(user: str) -> Document:
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
        system.append(text_part("Answer with a JSON object."))
    schema = object_at(object_at(form, "json_schema"), "schema")
    stops = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    user = text_at(chat, "user")
    body = {
        "model": chat.get("model"),
        "max_tokens": read_limit(chat),
        "system": shorten(system) or None,
        "messages": turns,
        **_write_tools(chat),
        "output_config": {"format": {"type": "json_schema", "schema": schema}} if schema else None,
        "reasoning_effort": chat.get("reasoning_effort"),
        "temperature": limit_temperature(chat.get("temperature")),
        "top_p": None if top_p == 1 else top_p,  # some models do not take it beside a temperature
        "stop_sequences": [text for text in stops if isinstance(text, str) and text.strip()] or None,
        "metadata": {"user_id": user} if 0 < len(user) <= LONGEST_USER else None,
        "stream": chat.get("stream"),
    }
    return without_nulls(body)


def limit_temperature(temperature: Any) -> Any:
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


def _write_conversation(messages: Any) -> tuple[list[Document], list[Document]]:
    """Return the instructions and the turns of a conversation: roles in turn, the user first."""
    instructions, turns = list[Document](), list[Document]()
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
        turn["content"] = shorten(turn["content"]) or _EMPTY
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": _EMPTY})
    return instructions, turns


def _write_blocks(content: Any) -> list[Document]:
    """Return the texts, images and files of a message, without blank texts, which providers refuse."""
    parts = [text_part(content)] if isinstance(content, str) else objects(content)
    return [block for part in parts if (block := _write_block(part))]


def _write_block(part: Document) -> Document | None:
    if text := read_text([part]):
        return {**text_part(text), **_mark(part)} if text.strip() else None
    kind, file = text_at(part, "type"), object_at(part, "file")
    if file_id := text_at(file, "file_id"):
        return {**text_part(f"[a file of the provider: {file_id}]"), **_mark(part)}
    if kind == "file":
        url = text_at(file, "file_data") or text_at(file, "file_url")
    elif kind in ("image_url", "document_url"):
        url = text_at(part, kind) or text_at(object_at(part, kind), "url")
    else:
        return None
    if not url:
        return None
    source: Document = {"type": "url", "url": url}
    if data := _DATA.fullmatch(url):
        source = {"type": "base64", "media_type": data[1], "data": data[2]}
    is_image = kind == "image_url" or source.get("media_type", "").startswith("image/")
    if not is_image and source.get("media_type", "").startswith("text/"):
        with suppress(ValueError):  # the protocol takes only PDF files as base64
            text = base64.b64decode(source["data"]).decode(errors="replace")
            source = {"type": "text", "media_type": "text/plain", "data": text}
    title = text_at(file, "filename")
    titled = {"title": title} if title and not is_image else {}
    return {"type": "image" if is_image else "document", "source": source, **titled, **_mark(part)}


def _write_call(call: Document, calls: _Calls) -> Document:
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


def _write_result(call_id: str, blocks: Sequence[Document], message: Document) -> Document:
    marks = next((mark for block in reversed(blocks) if (mark := _mark(block))), {})
    plain = [without(block, "cache_control") for block in blocks]
    content = {"content": shorten(plain)} if plain else {}
    failed = {"is_error": True} if message.get("is_error") is True else {}
    return {"type": "tool_result", "tool_use_id": call_id, **content, **failed, **marks}


def _write_tools(chat: Document) -> Document:
    """Return the tools that may be called, and how."""
    tools, servers, names = list[Document](), list[Document](), set[str]()
    searches = [{"type": "web_search"}] if isinstance(chat.get("web_search_options"), dict) else []
    for tool in (*objects(chat.get("tools")), *searches):
        if tool.get("type") == "mcp":
            allowed = tool.get("allowed_tools")
            server = {
                "type": "url",
                "url": tool.get("server_url"),
                "name": tool.get("server_label"),
                "authorization_token": tool.get("authorization"),
                "tool_configuration": {"allowed_tools": allowed} if isinstance(allowed, list) else None,
            }
            servers.append(without_nulls(server))
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


def _tool_name(tool: Document) -> str:
    named = (text_at(object_at(tool, kind), "name") for kind in ("function", "custom"))
    return next(filter(None, named), "") or text_at(tool, "name") or text_at(tool, "type")


def _write_tool(tool: Document) -> Document | None:
    """Return a function, or a tool that the provider runs; None if the protocol has no such tool."""
    kind, function, custom = text_at(tool, "type"), object_at(tool, "function"), object_at(tool, "custom")
    if text_at(function, "name"):
        schema = {"type": "object", **(object_at(function, "parameters") or {"properties": {}})}
        given = {name: function[name] for name in ("description", "strict") if function.get(name) is not None}
        return {"name": function["name"], **given, "input_schema": schema, **_mark(tool)}
    if text_at(custom, "name"):
        described = custom_function(custom)
        return without(described, "parameters") | {"input_schema": described["parameters"], **_mark(tool)}
    if kind == "code_interpreter":
        return {"type": "code_execution_20250825", "name": "code_execution"}
    if _PROVIDER_TOOL.fullmatch(kind):
        return dict(tool)
    if kind.removeprefix("openrouter:").startswith("web_search"):
        return {"type": "web_search_20250305", "name": "web_search"}
    return None


def _write_choice(choice: Any, *, alone: bool) -> Document | None:
    chosen: Document = {"type": "auto"} if alone else {}
    if isinstance(choice, dict) and object_at(choice, text_at(choice, "type")):
        chosen = {"type": "tool", "name": _tool_name(choice)}
    elif isinstance(choice, str):
        kinds = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
        chosen = {"type": kinds[choice]} if choice in kinds else chosen
    if alone and chosen["type"] != "none":
        chosen["disable_parallel_tool_use"] = True
    return chosen or None
