"""A request to a language model, as a client sent it: a JSON document of one of three protocols.

A document is kept as it came, so that it reaches a model of its protocol whole, with fields, blocks and tools
that nothing here knows. What is read from it is read through `Request.chat`: the document itself, or its
translation. A model of another protocol is sent a translation (`to`).
"""

from dataclasses import dataclass, field
from functools import cached_property

from armwise.arms.llm.translate import FROM_CHAT, TO_CHAT, Document, ProtocolName


@dataclass(frozen=True)
class Request:
    """A request of a client.

    Attributes:
        protocol: The protocol of the document.
        body: The document.
        size: Bytes that it came in; 0 if the service wrote it itself.
    """

    protocol: ProtocolName
    body: Document
    size: int = field(default=0, compare=False)

    @cached_property
    def chat(self) -> Document:
        """The request as a chat completion: the document itself, or a translation, as `TO_CHAT` has it."""
        return TO_CHAT[self.protocol](self.body)

    def to(self, protocol: ProtocolName) -> Document:
        """Return the document in another protocol, or as it came for its own."""
        return self.body if protocol == self.protocol else FROM_CHAT[protocol](self.chat)
