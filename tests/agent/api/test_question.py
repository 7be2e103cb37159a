"""The question of an agent's request is what a person asked, behind every door."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.api.question import (
    ANSWERED_CHARS,
    BRIEF_CHARS,
    HARNESS,
    NOTES,
    WRAPPERS,
    Question,
    find_question,
    read_person,
    read_question,
)
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


TASK, OFFER = "Refactor billing to use the new table", "I will drop the old one. Continue?"
ASKED = [("user", TASK), ("assistant", OFFER)]
TOGETHER = f"{TASK}\n{OFFER}\n"


@pytest.mark.parametrize(
    "words",
    [
        *(
            "yes",
            "ja",
            "oui, vas-y !",
            "Why not?",
            "What is RAG?",
            "👍",
            "继续",
            "是的、请继续吧",
            "はい",
            "ต่อ",
        ),
        "네, 계속해 주세요",
    ],
)
def test_a_few_words_are_read_with_what_they_answer(words: str) -> None:
    assert read_question([*ASKED, ("user", f" {words}\n")], 8000) == Question(TOGETHER + words, 2)


@pytest.mark.parametrize(
    "words",
    [
        "Now rename the column",
        "为什么构建这么慢",
        "https://example.org/" + "x" * BRIEF_CHARS,
        "yes " + "x" * BRIEF_CHARS,
    ],
)
def test_a_longer_message_is_a_question_of_its_own(words: str) -> None:
    assert read_question([*ASKED, ("user", words)], 8000) == Question(words, 2)


def test_a_first_message_is_read_alone_however_short_it_is() -> None:
    start = [("system", "Be brief."), ("assistant", "Hello! What can I do?"), ("user", REMINDER)]
    assert read_question([*start, ("user", "Weather in Paris?")], 8000) == Question("Weather in Paris?", 3)


def test_short_messages_in_a_row_go_back_to_the_last_longer_one() -> None:
    earlier = [("user", "Write a parser for dates"), ("assistant", "Done.")]
    turns = [*earlier, *ASKED, ("user", "yes"), ("assistant", "Dropped."), ("user", "go on")]
    assert read_question(turns, 8000).text == f"{TASK}\nDropped.\ngo on"


def test_short_messages_alone_go_back_to_the_first() -> None:
    turns = [("user", "Weather?"), ("assistant", "Where?"), ("user", "Paris"), ("assistant", "Sunny.")]
    assert read_question([*turns, ("user", "And Rome?")], 8000).text == "Weather?\nSunny.\nAnd Rome?"


def test_what_agents_write_is_no_part_of_the_task_or_the_answer() -> None:
    wrapped = f"{REMINDER}<user_query>\n{TASK}\n</user_query>"
    turns = [
        ("user", wrapped),
        ("assistant", OFFER),
        ("tool", "a.py"),
        ("assistant", " "),
        ("user", REMINDER),
    ]
    asked = [*turns, ("user", f"{REMINDER}yes"), ("assistant", "Later."), ("user", REMINDER)]
    assert read_question(asked, 8000) == Question(f"{TOGETHER}yes", 5)


def test_the_end_of_a_long_answer_is_read() -> None:
    answer = "a" * 1000 + "b" * ANSWERED_CHARS
    turns = [("user", TASK), ("assistant", answer), ("user", "yes")]
    assert read_question(turns, 8000).text == f"{TASK}\n{'b' * ANSWERED_CHARS}\nyes"


def test_an_answer_before_the_task_is_not_read() -> None:
    turns = [("user", "hi"), ("assistant", "Hello!"), ("user", TASK), ("user", "please")]
    assert read_question(turns, 8000).text == f"{TASK}\nplease"


def test_an_answer_that_may_quote_is_left_out() -> None:
    assert read_question([*ASKED, ("user", "yes")], 8000, quotes=False).text == f"{TASK}\nyes"


@pytest.mark.parametrize(
    ("most", "text"),
    [
        (len(TOGETHER) + 3, f"{TOGETHER}yes"),
        (len(TOGETHER), f"{TASK}\n{OFFER[3:]}\nyes"),
        (len(TASK) + 6, f"{TASK}\n?\nyes"),
        (len(TASK) + 5, f"{TASK}\nyes"),
        (10, f"{TASK[:6]}\nyes"),
        (4, "yes"),
        (1, "yes"),
    ],
)
def test_the_answer_is_cut_first_and_then_the_task(most: int, text: str) -> None:
    assert read_question([*ASKED, ("user", "yes")], most).text == text


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant", "system", "tool"]),
        st.sampled_from(["", " ", "yes", "go on", "继续", TASK, OFFER, REMINDER]) | st.text(max_size=100),
    ),
    max_size=8,
)


@given(TURNS, st.integers(1, 200))
def test_a_question_is_a_message_or_within_the_limit(turns: list[tuple[str, str]], most: int) -> None:
    asked = read_question(turns, most)
    assert asked == read_question(turns, most)
    if asked.at == len(turns):
        assert not any(role == "user" and text.strip() for role, text in turns)
        return
    role, text = turns[asked.at]
    alone = read_person(text) if read_person(text).strip() else text
    assert role == "user"
    assert asked.text == alone or (asked.text.endswith(f"\n{alone.strip()}") and len(asked.text) <= most)


def test_thousands_of_short_messages_are_read_in_linear_time() -> None:
    turns = [("user", "yes"), ("assistant", "Continue?")] * 50_000
    assert read_question([*turns, ("user", "yes")], 8000).text == "yes\nContinue?\nyes"


CONVERSATION = [{"role": role, "content": text} for role, text in (*ASKED, ("user", "yes"))]


@pytest.mark.parametrize(
    ("door", "body"),
    [
        ("/v1/chat/completions", {"messages": CONVERSATION}),
        ("/v1/messages", {"messages": CONVERSATION, "max_tokens": 9}),
        ("/v1/responses", {"input": CONVERSATION}),
    ],
)
async def test_every_door_reads_a_few_words_with_the_task(
    service: Service, door: str, body: dict[str, Any]
) -> None:
    response = await service.client.post(door, json={"model": "arm/bm25", **body})
    assert response.status_code == 200, response.text
    decision_id = response.json()["agent"]["decision_id"]
    logged = (await service.client.get(f"/v1/decisions/{decision_id}")).json()["question"]
    assert service.arms.calls[-1][1].text == logged == f"{TOGETHER}yes"
    assert service.generator.last_prompt.messages[-1]["content"] == "yes"  # type: ignore[attr-defined]


async def test_a_long_task_before_a_few_words_is_not_refused(tmp_path: Path) -> None:
    long = CONVERSATION[0] | {"content": TASK * 50}
    body = {"model": "arm/bm25", "messages": [long, *CONVERSATION[1:]]}
    async with Service(tmp_path, limits={"question_chars": 500}).running() as service:
        response = await service.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        text = service.arms.calls[-1][1].text
    assert text == f"{(TASK * 50)[:496]}\nyes"
