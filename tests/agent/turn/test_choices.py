"""Answers are put together from their pieces, and come back from the log as they were."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.turn import SEPARATOR, CallNames, Choices, is_text
from armwise.arms.llm import Chunk

TEXTS = st.text(st.sampled_from(f'ab {SEPARATOR}[]{{}}"\\\u00e4'), max_size=6)


def call(index: int, name: str, arguments: str) -> dict[str, Any]:
    return {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": arguments}}


CALLS = st.builds(call, st.integers(0, 2), TEXTS, TEXTS)
CHUNKS = st.lists(
    st.builds(
        Chunk,
        text=TEXTS,
        index=st.integers(0, 2),
        tool_calls=st.lists(CALLS, max_size=2).map(tuple),
        logprobs=st.lists(st.fixed_dictionaries({"token": TEXTS, "logprob": st.just(-0.5)}), max_size=1).map(
            tuple
        ),
    ),
    max_size=6,
)


def of(chunks: Sequence[Chunk]) -> Choices:
    found = Choices()
    for chunk in chunks:
        found.add(chunk)
    return found


def test_each_of_several_choices_ends_for_a_reason_of_its_own_in_the_log_too() -> None:
    end = Chunk(finish_reason="stop", finish_reasons=("length", "tool_calls"))
    found = of([Chunk("one"), Chunk("two", index=1), Chunk("three", index=2), end])
    for choices in (found, Choices.parse(found.recorded, "content_filter")):
        assert [(one.text, one.finish_reason) for one in choices.all] == [
            *(("one", "stop"), ("two", "length"), ("three", "tool_calls")),
        ]


@given(CHUNKS, st.sampled_from([None, "stop", "length"]))
@pytest.mark.slow
def test_an_answer_comes_back_from_the_log_as_it_was(chunks: list[Chunk], reason: str | None) -> None:
    written = of([*chunks, Chunk(finish_reason=reason)] if reason else chunks)
    back = Choices.parse(written.recorded, reason)
    assert back.all == written.all
    for one, again in zip(back.all, of([*back.chunks()]).all, strict=True):
        assert replace(again, finish_reason=one.finish_reason) == one


@given(TEXTS)
def test_a_plain_text_is_kept_as_it_is_unless_it_looks_like_a_record(text: str) -> None:
    recorded = of([Chunk(text)]).recorded
    assert is_text(recorded) == (not text.startswith(SEPARATOR))
    assert (recorded == text) == is_text(recorded)


@given(TEXTS, TEXTS, st.integers(0, 6))
def test_pieces_of_a_call_make_the_call_wherever_it_is_cut(name: str, arguments: str, at: int) -> None:
    whole = of([Chunk(tool_calls=(call(1, name, arguments),))])
    first, rest = call(1, name, arguments[:at]), {"index": 1, "function": {"arguments": arguments[at:]}}
    assert of([Chunk(tool_calls=(first,)), Chunk(tool_calls=(rest,))]).all == whole.all


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8))
def test_every_call_has_an_id_of_its_own(pieces: list[tuple[int, int]]) -> None:
    ids = list[str]()
    for decision_id in ("shop~d-1", "shop~d-2"):
        names, begun = CallNames(decision_id), dict[tuple[int, int], str]()
        for choice, index in pieces:
            (piece,) = names.rename(choice, [{"index": index, "function": {"arguments": "x"}}])
            if "id" in piece:
                assert (choice, index) not in begun
                begun[choice, index] = piece["id"]
        assert begun.keys() == set(pieces)
        ids += begun.values()
    assert len(set(ids)) == len(ids), "those of another decision, too"


def test_log_probabilities_of_a_single_answer_come_back_from_the_log() -> None:
    probabilities = ({"token": "a", "logprob": -0.5},)
    found = of([Chunk("a", logprobs=probabilities)])
    (again,) = Choices.parse(found.recorded).all
    assert (again.text, again.logprobs) == ("a", [*probabilities])
    assert not is_text(found.recorded)
