"""The words that ask for an answer."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armwise.arms.base import Passage
from armwise.arms.llm import prompts
from armwise.arms.llm.base import Message
from armwise.arms.llm.prompts import (
    ANSWER_ALONE,
    Form,
    ParsedAnswer,
    answer_prompt,
    cut,
    fallback_prompt,
    parse_answer,
    passage_block,
    prompt_name,
)
from armwise.arms.tokenizer import count_words

CONVERSATION: list[Message] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello, what is it?"},
    {"role": "user", "content": "Which function merges sorted inputs?"},
]
MERGE = Passage("1", "heapq.merge", "Merge multiple sorted inputs into one.")
INSORT = Passage("2", "bisect.insort", "Insert an item in sorted order.")


@pytest.mark.parametrize("form", Form)
def test_the_conversation_follows_one_system_message_unchanged(form: Form) -> None:
    system, *rest = answer_prompt(CONVERSATION, [MERGE], form=form)
    assert system["role"] == "system"
    assert rest == CONVERSATION


@pytest.mark.parametrize("form", Form)
def test_passages_are_numbered_with_title_and_text(form: Form) -> None:
    page = Passage("2", "Annual\nReport", "Sales grew.", metadata={"page": 3})
    system = answer_prompt(CONVERSATION, [MERGE, page], form=form)[0]["content"]
    assert "[1] heapq.merge\nMerge multiple sorted inputs into one.\n\n[2] Annual Report, p. 3" in system
    assert prompt_name(form, [MERGE]) == form


def test_system_messages_of_the_client_are_kept_in_one() -> None:
    given: list[Message] = [{"role": "system", "content": text} for text in ("In French.", "In prose.")]
    system, *rest = answer_prompt([given[0], *CONVERSATION, given[1]], [MERGE])
    assert system["content"].startswith("In French.\n\nIn prose.\n\n")
    assert rest == CONVERSATION


@pytest.mark.parametrize("form", Form)
def test_without_passages_the_prompt_does_not_speak_of_any(form: Form) -> None:
    assert "passage" not in answer_prompt(CONVERSATION, [], form=form)[0]["content"]


def test_only_the_reasoning_form_asks_for_a_tag() -> None:
    for passages in ([MERGE], []):
        asks = {form: answer_prompt(CONVERSATION, passages, form=form)[0]["content"] for form in Form}
        assert [form for form in Form if "<answer>" in asks[form]] == [Form.REASONING]
        assert len(set(asks.values())) == len(Form)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(("passages", "budget"), [([Passage("1", "Blank", "")], 600), ([MERGE], 1)])
def test_passages_of_which_nothing_is_shown_are_none(
    form: Form, passages: list[Passage], budget: int
) -> None:
    asked = answer_prompt(CONVERSATION, passages, word_budget=budget, form=form)
    assert asked == answer_prompt(CONVERSATION, [], form=form)
    assert prompt_name(form, passages, word_budget=budget) == f"{form}_without"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is old. <answer>1958</answer>", "1958"),
        ("<ANSWER>\n 1958 \n</Answer> I am sure.", "1958"),
        ("< answer >1958< / answer >", "1958"),
        ("I write <answer>1957</answer>, no: <answer>1958</answer>", "1958"),
        ("<answer>1957 <answer>1958</answer>", "1958"),
        ("So <answer>1958", "1958"),
        ("So <answer>1958</ans", "1958"),
        ("<answer>1958</answer> or <answer>1957", "1958"),
        ("<answer>1958</answer> not <answer> </answer>", "1958"),
        ("<answer>a < b, <i>so</i> c</answer>", "a < b, <i>so</i> c"),
    ],
)
def test_the_answer_of_reasons_is_what_the_last_tag_holds(text: str, answer: str) -> None:
    assert parse_answer(text, Form.REASONING) == ParsedAnswer(answer, tagged=True)


@pytest.mark.parametrize("text", ["It is 1958.", "", "<answer></answer>", "answer: 1958", "1958</answer>"])
def test_reasons_without_an_answer_in_a_tag_are_all_there_is(text: str) -> None:
    assert parse_answer(f" {text}\n", Form.REASONING) == ParsedAnswer(text, tagged=False)


@pytest.mark.parametrize("form", [Form.DIRECT, Form.SHORT])
@given(text=st.text() | st.just("<answer>1958</answer>"))
def test_a_form_without_reasons_is_its_text(form: Form, text: str) -> None:
    assert parse_answer(text, form) == ParsedAnswer(text, tagged=False)


@given(st.text(max_size=40), st.text(max_size=20).filter(lambda text: "<" not in text and text.strip()))
def test_an_answer_that_is_put_into_a_tag_is_found_again(before: str, answer: str) -> None:
    assert parse_answer(f"{before}<answer>{answer}</answer>", Form.REASONING) == ParsedAnswer(
        answer.strip(), True
    )


def test_the_fallback_asks_for_the_answer_alone() -> None:
    asked = answer_prompt(CONVERSATION, [MERGE], form=Form.REASONING)
    assert fallback_prompt(asked, "It is heapq.merge.") == (
        *asked,
        {"role": "assistant", "content": "It is heapq.merge."},
        {"role": "user", "content": ANSWER_ALONE},
    )


def test_a_passage_over_the_budget_is_cut_and_the_next_left_out() -> None:
    system = answer_prompt(CONVERSATION, [MERGE, INSORT], word_budget=4)[0]["content"]
    assert "[1] heapq.merge\nMerge multiple sorted\n" in system
    assert "bisect" not in system


def test_braces_in_a_passage_are_only_text() -> None:
    assert "{passages} {0}" in answer_prompt(CONVERSATION, [Passage("1", "", "{passages} {0}")])[0]["content"]


@given(st.text(max_size=60), st.integers(0, 12))
def test_a_cut_text_is_a_prefix_with_the_first_words(text: str, n_words: int) -> None:
    kept = cut(text, n_words)
    assert text.startswith(kept)
    assert count_words(kept) <= n_words
    assert kept == text or kept == kept.rstrip()


@given(st.lists(st.sampled_from(["one", "it's", "(x)", "\n"]), max_size=8), st.integers(0, 9))
def test_a_word_of_a_budget_is_what_stands_between_blanks(parts: list[str], n_words: int) -> None:
    text = " ".join(parts)
    assert cut(text, n_words).split() == text.split()[:n_words]


@pytest.mark.parametrize(
    ("text", "n_words", "kept"),
    [
        ("\u9577\u6c5f\u662f\u6cb3\u3002", 3, "\u9577\u6c5f\u662f"),
        ("\u0e01\u0e33\u0e25\u0e31\u0e07", 2, "\u0e01\u0e33\u0e25\u0e31"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 a", 2, "\u0939\u093f\u0928\u094d\u0926\u0940"),
        ("x" * 100, 2, "x" * 32),
        ("x" * 40 + " y", 1, "x" * 40),
        ("x" * 41, 1, "x" * 16),
        ("a" + " " * 40 + "b c", 2, "a" + " " * 40 + "b"),
        ("a" + " " * 48 + "b c", 5, "a" + " " * 48 + "b"),
    ],
)
def test_a_text_without_blanks_is_cut_at_the_budget(text: str, n_words: int, kept: str) -> None:
    assert cut(text, n_words) == kept


def test_a_passage_without_blanks_stays_within_the_budget() -> None:
    shown = passage_block([Passage("1", "\u6cb3", "\u9577" * 50_000), MERGE], 100)
    assert shown.count("\u9577") == 99
    assert "[2]" not in shown
    titled = passage_block([Passage("1", "\u6cb3" * 60, "\u9577" * 50_000)], 100)
    assert titled.count("\u9577") == 40


def test_an_answer_cites_where_there_are_passages() -> None:
    asked: list[Message] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]
    river = Passage("p", "River", "It flows.")
    plain, cited, without = (
        prompts.answer_prompt(asked, found, cite=cite)[0]["content"]
        for found, cite in (([river], False), ([river], True), ([], True))
    )
    assert cited == f"{plain}\n\n{prompts.CITE}"
    assert "River" in plain
    assert without == prompts.answer_prompt(asked, [])[0]["content"]


def test_a_pipeline_writes_with_its_own_settings() -> None:
    template = prompts.Template("Mine: {passages}", "Mine, without.")
    writing = prompts.PipelineWriting(
        prompts.Form.SHORT, 4, 32, template=template, temperature=0.5, reasoning="high"
    )
    system, user = writing.prompt("Why?", [MERGE, INSORT])
    assert system["content"] == "Mine: <passages>\n[1] heapq.merge\nMerge multiple sorted\n</passages>"
    assert user == {"role": "user", "content": "Why?"}
    assert writing.prompt("Why?", [])[0]["content"] == "Mine, without."
    asked = writing.build_prompt((user,))
    assert (asked.messages, asked.max_tokens, asked.temperature) == ((user,), 32, 0.5)
    plain = prompts.PipelineWriting(prompts.Form.SHORT, 4, 32)
    assert plain.prompt("Why?", [MERGE]) == prompts.Writing(prompts.Form.SHORT, 4, 32).prompt("Why?", [MERGE])
    assert plain.build_prompt((user,)) == prompts.Writing(prompts.Form.SHORT, 4, 32).build_prompt((user,))


def test_the_bound_of_an_answer_with_reasons_is_of_two_calls() -> None:
    short, reasons = (
        prompts.answer_bound(prompts.Writing(form, 0, 10)) for form in (Form.SHORT, Form.REASONING)
    )
    assert (short.questions, short.written) == (1, 10)
    assert (reasons.questions, reasons.written) == (2, 20)
    once = prompts.Bound.from_call(" ".join(prompts.Writing(Form.REASONING, 0, 10).words), 10)
    alone = prompts.most_tokens(ANSWER_ALONE)
    assert reasons.read == 2 * once.read + 10 + alone + 16, "the text, the second question, two messages"


def test_an_effort_of_reasoning_is_an_option() -> None:
    writing = prompts.PipelineWriting(prompts.Form.SHORT, 200, 32)
    assert writing.build_prompt(()).options == {}
    assert replace(writing, reasoning="low").build_prompt(()).options == {"reasoning_effort": "low"}
