"""What a request needs of a model: inputs, options and tools of a provider."""

from typing import Any

import pytest
from hypothesis import given

from armwise.arms.llm.base import FORM, HINTS, OPTIONS
from armwise.arms.llm.protocols import ProtocolName, Request
from armwise.arms.llm.protocols.chat import read_options
from armwise.arms.llm.protocols.needs import COUNTERPARTS, Needs, read_needs
from tests.arms.llm.translate.test_messages import like

FUNCTION = {"type": "function", "function": {"name": "now"}}


def needs(body: dict[str, Any], protocol: ProtocolName = "chat") -> Needs:
    """Return what a request needs."""
    request = Request(protocol, body)
    return read_needs(request, read_options(request.chat))


@pytest.mark.parametrize(
    ("kind", "hard", "soft"),
    [
        ("web_search", set(), {"web_search"}),
        ("web_search_preview_2025_03_11", set(), {"web_search"}),
        ("web_search_20250305", set(), {"web_search"}),
        ("openrouter:web_search", set(), {"web_search"}),
        ("web_fetch_20250910", set(), {"web_fetch"}),
        ("code_interpreter", set(), {"code_execution"}),
        ("code_execution_20250825", set(), {"code_execution"}),
        ("computer_use_preview", set(), {"computer"}),
        ("advisor_1", set(), {"advisor"}),
        ("file_search", {"file_search"}, set()),
        ("image_generation", {"image_generation"}, set()),
        ("mcp", {"mcp"}, set()),
        ("mcp_toolset", {"mcp"}, set()),
        ("tool_search_tool_regex_20251119", set(), set()),
        ("function", set(), set()),
        ("custom", set(), set()),
        ("", set(), set()),
        ("of tomorrow" * 100, set(), {("of tomorrow" * 100)[:64]}),
    ],
)
def test_tools_of_a_provider_are_needed_by_their_family(kind: str, hard: set[str], soft: set[str]) -> None:
    found = needs({"tools": [{"type": kind, "name": "x"}]})
    assert found.hard == hard
    assert found.soft == soft


def test_a_search_is_asked_for_by_its_options_too() -> None:
    assert needs({"web_search_options": {"user_location": {}}}).soft == {"web_search"}
    assert needs({"web_search_options": None}).soft == frozenset()


def test_inputs_are_those_of_any_message() -> None:
    parts = [{"type": kind} for kind in ("text", "image_url", "file", "input_audio", "video_url", 5, None)]
    result = {"role": "tool", "content": [parts[1]]}
    assert needs({"messages": [{"role": "user", "content": parts}]}).inputs == {"image", "file", "audio"}
    assert needs({"messages": [result, {"role": "user", "content": "Why?"}]}).inputs == {"image"}
    assert needs({"messages": [{"role": "user", "content": "image_url"}]}).inputs == frozenset()


def test_options_are_needed_unless_an_answer_does_without() -> None:
    everything = dict.fromkeys(OPTIONS, 2) | {
        "tools": [FUNCTION],
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
    }
    assert needs(everything).hard == OPTIONS - HINTS
    assert needs({"n": 1, "tools": [], "logprobs": False, "seed": 5, "odd": 1}).hard == frozenset()


@pytest.mark.parametrize(
    ("modalities", "hard"), [(["text", "audio"], {"audio_output"}), (["text"], set()), (5, set())]
)
def test_an_answer_that_is_heard_is_an_option(modalities: Any, hard: set[str]) -> None:
    assert needs({"modalities": modalities}).hard == hard


def test_what_a_provider_keeps_is_needed_of_responses_alone() -> None:
    kept = {"previous_response_id": "resp_1", "conversation": "conv_1", "prompt": {"id": "p"}}
    assert needs({"input": "Why?", **kept}, "responses").hard == {*kept}
    assert needs({"input": "Why?", **dict.fromkeys(kept)}, "responses").hard == frozenset()
    assert needs({"messages": [], **kept}).hard == frozenset()


def test_a_model_of_the_same_protocol_lacks_inputs_alone() -> None:
    found = Needs("chat", frozenset({"image"}), frozenset({"n", "mcp"}), frozenset({"web_search"}))
    nothing = frozenset[str]()
    assert found.missing("chat", nothing, nothing) == {"image"}
    assert found.missing("chat", nothing, frozenset({"image", "file"})) == nothing
    assert not found.does_without("chat", nothing)


def test_a_model_of_another_protocol_lacks_what_has_no_counterpart() -> None:
    found = Needs("chat", frozenset({"image"}), frozenset({"n", "mcp"}), frozenset({"web_search"}))
    assert found.missing("messages", COUNTERPARTS["messages"], frozenset()) == {"image", "n"}
    assert not found.does_without("messages", COUNTERPARTS["messages"])
    assert found.missing("", FORM, frozenset({"image"})) == {"n", "mcp"}
    assert found.does_without("", FORM)
    assert not Needs("chat").does_without("", FORM)
    assert Needs().missing("", frozenset(), frozenset()) == frozenset(), "a request of the service itself"


ODD = {
    "messages": [{"role": "user", "content": [{"type": "image_url"}]}],
    "tools": [{"type": "mcp"}, FUNCTION, {"type": "custom", "custom": {"name": "x"}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
    "modalities": ["audio"],
    "response_format": {"type": "json_schema", "json_schema": {}},
    "n": 2,
    "logit_bias": {"5": 1},
    "web_search_options": {},
}


@given(like(ODD))
def test_no_request_is_too_odd_to_read(body: Any) -> None:
    if isinstance(body, dict):
        found = needs(body)
        assert found.protocol == "chat"
        assert found.missing("", frozenset(), frozenset()) == found.inputs | found.hard
