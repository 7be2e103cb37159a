"""A second request where the first one is slow to begin, so that the slow ones are not waited for.

Source: Dean and Barroso 2013, The Tail at Scale, "hedged requests".
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace

import numpy as np
from typing_extensions import override

from arms.llm.base import Chunk, Generator, Prompt

NEWEST = 200
"""Answers whose times to the first words are remembered."""

LEAST = 20
"""Answers before a second request is sent: fewer say nothing of a quantile."""


class HedgedGenerator(Generator):
    """Sends a prompt again where its first words take longer than most do; the first to write is read.

    The other request is cancelled. What it has read is charged: an endpoint reports no usage of it.

    Args:
        generator: Writes the answers.
        quantile: Quantile of the times to the first words, after which the second request is sent.

    Attributes:
        hedged: Number of second requests so far.
    """

    def __init__(self, generator: Generator, quantile: float) -> None:
        self.model = generator.model
        self.hedged = 0
        self._generator, self._quantile = generator, quantile
        self._took: deque[float] = deque(maxlen=NEWEST)

    @override
    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        began, requests = loop.time(), [_Request(self._generator, prompt)]
        try:
            if (after := self._patience()) is not None:
                await asyncio.wait([requests[0].first], timeout=after)
                if not requests[0].first.done():
                    self.hedged += 1
                    requests.append(_Request(self._generator, prompt))
            winner = await _fastest(requests)
            for other in requests:
                if other is not winner:
                    await other.cancel()
            self._took.append(loop.time() - began)
            async with aclosing(winner.chunks()) as chunks:
                async for chunk in chunks:
                    if chunk.finish_reason is not None and len(requests) > 1:
                        chunk = replace(chunk, prompt_tokens=2 * chunk.prompt_tokens)
                    yield chunk
        finally:
            for request in requests:
                await request.cancel()

    @override
    async def close(self) -> None:
        await self._generator.close()

    def _patience(self) -> float | None:
        """Return the seconds after which a second request is sent; None for never, as yet."""
        return float(np.quantile(self._took, self._quantile)) if len(self._took) >= LEAST else None


class _Request:
    """One request, whose first chunk is awaited in a task."""

    def __init__(self, generator: Generator, prompt: Prompt) -> None:
        self._stream = generator.stream(prompt)
        self.first = asyncio.ensure_future(anext(self._stream))

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks, the first one included. Raises GeneratorError."""
        yield await self.first
        async with aclosing(self._stream) as rest:
            async for chunk in rest:
                yield chunk

    async def cancel(self) -> None:
        """Stop the request, whatever it has come to."""
        self.first.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self.first
        await self._stream.aclose()


async def _fastest(requests: list[_Request]) -> _Request:
    """Return the first request with a chunk; the last one that is left where all of them fail."""
    waiting = {request.first: request for request in requests}
    while True:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            if future.exception() is None or len(waiting) == 1:
                return waiting[future]
            del waiting[future]
