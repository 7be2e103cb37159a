"""The host of the language model."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from arms.llm import Chunk, LlmSpec, Prompt, build_generator


class GeneratorHost:
    """Hosts a language model."""

    def __init__(self, spec: LlmSpec) -> None:
        self._generator = build_generator(spec)

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk
