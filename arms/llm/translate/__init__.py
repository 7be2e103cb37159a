"""Requests of one protocol as those of another, on plain documents; it imports nothing else of Armwise.

    chat       OpenAI's chat completions, which most providers offer
    messages   Anthropic's
    responses  OpenAI's responses

Every translation is made by way of chat. It takes any document, and keeps each text of a conversation: what
has no counterpart becomes its text, or is left out.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from armwise.arms.llm.translate import chat, messages, responses
from armwise.arms.llm.translate.documents import Document

ProtocolName = Literal["chat", "messages", "responses"]

TO_CHAT: Mapping[ProtocolName, Callable[[Document], Document]] = {
    "chat": lambda body: body,
    "messages": messages.to_chat,
    "responses": responses.to_chat,
}
"""By the protocol of a document. The result may have what no chat completion has and other protocols do.

Images in the result of a function, `is_error` there, `cache_control` at parts, tools of a provider.
"""

FROM_CHAT: Mapping[ProtocolName, Callable[[Document], Document]] = {
    "chat": chat.from_chat,
    "messages": messages.from_chat,
    "responses": responses.from_chat,
}
"""By the protocol of the result. The document is a chat completion, or a result of `TO_CHAT`."""

__all__ = ["FROM_CHAT", "TO_CHAT", "Document", "ProtocolName", "chat", "messages", "responses"]
