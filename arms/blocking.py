"""What is asynchronous, for threads that wait: arms are plain functions, models and handles are not."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from arms.generator import Chunk, Generator, Prompt, complete
from arms.kinds import Write

T = TypeVar("T")


class Blocking:
    """An event loop in a thread of its own, which other threads hand their work to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="blocking", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns; the calling thread waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def writer(self, generator: Generator) -> Write:
        """Return a function that asks a language model and waits for the whole answer.

        >>> from arms.generator import ScriptedGenerator
        >>> write = Blocking().writer(ScriptedGenerator({"2 + 2?": "4"}))
        >>> write(Prompt(({"role": "user", "content": "2 + 2?"},)))[0]
        '4'
        """

        def write(prompt: Prompt) -> tuple[str, Chunk]:
            return self.run(complete(generator, prompt))

        return write
