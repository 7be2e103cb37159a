"""OpenAI's responses: a conversation of items, with messages, calls, their results, and a model's state."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from armwise.arms.llm.base import Chunk
from armwise.arms.llm.protocols import chat
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
from armwise.arms.llm.protocols.request import (
    Document,
    DocumentError,
    object_at,
    objects,
    read_document,
    text_at,
    write_document,
)
from armwise.arms.upstream import UpstreamError

PATH = "/responses"

LONGEST_NAME, LONGEST_MARK = 64, 256
"""Most characters of the name of a function in a chat, and of a mark that is kept."""

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

_STATE = frozenset(("reasoning", "compaction", "compaction_trigger", "item_reference"))
"""Items that only the model or the provider that wrote them can read."""

_SILENT = _STATE | {"mcp_list_tools", "tool_search_call", "tool_search_output", "additional_tools"}
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

_CALLS = {f"{name}_call": name for name in (*_RUN_BY_CLIENTS, "computer")}
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
            function: Document = chat.custom_function(tool)["function"]
            return function
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
            self._call(item, _name_function(self._names, meant), _as_json(item.get("arguments")))
        elif kind == "custom_tool_call":
            meant = ToolName("custom", text_at(item, "name"), text_at(item, "namespace"))
            arguments = chat.custom_arguments(text_at(item, "input"))
            self._call(item, _name_function(self._names, meant), arguments)
        elif kind in _CALLS:
            name = _name_function(self._names, ToolName(_CALLS[kind], _CALLS[kind]))
            self._call(item, name, _client_arguments(item))
        elif kind.endswith("_call_output"):
            message = {"role": "tool", "tool_call_id": _call_id(item), "content": _result(item)}
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
        call = {"id": _call_id(item), "type": "function", "function": {"name": name, "arguments": arguments}}
        self._messages[-1].setdefault("tool_calls", []).append(call)


def _call_id(item: Document) -> str:
    return text_at(item, "call_id") or text_at(item, "id")


def _client_arguments(item: Document) -> str:
    """Return the arguments of a call of a tool that the client runs."""
    if isinstance(actions := item.get("actions"), list):
        return _as_json({"actions": actions})
    return _as_json(item.get("operation", item.get("action")))


def _as_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    return write_document(value if isinstance(value, dict) else {}).decode()


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


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
    parts = [{"type": "text", "text": part} if isinstance(part, str) else _part(part) for part in content]
    found = [part for part in parts if part]
    if not found:
        return ""
    return found[0]["text"] if len(found) == 1 and set(found[0]) == {"type", "text"} else found


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
            return {"type": "text", "text": f"[a file of the provider: {text_at(part, 'file_id')}]"}
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


def from_chat(chat_body: Document) -> Document:
    """Return the document of a chat completion, or of a translation to one."""
    written = {name: chat_body[name] for name in _SHARED if chat_body.get(name) is not None}
    written.setdefault("store", False)
    messages = [*objects(chat_body.get("messages"))]
    begun = next((at for at, message in enumerate(messages) if not _is_instruction(message)), 0)
    instructions = [text for message in messages[:begun] if (text := chat.read_text(message.get("content")))]
    if instructions:
        written["instructions"] = "\n\n".join(instructions)
    written["input"] = [*_items(messages[begun:])]
    if tools := _tools_of_responses(chat_body):
        written["tools"] = tools
        if (choice := chat_body.get("tool_choice")) is not None:
            written["tool_choice"] = _choice_of_responses(choice)
    return written | _settings(chat_body)


def _settings(chat_body: Document) -> Document:
    """Return what a document says of the answer's length, form and effort."""
    written: Document = {}
    if (limit := chat.read_limit(chat_body)) is not None:
        written["max_output_tokens"] = limit
    text: Document = {}
    match object_at(chat_body, "response_format"):
        case {"type": "json_schema", "json_schema": dict(schema)}:
            text["format"] = {"name": "answer", **schema, "type": "json_schema"}
        case {"type": "json_object"}:
            text["format"] = {"type": "json_object"}
    if verbosity := text_at(chat_body, "verbosity"):
        text["verbosity"] = verbosity
    if text:
        written["text"] = text
    effort = text_at(chat_body, "reasoning_effort") or text_at(object_at(chat_body, "reasoning"), "effort")
    if effort:
        written["reasoning"] = {"effort": effort}
    if chat_body.get("logprobs") is True:
        written["include"] = [LOGPROBS]
        if (top := chat_body.get("top_logprobs")) is not None:
            written["top_logprobs"] = top
    return written


def _is_instruction(message: Document) -> bool:
    return message.get("role") in ("system", "developer")


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
            role = "developer" if _is_instruction(message) else "user"
            yield {"type": "message", "role": role, "content": read}


