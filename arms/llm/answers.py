"""Answers that are compared: in a labelling job, and among the members of an ensemble.

Both write answers here, so that a router trained on the one fits the other.
"""

from dataclasses import dataclass

from arms.llm.base import Chunk, Message, Write
from arms.llm.pricing import MESSAGE_TOKENS, Bound, most_tokens
from arms.llm.prompts import ANSWER_ALONE, Form, Writing, answer_of, fallback_prompt


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a language model.

    Attributes:
        text: The answer alone.
        tagged: Whether it was in the tag of the prompt; None for a prompt without.
        calls: The last chunk of each text that the model wrote.
    """

    text: str
    tagged: bool | None
    calls: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)


def answer_to(messages: tuple[Message, ...], writing: Writing, write: Write) -> Answer:
    """Return the answer to a prompt of `writing`; prompt again for the answer alone if the tag is missing.

    Raises:
        GeneratorError: The language model failed.
    """
    text, last = write(writing.asked(messages))
    found = answer_of(text, writing.form)
    if writing.form is not Form.REASONING:
        return Answer(found.text.strip(), None, (last,))
    if found.tagged:
        return Answer(found.text, True, (last,))
    text, again = write(writing.asked(fallback_prompt(messages, text)))
    return Answer(answer_of(text, writing.form).text, False, (last, again))


def answer_bound(writing: Writing) -> Bound:
    """Return the most that `answer_to` has the model read and write."""
    call = Bound.of_call(" ".join(writing.words), writing.max_tokens, words=writing.word_budget)
    if writing.form is not Form.REASONING:
        return call
    again = writing.max_tokens + most_tokens(ANSWER_ALONE) + 2 * MESSAGE_TOKENS
    return call * 2 + Bound(read=again)
