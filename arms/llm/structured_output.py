"""Structured output of a language model, with retries that name the error.

Small models put words around their JSON, fence it, or leave a comma behind the last
item. The readers accept that; other text is prompted for again, and counted.

    ArmError
    `-- UnreadableError  no attempt gave text that can be read
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from armwise.arms.base import ArmError
from armwise.arms.llm.base import Message, Prompt, Write
from armwise.arms.llm.pricing import MESSAGE_TOKENS, Bound, most_tokens

T = TypeVar("T")

M = TypeVar("M", bound=BaseModel)

QUOTED = 200
"""Characters of an unreadable text that an error quotes."""


class UnreadableAnswerError(ArmError):
    """No attempt gave text that can be read; the message quotes the last one.

    Attributes:
        summary: Start of the message.
        tokens: Tokens of all attempts.
        malformed: Number of attempts.
    """

    summary: ClassVar[str] = "the language model wrote nothing that can be read"

    def __init__(self, message: str, tokens: int = 0, malformed: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.malformed = malformed


class StructuredCaller:
    """Prompts a language model for structured output, and counts tokens; for one thread.

    Args:
        write: Prompts the language model.
        failure: Type of the error.
        retries: Further attempts.

    Attributes:
        tokens: Tokens read and written so far, in all attempts.
        malformed: Texts so far that could not be read.
    """

    def __init__(self, write: Write, failure: type[UnreadableAnswerError], *, retries: int = 1) -> None:
        self.tokens = 0
        self.malformed = 0
        self._write = write
        self._failure = failure
        self._retries = retries

    def ask(self, system: str, case: str, form: str, read: Callable[[str], T], *, max_tokens: int) -> T:
        """Return the parsed text.

        Args:
            system: The task.
            case: The input of the task.
            form: The form of the output; repeated after a text that cannot be read.
            read: Parses a text. Raises ValueError with the text and what is wrong with it.
            max_tokens: Most tokens of a text.

        Raises:
            UnreadableError: No attempt could be read; of type `failure`.
            GeneratorError: The language model failed.
        """
        messages: tuple[Message, ...] = (
            {"role": "system", "content": system},
            {"role": "user", "content": f"{case}\n\n{form}"},
        )
        wrong = ""
        for _ in range(1 + self._retries):
            text, last = self._write(Prompt(messages, max_tokens))
            self.tokens += last.prompt_tokens + last.completion_tokens
            try:
                return read(text)
            except ValueError as error:
                wrong = str(error)
            self.malformed += 1
            # the same prompt would give the same text: the model takes the likeliest tokens
            messages += (
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"{wrong}. {form}"},
            )
        raise self._failure(
            f"{self._failure.summary} in {1 + self._retries} attempts, at last {wrong}",
            self.tokens,
            self.malformed,
        )


COMPLAINT_TOKENS = 64
"""What an error adds to the text that it quotes."""


def asking_bound(system: str, form: str, max_tokens: int, *, words: int, read: int, retries: int) -> Bound:
    """Return the most that `StructuredCaller.ask` has the model read and write.

    Args:
        system: The task.
        form: The form of the output.
        max_tokens: Most tokens of a text.
        words: Most words of passages in the input of the task.
        read: Tokens of other texts there, besides the question.
        retries: Further attempts.
    """
    call = Bound.of_call(system + form, max_tokens, words=words, read=read)
    # each attempt reads the texts before it, and what was wrong with them
    wrong = 2 * max_tokens + COMPLAINT_TOKENS + most_tokens(form) + 2 * MESSAGE_TOKENS
    return call * (1 + retries) + Bound(read=wrong) * (retries * (1 + retries) // 2)


def quoted(text: str) -> str:
    """Return the start of a text in quotes, for an error."""
    return repr(text[:QUOTED])


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)

_SPARE_COMMA = re.compile(r",(?=\s*[}\]])")


def json_values(text: str, opening: str) -> Iterator[Any]:
    """Yield the JSON values that begin with `opening` in a text, outer ones before inner ones.

    Those of the text without trailing commas follow.

    Args:
        text: Text of a model.
        opening: `{` for objects, `[` for lists.

    >>> list(json_values('Sure: {"a": {"b": 1}} and {c}', "{"))
    [{'a': {'b': 1}}, {'b': 1}]
    >>> list(json_values('["a", "b",]', "["))
    [['a', 'b']]
    """
    for source in dict.fromkeys((text, _SPARE_COMMA.sub("", text))):
        at = source.find(opening)
        while at >= 0:
            try:
                value, _ = _DECODER.raw_decode(source, at)
            except RecursionError:  # a repeating model opens brackets by the thousand
                return
            except ValueError:
                pass
            else:
                yield value
            at = source.find(opening, at + 1)


def require_agreement(text: str, values: Sequence[T]) -> T:
    """Return what a model wrote, if all values that were read from its text are the same.

    Otherwise an answer could grade itself: the judge may quote it before or after its own grade.

    Args:
        text: Text of a model.
        values: What was read from it; at least one.

    Raises:
        ValueError: They are not the same.
    """
    if any(value != values[0] for value in values):
        raise ValueError(f"{quoted(text)} holds different values: write JSON once, and nothing else")
    return values[0]


def read_object(model: type[M], text: str) -> M:
    """Return the only JSON object in a text that is a valid `model`.

    Raises:
        ValueError: There is none, or there are different ones. If there is none, the message describes the
            errors of the first object.
    """
    wrong, found = "no complete JSON object", list[M]()
    for value in json_values(text, "{"):
        try:
            found.append(model.model_validate(value))
        except ValidationError as error:
            if wrong.startswith("no"):
                details = error.errors(include_url=False)
                wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details)
    if found:
        return require_agreement(text, found)
    raise ValueError(f"{quoted(text)} is of no use: {wrong}")