def _items_of_assistant(message: Document) -> Iterator[Document]:
    content = _parts_of_responses(message.get("content"), "output_text")
    if isinstance(content, list):
        content = [part for part in content if part["type"] in ("output_text", "refusal")]
    if refusal := text_at(message, "refusal"):
        before = (
            content if isinstance(content, list) else [_text_part(content, "output_text")] if content else []
        )
        content = [*before, {"type": "refusal", "refusal": refusal}]
    if content:
        yield {"type": "message", "role": "assistant", "content": content}


def _call_of_chat(call: Document) -> Document:
    custom, function = object_at(call, "custom"), object_at(call, "function")
    call_id = text_at(call, "id")
    if custom:
        fields = {"name": text_at(custom, "name"), "input": text_at(custom, "input")}
        return {"type": "custom_tool_call", "call_id": call_id, **fields}
    arguments = _as_json(function.get("arguments"))
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": text_at(function, "name"),
        "arguments": arguments,
    }


def _text_part(text: str, kind: str) -> Document:
    return {"type": kind, "text": text, **({"annotations": []} if kind == "output_text" else {})}


def _parts_of_responses(content: Any, text_kind: str) -> Any:
    """Return the content of an item: a text, or parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = []
    for part in objects(content):
        mark = part.get("prompt_cache_breakpoint")
        read = _part_of_responses(part, text_kind)
        if read:
            parts.append({**read, "prompt_cache_breakpoint": mark} if mark else read)
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
            named = (
                {"filename": "document", "file_data": url} if url.startswith("data:") else {"file_url": url}
            )
            return {"type": "input_file", **named}
        case "input_audio":
            return {"type": "input_audio", "input_audio": object_at(part, "input_audio")}
    if refusal := text_at(part, "refusal"):
        return (
            {"type": "refusal", "refusal": refusal}
            if text_kind == "output_text"
            else _text_part(refusal, text_kind)
        )
    return _text_part(text, text_kind) if (text := chat.read_text([part])) else None


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


def _tools_of_responses(chat_body: Document) -> list[Document]:
    tools = dict[bytes, Document]()  # by their text, as each counts once
    for tool in objects(chat_body.get("tools")):
        if written := _tool_of_responses(tool):
            tools.setdefault(write_document(written), written)
    if "web_search_options" in chat_body and all(tool["type"] != "web_search" for tool in tools.values()):
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
        left = {name: value for name, value in body.items() if name != "previous_response_id"}
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
        if kind in _STATE and (foreign or (kind == "reasoning" and follows)):
            continue
        if foreign and "id" in item and kind in ("message", "function_call", "custom_tool_call"):
            item = {name: value for name, value in item.items() if name != "id"}
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
        self._ended = ""
        self._refused = False
        self._calls: dict[Any, _BegunCall] = {}
        self._written: dict[tuple[Any, str, Any], int] = {}
        self._waiting = 0

    @property
    @override
    def closed(self) -> bool:
        return bool(self._ended)

    @property
    @override
    def unfinished(self) -> int | None:
        return None if self._ended else 0

    @override
    def _end_choice(self, index: int) -> None:
        self._ended = self._ended or "stop"

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
            yield from self._begin(object_at(event, "item"), key)
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

    def _begin(self, item: Document, key: Any) -> Iterator[Chunk]:
        if item.get("type") in ("function_call", "custom_tool_call") and text_at(item, "name"):
            yield self._begin_call(item, key, _join(text_at(item, "namespace"), text_at(item, "name")))

    def _begin_call(self, item: Document, key: Any, name: str) -> Chunk:
        """Begin a call. Raises UpstreamError."""
        if not name:
            raise UpstreamError("a function call without a name")
        if len(self._calls) == MOST_CALLS:
            raise UpstreamError(f"more than {MOST_CALLS} function calls")
        number = len(self._calls)
        call_id = _call_id(item) or f"call-{number}"
        self._calls[key] = _BegunCall(number, call_id, custom=item.get("type") == "custom_tool_call")
        return Chunk(tool_calls=(call_piece(number, call_id, name, ""),))

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
                name = _join(text_at(item, "namespace"), text_at(item, "name"))
                yield from self._complete(item, key, name, _as_json(item.get("arguments")))
            case "custom_tool_call":
                name = _join(text_at(item, "namespace"), text_at(item, "name"))
                call = self._calls.get(key)
                text = text_at(item, "input") or (call.waiting if call else "")
                yield from self._complete(item, key, name, chat.custom_arguments(text))
            case str(kind) if kind in _CALLS:
                yield from self._complete(item, key, _CALLS[kind], _client_arguments(item))

    def _complete(self, item: Document, key: Any, name: str, arguments: str) -> Iterator[Chunk]:
        same = (call for call in self._calls.values() if call.call_id == _call_id(item))
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
                yield self._extend_call(call, chat.custom_arguments(call.waiting))
        reason = text_at(object_at(response, "incomplete_details"), "reason")
        self._ended = reason or "stop"


def _kind(item: Document, field: str, part: Document) -> str:
    if item.get("type") == "reasoning":
        return "summary" if field == "summary" else "reasoning"
    return "refusal" if part.get("type") == "refusal" else "text"


Reader = ResponseReader
