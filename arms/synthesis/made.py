"""A question that was made from passages, and the styles of such questions."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

STYLES: Mapping[str, str] = {
    "keywords": "A search by the salient words of a passage.",
    "title": "A question of the title and a salient phrase.",
    "cloze": "A statement of the passage, asked for the name, date or number in it.",
    "link": "A question of one passage that describes another, which it mentions, in place of its name.",
    "compare": "A question of two passages about the same kind of thing.",
}
"""Styles of questions that are made by extraction."""

PROMPTED: Mapping[str, str] = {
    "keywords": "A search in a few words, as typed into a search box.",
    "natural": "A question as a person asks it, in words of their own.",
    "link": "A question that needs two passages, of which one mentions the title of the other.",
}
"""Styles of questions that a language model writes."""


class SynthesisError(ValueError):
    """Questions cannot be made; the message names the setting or the corpus."""


@dataclass(frozen=True, slots=True)
class Made:
    """A question that was made from passages.

    Attributes:
        question: The text.
        gold_ids: Ids of the passages that it was made from.
        style: How it was made.
        answers: Right answers, where the passages give them.
    """

    question: str
    gold_ids: tuple[str, ...]
    style: str
    answers: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The style, and a digest of the text."""
        digest = hashlib.blake2b(self.question.encode(), digest_size=6).hexdigest()
        return f"{self.style}/{digest}"

    def document(self) -> dict[str, Any]:
        """Return the question as a line of a file of questions.

        >>> Made("Who wrote Faust?", ("7",), "cloze", ("Goethe",)).document()["answers"]
        ('Goethe',)
        """
        fields = asdict(self)
        return {"id": self.id, "type": fields.pop("style"), **fields}


class Maker(Protocol):
    """Makes questions from passages; thread-safe and deterministic where its model is.

    Attributes:
        identity: Identity of the questions.
        styles: The styles that it makes.
        step: Passages between two checkpoints.
    """

    identity: Mapping[str, str]
    styles: tuple[str, ...]
    step: int

    def make(self, positions: Sequence[int]) -> list[list[Made]]:
        """Return the questions made from each of these passages of the corpus; may be none.

        Raises:
            GeneratorError: The language model failed.
        """
        ...
