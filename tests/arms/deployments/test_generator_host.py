"""The host of the language model: a stream that is not read to its end is ended at the engine, too."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from armwise.arms import tracing
from armwise.arms.deployments import GeneratorHost, generator_host
from armwise.arms.deployments.generator_host import AddressedGenerator, LateGenerator
from armwise.arms.llm import Chunk, Message, Prompt
from armwise.arms.llm.base import Generator, GeneratorError

PROMPT = Prompt(({"role": "user", "content": "Why?"},))


class Endless(Generator):
    """A model that writes until it is stopped.

    Attributes:
        ended: How many answers have been ended.
    """

    model = "endless"

    def __init__(self) -> None:
        self.ended = 0

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        del prompt
        try:
            while True:
                yield Chunk("on and ")
                await asyncio.sleep(0)
        finally:
            self.ended += 1

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Endless:
    model = Endless()
    monkeypatch.setattr(generator_host, "build_generator", lambda _: model)
    return model


class OfOneLoop(Endless):
    """A model whose connections belong to the event loop that asked first."""

    loop: asyncio.AbstractEventLoop | None = None
    closed = 0

    def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()
        return super().stream(prompt)

    async def close(self) -> None:
        self.closed += 1


def test_each_event_loop_has_connections_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[OfOneLoop]()

    def build(_: object) -> OfOneLoop:
        made.append(OfOneLoop())
        return made[-1]

    monkeypatch.setattr(generator_host, "build_generator", build)
    spec: Any = type("Spec", (), {"engine": "scripted"})()
    generator = AddressedGenerator(spec)
    assert len(made) == 1, "what is wrong with it shows at the start"

    async def ask(times: int) -> None:
        for _ in range(times):
            async with aclosing(generator.stream(PROMPT)) as chunks:
                assert (await anext(chunks)).text == "on and "
        await generator.close()
        await generator.close()

    asyncio.run(ask(3))
    asyncio.run(ask(2))
    asyncio.run(ask(0))
    assert [(one.ended, one.closed) for one in made] == [(3, 1), (2, 1)]


async def test_a_late_model_is_loaded_once_with_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loads, fails = Endless(), list[object](), [True]

    def build(spec: object) -> Endless:
        loads.append(spec)
        if fails:
            fails.pop()
            raise GeneratorError("it is damaged")
        return model

    monkeypatch.setattr(generator_host, "build_generator", build)
    spec: Any = type("Spec", (), {"engine": "embedded", "model": "/models/small.gguf"})()
    generator = LateGenerator(spec)
    await generator.close()
    assert (generator.model, loads) == ("small.gguf", [])

    async def ask() -> str:
        async with aclosing(generator.stream(PROMPT)) as chunks:
            return (await anext(chunks)).text

    with pytest.raises(GeneratorError, match="damaged"):
        await ask()
    assert await asyncio.gather(ask(), ask(), ask()) == ["on and "] * 3
    assert loads == [spec, spec], "a second attempt, and one model for all who ask"
    assert model.ended == 3


def host() -> GeneratorHost:
    spec: Any = type("Spec", (), {"engine": "scripted"})()
    return GeneratorHost(spec)


async def test_an_answer_that_is_closed_ends_at_the_engine(model: Endless) -> None:
    async with aclosing(host().stream(PROMPT)) as chunks:
        assert (await anext(chunks)).text == "on and "
    assert model.ended == 1


@pytest.mark.usefixtures("model")
async def test_an_answer_is_written_for_the_turn_of_its_caller() -> None:
    system: Message = {"role": "system", "content": "Be brief."}
    async with aclosing(host().stream(Prompt((system, *PROMPT.messages)), '["", "d-1", "e-1"]')) as chunks:
        await anext(chunks)
        assert tracing.TURN.get() == tracing.TracedTurn("d-1", "e-1", "Why?")


async def test_an_answer_whose_caller_is_cancelled_ends_at_the_engine(model: Endless) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async with aclosing(host().stream(PROMPT)) as chunks:
            async for _ in chunks:
                begun.set()

    reading = asyncio.create_task(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert model.ended == 1


def test_a_process_is_prepared_before_its_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(generator_host, "build_generator", lambda _: order.append("load"))
    spec: Any = type("Spec", (), {"engine": "scripted"})()
    GeneratorHost(spec, lambda: order.append("prepare"))
    assert order == ["prepare", "load"]
