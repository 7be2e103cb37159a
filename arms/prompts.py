"""The words that ask a language model for an answer, from passages or without.

Few and plain, because small models lose the passages behind long
instructions. The passages go into the system message, so that the
conversation itself stays as the client wrote it.
"""

from collections.abc import Iterator, Sequence

from arms.base import Passage
from arms.generator import Message

WITH_PASSAGES = """\
You are a helpful assistant. Use these passages to answer in one short sentence.

{passages}

If the passages do not hold the answer, say so."""

WITHOUT_PASSAGES = "You are a helpful assistant. Answer in one short sentence."


def answer_prompt(
    conversation: Sequence[Message], passages: Sequence[Passage], *, word_budget: int = 600
) -> tuple[Message, ...]:
    """Ask for an answer to the last message of a conversation.

    System messages of the conversation are kept, in front of the passages and
    in the same message: many models take only one.

    Args:
        conversation: What was said so far, oldest first.
        passages: What the arm found, best first; empty when nothing was looked up.
        word_budget: Most words of passages, titles included; the last one that
            fits is cut, the others are left out.

    >>> answer_prompt([{"role": "user", "content": "2 + 2?"}], [])[0]["content"]
    'You are a helpful assistant. Answer in one short sentence.'
    """
    shown = "\n\n".join(numbered(passages, word_budget))
    own = WITH_PASSAGES.format(passages=shown) if shown else WITHOUT_PASSAGES
    given = [message["content"] for message in conversation if message["role"] == "system"]
    system: Message = {"role": "system", "content": "\n\n".join([*given, own])}
    return (system, *(message for message in conversation if message["role"] != "system"))


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


__all__ = ["WITHOUT_PASSAGES", "WITH_PASSAGES", "answer_prompt", "cut", "numbered"]
