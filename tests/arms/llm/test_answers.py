"""Answers that are compared, and the pipelines that write them."""

from collections.abc import Iterator

from armwise.arms.llm import Chunk, Prompt
from armwise.arms.llm.base import Message
from armwise.arms.llm.prompts import Form, ModelAnswer, Writing, answer_to
from armwise.arms.llm.writing import PipelineGrid

ASKED: tuple[Message, ...] = ({"role": "user", "content": "Where is the sea?"},)


def answered(form: Form, *texts: str) -> tuple[ModelAnswer, list[Prompt]]:
    """Return an answer whose texts a model writes one after the other, and what it was asked."""
    left: Iterator[str] = iter(texts)
    prompts: list[Prompt] = []

    def write(prompt: Prompt) -> tuple[str, Chunk]:
        prompts.append(prompt)
        n = len(prompts)
        return next(left), Chunk(finish_reason="stop", prompt_tokens=100 * n, completion_tokens=n)

    return answer_to(ASKED, Writing(form, 200, 32), write), prompts


def test_an_answer_without_its_tag_is_asked_for_again() -> None:
    found, prompts = answered(Form.REASONING, "By the coast, I think.", "<answer>At the coast</answer>")
    assert (found.text, found.tagged) == ("At the coast", False)
    assert found.tokens == 101 + 202
    assert [len(prompt.messages) for prompt in prompts] == [1, 3]


def test_other_answers_are_asked_for_once() -> None:
    found, prompts = answered(Form.REASONING, "So: <answer>At the coast</answer>")
    assert (found.text, found.tagged, found.tokens, len(prompts)) == ("At the coast", True, 101, 1)
    found, prompts = answered(Form.SHORT, " At the coast ")
    assert (found.text, found.tagged, found.tokens, len(prompts)) == ("At the coast", None, 101, 1)


def test_retrieving_nothing_has_one_pipeline() -> None:
    grid = PipelineGrid(retrieval=("none", "bm25"), passages=(2, 4))
    assert [name for name, *_ in grid.members(["none"])] == [
        "default",
        "bm25-default-p2",
        "bm25-default-p4",
    ]
