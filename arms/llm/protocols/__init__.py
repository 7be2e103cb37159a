"""The protocols of language models: how requests and answers are read, and requests sent."""

from collections.abc import Callable, Mapping
from typing import Protocol

from armwise.arms.llm.protocols import chat, messages, responses
from armwise.arms.llm.protocols.answer import AnswerReader
from armwise.arms.llm.protocols.patch import Patch
from armwise.arms.llm.protocols.request import Request
from armwise.arms.llm.translate import ProtocolName
from armwise.arms.llm.translate.documents import Document, DocumentError


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
