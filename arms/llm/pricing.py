"""Prices of tokens of a language model, tokens of an answer, and upper bounds of the tokens of a search."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import override

from armwise.arms.llm.base import Chunk, Generator, Prompt
from armwise.number import Number

BYTES_A_TOKEN, TOKENS_A_WORD = 3, 2
"""Fewest bytes of a token, and most tokens of a word, in typical texts."""

MESSAGE_TOKENS = 8
"""Most tokens with which typical chat templates surround a message."""

MOST_TOKENS = 10**9
"""Largest bound of a search: one that could take more would run out of time first."""

MOST_USD = 1e6
"""Largest bill of an answer, in dollars: a provider that states more is wrong."""


_AT_ONCE = 1 << 16


def count_words(text: str) -> int:
    """Return the number of words of a text; a long one, read in parts, has up to one more for each part.

    >>> count_words(" two  words "), count_words("")
    (2, 0)
    """
    return sum(len(text[at : at + _AT_ONCE].split()) for at in range(0, len(text), _AT_ONCE))


def most_tokens(text: str) -> int:
    """Estimate the largest number of tokens of a text, to reserve them before a model counts.

    >>> most_tokens("a b c d e"), most_tokens("x" * 300), most_tokens("")
    (5, 100, 0)
    """
    return max(count_words(text), -(-len(text.encode(errors="replace")) // BYTES_A_TOKEN))


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound of the tokens that a search has a language model read and write, and of its dollars.

    Attributes:
        questions: Number of times that the model reads the text of the query.
        read: Other tokens that it reads.
        written: Tokens that it writes.
        search_usd: Dollars of priced searches.
    """

    questions: int = 0
    read: int = 0
    written: int = 0
    search_usd: float = 0.0

    @classmethod
    def from_call(
        cls, instructions: str, written: int, *, words: int = 0, read: int = 0, messages: int = 2
    ) -> "Bound":
        """Return the bound of a call that reads the question once.

        Args:
            instructions: Texts that are the same in every call.
            written: Most tokens that the model writes.
            words: Most words of passages that it reads.
            read: Tokens of other texts that it reads.
            messages: Number of messages of the prompt.

        >>> Bound.from_call("Write a search query.", 32, words=100)
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
        """Return the bound of as many such searches."""
        return Bound(self.questions * times, self.read * times, self.written * times, self.search_usd * times)

    def searching(self, questions: int, read: int) -> "Bound":
        """Return the bound of the same search for a longer or for another text.

        Args:
            questions: Number of times that the text contains the question; 0: another text.
            read: Other tokens of the text.

        >>> Bound(2, 10, 5).searching(1, 100)
        Bound(questions=2, read=210, written=5, search_usd=0.0)
        """
        return replace(self, questions=self.questions * questions, read=self.read + self.questions * read)

    def tokens(self, question: str) -> tuple[int, int]:
        """Return the most tokens that are read and written for a question: a token is at least one byte.

        >>> Bound(2, 10, 5).tokens("Why not?")
        (26, 5)
        """
        read = self.questions * len(question.encode(errors="replace")) + self.read
        return min(read, MOST_TOKENS), min(self.written, MOST_TOKENS)


UNPROMPTED = Bound()
"""Bound of a free search that prompts no language model."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of an answer, each number in [0, 1e9].

    Attributes:
        prompt: Tokens read.
        completion: Tokens written, in all choices, with those of reasoning.
        cached: Tokens among those read that the provider had cached.
        cache_written: Other tokens among those read, which the provider has cached now.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_written: int = 0


def read_count(usage: Any, *names: str) -> int | None:
    """Return the number at the end of a path of names; None: no whole number in [0, 1e9] is there.

    >>> read_count({"details": {"audio_tokens": 3}}, "details", "audio_tokens")
    3
    >>> read_count({"n": True}, "n"), read_count({"n": -1}, "n"), read_count({"n": 10**10}, "n")
    (None, None, None)
    """
    for name in names:
        if not isinstance(usage, Mapping):
            return None
        usage = usage.get(name)
    return usage if type(usage) is int and 0 <= usage <= MOST_TOKENS else None


