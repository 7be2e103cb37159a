"""Ask a language model for text of a form, and ask again, saying what was wrong, until it can be read.

Small models put words around their JSON, fence it, or leave a comma behind the last
item. What can be read in spite of that is read; what cannot is asked for again, and
counted.

    ArmError
    `-- UnreadableError  the model wrote nothing that can be read, however often it was asked
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from arms.base import ArmError
from arms.llm.base import Message, Prompt, Write

T = TypeVar("T")

M = TypeVar("M", bound=BaseModel)

QUOTED = 200
"""Letters of an unreadable text that an error quotes."""


class UnreadableError(ArmError):
    """The model wrote nothing that can be read, however often it was asked.

    The message holds what it wrote last, and what is wrong with that.

    Attributes:
        summary: How the message begins.
        tokens: Tokens that were spent in vain.
        malformed: Texts that could not be read.
    """

    summary: ClassVar[str] = "the language model wrote nothing that can be read"

    def __init__(self, message: str, tokens: int = 0, malformed: int = 0) -> None:
        super().__init__(message)
        self.tokens = tokens
        self.malformed = malformed


class StructuredCaller:
    """Asks a language model all that one piece of work needs, and counts what that takes.

    For one thread. Make one for each piece of work, as the counts are.

    Args:
        write: Asks the language model.
        failure: What to raise where it writes nothing that can be read.
        retries: How often to ask again.

    Attributes:
        tokens: Tokens read and written so far, further attempts included.
        malformed: Texts so far that could not be read.
    """

    def __init__(self, write: Write, failure: type[UnreadableError], *, retries: int = 1) -> None:
        self.tokens = 0
        self.malformed = 0
        self._write = write
        self._failure = failure
        self._retries = retries

    def ask(self, system: str, case: str, form: str, read: Callable[[str], T], *, max_tokens: int) -> T:
        """Return what `read` makes of the text.

        Args:
            system: What the model shall do.
            case: What it shall do it with.
            form: How to write the answer; said with the case, and again after a text that is of no use.
            read: Reads the text. Raises ValueError with the text and what is wrong with it.
            max_tokens: Most tokens of a text.

        Raises:
            UnreadableError: Every text was refused; of the type that this asker was made with.
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
            # the same words would get the same text again: the model takes its likeliest
            messages += (
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"{wrong}. {form}"},
            )
        raise self._failure(
            f"{self._failure.summary} in {1 + self._retries} attempts, at last {wrong}",
            self.tokens,
            self.malformed,
        )


def quoted(text: str) -> str:
    """Return a text in quotes, cut to what an error can hold."""
    return repr(text[:QUOTED])


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)

_SPARE_COMMA = re.compile(r",(?=\s*[}\]])")


def json_values(text: str, opening: str) -> Iterator[Any]:
    """Yield the JSON values that begin with `opening` in a text, outer ones before what they hold.

    Where commas stand before closing brackets, what is found without them follows.

    Args:
        text: What a model wrote.
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
            except RecursionError:  # a model that is stuck opens brackets by the thousand
                return
            except ValueError:
                pass
            else:
                yield value
            at = source.find(opening, at + 1)


def read_object(model: type[M], text: str) -> M:
    """Return the first JSON object in a text that is a valid `model`.

    Raises:
        ValueError: There is none; says what is wrong with the first object.
    """
    wrong = "no complete JSON object"
    for value in json_values(text, "{"):
        try:
            return model.model_validate(value)
        except ValidationError as error:
            if wrong.startswith("no"):
                details = error.errors(include_url=False)
                wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in details)
    raise ValueError(f"{quoted(text)} is of no use: {wrong}")
