"""The question of an agent's request is what a person asked, behind every door."""

from typing import Any

import pytest

from armwise.agent.api.question import HARNESS, NOTES, WRAPPERS, find_question, read_person
from tests.agent.fakes import Service

PERSON = "why is the build slow?"
REMINDER = "<system-reminder>\nThe file a.py was changed. Do not mention it.\n</system-reminder>"
CALL = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


@pytest.mark.parametrize("name", sorted(HARNESS))
def test_what_an_agent_writes_is_left_out(name: str) -> None:
    block = f'<{name} source="editor">\nlook < here\n</{name}>'
    assert read_person(f"{block}\n{PERSON}\n{block}") == PERSON
    assert read_person(block) == ""


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_what_an_agent_puts_around_a_question_is_taken_off(name: str) -> None:
    assert read_person(f"{REMINDER}<{name}>\n{PERSON}\n</{name}>{REMINDER}") == PERSON


@pytest.mark.parametrize("note", sorted(NOTES))
def test_notes_of_an_agent_are_left_out_as_lines_alone(note: str) -> None:
    assert read_person(f"{note}\n{PERSON}") == PERSON
    assert read_person(note) == ""
    assert read_person(f"what does '{note}' mean?") == f"what does '{note}' mean?"


@pytest.mark.parametrize(
    "text",
    [
        " is a < b, or [x] > 3? ",
        "what does <system-reminder> mean?",
        "why </system-reminder>?",
        "<div>of a page</div>",
        "<system-reminders>of another name</system-reminders>",
    ],
)
def test_what_a_person_writes_stays_as_it_is(text: str) -> None:
    assert read_person(text) == text


def test_a_mention_before_a_reminder_stays() -> None:
    asked = "what does <system-reminder> mean?"
    assert read_person(f"{asked}\n{REMINDER}") == asked


def test_elements_within_others_are_left_out_with_them() -> None:
    nested = "<environment_details>a<system-reminder>b</system-reminder>c</environment_details>"
    assert read_person(f"{nested} {PERSON}") == PERSON


def test_many_elements_without_an_end_are_read_in_linear_time() -> None:
    text = "<system-reminder>" * 50_000
    assert read_person(text) == text


def test_the_last_text_of_a_person_has_the_question_or_else_the_last_text() -> None:
    assert find_question(["first?", PERSON, "", REMINDER]) == 1
    assert find_question([REMINDER, " "]) == 0
    assert find_question(["", " "]) is None


AFTER_A_CALL: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "what is here?"},
    {"role": "assistant", "content": "Files."},
    {"role": "user", "content": [{"type": "text", "text": REMINDER}, {"type": "text", "text": PERSON}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "a.py"},
    {"role": "user", "content": REMINDER},
]


async def test_arms_search_for_what_a_person_asked_and_the_model_reads_all(service: Service) -> None:
    body = {"model": "arm/bm25", "messages": AFTER_A_CALL}
    response = await service.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    (_, query, _) = service.arms.calls[-1]
    assert query.text == PERSON
    said = [message["content"] for message in service.generator.last_prompt.messages]  # type: ignore[attr-defined]
    assert said[-1] == REMINDER
    assert f"{REMINDER}\n{PERSON}" in said


async def test_a_conversation_of_reminders_alone_is_answered(service: Service) -> None:
    body = {"model": "arm/bm25", "messages": [{"role": "user", "content": REMINDER}]}
    response = await service.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert service.arms.calls[-1][1].text == REMINDER
