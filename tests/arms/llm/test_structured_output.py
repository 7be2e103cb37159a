"""Asking for a form: which JSON is found in what a model wrote, and how often it is asked."""

import itertools
import json
import logging
import pickle
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.llm import structured_output
from armwise.arms.llm.base import Chunk, Prompt
from armwise.arms.llm.structured_output import (
    StructuredCaller,
    UnreadableAnswerError,
    asking_bound,
    json_values,
    quote_start,
    read_object,
    read_whole,
    without_thoughts,
)
from tests.arms.scripted import writing


class Size(BaseModel):
    model_config = ConfigDict(strict=True)

    height: int = Field(ge=0)
    unit: str


SIZE = Size(height=333, unit="m")

JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{quote_start(text)} is not a whole number")
    return int(text)


@given(
    st.dictionaries(st.text(max_size=5), JSONS),
    st.text("ab \n.`"),
    st.text("ab }]\n.`"),
    st.sampled_from([None, 2]),
)
@pytest.mark.slow
def test_an_object_is_found_whatever_stands_around_it(
    value: dict[str, object], before: str, after: str, indent: int | None
) -> None:
    assert next(json_values(before + json.dumps(value, indent=indent) + after, "{")) == value


@given(st.lists(JSONS))
def test_a_list_is_found_in_a_fence(value: list[object]) -> None:
    assert next(json_values(f"Here it is:\n```json\n{json.dumps(value, indent=2)}\n```", "[")) == value


def test_each_attempt_reads_the_texts_of_all_before_it() -> None:
    bounds = [asking_bound("a b", "c", 10, words=7, read=3, retries=n) for n in range(4)]
    assert [bound.questions for bound in bounds] == [2, 3, 4, 5], "one more, if a text ends at its limit"
    assert [bound.written for bound in bounds] == [10 + (1 + n) * 2010 for n in range(4)]
    of_one = bounds[0].read // 2
    more = [after.read - before.read - of_one for before, after in itertools.pairwise(bounds)]
    wrong = 2 * 10 + 64 + 1 + 2 * 8  # the text and its quotation, the error, the form, two messages
    assert more == [wrong, 2 * wrong, 3 * wrong]


@given(st.text('[]{},:" 1a', max_size=40))
def test_no_text_is_too_odd_to_be_looked_through(text: str) -> None:
    for opening, kind, example in (("{", dict, '{"a": 1}'), ("[", list, "[1]")):
        found = [*json_values(text + example, opening)]
        assert {type(value) for value in found} == {kind}


def test_brackets_that_are_opened_by_the_thousand_hold_nothing() -> None:
    assert list(json_values("[" * 5000, "[")) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"height": 333, "unit": "m"}',
        '```json\n{\n  "height": 333,\n  "unit": "m",\n}\n```',
        'In metres, {"size": {"height": 333, "unit": "m"}} it is.',
        '[{"height": 333, "unit": "m"}]',
        '{"height": n, "unit": "m"}: {"height": 333, "unit": "m"}',
        '{"height": -1, "unit": "m"}, no: {"height": 333, "unit": "m"}',
    ],
)
def test_the_first_valid_object_in_a_text_is_read(text: str) -> None:
    assert read_object(Size, text) == SIZE


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("333 m", "no complete JSON object"),
        ('{"height": 333, "unit":', "no complete JSON object"),
        ('{"height": NaN, "unit": "m"}', "no complete JSON object"),
        ('{"height": 333}', "unit: Field required"),
        ('{"height": "333", "unit": "m"}', "height: Input should be a valid integer"),
        ('{"height": true, "unit": "m"}', "height: Input should be a valid integer"),
        ('{"height": -1}', "height: Input should be greater than or equal to 0; unit: Field required"),
        ('{"height": -1, "unit": "m"} {}', "height: Input should be greater than or equal to 0"),
    ],
)
def test_a_text_without_a_valid_object_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="cannot be used") as refused:
        read_object(Size, text)
    assert wrong in str(refused.value)


@pytest.mark.parametrize("texts", [["12"], ["twelve", "12"], ["twelve", "a dozen", "12"]])
def test_a_model_is_asked_until_it_can_be_read(texts: Sequence[str]) -> None:
    prompts: list[Prompt] = []
    asker = StructuredCaller(writing(*texts, prompts=prompts), UnreadableAnswerError, retries=2)
    assert asker.ask("Count.", "Twelve eggs", "Write a number.", whole, max_tokens=5) == 12
    assert asker.malformed == len(texts) - 1
    assert [prompt.max_tokens for prompt in prompts] == [5] * len(texts)
    read = sum(len(message["content"].split()) for prompt in prompts for message in prompt.messages)
    assert asker.tokens == read + sum(len(text.split()) for text in texts)
    assert prompts[0].messages == (
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "Twelve eggs\n\nWrite a number."},
    )
    if len(texts) > 1:
        assert prompts[1].messages == (
            *prompts[0].messages,
            {"role": "assistant", "content": "twelve"},
            {"role": "user", "content": "'twelve' is not a whole number. Write a number."},
        )


def test_the_counts_of_one_piece_of_work_add_up() -> None:
    asker = StructuredCaller(writing("one", "1", "two", "2"), UnreadableAnswerError)
    assert [asker.ask("", "", "", whole, max_tokens=5) for _ in range(2)] == [1, 2]
    assert asker.malformed == 2


class CountError(UnreadableAnswerError):
    summary = "nobody could count"


