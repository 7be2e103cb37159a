"""Privacy settings: how long texts are kept, and what is redacted before they are written.

A pattern of `privacy.redact` runs on every text of a request, so patterns with excessive backtracking, such
as `(a+)+$`, whose time doubles with each character, are refused. A pattern is tried on texts built from its
parts: what precedes a repetition, its body many times, and an end that does not match. These texts grow by an
eighth until one takes `LIMIT_S`, or has `LENGTH` characters. Linear patterns then take microseconds and
quadratic ones milliseconds; worse ones exceed the limit while the text is short.
"""

import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from armwise.number import Number

LENGTH = 1000
"""Characters of the longest text."""

LIMIT_S = 0.25
"""CPU seconds that a single text may take."""

ANY = ("a", "A", "1", " ", ".", "-", "@", "_")
"""Characters that are repeated for any pattern."""

MOST = 40
"""Most texts that are tried."""

END = "\0!"

_CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}


class Redaction(BaseModel):
    """A pattern, and the text that replaces each match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, description="Name that messages use for the pattern.")
    pattern: re.Pattern[str] = Field(
        description=(
            "Regular expression in the syntax of Python's `re`. Patterns that are slow on a text of 1,000 "
            "characters are refused."
        ),
    )
    replacement: str = Field(
        default="[redacted]",
        max_length=100,
        description="Text that replaces each match. References to groups are not expanded.",
    )

    @field_validator("pattern")
    @classmethod
    def _takes_something(cls, pattern: re.Pattern[str]) -> re.Pattern[str]:
        if pattern.search("") is not None:
            raise ValueError(f"{pattern.pattern!r} matches the empty text: everything would be redacted")
        if repetition := slow_text(pattern):
            piece, times = repetition
            raise ValueError(
                f"{pattern.pattern!r} takes too long for {piece!r} repeated {times} times: let no repetition "
                r"contain or follow another one of the same characters, and bound them, as in \w{1,64}"
            )
        return pattern


class Privacy(BaseModel):
    """Which texts the log keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_texts_days: Number | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description=(
            "Days after which Armwise erases questions, answers, passages and comments. Features, "
            "probabilities, costs and feedback values stay."
        ),
    )
    redact: tuple[Redaction, ...] = Field(
        default=(),
        max_length=100,
        description=(
            "Patterns to replace in questions, contexts, answers, comments and tags before anything is "
            "computed or stored. Armwise applies them in the listed order."
        ),
    )
    hook: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description=(
            "Function that runs after `redact`, written as `module:function`. It receives a text and returns "
            "its replacement. If it raises an exception, the request fails and nothing is stored."
        ),
    )

    @model_validator(mode="after")
    def _settles(self) -> "Privacy":
        for rule in self.redact:
            for other in self.redact:
                if other.pattern.search(rule.replacement):
                    raise ValueError(
                        f"the replacement {rule.replacement!r} of {rule.name!r} matches the pattern of "
                        f"{other.name!r}: it would be redacted again"
                    )
        return self

    def redactor(self) -> Callable[[str], str] | None:
        r"""Return the function that redacts every text; None if there is nothing to redact.

        Raises:
            ValueError: The hook cannot be imported, or is not a function.

        >>> ada = Redaction(name="mail", pattern=r"[\w.]+@[\w.]+", replacement="[mail]")
        >>> Privacy(redact=(ada,)).redactor()("write to ada@example.com")
        'write to [mail]'
        """
        hook = None
        if self.hook is not None:
            module, _, name = self.hook.partition(":")
            try:
                hook = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                raise ValueError(f"privacy.hook {self.hook!r} cannot be imported: {error}") from None
            if not callable(hook):
                raise ValueError(f"privacy.hook {self.hook!r} is not a function")
        if not self.redact and hook is None:
            return None
        steps = [(rule.pattern, rule.replacement) for rule in self.redact]
        return partial(_redact, steps, hook)


def _redact(steps: list[tuple[re.Pattern[str], str]], hook: Callable[[str], str] | None, text: str) -> str:
    for pattern, replacement in steps:
        text = pattern.sub(lambda _, literal=replacement: literal, text)  # type: ignore[misc]
    if hook is not None:
        text = hook(text)
        if not isinstance(text, str):
            raise TypeError(f"privacy.hook returned {type(text).__name__}, and a text was expected")
    return text


# -- patterns that some text makes slow ----------------------------------------------------------


@lru_cache(maxsize=256)
def slow_text(pattern: re.Pattern[str]) -> tuple[str, int] | None:
    """Return a text whose repetition makes a pattern slow, and the number of repetitions, if one was found.

    >>> slow_text(re.compile(r"[a-z]{1,64}@[a-z]{1,64}")), (slow_text(re.compile("(b+)+$")) or "")[0]
    (None, 'b')
    """
    tried = dict.fromkeys(_find_repeated_texts(pattern))
    for before, piece in list(tried)[:MOST]:
        times = 8
        while len(piece) * times <= LENGTH:
            text = before + piece * times + END
            began = time.thread_time()
            pattern.search(text)
            if time.thread_time() - began > LIMIT_S:
                return piece, times
            times += max(1, times // 8)
    return None


def _find_repeated_texts(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield texts to repeat, each after what the pattern expects before it."""
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    repetitions = list(_repetitions(list(parsed), ""))
    yield from repetitions
    for before in dict.fromkeys(before for before, _ in repetitions):
        yield from ((before, text) for text in ANY)


def _repetitions(nodes: list[Any], before: str) -> Iterator[tuple[str, str]]:
    for kind, value in nodes:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                yield before, _sample(list(value[2])) or "a"
                yield from _repetitions(list(value[2]), before)
            case "SUBPATTERN":
                yield from _repetitions(list(value[3]), before)
            case "BRANCH":
                for branch in value[1]:
                    yield from _repetitions(list(branch), before)
            case "ATOMIC_GROUP":
                yield from _repetitions(list(value), before)
            case "ASSERT" | "ASSERT_NOT":
                yield from _repetitions(list(value[1]), before)
        before += _sample([(kind, value)])


def _sample(nodes: list[Any]) -> str:
    """Return a short text that nodes of a parsed pattern match, mostly."""
    return "".join(_write_sample(str(kind), value) for kind, value in nodes)


def _write_sample(kind: str, value: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "IN":
            return _sample(value[:1])
        case "RANGE":
            return chr(value[0])
        case "CATEGORY":
            return _CATEGORIES.get(str(value), "a")
        case "ANY" | "NOT_LITERAL" | "NEGATE":
            return "a"
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least: int = value[0]
            return _sample(list(value[2])) * max(1, min(least, 3))
        case "SUBPATTERN":
            return _sample(list(value[3]))
        case "BRANCH":
            return _sample(list(value[1][0]))
        case "ATOMIC_GROUP":
            return _sample(list(value))
    return ""
