"""What a request is changed by on its way to a model: the least that a gateway has to set."""

from dataclasses import dataclass

from armwise.arms.llm.translate.documents import Document


@dataclass(frozen=True, slots=True)
class Patch:
    """Changes of a document.

    Attributes:
        model: Name of the model, as the endpoint calls it.
        streams: Whether the answer is sent as it is written.
        instructions: Text that follows the instructions of the client; empty for none.
        max_tokens: Limit of the answer where the document has none; None for no limit.
        temperature: Temperature where the document has none; None for the model's.
        effort: Effort of reasoning where the document has none; None for the model's.
    """

    model: str
    streams: bool = False
    instructions: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    effort: str | None = None

    def begin(self, body: Document) -> Document:
        """Return a copy of a document with the model; `stream` stays out of one that does not need it."""
        written = {**body, "model": self.model}
        return written | {"stream": self.streams} if self.streams or "stream" in body else written
