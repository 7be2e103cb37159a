"""OpenAI's responses to and from chat completions: items become messages, and tools become functions."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from armwise.arms.llm.translate.chat import (
    custom_arguments,
    custom_function,
    is_instruction,
    read_limit,
    read_text,
    shorten,
    text_part,
)
from armwise.arms.llm.translate.documents import (
    Document,
    DocumentError,
    object_at,
    objects,
    read_document,
    text_at,
    write_document,
)

LONGEST_NAME = 64
"""Most characters of the name of a function in a chat."""

LOGPROBS = "message.output_text.logprobs"
"""What `include` lists where a client wants log probabilities."""

_SHARED = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "user",
    "safety_identifier",
    "service_tier",
    "store",
)
"""Fields that both protocols have."""

_FILE = ("file_data", "file_url", "file_id", "filename")

_TEXTS = (
    *("action", "query", "queries", "code", "name", "arguments", "text", "logs", "refusal"),
    *("content", "output", "outputs", "results", "revised_prompt"),
)
"""Fields with texts, of calls that the provider runs, and of items that are not known."""

STATE = frozenset(("reasoning", "compaction", "compaction_trigger", "item_reference"))
"""Items that only the model or the provider that wrote them can read."""

_SILENT = STATE | {"mcp_list_tools", "tool_search_call", "tool_search_output", "additional_tools"}
"""Items without a text of the conversation."""

_WITH_TOOLS = ("tool_search_output", "additional_tools")

_RUN_BY_CLIENTS: Mapping[str, tuple[str, Document]] = {
    "local_shell": (
        "Run a command in the shell of the user.",
        {
            "command": {"type": "array", "items": {"type": "string"}},
            "env": {"type": "object", "additionalProperties": {"type": "string"}},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
    ),
    "shell": (
        "Run commands in the shell of the user.",
        {
            "commands": {"type": "array", "items": {"type": "string"}},
            "timeout_ms": {"type": "integer"},
            "max_output_length": {"type": "integer"},
        },
    ),
    "apply_patch": (
        "Create, update or delete a file by a diff.",
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": {"type": "string"},
            "diff": {"type": "string"},
        },
    ),
}
"""Tools without a schema of their own that clients run, with descriptions and properties."""

_REQUIRED = {"local_shell": ["command"], "shell": ["commands"], "apply_patch": ["type", "path"]}

CALLS = {f"{name}_call": name for name in (*_RUN_BY_CLIENTS, "computer")}
"""Calls of tools that clients run, with the names of the functions that stand for them."""


@dataclass(frozen=True, slots=True)
class ToolName:
    """What a function of a translation stands for.

    Attributes:
        kind: `function`, `custom`, `local_shell`, `shell` or `apply_patch`.
        name: Name of the tool.
        namespace: Name of the group that it is in; empty for none.
    """

    kind: str
    name: str
    namespace: str = ""


def to_chat(body: Document) -> Document:
    """Return a document as a chat completion; what cannot be read is left out."""
    tools, names = _list_tools(body)
    translated = {name: body[name] for name in _SHARED if body.get(name) is not None}
    translated["messages"] = _Conversation({tool: name for name, tool in names.items()}).read(body)
    if tools:
        translated["tools"] = tools
    if (choice := body.get("tool_choice")) is not None:
        translated["tool_choice"] = _choice_of_chat(choice, names)
    if (limit := body.get("max_output_tokens")) is not None:
        translated["max_completion_tokens"] = limit
    text = object_at(body, "text")
    form = dict(object_at(text, "format"))
    match form.pop("type", None):
        case "json_schema":
            translated["response_format"] = {"type": "json_schema", "json_schema": form}
        case "json_object":
            translated["response_format"] = {"type": "json_object"}
    if verbosity := text_at(text, "verbosity"):
        translated["verbosity"] = verbosity
    if effort := text_at(object_at(body, "reasoning"), "effort"):
        translated["reasoning_effort"] = effort
    include, top = body.get("include"), body.get("top_logprobs")
    if top or (isinstance(include, list) and LOGPROBS in include):
        translated |= {"logprobs": True, **({"top_logprobs": top} if top else {})}
    return translated


def find_tools(body: Document) -> Mapping[str, ToolName]:
    """Return what the functions of a document's translation stand for, by their names there."""
    return _list_tools(body)[1]


