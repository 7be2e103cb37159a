"""The seam of the language models, on the generator that answers from a script."""

import asyncio
from contextlib import aclosing
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Chunk, GeneratorTimeoutError, Prompt, ScriptedGenerator, complete


def asking(question: str, **settings: object) -> Prompt:
    return Prompt(({"role": "user", "content": question},), **settings)  # type: ignore[arg-type]


def test_a_prompt_without_parameters_takes_the_likeliest_of_256_tokens() -> None:
    assert asdict(Prompt(())) == {
        "messages": (),
        "max_tokens": 256,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": (),
        "seed": None,
        "options": {},
        "patience_s": None,
    }


async def test_a_known_message_gets_its_reply_and_any_other_the_default() -> None:
    generator = ScriptedGenerator({"2 + 2?": "It is 4."}, default="No idea.")
    assert (await complete(generator, asking("2 + 2?")))[0] == "It is 4."
    assert (await complete(generator, asking("Why?")))[0] == "No idea."


async def test_a_function_answers_from_the_whole_prompt() -> None:
    generator = ScriptedGenerator(lambda prompt: f"{len(prompt.messages)} messages")
    prompt = Prompt(({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}))
    assert (await complete(generator, prompt))[0] == "2 messages"
    assert generator.last_prompt == prompt


async def test_an_answer_comes_a_word_at_a_time_and_ends_with_usage() -> None:
    generator = ScriptedGenerator({"How many words?": "Just three words."})
    chunks = [chunk async for chunk in generator.stream(asking("How many words?"))]
    assert [chunk.text for chunk in chunks] == ["Just", " three", " words.", ""]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert (chunks[-1].prompt_tokens, chunks[-1].completion_tokens) == (3, 3)


async def test_an_answer_longer_than_allowed_is_cut_and_says_so() -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    text, last = await complete(generator, asking("?", max_tokens=2))
    assert (text, last.finish_reason, last.completion_tokens) == ("one two", "length", 2)


async def test_of_several_answers_each_has_a_reason_to_end() -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    _, last = await complete(generator, asking("?", max_tokens=2, options={"n": 3}))
    assert (last.finish_reason, last.finish_reasons) == ("length", ("length", "length"))
    assert last.completion_tokens == 6


async def test_an_answer_ends_before_a_stop_text() -> None:
    generator = ScriptedGenerator({"?": "first line\nsecond line"})
    text, last = await complete(generator, asking("?", stop=("\n", "second")))
    assert (text, last.finish_reason) == ("first line", "stop")


async def test_it_fails_on_demand_after_so_many_tokens_and_recovers() -> None:
    generator = ScriptedGenerator(
        {"?": "one two three"}, error=GeneratorTimeoutError("scripted was silent for 1 s"), fail_after=2
    )
    async with aclosing(generator.stream(asking("?"))) as chunks:
        assert [(await anext(chunks)).text for _ in range(2)] == ["one", " two"]
        with pytest.raises(GeneratorTimeoutError, match="silent for 1 s"):
            await anext(chunks)
    generator.error = None
    assert (await complete(generator, asking("?")))[0] == "one two three"


async def test_a_stream_whose_reader_is_cancelled_counts_as_interrupted() -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    answer = asyncio.create_task(complete(generator, asking("?")))
    await asyncio.sleep(0)  # the first word is written
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert generator.interrupted == 1


async def test_a_stream_that_is_left_early_counts_as_interrupted() -> None:
    generator = ScriptedGenerator({"?": "one two three"})
    async with aclosing(generator.stream(asking("?"))) as chunks:
        assert await anext(chunks) == Chunk("one")
    await complete(generator, asking("?"))
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