def test_a_model_that_is_never_read_is_an_error_of_its_type() -> None:
    asker = StructuredCaller(writing("1", "one", "uno"), CountError, retries=1)
    asker.ask("", "", "", whole, max_tokens=5)
    before = asker.tokens
    with pytest.raises(CountError, match=r"in 2 attempts.*'uno'") as failed:
        asker.ask("", "", "", whole, max_tokens=5)
    assert failed.value.tokens == asker.tokens > before, "what was read before counts too"
    assert failed.value.malformed == 2


def test_the_error_crosses_processes_whole() -> None:
    error = pickle.loads(pickle.dumps(CountError("no", tokens=7, malformed=2)))
    assert (type(error), str(error), error.tokens, error.malformed) == (CountError, "no", 7, 2)


@pytest.fixture(autouse=True)
def _nothing_said() -> Iterator[None]:
    structured_output._warn.cache_clear()  # noqa: SLF001
    yield
    structured_output._warn.cache_clear()  # noqa: SLF001


def cut(*texts: str) -> tuple[list[Prompt], StructuredCaller]:
    """Return a caller of a model all of whose texts end at the limit, and what the model is shown."""
    prompts, left = list[Prompt](), list(texts)

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        return left.pop(0), Chunk(
            finish_reason="length", prompt_tokens=10, completion_tokens=prompt.max_tokens
        )

    return prompts, StructuredCaller(write, CountError, retries=1)


def test_a_text_that_was_cut_is_asked_for_once_more_with_more_room() -> None:
    prompts, caller = cut("I shall count", "one two", "twelve")
    with pytest.raises(CountError, match=r"in 3 attempts.* limit of 20 tokens: 'twelve'"):
        caller.ask("", "", "", whole, max_tokens=5)
    assert [prompt.max_tokens for prompt in prompts] == [5, 20, 20]
    assert [len(prompt.messages) for prompt in prompts] == [2, 2, 4]
    assert (caller.tokens, caller.malformed) == (75, 3)


@pytest.mark.parametrize(("tokens", "rooms"), [(5000, [5000, 8192, 8192]), (9000, [9000, 9000, 9000])])
def test_no_room_is_wider_than_the_widest(tokens: int, rooms: list[int]) -> None:
    prompts, caller = cut("", "", "")
    with pytest.raises(CountError):
        caller.ask("", "", "", whole, max_tokens=tokens)
    assert [prompt.max_tokens for prompt in prompts] == rooms


def test_a_text_that_was_cut_after_its_verdict_counts() -> None:
    prompts, caller = cut("<think>one</think>12")
    assert caller.ask("", "", "", whole, max_tokens=5) == 12
    assert len(prompts) == 1


def test_what_never_came_is_said_once_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        _, caller = cut("<think>a secret", "", "")
        with pytest.raises(CountError), caplog.at_level(logging.WARNING):
            caller.ask("", "", "", whole, max_tokens=48)
    (said,) = caplog.messages
    assert said.startswith("nobody could count: it reasoned and ended at its limit of 2048 tokens. ")
    assert "secret" not in said


def test_a_long_text_is_shown_again_in_part() -> None:
    prompts: list[Prompt] = []
    StructuredCaller(writing("x" * 999, "1", prompts=prompts), CountError).ask(
        "", "", "", whole, max_tokens=5
    )
    assert prompts[1].messages[-2]["content"] == "x" * 20


def test_an_attempt_costs_no_more_than_its_bound() -> None:
    for retries in range(3):
        prompts, caller = cut(*["x" * 20] * (2 + retries))
        caller._retries = retries  # noqa: SLF001
        with pytest.raises(CountError):
            caller.ask("a b", "", "c", whole, max_tokens=5)
        bound = asking_bound("a b", "c", 5, words=0, read=0, retries=retries)
        assert len(prompts) == bound.questions
        assert sum(prompt.max_tokens for prompt in prompts) <= bound.written


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>a<think>b</think>c</think>d", "d"),
        ("<THINKING>a</thinking >b<think>c</think>d", "bd"),
        ("a<think>b", "a"),
        ("<think>b", ""),
        ("a</think>b</think>c", "c"),
        ("<thinker>a</thinker>", "<thinker>a</thinker>"),
        ("a < think > b", "a < think > b"),
    ],
)
def test_thoughts_are_left_out(text: str, left: str) -> None:
    assert without_thoughts(text) == left


def test_thoughts_are_found_in_linear_time() -> None:
    assert without_thoughts("<think>" * 100_000 + "</think>" * 100_000) == ""
    assert without_thoughts("<think" * 100_000) == "<think" * 100_000


def test_an_object_in_thoughts_is_not_read() -> None:
    assert read_object(Size, '<think>{"height": 1, "unit": "m"}</think>{"height": 333, "unit": "m"}') == SIZE


@given(st.integers(-(10**8), 10**8))
def test_a_whole_number_is_read_in_each_of_its_forms(number: int) -> None:
    for written in (number, float(number), str(number), f"{number}.0", f" {number} "):
        value = read_whole(written)
        assert (value, type(value)) == (number, int)


@given(st.booleans() | st.none() | st.text("0123456789.ex-", max_size=5) | st.floats())
def test_what_is_no_whole_number_stays_as_it_is(value: object) -> None:
    read = read_whole(value)
    if read is not value:
        assert read == float(value)  # type: ignore[arg-type]