def count_usage(usage: Any, protocol: Literal["chat", "messages", "responses"]) -> TokenCounts | None:
    """Return the tokens that the usage of an answer reports; None: not both what was read and written.

    What is no count is treated as missing, and so are more cached tokens than were read. In `chat` and
    `responses`, tokens of the total beyond those read and written are counted as written: some providers
    leave reasoning out of what was written.

    Args:
        usage: The object that the provider sent; other values report nothing.
        protocol: The protocol of the answer.

    >>> count_usage({"prompt_tokens": 66, "completion_tokens": 6, "total_tokens": 100}, "chat")
    TokenCounts(prompt=66, completion=34, cached=0, cache_written=0)
    >>> of_caches = {"cache_read_input_tokens": 8, "cache_creation_input_tokens": 4}
    >>> count_usage({"input_tokens": 3, "output_tokens": 5, **of_caches}, "messages")
    TokenCounts(prompt=15, completion=5, cached=8, cache_written=4)
    """
    if protocol == "messages":
        read, written = read_count(usage, "input_tokens"), read_count(usage, "output_tokens")
        cached = read_count(usage, "cache_read_input_tokens") or 0
        kept = read_count(usage, "cache_creation_input_tokens") or 0
        if read is None or written is None or read + cached + kept > MOST_TOKENS:
            return None
        return TokenCounts(read + cached + kept, written, cached, kept)
    of_read, of_written = ("prompt", "completion") if protocol == "chat" else ("input", "output")
    read, written = read_count(usage, f"{of_read}_tokens"), read_count(usage, f"{of_written}_tokens")
    if read is None or written is None:
        return None
    written = max(written, (read_count(usage, "total_tokens") or 0) - read)
    found = read_count(usage, f"{of_read}_tokens_details", "cached_tokens")
    if found is None:
        found = read_count(usage, "prompt_cache_hit_tokens")  # DeepSeek's API
    cached = found if found is not None and found <= read else 0
    kept = read_count(usage, f"{of_read}_tokens_details", "cache_write_tokens") or 0
    return TokenCounts(read, written, cached, kept if kept <= read - cached else 0)


def read_bill(usage: Mapping[str, Any] | None) -> float | None:
    """Return the dollars that a provider charged for an answer, as OpenRouter states them; None: no bill.

    >>> read_bill({"cost": 0.0123}), read_bill({"cost": -1}), read_bill({"cost": True}), read_bill(None)
    (0.0123, None, None, None)
    """
    cost = None if usage is None else usage.get("cost")
    if isinstance(cost, bool) or not isinstance(cost, int | float):
        return None
    return float(cost) if 0 <= cost <= MOST_USD else None


class CachePrices(BaseModel):
    """Prices of tokens of an engine's cache, and how long it keeps them."""

    usd_per_kilotoken_cached: Number | None = Field(
        default=None,
        ge=0,
        description="USD per 1,000 input tokens read from the engine's cache. Null means the input price.",
    )
    usd_per_kilotoken_cache_write: Number | None = Field(
        default=None,
        ge=0,
        description=(
            "USD per 1,000 input tokens that the engine adds to its cache. Null means the input price."
        ),
    )
    cache_lifetime_s: Number = Field(
        default=300.0,
        gt=0,
        le=86_400,
        description=(
            "Seconds for which the engine keeps a prompt in its cache after the last use. If the next turn "
            "of a conversation comes within this time, Armwise prices it as cached tokens."
        ),
    )


class ComputePrices(BaseModel):
    """Prices of tokens of an engine of this process: what a machine of one's own costs for as many."""

    usd_per_kilotoken_in: Number = Field(default=0.0, ge=0, description="USD per 1,000 input tokens.")
    usd_per_kilotoken_out: Number = Field(default=0.0, ge=0, description="USD per 1,000 output tokens.")


