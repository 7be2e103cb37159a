"""The seam of the language models, on the generator that answers from a script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.llm.base import Prompt, ScriptedGenerator, complete


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
