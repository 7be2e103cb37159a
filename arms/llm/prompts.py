"""The words that ask a language model for an answer, and where the answer stands in what it wrote.

Few and plain, because small models lose the passages behind long
instructions. The passages go into the system message, so that the
conversation itself stays as the client wrote it.

    direct     one short sentence
    short      a few words, to be compared with a right answer word for word
    reasoning  some sentences of thought, then the answer inside a tag

Each has a twin for the case that nothing was looked up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from arms.base import Passage
from arms.llm.base import Message


class Form(StrEnum):
    """What an answer shall look like."""

    DIRECT = "direct"
    SHORT = "short"
    REASONING = "reasoning"


WITH_PASSAGES = {
    Form.DIRECT: """\
You are a helpful assistant. Use these passages to answer in one short sentence.

{passages}

If the passages do not hold the answer, say so.""",
    Form.SHORT: """\
You are a helpful assistant. Use these passages to answer.

{passages}

Write only the answer: a name, a number or a few words, never a sentence.""",
    Form.REASONING: """\
You are a helpful assistant. Use these passages to answer.

{passages}

First reason in a few sentences: which passages help, and what follows from them? \
Then end with the answer alone, in a few words: <answer>the answer</answer>""",
}

WITHOUT_PASSAGES = {
    Form.DIRECT: "You are a helpful assistant. Answer in one short sentence.",
    Form.SHORT: (
        "You are a helpful assistant. "
        "Write only the answer: a name, a number or a few words, never a sentence."
    ),
    Form.REASONING: (
        "You are a helpful assistant. First reason in a few sentences: what is asked, and what do you know "
        "of it? Then end with the answer alone, in a few words: <answer>the answer</answer>"
    ),
}

ANSWER_ALONE = "Now write only the answer to my question, in a few words, without the reasons."

_OPENED = re.compile(r"<\s*answer\s*>", re.IGNORECASE)

# or the start of a closing tag, where the text was cut off
_CLOSED = re.compile(r"<\s*/\s*answer\s*>|<\s*/[^>]*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Writing:
    """How answers are written.

    Attributes:
        form: What an answer shall look like.
        word_budget: Most words of passages that it is written from.
        max_tokens: Most tokens of a text that the model writes.
    """

    form: Form
    word_budget: int
    max_tokens: int

    @property
    def facts(self) -> dict[str, str]:
        """What answers follow from, to be kept beside them.

        >>> Writing(Form.SHORT, 400, 32).facts
        {'form': 'short', 'word budget': '400', 'max tokens': '32'}
        """
        return {
            "form": self.form.value,
            "word budget": str(self.word_budget),
            "max tokens": str(self.max_tokens),
        }

    @property
    def words(self) -> tuple[str, ...]:
        """The words that ask for such an answer."""
        return WITH_PASSAGES[self.form], WITHOUT_PASSAGES[self.form], ANSWER_ALONE

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> "Writing":
        """Return the way that facts tell of. Raises KeyError where they tell of none.

        >>> Writing.of({"form": "short", "word budget": "400", "max tokens": "32", "seed": "0"})
        Writing(form=<Form.SHORT: 'short'>, word_budget=400, max_tokens=32)
        """
        return cls(Form(facts["form"]), int(facts["word budget"]), int(facts["max tokens"]))

    def prompt(self, question: str, passages: Sequence[Passage]) -> tuple[Message, ...]:
        """Ask a question that stands alone."""
        asked: list[Message] = [{"role": "user", "content": question}]
        return answer_prompt(asked, passages, word_budget=self.word_budget, form=self.form)


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer in what a model wrote.

    Attributes:
        text: The answer; all that was written where it could not be told apart.
        tagged: It stood inside a tag. Never so in a form that asks for none.
    """

    text: str
    tagged: bool


def answer_prompt(
    conversation: Sequence[Message],
    passages: Sequence[Passage],
    *,
    word_budget: int = 600,
    form: Form = Form.DIRECT,
) -> tuple[Message, ...]:
    """Ask for an answer to the last message of a conversation.

    System messages of the conversation are kept, in front of the passages and
    in the same message: many models take only one.

    Args:
        conversation: What was said so far, oldest first.
        passages: What the arm found, best first; empty when nothing was looked up.
        word_budget: Most words of passages, titles included; the last one that
            fits is cut, the others are left out.
        form: What the answer shall look like.

    >>> answer_prompt([{"role": "user", "content": "2 + 2?"}], [])[0]["content"]
    'You are a helpful assistant. Answer in one short sentence.'
    """
    shown = "\n\n".join(numbered(passages, word_budget))
    own = WITH_PASSAGES[form].format(passages=shown) if shown else WITHOUT_PASSAGES[form]
    given = [message["content"] for message in conversation if message["role"] == "system"]
    system: Message = {"role": "system", "content": "\n\n".join([*given, own])}
    return (system, *(message for message in conversation if message["role"] != "system"))


def prompt_name(form: Form, passages: Sequence[Passage], *, word_budget: int = 600) -> str:
    """Return what the prompt is called that `answer_prompt` makes of these, to be kept with the answer.

    >>> prompt_name(Form.REASONING, [Passage("1", "", "Red.")]), prompt_name(Form.SHORT, [])
    ('reasoning', 'short_without')
    """
    return form.value if any(numbered(passages, word_budget)) else f"{form}_without"


def answer_of(text: str, form: Form) -> Answered:
    """Find the answer in what a model wrote.

    Where reasons were asked for, it is what the last complete tag holds, or else all that
    follows the last tag that was opened. Tags that hold nothing do not count.

    >>> answer_of("It is in Austria, so <answer>Vienna</answer>", Form.REASONING)
    Answered(text='Vienna', tagged=True)
    >>> answer_of("Vienna, I think.", Form.REASONING)
    Answered(text='Vienna, I think.', tagged=False)
    """
    if form is not Form.REASONING:
        return Answered(text, tagged=False)
    opened = [_CLOSED.split(part, maxsplit=1) for part in _OPENED.split(text)[1:]]
    held = [part for part in opened if part[0].strip()]
    if not held:
        return Answered(text.strip(), tagged=False)
    closed = [part for part in held if len(part) > 1]
    return Answered((closed or held)[-1][0].strip(), tagged=True)


def fallback_prompt(asked: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Ask once more, for the answer alone, where the reasons came without a tag.

    Args:
        asked: The prompt that got no tag, from `answer_prompt`.
        text: What the model wrote.

    Source: LTRR, Kim and Diaz 2025, arXiv:2506.13743, appendix B: a second prompt after a text
    without a tag. Theirs starts afresh; here the model keeps its reasons before its eyes.
    """
    return (*asked, {"role": "assistant", "content": text}, {"role": "user", "content": ANSWER_ALONE})


def numbered(passages: Sequence[Passage], word_budget: int) -> Iterator[str]:
    """Yield the passages as a model is shown them, until the words are used up."""
    left = word_budget
    for number, passage in enumerate(passages, start=1):
        left -= len(passage.title.split())
        text = cut(passage.text, left)
        if not text:
            return
        yield f"[{number}] {passage.title}".rstrip() + f"\n{text}"
        left -= len(text.split())


def cut(text: str, n_words: int) -> str:
    """Keep the first `n_words` words of a text, with the space between them as it was.

    >>> cut("one  two three", 2)
    'one  two'
    >>> cut("one two", 0)
    ''
    """
    if n_words <= 0:
        return ""
    rest = text.split(maxsplit=n_words)[n_words:]
    return text[: len(text) - len(rest[0])].rstrip() if rest else text
