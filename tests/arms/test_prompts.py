"""The words that ask for an answer."""

from hypothesis import given
from hypothesis import strategies as st

from arms.base import Passage
from arms.generator import Message
from arms.prompts import answer_prompt, cut

CONVERSATION: list[Message] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello, what is it?"},
    {"role": "user", "content": "Which function merges sorted inputs?"},
]
MERGE = Passage("1", "heapq.merge", "Merge multiple sorted inputs into one.")
INSORT = Passage("2", "bisect.insort", "Insert an item in sorted order.")


def test_the_conversation_follows_one_system_message_unchanged() -> None:
    system, *rest = answer_prompt(CONVERSATION, [MERGE])
    assert system["role"] == "system"
    assert rest == CONVERSATION


def test_passages_are_numbered_in_their_order_with_title_and_text() -> None:
    system = answer_prompt(CONVERSATION, [MERGE, INSORT])[0]["content"]
    assert "[1] heapq.merge\nMerge multiple sorted inputs into one.\n\n[2] bisect.insort\nInsert" in system


def test_a_system_message_of_the_client_is_kept_and_stays_the_only_one() -> None:
    given_system: Message = {"role": "system", "content": "Answer in French."}
    prompt = answer_prompt([given_system, *CONVERSATION], [MERGE])
    assert [message["role"] for message in prompt].count("system") == 1
    assert prompt[0]["content"].startswith("Answer in French.\n\n")
    assert MERGE.text in prompt[0]["content"]


def test_without_passages_the_prompt_does_not_speak_of_any() -> None:
    assert "passage" not in answer_prompt(CONVERSATION, [])[0]["content"]


def test_a_passage_over_the_budget_is_cut_and_the_next_left_out() -> None:
    system = answer_prompt(CONVERSATION, [MERGE, INSORT], word_budget=4)[0]["content"]
    assert "[1] heapq.merge\nMerge multiple sorted\n" in system
    assert "bisect" not in system


def test_braces_in_a_passage_are_only_text() -> None:
    assert "{passages} {0}" in answer_prompt(CONVERSATION, [Passage("1", "", "{passages} {0}")])[0]["content"]


@given(st.text(max_size=60), st.integers(0, 12))
def test_a_cut_text_is_a_prefix_with_the_first_words(text: str, n_words: int) -> None:
    assert text.startswith(cut(text, n_words))
    assert cut(text, n_words).split() == text.split()[:n_words]
