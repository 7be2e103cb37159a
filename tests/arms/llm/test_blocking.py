"""Threads that wait for what is asynchronous: for so long and no longer."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from armwise.arms.async_bridge import Blocking
from armwise.arms.llm.base import (
    Chunk,
    Generator,
    GeneratorError,
    GeneratorTimeoutError,
    Prompt,
    ScriptedGenerator,
)
from armwise.arms.llm.catalog import blocking_writer

PROMPT = Prompt(({"role": "user", "content": "?"},))


class Hanging(Generator):
    """A model that never answers.

    Attributes:
        stopped: Set once its work was cancelled.
    """

    model = "hanging"

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()
        yield Chunk(str(prompt))

    async def close(self) -> None:
        """Do nothing."""


def test_a_model_that_hangs_is_given_up_and_told_to_stop() -> None:
    generator, blocking = Hanging(), Blocking(limit_s=0.05)
    with pytest.raises(GeneratorTimeoutError, match=r"hanging took longer than 0\.05 s"):
        blocking_writer(blocking, generator)(PROMPT)
    assert generator.stopped.is_set()


def test_what_the_model_raises_is_raised_in_the_waiting_thread() -> None:
    failing = ScriptedGenerator({}, error=GeneratorError("the model is down"))
    with pytest.raises(GeneratorError, match="the model is down"):
        blocking_writer(Blocking(), failing)(PROMPT)
