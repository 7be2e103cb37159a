"""What is asynchronous, for threads that wait: arms are plain functions, models and handles are not."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from arms.generator import Chunk, Generator, GeneratorError, GeneratorTimeoutError, Prompt, complete
from arms.kinds import Write
from arms.llm import LlmSpec, build_generator

T = TypeVar("T")


class Blocking:
    """An event loop in a thread of its own, which other threads hand their work to.

    Args:
        limit_s: Seconds that a piece of work may take; None for any time.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="blocking", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns; the calling thread waits for it. Raises TimeoutError."""

        async def limited() -> T:
            async with asyncio.timeout(self._limit_s):
                return await work

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    def writer(self, generator: Generator) -> Write:
        """Return a function that asks a language model and waits for the whole answer.

        >>> from arms.generator import ScriptedGenerator
        >>> write = Blocking().writer(ScriptedGenerator({"2 + 2?": "4"}))
        >>> write(Prompt(({"role": "user", "content": "2 + 2?"},)))[0]
        '4'
        """

        def write(prompt: Prompt) -> tuple[str, Chunk]:
            try:
                return self.run(complete(generator, prompt))
            except TimeoutError:
                raise GeneratorTimeoutError(
                    f"{generator.model} took longer than {self._limit_s:g} s"
                ) from None

        return write


class ModelStartError(ValueError):
    """The language model cannot be had at all: another prompt would fare no better."""


class LateWriter:
    """Asks the language model from any thread; the first prompt loads it.

    Args:
        spec: The language model; None for none, and an error at the first prompt.
    """

    def __init__(self, spec: LlmSpec | None) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._write: Write | None = None

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        """Return the answer and its last chunk. Raises GeneratorError, ModelStartError."""
        with self._lock:
            if self._write is None:
                self._write = self._load()
        return self._write(prompt)

    def _load(self) -> Write:
        spec = self._spec
        if spec is None:
            raise ModelStartError("a language model is asked for, and there is none")
        blocking = Blocking()

        async def load() -> Generator:  # inside the loop that it will run in
            return build_generator(spec)

        try:
            return blocking.writer(blocking.run(load()))
        except GeneratorError as error:  # not what an arm may fail with: it would fail on every question
            raise ModelStartError(f"the language model does not start: {error}") from error
