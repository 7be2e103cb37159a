"""Where language models run: hosts of engines, and models at an address, which need none."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from pathlib import Path

from armwise.arms import tracing
from armwise.arms.deployments import spans
from armwise.arms.deployments.per_loop import PerLoop
from armwise.arms.llm import Chunk, Generator, LlmSpec, Prompt, build_generator


def find_model(spec: LlmSpec) -> str:
    """Return the name of a model, as traces have it."""
    return Path(getattr(spec, "model", spec.engine)).name


class TracedGenerator(Generator):
    """A language model of this process, whose answers are traced.

    Args:
        spec: The model.

    Raises:
        GeneratorError: It cannot be loaded, see `build_generator`.
    """

    def __init__(self, spec: LlmSpec) -> None:
        self.model = find_model(spec)
        self._provider, self._generator = spec.engine, build_generator(spec)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        chat = spans.Chat.begin(self._provider, self.model, prompt)
        with nullcontext() if chat is None else tracing.end_span(chat.span):
            async with aclosing(self._generator.stream(prompt)) as chunks:
                async for chunk in chunks:
                    if chat is not None:
                        chat.note(chunk)
                    yield chunk

    async def close(self) -> None:
        """Free the engine."""
        await self._generator.close()


class LateGenerator(Generator):
    """A language model of this process that is loaded with its first answer.

    Args:
        spec: The model.
    """

    def __init__(self, spec: LlmSpec) -> None:
        self.model = find_model(spec)
        self._spec, self._lock = spec, threading.Lock()
        self._generator: TracedGenerator | None = None

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        if (generator := self._generator) is None:
            generator = await asyncio.to_thread(self._load)
        async with aclosing(generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _load(self) -> TracedGenerator:
        """Load the model, once for all turns. Raises GeneratorError."""
        with self._lock:
            if self._generator is None:
                self._generator = TracedGenerator(self._spec)
            return self._generator

    async def close(self) -> None:
        """Free the engine, if it was loaded."""
        if self._generator is not None:
            await self._generator.close()


class AddressedGenerator(Generator):
    """A language model without an engine, asked from any event loop of this process.

    Args:
        spec: The model, whose `hosted` is False.

    Raises:
        GeneratorError: It cannot be asked, for instance because its key is not set.
    """

    def __init__(self, spec: LlmSpec) -> None:
        self.model = spec.engine
        first = [TracedGenerator(spec)]  # what is wrong with it shows at the start
        self._made = PerLoop(lambda: first.pop() if first else TracedGenerator(spec))

    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        return self._made.here().stream(prompt)

    async def close(self) -> None:
        """Close the connections of the running loop."""
        if (made := self._made.pop_here()) is not None:
            await made.close()


class GeneratorHost:
    """Hosts a language model.

    Args:
        spec: The model.
        prepare: Prepares the process, before the model is loaded.
    """

    def __init__(self, spec: LlmSpec, prepare: Callable[[], object] = lambda: None) -> None:
        prepare()
        self._generator = TracedGenerator(spec)

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def stream(self, prompt: Prompt, carried: str = "") -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written, for the turn of `tracing.carry`. Raises GeneratorError."""
        tracing.enter(carried, prompt.messages[-1]["content"])
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk
