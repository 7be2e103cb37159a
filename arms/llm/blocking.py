"""Synchronous access to asynchronous generators, for arms and scorers."""

import threading

from arms.async_bridge import Blocking
from arms.llm.base import (
    Chunk,
    Generator,
    GeneratorError,
    GeneratorTimeoutError,
    Prompt,
    Write,
    complete,
)
from arms.llm.catalog import LlmSpec, build_generator


class ModelStartError(ValueError):
    """The language model cannot be loaded: every prompt would fail."""


def blocking_writer(bridge: Blocking, generator: Generator) -> Write:
    """Return a function that waits for the whole answer to a prompt.

    >>> from arms.llm.base import ScriptedGenerator
    >>> write = blocking_writer(Blocking(), ScriptedGenerator({"2 + 2?": "4"}))
    >>> write(Prompt(({"role": "user", "content": "2 + 2?"},)))[0]
    '4'
    """

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        try:
            return bridge.run(complete(generator, prompt))
        except TimeoutError:
            raise GeneratorTimeoutError(f"{generator.model} took longer than {bridge.limit_s:g} s") from None

    return write


class LateWriter:
    """Prompts a language model from any thread; the first prompt loads it.

    Args:
        spec: The language model; None raises an error at the first prompt.
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
            raise ModelStartError("a language model is needed, and none is configured")
        blocking = Blocking()

        async def load() -> Generator:  # in the event loop that it will use
            return build_generator(spec)

        try:
            return blocking_writer(blocking, blocking.run(load()))
        except GeneratorError as error:  # not an error of one question: it would fail on every one
            raise ModelStartError(f"the language model does not start: {error}") from error