def call_item(tool: ToolName, call_id: str, arguments: str) -> Document:
    """Return the item of a call, without its id and status.

    Args:
        tool: What is called.
        call_id: Id of the call.
        arguments: Arguments of the function that stands for the tool, as JSON.

    >>> call_item(ToolName("custom", "run"), "c1", '{"input":"ls"}')
    {'type': 'custom_tool_call', 'call_id': 'c1', 'name': 'run', 'input': 'ls'}
    """
    named = {"name": tool.name, **({"namespace": tool.namespace} if tool.namespace else {})}
    if tool.kind == "function":
        return {"type": "function_call", "call_id": call_id, **named, "arguments": arguments}
    try:
        read = read_document(arguments.encode(errors="replace"))
    except DocumentError:
        read = {}
    if tool.kind == "custom":
        text = read.get("input")
        written = text if isinstance(text, str) else arguments
        return {"type": "custom_tool_call", "call_id": call_id, **named, "input": written}
    field = "operation" if tool.kind == "apply_patch" else "action"
    defaults = {"type": "exec", "env": {}} if tool.kind == "local_shell" else {}
    return {"type": f"{tool.kind}_call", "call_id": call_id, field: {**defaults, **read}}


def _list_tools(body: Document) -> tuple[list[Document], dict[str, ToolName]]:
    """Return the tools of a document as a chat has them, and what its functions stand for."""
    given = [*objects(body.get("tools"))]
    for item in objects(body.get("input")):
        if item.get("type") in _WITH_TOOLS:
            given += objects(item.get("tools"))
    tools, names = list[Document](), dict[str, ToolName]()
    known = set[ToolName | bytes]()
    for tool, namespace in _flat(given):
        function = _function(tool)
        if function is None:
            if (written := write_document(tool)) not in known:
                known.add(written)
                tools.append(tool)
            continue
        kind = text_at(tool, "type")
        meant = ToolName(kind, function["name"], namespace)
        if not meant.name or meant in known:
            continue
        known.add(meant)
        name = _join(namespace, meant.name)
        if name in names:  # another tool has it
            name = _short(name, f"{kind} {namespace} {meant.name}")
        names[name] = meant
        tools.append({"type": "function", "function": {**function, "name": name}})
    return tools, names


def _flat(tools: Iterable[Document]) -> Iterator[tuple[Document, str]]:
    """Yield tools, each with the group that it is in."""
    for tool in tools:
        if tool.get("type") == "namespace":
            for inner in objects(tool.get("tools")):
                yield inner, text_at(tool, "name")
        else:
            yield tool, ""


def _function(tool: Document) -> Document | None:
    """Return the function that stands for a tool; None for a tool that only the provider runs."""
    match tool.get("type"):
        case "function":
            given = object_at(tool, "function") or tool
            fields = ("description", "parameters", "strict")
            kept = {name: given[name] for name in fields if given.get(name) is not None}
            return {"name": text_at(given, "name"), **kept}
        case "custom":
            return custom_function(tool)
        case "local_shell" | "shell" | "apply_patch" as kind:
            if text_at(object_at(tool, "environment"), "type").startswith("container"):
                return None
            description, properties = _RUN_BY_CLIENTS[kind]
            parameters = {"type": "object", "properties": properties, "required": _REQUIRED[kind]}
            return {"name": kind, "description": description, "parameters": parameters}
    return None


def _join(namespace: str, name: str) -> str:
    """Return the name of a function for a tool of a group.

    >>> _join("mcp__x", "read"), _join("read", "read"), _join("mcp__x", "mcp__x__read"), _join("", "read")
    ('mcp__x__read', 'read', 'mcp__x__read', 'read')
    """
    group = namespace.removesuffix("__")
    joined = name if group in ("", name) or name.startswith(f"{group}__") else f"{group}__{name}"
    return joined if len(joined) <= LONGEST_NAME else _short(joined, joined)


def _short(name: str, meant: str) -> str:
    digest = hashlib.sha256(meant.encode(errors="replace")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def _choice_of_chat(choice: Any, names: Mapping[str, ToolName]) -> Any:
    if not isinstance(choice, dict):
        return choice if choice in ("auto", "none", "required") else "auto"
    called = {tool: name for name, tool in names.items()}

    def function(of: Document) -> Document | None:
        kind = text_at(of, "type")
        name = text_at(of, "name") or text_at(object_at(of, "function"), "name") or kind
        meant = ToolName(kind, name, text_at(of, "namespace"))
        if kind in ("function", "custom") or meant in called:
            return {"type": "function", "function": {"name": _name_function(called, meant)}}
        return None

    if choice.get("type") == "allowed_tools":
        listed = object_at(choice, "allowed_tools") or choice
        allowed = [found for tool in objects(listed.get("tools")) if (found := function(tool))]
        mode = "required" if listed.get("mode") == "required" else "auto"
        return (
            {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}} if allowed else mode
        )
    return function(choice) or "required"


