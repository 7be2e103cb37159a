"""One answer of a language model to one prompt: asked for in the same way wherever answers are compared.

What an ensemble has its members answer, and what a labelling job has every arm answer, come through
here: a router that learned from the one meets the same in the other.
"""

from dataclasses import dataclass

from arms.llm.base import Chunk, Message, Prompt, Write
from arms.llm.prompts import Form, Writing, answer_of, fallback_prompt


@dataclass(frozen=True, slots=True)
class Answer:
    """What a language model answered.

    Attributes:
        text: The answer alone.
        tagged: Whether it stood in the tag that was asked for; None where none was.
        calls: The last chunk of each text that the model wrote.
    """

    text: str
    tagged: bool | None
    calls: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        """Tokens that were read and written."""
        return sum(call.prompt_tokens + call.completion_tokens for call in self.calls)


def answer_to(messages: tuple[Message, ...], writing: Writing, write: Write) -> Answer:
    """Have a prompt answered; once more, for the answer alone, where the tag is missing.

    Args:
        messages: The prompt, from `writing`.
        writing: How the answer is written.
        write: Asks the language model.

    Raises:
        GeneratorError: The language model failed.
    """
    text, last = write(Prompt(messages, writing.max_tokens))
    said = answer_of(text, writing.form)
    if writing.form is not Form.REASONING:
        return Answer(said.text.strip(), None, (last,))
    if said.tagged:
        return Answer(said.text, True, (last,))
    text, again = write(Prompt(fallback_prompt(messages, text), writing.max_tokens))
    return Answer(answer_of(text, writing.form).text, False, (last, again))
