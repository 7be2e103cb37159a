"""The protocols of language models: what is read of their requests and answers, and their translations."""

from collections.abc import Callable, Mapping
from typing import Protocol

from armwise.arms.llm.protocols import chat, messages, responses
from armwise.arms.llm.protocols.answer import AnswerReader
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.protocols.request import Document, DocumentError, ProtocolName, Request


class ProtocolModule(Protocol):
    """A protocol."""

    @property
    def PATH(self) -> str:  # noqa: N802
        """Path of its requests below the base URL of an endpoint."""
        ...

    @property
    def Reader(self) -> type[AnswerReader]:  # noqa: N802
        """Reads its answers."""
        ...

    def to_chat(self, body: Document) -> Document:
        """Return a document as a chat completion."""
        ...

    def from_chat(self, chat: Document) -> Document:
        """Return the document of a chat completion, or of a translation to one."""
        ...

    def write(self, body: Document, patch: Patch) -> Document:
        """Return a document as it is sent."""
        ...

    def read_limit(self, body: Document) -> int | None:
        """Return the most tokens of an answer that a document names; None for no limit."""
        ...

    def read_marks(self, body: Document) -> list[str]:
        """Return the marks of the answers in a conversation, oldest first."""
        ...

    def without_state(self, body: Document, is_foreign: Callable[[str], bool]) -> Document:
        """Return a document without the state of models that another one wrote."""
        ...


PROTOCOLS: Mapping[ProtocolName, ProtocolModule] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
}

__all__ = [
    "PROTOCOLS",
    "AnswerReader",
    "Document",
    "DocumentError",
    "Patch",
    "ProtocolModule",
    "ProtocolName",
    "Request",
]
