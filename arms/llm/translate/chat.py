"""Chat completions: what translations to and from them share."""

from collections.abc import Mapping
from typing import Any

from armwise.arms.llm.translate.documents import (
    Document,
    object_at,
    objects,
    text_at,
    without,
    write_document,
)

LIMITS = ("max_completion_tokens", "max_tokens")
"""The two names of the limit of an answer."""

_OF_TRANSLATIONS = ("is_error", "cache_control")
"""Fields of a translation that no chat completion has."""


def from_chat(chat: Document) -> Document:
    """Return a translation of another protocol without what a chat completion cannot have.

    Images and files in the result of a function become a message of the user after the results. Tools that
    only a provider runs are left out, as are pairs that the client attached.
    """
    messages, attached = list[dict[str, Any]](), list[dict[str, Any]]()
    for message in objects(chat.get("messages")):
        if message.get("role") != "tool" and attached:
            messages.append({"role": "user", "content": attached})
            attached = []
        written = without(message, *_OF_TRANSLATIONS)
        content = message.get("content")
        if isinstance(content, list):
            parts = [without(part, *_OF_TRANSLATIONS) for part in objects(content)]
            if message.get("role") == "tool":
                attached += (part for part in parts if part.get("type") != "text")
                parts = [part for part in parts if part.get("type") == "text"]
            plain = all(part.get("type") == "text" for part in parts)
            written["content"] = "\n".join(text_at(part, "text") for part in parts) if plain else parts
        if calls := [without(call, *_OF_TRANSLATIONS) for call in objects(message.get("tool_calls"))]:
            written["tool_calls"] = calls
            written["content"] = written.get("content") or None
        messages.append(written)
    if attached:
        messages.append({"role": "user", "content": attached})
    # pairs of `metadata` are only taken by providers that keep answers
    body = {**without(chat, "metadata"), "messages": messages}
    if "tools" in chat:
        own = [tool for tool in objects(chat["tools"]) if tool.get("type") in ("function", "custom")]
        if not own:
            return without(body, "tools", "tool_choice", "parallel_tool_calls")
        body["tools"] = [without(tool, *_OF_TRANSLATIONS) for tool in own]
    return body


def is_instruction(message: Any) -> bool:
    """Return whether a message is of the service or of the developer, in the words of any model."""
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def read_limit(body: Document) -> int | None:
    """Return the most tokens of an answer that a document names; None for no limit.

    Of two limits it is the larger one: a model may know only that.
    """
    numbers = (body.get(name) for name in LIMITS)
    return max((number for number in numbers if type(number) is int and number > 0), default=None)


def read_text(content: Any, between: str = "\n") -> str:
    r"""Return the text of the content of a message: the text itself, or its parts' on lines.

    Args:
        content: The content.
        between: What stands between the texts of two parts.

    >>> read_text([{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "refusal", "refusal": "b"}])
    'a\nb'
    """
    if isinstance(content, str):
        return content
    texts = (part.get("text", part.get("refusal")) for part in objects(content))
    return between.join(text for text in texts if isinstance(text, str))


def text_part(text: str) -> Document:
    """Return a text as a part of a message."""
    return {"type": "text", "text": text}


def shorten(parts: list[Document]) -> Any:
    """Return parts, or blocks, as a text if they are a single one without a mark."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts


def custom_arguments(text: str) -> str:
    """Return the arguments of a function that stands for a tool of one text.

    >>> custom_arguments("ls")
    '{"input":"ls"}'
    """
    return write_document({"input": text}).decode()


def custom_function(custom: Mapping[str, Any]) -> Document:
    """Return the function of one text that stands for a custom tool, whose format is described."""
    form = object_at(custom, "format")
    grammar = object_at(form, "grammar") or form
    described = [text_at(custom, "description")]
    if definition := text_at(grammar, "definition"):
        described.append(f"The input follows this {text_at(grammar, 'syntax')} grammar:\n{definition}")
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    described_as = "\n\n".join(filter(None, described))
    return {"name": text_at(custom, "name"), "description": described_as, "parameters": schema}
