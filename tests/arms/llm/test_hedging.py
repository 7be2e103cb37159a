"""Second requests: when they are sent, which one is read, what both cost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from armwise.arms.llm.base import Chunk, Generator, GeneratorError, Prompt, complete
from armwise.arms.llm.catalog import HedgedGenerator

LEAST = 20
"""Answers before the first second request."""

PROMPT = Prompt(({"role": "user", "content": "?"},))


class Slow(Generator):
    """Writes the number of the request once it is released; some fail."""

    model = "slow"

    def __init__(self) -> None:
        self.waiting: list[asyncio.Event] = []
        self.released = True
        self.failing: set[int] = set()
        self.ended: list[int] = []

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        del prompt
        number = len(self.waiting)
        event = asyncio.Event()
        self.waiting.append(event)
        if self.released:
            event.set()
        try:
            await event.wait()
            if number in self.failing:
                raise GeneratorError(f"request {number} failed")
            yield Chunk(str(number))
            yield Chunk(finish_reason="stop", prompt_tokens=100, completion_tokens=1)
        finally:
            self.ended.append(number)

    async def close(self) -> None:
        """Do nothing."""


async def hedged() -> tuple[Slow, HedgedGenerator]:
    """A generator that knows how long first words take, and is slow from now on."""
    slow = Slow()
    generator = HedgedGenerator(slow, 0.95)
    for _ in range(LEAST):
        assert generator._patience() is None, "too few answers say nothing of a quantile"  # noqa: SLF001
        _, last = await complete(generator, PROMPT)
        assert last.prompt_tokens == 100, "one request is paid for"
    assert generator.hedged == 0
    slow.released = False
    return slow, generator


async def sent(slow: Slow, n: int) -> None:
    """Wait until so many requests were sent."""
    async with asyncio.timeout(30):
        while len(slow.waiting) < n:
            await asyncio.sleep(0)


async def test_the_wait_is_a_quantile_of_the_times_of_the_newest_answers() -> None:
    _, generator = await hedged()
    learned = generator._patience()  # noqa: SLF001
    assert learned is not None
    assert learned > 0.0
    generator._took.extend([60.0] * 300 + [3.0] * 100 + [5.0] * 100)  # noqa: SLF001
    assert generator._patience() == pytest.approx(5.0)  # noqa: SLF001
    generator._took.extend([3.0] * 100)  # noqa: SLF001
    assert generator._patience() == pytest.approx(5.0)  # noqa: SLF001
    generator._took.extend([3.0] * 91)  # noqa: SLF001
    assert generator._patience() == pytest.approx(3.0)  # noqa: SLF001


async def test_the_first_of_two_requests_to_write_is_read_and_both_are_paid_for() -> None:
    slow, generator = await hedged()
    answer = asyncio.create_task(complete(generator, PROMPT))
    await sent(slow, LEAST + 2)
    slow.waiting[-1].set()
    text, last = await answer
    assert (text, generator.hedged) == (str(LEAST + 1), 1)
    assert (last.prompt_tokens, last.completion_tokens) == (200, 1)
    assert sorted(slow.ended[-2:]) == [LEAST, LEAST + 1]  # the other one was stopped
    assert len(generator._took) == LEAST + 1, "its time counts, too"  # noqa: SLF001


async def test_the_slower_of_two_requests_is_stopped_before_the_other_is_read() -> None:
    slow, generator = await hedged()
    async with aclosing(generator.stream(PROMPT)) as chunks:
        first = asyncio.ensure_future(anext(chunks))
        await sent(slow, LEAST + 2)
        slow.waiting[-1].set()
        assert (await first).text == str(LEAST + 1)
        assert slow.ended[LEAST:] == [LEAST], "the other one is not read to its end yet"
    assert slow.ended[LEAST:] == [LEAST, LEAST + 1]


@pytest.mark.parametrize("failing", [0, 1])
async def test_one_request_that_fails_leaves_the_other(failing: int) -> None:
    slow, generator = await hedged()
    slow.failing = {LEAST + failing}
    answer = asyncio.create_task(complete(generator, PROMPT))
    await sent(slow, LEAST + 2)
    for event in slow.waiting:
        event.set()
    assert (await answer)[0] == str(LEAST + 1 - failing)


async def test_where_both_fail_the_last_failure_is_raised() -> None:
    slow, generator = await hedged()
    slow.failing = {LEAST, LEAST + 1}
    answer = asyncio.create_task(complete(generator, PROMPT))
    await sent(slow, LEAST + 2)
    for event in slow.waiting:
        event.set()
    with pytest.raises(GeneratorError, match="failed"):
        await answer


async def test_a_client_that_leaves_stops_both() -> None:
    slow, generator = await hedged()
    answer = asyncio.create_task(complete(generator, PROMPT))
    await sent(slow, LEAST + 2)
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert sorted(slow.ended[-2:]) == [LEAST, LEAST + 1]


async def test_closing_it_closes_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, closed = Slow(), list[str]()

    async def close() -> None:
        closed.append("model")

    monkeypatch.setattr(model, "close", close)
    await HedgedGenerator(model, 0.5).close()
    assert closed == ["model"]
