"""Structured output of a language model, with retries that name the error.

Small models put words around their JSON, fence it, or leave a comma behind the last
item. The readers accept that; other text is prompted for again, and counted. What a model
thinks before it writes is not read, and it gets more room where it thought too long.

    ArmError
    `-- UnreadableAnswerError  no attempt gave text that can be read
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from armwise.arms.base import ArmError
from armwise.arms.llm.base import Chunk, Message, Prompt, Write
from armwise.arms.llm.pricing import MESSAGE_TOKENS, Bound, most_tokens

logger = logging.getLogger(__name__)

T = TypeVar("T")

M = TypeVar("M", bound=BaseModel)

QUOTED = 200
"""Characters of an unreadable text that an error quotes."""

REASONING_TOKENS = 2000
"""Room for what a model thinks before it writes a short text."""

MOST_TOKENS = 8192
"""Largest limit of a text that is prompted for again since it ended at its limit."""

CHARACTERS_A_TOKEN = 4
"""Characters of an unreadable text that the model is shown again, for each token of its form."""


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
        reasoning_tokens: Room for thoughts before each text; 0 where it is not known that the model thinks.

    Attributes:
        tokens: Tokens read and written so far, in all attempts.
        malformed: Texts so far that could not be read.
    """

    def __init__(
        self,
        write: Write,
        failure: type[UnreadableAnswerError],
        *,
        retries: int = 1,
        reasoning_tokens: int = 0,
    ) -> None:
        self.tokens = 0
        self.malformed = 0
        self._write = write
        self._failure = failure
        self._retries = retries
        self._reasoning_tokens = reasoning_tokens

    def ask(self, system: str, case: str, form: str, read: Callable[[str], T], *, max_tokens: int) -> T:
        """Return the parsed text.

        A text that ended at its limit and cannot be read is prompted for again, once, with a limit of four
        times as many tokens, or more if the model only thought. That is no attempt of `retries`. The log
        says once for each reason why nothing could be read, without the text.

        Args:
            system: The task.
            case: The input of the task.
            form: The form of the output; repeated after a text that cannot be read.
            read: Parses a text. Raises ValueError with the text and what is wrong with it.
            max_tokens: Most tokens of a text without the thoughts before it.

        Raises:
            UnreadableAnswerError: No attempt could be read; of type `failure`.
            GeneratorError: The language model failed.
        """
        messages: tuple[Message, ...] = (
            {"role": "system", "content": system},
            {"role": "user", "content": f"{case}\n\n{form}"},
        )
        room, widened, left, before = (
            max_tokens + self._reasoning_tokens,
            False,
            self._retries,
            self.malformed,
        )
        while True:
            written, last = self._write(Prompt(messages, room))
            self.tokens += last.prompt_tokens + last.completion_tokens
            text = without_thoughts(written)
            try:
                return read(text)
            except ValueError as error:
                wrong = str(error)
            self.malformed += 1
            reason = _describe_end(text, last, room)
            if reason and not widened:
                widened, room = True, _widen(room, thought=not text.strip())
                continue
            if not left:
                break
            left -= 1
            # the same prompt would give the same text: the model takes the likeliest tokens
            messages += (
                {"role": "assistant", "content": text[: CHARACTERS_A_TOKEN * max_tokens]},
                {"role": "user", "content": f"{wrong}. {form}"},
            )
        _warn(self._failure.summary, reason or "what it wrote is not in the requested form")
        why = f"{reason}: {wrong}" if reason else wrong
        n = self.malformed - before
        attempts = "1 attempt" if n == 1 else f"{n} attempts"
        raise self._failure(
            f"{self._failure.summary} in {attempts}; in the last, {why}",
            self.tokens,
            self.malformed,
        )


def _widen(room: int, *, thought: bool) -> int:
    """Return the limit of a text after one that ended at its limit, in tokens.

    >>> _widen(48, thought=False), _widen(48, thought=True), _widen(2048, thought=True)
    (192, 2048, 8192)
    """
    return max(room, min(MOST_TOKENS, max(4 * room, room + REASONING_TOKENS if thought else 0)))


def _describe_end(text: str, last: Chunk, room: int) -> str:
    """Return why a text may have no verdict, if it ended at its limit; else an empty text."""
    if last.finish_reason != "length":
        return ""
    return f"it {'' if text.strip() else 'reasoned and '}ended at its limit of {room} tokens"


@cache
def _warn(summary: str, reason: str) -> None:
    """Say once in the log of this process that nothing could be read, and why."""
    logger.warning("%s: %s. Unreadable answers count as failed; this warning appears once", summary, reason)


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
    # the first text may end at its limit, and all others at a wider one
    first, wider = (
        Bound.from_call(system + form, room, words=words, read=read)
        for room in (max_tokens, _widen(max_tokens, thought=True))
    )
    # each attempt reads the texts before it, and what was wrong with them
    wrong = 2 * max_tokens + COMPLAINT_TOKENS + most_tokens(form) + 2 * MESSAGE_TOKENS
    return first + wider * (1 + retries) + Bound(read=wrong) * (retries * (1 + retries) // 2)


def quote_start(text: str) -> str:
    """Return the start of a text in quotes, for an error."""
    return repr(text[:QUOTED])


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_number)

_SPARE_COMMA = re.compile(r",(?=\s*[}\]])")


_THOUGHTS = re.compile(r"<think(?:ing)?\s*>.*?(?:</think(?:ing)?\s*>|\Z)", re.DOTALL | re.IGNORECASE)

_THOUGHTS_END = re.compile(r"</think(?:ing)?\s*>", re.IGNORECASE)


def without_thoughts(text: str) -> str:
    """Return what a model wrote outside of its thoughts.

    Thoughts without an end go on to the end of the text. Those without a beginning start with the text, as
    some chat templates write the first tag. `quotation.enclose` disarms these tags in texts of others.

    >>> without_thoughts("<think>2, or rather</think>1"), without_thoughts("2, or rather</think>1")
    ('1', '1')
    >>> without_thoughts("1 <thinking>or 2"), without_thoughts("a <b>thought</b>")
    ('1 ', 'a <b>thought</b>')
    """
    return _THOUGHTS_END.split(_THOUGHTS.sub("", text))[-1]


def json_values(text: str, opening: str) -> Iterator[Any]:
    """Yield the JSON values that begin with `opening` in a text, outer ones before inner ones.

    Those of the text without trailing commas follow. Thoughts are left out.

    Args:
        text: Text of a model.
        opening: `{` for objects, `[` for lists.

    >>> list(json_values('Sure: {"a": {"b": 1}} and {c}', "{"))
    [{'a': {'b': 1}}, {'b': 1}]
    >>> list(json_values('["a", "b",]', "["))
    [['a', 'b']]
    """
    text = without_thoughts(text)
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
        raise ValueError(
            f"{quote_start(text)} has several different values: write the JSON once, and nothing else"
        )
    return values[0]


def read_whole(value: object) -> object:
    """Return a whole number that a model wrote as `1.0` or `"1"` as an integer; anything else as it is.

    >>> [read_whole(value) for value in (1, 1.0, "1", " 1.0 ", 1.5, "one", True, float("inf"))]
    [1, 1, 1, 1, 1.5, 'one', True, inf]
    """
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,9}(\.0{1,9})?", value.strip()):
        value = float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


WholeNumber = Annotated[int, BeforeValidator(read_whole)]
"""A whole number that a model may write as `1.0` or `"1"`."""


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
    raise ValueError(f"{quote_start(text)} cannot be used: {wrong}")
