"""The seam of the language models, on the generator that answers from a script."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import GeneratorTimeoutError, Prompt, ScriptedGenerator, complete


def asking(question: str, **settings: object) -> Prompt:
    return Prompt(({"role": "user", "content": question},), **settings)  # type: ignore[arg-type]


async def test_an_unknown_message_gets_the_default() -> None:
    generator = ScriptedGenerator({"2 + 2?": "It is 4."}, default="No idea.")
    assert (await complete(generator, asking("2 + 2?")))[0] == "It is 4."
    assert (await complete(generator, asking("Why?")))[0] == "No idea."


async def test_an_answer_comes_a_word_at_a_time_and_ends_with_usage() -> None:
    generator = ScriptedGenerator({"How many words?": "Just three words."})
    chunks = [chunk async for chunk in generator.stream(asking("How many words?"))]
    assert [chunk.text for chunk in chunks] == ["Just", " three", " words.", ""]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert (chunks[-1].prompt_tokens, chunks[-1].completion_tokens) == (3, 3)


@pytest.mark.parametrize(("n", "others"), [(1, ()), (3, ("length", "length"))])
async def test_answers_longer_than_allowed_are_cut(n: int, others: tuple[str, ...]) -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    text, last = await complete(generator, asking("?", max_tokens=2, options={"n": n}))
    assert (last.finish_reason, last.finish_reasons) == ("length", others)
    assert text.split().count("three") == 0
    assert last.completion_tokens == 2 * n


async def test_an_answer_ends_before_a_stop_text() -> None:
    generator = ScriptedGenerator({"?": "first line\nsecond line"})
    text, last = await complete(generator, asking("?", stop=("\n", "second")))
    assert (text, last.finish_reason) == ("first line", "stop")


async def test_it_fails_on_demand_and_recovers() -> None:
    generator = ScriptedGenerator(
        {"?": "one two three"}, error=GeneratorTimeoutError("scripted sent nothing for 1 s"), fail_after=2
    )
    async with aclosing(generator.stream(asking("?"))) as chunks:
        assert [(await anext(chunks)).text for _ in range(2)] == ["one", " two"]
        with pytest.raises(GeneratorTimeoutError, match="sent nothing for 1 s"):
            await anext(chunks)
    generator.error = None
    assert (await complete(generator, asking("?")))[0] == "one two three"


async def test_a_cancelled_stream_counts_as_interrupted() -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    answer = asyncio.create_task(complete(generator, asking("?")))
    await asyncio.sleep(0)  # the first word is written
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert generator.interrupted == 1


@given(st.text(max_size=80))
async def test_the_pieces_of_an_answer_join_to_the_answer(reply: str) -> None:
    text, last = await complete(ScriptedGenerator(lambda _: reply), asking("?"))
    assert text == (reply if reply.strip() else "")
    assert last.completion_tokens == len(reply.split())


async def test_the_pieces_of_a_scripted_call_are_its_arguments_once() -> None:
    arguments = '{"town": "Kiel", "year": 1404}'
    generator = ScriptedGenerator(lambda _: [("find", arguments)])
    chunks = [chunk async for chunk in generator.stream(Prompt(({"role": "user", "content": "?"},)))]
    calls = [call["function"] for chunk in chunks for call in chunk.tool_calls]
    assert [call.get("name") for call in calls] == ["find", None, None]
    assert [call["arguments"] for call in calls] == ["", arguments[:5], arguments[5:]]
