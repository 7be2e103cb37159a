"""What the tokens of a language model cost."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from pydantic import BaseModel, Field
from typing_extensions import override

from arms.llm.base import Chunk, Generator, Prompt


class Prices(BaseModel):
    """Prices of tokens: those of a provider, or what a machine of one's own costs for as many."""

    usd_per_kilotoken_in: float = Field(default=0.0, ge=0, description="Price of 1000 tokens read.")
    usd_per_kilotoken_out: float = Field(default=0.0, ge=0, description="Price of 1000 tokens written.")
    usd_per_kilotoken_cached: float | None = Field(
        default=None,
        ge=0,
        description="Price of 1000 tokens read from the engine's cache; null: as others.",
    )

    def usd_of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the price of an answer, in USD.

        >>> Prices(usd_per_kilotoken_in=1, usd_per_kilotoken_out=2).usd_of(30, 10)
        0.05
        """
        cached = self.usd_per_kilotoken_cached
        of_cached = self.usd_per_kilotoken_in if cached is None else cached
        read = (prompt_tokens - cached_tokens) * self.usd_per_kilotoken_in + cached_tokens * of_cached
        return (read + completion_tokens * self.usd_per_kilotoken_out) / 1000


class PricedGenerator(Generator):
    """Answers of another generator, with their prices.

    Args:
        generator: Writes the answers, and says in the last chunk how many tokens that took.
        prices: Of these tokens.
    """

    def __init__(self, generator: Generator, prices: Prices) -> None:
        self.model = generator.model
        self._generator, self._prices = generator, prices

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    usage = (chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens)
                    chunk = replace(chunk, usd=self._prices.usd_of(*usage))
                yield chunk

    @override
    async def close(self) -> None:
        await self._generator.close()
