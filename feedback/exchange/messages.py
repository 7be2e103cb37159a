"""Conversations as other systems export them: the text of the question, or that of the answer.

    OpenAI, Anthropic, Gemini, OpenTelemetry    [{"role": "user", "content": "Who?"}], a content in parts too
    LangChain, LangGraph                        [{"type": "human", "content": "Who?"}], [["human", "Who?"]]
    ShareGPT                                    {"conversations": [{"from": "human", "value": "Who?"}]}
    batch files of OpenAI and Anthropic         {"body": {"messages": [...]}}, {"params": {"messages": [...]}}

The texts of a list without roles are those of the user.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from armwise.feedback.exchange.records import open_up

USER = frozenset(("user", "human", "humanmessage", "humanmessagechunk", "prompter"))
"""Roles that ask, in lower case."""

ASSISTANT = frozenset(
    ("assistant", "ai", "aimessage", "aimessagechunk", "gpt", "chatgpt", "model", "bot", "bing", "bard")
)
"""Roles that answer."""

ROLES = (
    USER
    | ASSISTANT
    | {"system", "systemmessage", "developer", "tool", "toolmessage", "function", "functionmessage"}
    | {"chat", "observation", "function_call"}
)

WRAPPERS = ("kwargs", "data", "message")
"""Keys under which LangChain, and exports of ChatGPT, keep the fields of a message."""

CONTENTS = ("content", "value", "text", "parts")
"""Keys of a message, and of a part of one, that hold its text."""

TEXTS = (None, "text", "input_text", "output_text")
"""Types of the parts with written text, as opposed to images, results of tools and thoughts."""

PLACES = (
    *("messages", "conversations", "conversation", "question", "query", "prompt", "input", "text", "content"),
    *("contents", "inputs", "body", "params", "request"),
)
"""Keys of an object that hold a conversation or its question; the first with a text counts."""

DEEPEST = 8
"""Levels of objects that are searched for a text."""


def last_text(value: Any, speakers: frozenset[str] = USER) -> str:
    """Return the last text of the user in a conversation, or of other speakers.

    A plain text is the question itself. If the user has no text, the last text of any speaker is the
    question. Data other than a conversation becomes its JSON, a conversation without text an empty text.

    >>> last_text('[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "She."}]')
    'Who?'
    >>> last_text([["human", "Who?"], ["ai", "She."]], ASSISTANT)
    'She.'
    >>> last_text('["Who?", "And where?"]')
    'And where?'
    """
    text = _read(value, speakers, DEEPEST)
    if text is not None or speakers is not USER:
        return text or ""
    data = open_up(value)
    if isinstance(data, Mapping | list | tuple):
        try:
            return json.dumps(data, default=str, ensure_ascii=False, separators=(",", ":"))
        except RecursionError:
            return ""
    return str(data).lower() if isinstance(data, bool) else str(data)


def _read(value: Any, speakers: frozenset[str], depth: int) -> str | None:
    """Return a text of the speakers; None: the value is neither a text nor a conversation."""
    value = open_up(value)
    if value is None:
        return ""
    if isinstance(value, str):
        return value if speakers is USER else ""
    if not depth or not isinstance(value, Mapping | list | tuple):
        return None
    items = [value] if isinstance(value, Mapping) else value
    if messages := list(_messages(items)):
        return _last(text for role, text in messages if role in speakers) or (
            _last(text for _, text in messages) if speakers is USER else ""
        )
    if isinstance(value, Mapping):
        inner = [value[key] for key in PLACES if key in value]
    elif all(isinstance(item, Mapping) for item in items) and (text := _read_text(items, depth)):
        return text if speakers is USER else ""
    else:
        inner = list(reversed(items))
    texts = [_read(item, speakers, depth - 1) for item in inner]
    nothing = "" if (texts or not value) and None not in texts else None
    return next((text for text in texts if text), nothing)


def _last(texts: Iterable[str]) -> str:
    return next((text for text in reversed(list(texts)) if text), "")


def _messages(items: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the role and the text of each item that is a message."""
    for item in items:
        match item:
            case [str(role), content] if role.lower() in ROLES:
                yield role.lower(), _read_text(content, DEEPEST)
            case Mapping() if role := _role(item):
                layers = [item, *_unwrap(item)]
                texts = (_read_text(layer.get(key), DEEPEST) for layer in layers for key in CONTENTS)
                yield role, next((text for text in texts if text), "")


def _unwrap(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (inner for key in WRAPPERS if isinstance(inner := message.get(key), Mapping))


def _role(message: Mapping[str, Any]) -> str:
    """Return the role of a message, in lower case; empty: the object is not a message."""
    for layer in (message, *_unwrap(message)):
        if not any(key in layer for key in (*CONTENTS, *WRAPPERS, "tool_calls")):
            continue
        author = layer.get("author")
        role = layer.get("role", author.get("role") if isinstance(author, Mapping) else None)
        if isinstance(role, str):
            return role.lower()
        classes = layer.get("id")
        for name in (
            layer.get("from"),
            layer.get("type"),
            classes[-1] if isinstance(classes, list) and classes else None,
        ):
            if isinstance(name, str) and name.lower() in ROLES:
                return name.lower()
    return ""


def _read_text(content: Any, depth: int) -> str:
    """Return the text of a content: its parts with written text, each on a line."""
    parts = open_up(content)
    if isinstance(content, str):
        in_parts = isinstance(parts, list) and all(isinstance(part, Mapping) for part in parts)
        return (_read_text(parts, depth) if in_parts else "") or content
    if isinstance(content, int | float) and not isinstance(content, bool):
        return str(content)
    if not depth:
        return ""
    if isinstance(content, Mapping) and content.get("type") in TEXTS:
        texts = (_read_text(content.get(key), depth - 1) for key in CONTENTS)
        return next((text for text in texts if text), "")
    if isinstance(content, list | tuple):
        return "\n".join(text for part in content if (text := _read_text(part, depth - 1)))
    return ""