def _name_function(names: Mapping[ToolName, str], meant: ToolName) -> str:
    """Return the name of the function that stands for a tool, also one that is listed no longer."""
    return names.get(meant) or _join(meant.namespace, meant.name)


class _Conversation:
    """Reads items as the messages of a chat.

    Args:
        names: Names of functions by what they stand for.
    """

    def __init__(self, names: Mapping[ToolName, str]) -> None:
        self._names = names
        self._messages: list[Document] = []

    def read(self, body: Document) -> list[Document]:
        """Return the messages of a document."""
        if instructions := text_at(body, "instructions"):
            self._messages.append({"role": "system", "content": instructions})
        given = body.get("input")
        for item in given if isinstance(given, list) else [given]:
            if isinstance(item, str):
                self._messages.append({"role": "user", "content": item})
            elif isinstance(item, dict):
                self._add(item)
        return self._messages

    def _add(self, item: Document) -> None:
        kind = text_at(item, "type") or "message"
        if kind in _SILENT:
            return
        if kind == "message":
            self._add_message(item)
        elif kind == "function_call":
            meant = ToolName("function", text_at(item, "name"), text_at(item, "namespace"))
            self._call(item, _name_function(self._names, meant), as_json(item.get("arguments")))
        elif kind == "custom_tool_call":
            meant = ToolName("custom", text_at(item, "name"), text_at(item, "namespace"))
            arguments = custom_arguments(text_at(item, "input"))
            self._call(item, _name_function(self._names, meant), arguments)
        elif kind in CALLS:
            name = _name_function(self._names, ToolName(CALLS[kind], CALLS[kind]))
            self._call(item, name, client_arguments(item))
        elif kind.endswith("_call_output"):
            message = {"role": "tool", "tool_call_id": read_call_id(item), "content": _result(item)}
            if item.get("status") == "failed":
                message["is_error"] = True
            self._messages.append(message)
        elif texts := [*dict.fromkeys(_texts(item))]:
            self._add_message({"role": item.get("role", "assistant"), "content": "\n".join(texts)})

    def _add_message(self, item: Document) -> None:
        content = item.get("content")
        if not isinstance(content, str | list):
            return
        role = text_at(item, "role")
        role = role if role in ("system", "developer", "user", "assistant") else "user"
        content = _content(content)
        last = self._messages[-1] if self._messages else {}
        if role == "assistant" and "tool_calls" in last:  # the results of its calls have to follow it
            if before := _as_parts(last["content"]):
                before += _as_parts(content)
            last["content"] = before or content
        else:
            self._messages.append({"role": role, "content": content})

    def _call(self, item: Document, name: str, arguments: str) -> None:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": None})
        call = {
            "id": read_call_id(item),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._messages[-1].setdefault("tool_calls", []).append(call)


def name_call(item: Document) -> str:
    """Return the name of the function that stands for the tool of a call, if no tool is listed."""
    return _join(text_at(item, "namespace"), text_at(item, "name"))


def read_call_id(item: Document) -> str:
    """Return the id that the result of a call has to name."""
    return text_at(item, "call_id") or text_at(item, "id")


def client_arguments(item: Document) -> str:
    """Return the arguments of a call of a tool that the client runs."""
    if isinstance(actions := item.get("actions"), list):
        return as_json({"actions": actions})
    return as_json(item.get("operation", item.get("action")))


def as_json(value: Any) -> str:
    """Return the arguments of a call as JSON: a text as it is, and anything but an object as no arguments."""
    if isinstance(value, str):
        return value
    return write_document(value if isinstance(value, dict) else {}).decode()


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [text_part(content)] if content else []


def _result(item: Document) -> Any:
    """Return the content of the result of a call."""
    output = item.get("output")
    if item.get("type") != "shell_call_output":
        return _content([output] if isinstance(output, dict) else output if output is not None else "")
    texts = []
    for run in objects(output):
        outcome = object_at(run, "outcome")
        code = outcome.get("exit_code")
        ended = f"exit code {code}" if type(code) is int else text_at(outcome, "type")
        texts += [text_at(run, "stdout"), text_at(run, "stderr"), ended]
    return "\n".join(filter(None, texts)) if isinstance(output, list) else _content(output)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of an item that has no counterpart in a chat."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, dict):
        for name in _TEXTS:
            yield from _texts(value.get(name))


def _content(content: Any) -> Any:
    """Return the content of a message of a chat: a text, or parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [text_part(part) if isinstance(part, str) else _part(part) for part in content]
    return shorten([part for part in parts if part])


def _part(part: Any) -> Document | None:
    """Return a part as a chat has it; None for one without a counterpart."""
    if not isinstance(part, dict):
        return None
    given = part.get("prompt_cache_breakpoint")
    mark = {"prompt_cache_breakpoint": given} if given else {}
    match part.get("type"):
        case "input_image" | "computer_screenshot":
            if url := text_at(part, "image_url"):
                detail = {"detail": part["detail"]} if text_at(part, "detail") else {}
                return {"type": "image_url", "image_url": {"url": url, **detail}, **mark}
            return text_part(f"[a file of the provider: {text_at(part, 'file_id')}]")
        case "input_file":
            return {
                "type": "file",
                "file": {name: part[name] for name in _FILE if text_at(part, name)},
                **mark,
            }
        case "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part, "input_audio"), **mark}
        case "refusal":
            return {"type": "refusal", "refusal": text_at(part, "refusal")}
    return {"type": "text", "text": part["text"], **mark} if isinstance(part.get("text"), str) else None


def from_chat(chat: Document) -> Document:
    """Return the document of a chat completion, or of a translation to one."""
    written = {name: chat[name] for name in _SHARED if chat.get(name) is not None}
    written.setdefault("store", False)
    messages = [*objects(chat.get("messages"))]
    begun = next((at for at, message in enumerate(messages) if not is_instruction(message)), 0)
    instructions = [text for message in messages[:begun] if (text := read_text(message.get("content")))]
    if instructions:
        written["instructions"] = "\n\n".join(instructions)
    written["input"] = [*_items(messages[begun:])]
    if tools := _tools_of_responses(chat):
        written["tools"] = tools
        if (choice := chat.get("tool_choice")) is not None:
            written["tool_choice"] = _choice_of_responses(choice)
    if (limit := read_limit(chat)) is not None:
        written["max_output_tokens"] = limit
    if form := _form(chat):
        written["text"] = form
    effort = text_at(chat, "reasoning_effort") or text_at(object_at(chat, "reasoning"), "effort")
    if effort:
        written["reasoning"] = {"effort": effort}
    if chat.get("logprobs") is True:
        written["include"] = [LOGPROBS]
        if (top := chat.get("top_logprobs")) is not None:
            written["top_logprobs"] = top
    return written


def _form(chat: Document) -> Document:
    text: Document = {}
    match object_at(chat, "response_format"):
        case {"type": "json_schema", "json_schema": dict(schema)}:
            text["format"] = {"name": "answer", **schema, "type": "json_schema"}
        case {"type": "json_object"}:
            text["format"] = {"type": "json_object"}
    if verbosity := text_at(chat, "verbosity"):
        text["verbosity"] = verbosity
    return text


def _items(messages: Iterable[Document]) -> Iterator[Document]:
    """Yield the items of messages; a result without a call before it becomes a text of the user."""
    open_calls = dict[str, str]()  # the types of the calls that have no result yet, by their ids
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant":
            yield from _items_of_assistant(message)
            for call in objects(message.get("tool_calls")):
                item = _call_of_chat(call)
                open_calls[item["call_id"]] = item["type"]
                yield item
        elif message.get("role") in ("tool", "function"):
            output = _parts_of_result(content, is_error=message.get("is_error") is True)
            call_id = text_at(message, "tool_call_id")
            if kind := open_calls.pop(call_id, ""):
                yield {"type": f"{kind}_output", "call_id": call_id, "output": output}
            else:
                yield {"type": "message", "role": "user", "content": output}
        elif read := _parts_of_responses(content, "input_text"):
            role = "developer" if is_instruction(message) else "user"
            yield {"type": "message", "role": role, "content": read}


def _items_of_assistant(message: Document) -> Iterator[Document]:
    content = _parts_of_responses(message.get("content"), "output_text")
    if isinstance(content, list):
        content = [part for part in content if part["type"] in ("output_text", "refusal")]
    if refusal := text_at(message, "refusal"):
        if isinstance(content, str):
            content = [_text_part(content, "output_text")] if content else []
        content = [*content, {"type": "refusal", "refusal": refusal}]
    if content:
        yield {"type": "message", "role": "assistant", "content": content}


def _call_of_chat(call: Document) -> Document:
    custom, function = object_at(call, "custom"), object_at(call, "function")
    kind, called = ("custom_tool_call", custom) if custom else ("function_call", function)
    written = {"type": kind, "call_id": text_at(call, "id"), "name": text_at(called, "name")}
    if custom:
        return {**written, "input": text_at(custom, "input")}
    return {**written, "arguments": as_json(function.get("arguments"))}


def _text_part(text: str, kind: str) -> Document:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _parts_of_responses(content: Any, text_kind: str) -> Any:
    """Return the content of an item: a text, or parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = []
    for part in objects(content):
        if written := _part_of_responses(part, text_kind):
            mark = part.get("prompt_cache_breakpoint")
            parts.append({**written, "prompt_cache_breakpoint": mark} if mark else written)
    return parts


def _part_of_responses(part: Document, text_kind: str) -> Document | None:
    match part.get("type"):
        case "image_url":
            image = part.get("image_url")
            fields = image if isinstance(image, dict) else {"url": image}
            detail = text_at(fields, "detail") or "auto"
            return {"type": "input_image", "image_url": text_at(fields, "url"), "detail": detail}
        case "file":
            file = object_at(part, "file")
            return {"type": "input_file", **{name: file[name] for name in _FILE if text_at(file, name)}}
        case "document_url":  # of Mistral
            url = text_at(part, "document_url")
            is_data = url.startswith("data:")
            file = {"filename": "document", "file_data": url} if is_data else {"file_url": url}
            return {"type": "input_file", **file}
        case "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part, "input_audio")}
    if text_kind == "output_text" and (refusal := text_at(part, "refusal")):
        return {"type": "refusal", "refusal": refusal}
    return _text_part(text, text_kind) if (text := read_text([part])) else None


def _parts_of_result(content: Any, *, is_error: bool) -> Any:
    """Return the output of a call: a text, or parts where there are images or files."""
    parts = _parts_of_responses(content, "input_text")
    if isinstance(parts, list):
        parts = [part for part in parts if part["type"] != "input_audio"]
        if all(part["type"] == "input_text" for part in parts):
            parts = "\n".join(part["text"] for part in parts)
    if not is_error:
        return parts
    return f"Error: {parts}" if isinstance(parts, str) else [_text_part("Error:", "input_text"), *parts]


def _tools_of_responses(chat: Document) -> list[Document]:
    tools = dict[bytes, Document]()  # by their text, as each counts once
    for tool in objects(chat.get("tools")):
        if written := _tool_of_responses(tool):
            tools.setdefault(write_document(written), written)
    if "web_search_options" in chat and all(tool["type"] != "web_search" for tool in tools.values()):
        return [*tools.values(), {"type": "web_search"}]
    return [*tools.values()]


def _tool_of_responses(tool: Document) -> Document | None:
    """Return a tool as a response has it; None for one without a counterpart."""
    kind = text_at(tool, "type")
    if custom := object_at(tool, "custom"):
        written = {"type": "custom", **custom}
        if grammar := object_at(object_at(custom, "format"), "grammar"):
            written["format"] = {"type": "grammar", **grammar}
        return written
    if function := object_at(tool, "function"):
        return {**function, "type": "function", "strict": function.get("strict") is True}
    if kind.startswith("web_search") or kind == "openrouter:web_search":
        domains = tool.get("allowed_domains")
        filters = {"filters": {"allowed_domains": domains}} if domains and isinstance(domains, list) else {}
        return {"type": "web_search", **filters}
    if kind.startswith("code_execution") or kind == "code_interpreter":
        return {"type": "code_interpreter", "container": {"type": "auto"}}
    return tool if kind == "mcp" else None


def _choice_of_responses(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice if choice in ("auto", "none", "required") else "auto"
    kind = choice.get("type")
    if kind == "allowed_tools":
        listed = object_at(choice, "allowed_tools")
        tools = [_choice_of_responses(tool) for tool in objects(listed.get("tools"))]
        return {"type": "allowed_tools", "mode": listed.get("mode", "auto"), "tools": tools}
    if kind in ("function", "custom"):
        return {"type": kind, "name": text_at(object_at(choice, kind), "name")}
    return "required"
