"""The base of arms that search another arm with queries that a language model writes."""

from dataclasses import replace
from typing import Generic, TypeVar

from pydantic import BaseModel

from arms.base import Arm, ArmError, Embed, Query
from arms.llm import GeneratorError, Prompt, Write

P = TypeVar("P", bound=BaseModel)

QUESTION_WORDS = 200
"""Most words of the question that the model is shown."""


class WritesQueries(Generic[P]):
    """An arm that prompts a language model and searches its base.

    Args:
        name: Name of the arm.
        base: The arm that is searched.
        params: Parameters of its kind.
        write: Prompts the model.
        embed: Embeds what it wrote.
    """

    def __init__(self, name: str, base: Arm, params: P, write: Write, embed: Embed) -> None:
        self.name = name
        self.backbones = base.backbones
        self._base = base
        self._params = params
        self._write = write
        self._embed = embed

    def _prompted(self, prompt: Prompt, wanted: str) -> tuple[str, int]:
        """Return what the model writes, and the tokens spent. Raises ArmError, which says what was wanted."""
        try:
            text, last = self._write(prompt)
        except GeneratorError as error:
            raise ArmError(f"arm {self.name!r} got no {wanted}: {error}") from error
        return text, last.prompt_tokens + last.completion_tokens

    def _embedded(self, query: Query, text: str, seed: int) -> Query:
        """Return a written text as a query for the passages that the question may find."""
        embeddings = self._embed(text, self.backbones) if self.backbones else {}
        return replace(query, text=text, embeddings=embeddings, seed=seed)
