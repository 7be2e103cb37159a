"""What the tokens of a language model cost, and how many a search may take at most."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

from pydantic import BaseModel, Field
from typing_extensions import override

from armwise.arms.llm.base import Chunk, Generator, Prompt
from armwise.number import Number

BYTES_A_TOKEN, TOKENS_A_WORD = 3, 2
"""Fewest bytes of a token, and most tokens of a word, in most texts."""

MESSAGE_TOKENS = 8
"""Tokens with which a chat template surrounds a message, at most in most of them."""

MOST_TOKENS = 10**9
"""Where the bound of a search ends: one that could take more runs out of time before."""


def most_tokens(text: str) -> int:
    """Estimate the most tokens of a text, for what is reserved before a model has counted them.

    >>> most_tokens("a b c d e"), most_tokens("x" * 300), most_tokens("")
    (5, 100, 0)
    """
    return max(len(text.split()), -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN))


@dataclass(frozen=True, slots=True)
class Bound:
    """Most that a search has a language model read and write, and that it pays for searches.

    Attributes:
        questions: How often the model reads the text that is searched for.
        read: Tokens that it reads besides.
        written: Tokens that it writes.
        search_usd: Dollars of searches with a price.
    """

    questions: int = 0
    read: int = 0
    written: int = 0
    search_usd: float = 0.0

    @classmethod
    def of_call(
        cls, instructions: str, written: int, *, words: int = 0, read: int = 0, messages: int = 2
    ) -> "Bound":
        """Return the bound of one call, which reads the question once.

        Args:
            instructions: Texts that are the same in every call.
            written: Most tokens that the model writes.
            words: Most words of passages that it reads.
            read: Tokens of other texts that it reads.
            messages: Messages of the prompt.

        >>> Bound.of_call("Write a search query.", 32, words=100)
        Bound(questions=1, read=223, written=32, search_usd=0.0)
        """
        fixed = most_tokens(instructions) + MESSAGE_TOKENS * messages
        return cls(1, fixed + TOKENS_A_WORD * words + read, written)

    def __add__(self, other: "Bound") -> "Bound":
        """Return the bound of both."""
        return Bound(
            self.questions + other.questions,
            self.read + other.read,
            self.written + other.written,
            self.search_usd + other.search_usd,
        )

    def __mul__(self, times: int) -> "Bound":
        """Return the bound of several such searches."""
        return Bound(self.questions * times, self.read * times, self.written * times, self.search_usd * times)

    def searching(self, questions: int, read: int) -> "Bound":
        """Return the bound of the same search for a longer or for another text.

        Args:
            questions: How often the text has the question; 0 for another text.
            read: Tokens of the text besides.

        >>> Bound(2, 10, 5).searching(1, 100)
        Bound(questions=2, read=210, written=5, search_usd=0.0)
        """
        return replace(self, questions=self.questions * questions, read=self.read + self.questions * read)

    def tokens(self, question: str) -> tuple[int, int]:
        """Return the most tokens that are read and written for a question.

        >>> Bound(2, 10, 5).tokens("Why not?")
        (16, 5)
        """
        read = self.questions * most_tokens(question) + self.read
        return min(read, MOST_TOKENS), min(self.written, MOST_TOKENS)


UNPROMPTED = Bound()
"""Bound of a search that prompts no language model and has no price."""


class TokenPrices(BaseModel):
    """Prices of tokens: those of a provider, or what a machine of one's own costs for as many."""

    usd_per_kilotoken_in: Number = Field(default=0.0, ge=0, description="Price of 1000 tokens read, in USD.")
    usd_per_kilotoken_out: Number = Field(
        default=0.0, ge=0, description="Price of 1000 tokens written, in USD."
    )
    usd_per_kilotoken_cached: Number | None = Field(
        default=None,
        ge=0,
        description="Price of 1000 tokens read from the engine's cache, in USD; null is the price of "
        "tokens read.",
    )

    @property
    def per_kilotoken(self) -> tuple[float, float, float]:
        """Prices of 1000 tokens read, written, and read from the engine's cache, in USD."""
        read, cached = self.usd_per_kilotoken_in, self.usd_per_kilotoken_cached
        return read, self.usd_per_kilotoken_out, read if cached is None else cached

    def compute_usd(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the price of an answer, in USD.

        >>> TokenPrices(usd_per_kilotoken_in=1, usd_per_kilotoken_out=2).compute_usd(30, 10)
        0.05
        """
        per_read, per_written, per_cached = self.per_kilotoken
        read = (prompt_tokens - cached_tokens) * per_read + cached_tokens * per_cached
        return (read + completion_tokens * per_written) / 1000


class PricedGenerator(Generator):
    """Answers of another generator, with their prices.

    Args:
        generator: Writes the answers, and says in the last chunk how many tokens that took.
        prices: Prices of these tokens.
    """

    def __init__(self, generator: Generator, prices: TokenPrices) -> None:
        self.model = generator.model
        self._generator, self._prices = generator, prices

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    usage = (chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens)
                    chunk = replace(chunk, usd=self._prices.compute_usd(*usage))
                yield chunk

    @override
    async def close(self) -> None:
        await self._generator.close()