class TokenPrices(ComputePrices, CachePrices):
    """Prices of tokens of a language model, with those of its cache."""

    @property
    def window(self) -> int:
        """Most tokens that the model can read."""
        return MOST_TOKENS

    @property
    def per_kilotoken(self) -> tuple[float, ...]:
        """Prices of 1000 tokens read, written, and read from the engine's cache, in USD.

        A fourth number is the price of those written to that cache, if they have one.
        """
        read, cached = self.usd_per_kilotoken_in, self.usd_per_kilotoken_cached
        prices = read, self.usd_per_kilotoken_out, read if cached is None else cached
        kept = self.usd_per_kilotoken_cache_write
        return prices if kept is None else (*prices, kept)

    @property
    def _per_kept(self) -> float:
        """Price of 1000 tokens read that the engine writes to its cache, in USD."""
        kept = self.usd_per_kilotoken_cache_write
        return self.usd_per_kilotoken_in if kept is None else kept

    def compute_usd(
        self,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        cache_written_tokens: int = 0,
    ) -> float:
        """Return the price of an answer, in USD.

        Args:
            prompt_tokens: Tokens read.
            completion_tokens: Tokens written.
            cached_tokens: Tokens among those read that the engine had cached.
            cache_written_tokens: Tokens among those read that it has cached now.

        >>> TokenPrices(usd_per_kilotoken_in=1, usd_per_kilotoken_out=2).compute_usd(30, 10)
        0.05
        >>> prices = TokenPrices(usd_per_kilotoken_in=1, usd_per_kilotoken_cache_write=1.25)
        >>> prices.compute_usd(100, 10, 0, 80)
        0.12
        """
        per_read, per_written, per_cached = self.per_kilotoken[:3]
        read = (prompt_tokens - cached_tokens - cache_written_tokens) * per_read
        read += cached_tokens * per_cached + cache_written_tokens * self._per_kept
        return (read + completion_tokens * per_written) / 1000

    def compute_most(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the most that tokens may cost, in USD, whether they are cached or not.

        >>> TokenPrices(usd_per_kilotoken_in=1, usd_per_kilotoken_cache_write=1.25).compute_most(1000, 10)
        1.25
        """
        per_read = max(self.usd_per_kilotoken_in, self.per_kilotoken[2], self._per_kept)
        return (prompt_tokens * per_read + completion_tokens * self.usd_per_kilotoken_out) / 1000

    def charge(self, answer: Chunk) -> float:
        """Return the price of an answer by its last chunk, in USD: its bill, else that of its tokens."""
        bill = read_bill(answer.usage)
        return self._price(answer) if bill is None else bill

    def _price(self, answer: Chunk) -> float:
        """Return the price of the tokens of an answer, in USD."""
        usage = (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens)
        return self.compute_usd(*usage, answer.cache_written_tokens)

    def compute_miss(self, tokens: int) -> float:
        """Return what tokens cost more that the engine lacks in its cache, in USD; at least 0.

        >>> prices = TokenPrices(usd_per_kilotoken_in=1, usd_per_kilotoken_cached=0.1)
        >>> prices.compute_miss(1000)
        0.9
        >>> prices.model_copy(update={"usd_per_kilotoken_cache_write": 1.25}).compute_miss(1000)
        1.15
        """
        return max(0.0, tokens * (self._per_kept - self.per_kilotoken[2]) / 1000)


class PricedGenerator(Generator):
    """Answers of another generator, with their prices.

    Args:
        generator: Writes the answers, with the number of tokens in the last chunk, and what an endpoint
            reports as its usage.
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
                    chunk = replace(chunk, usd=self._prices.charge(chunk))
                yield chunk

    @override
    async def close(self) -> None:
        await self._generator.close()
