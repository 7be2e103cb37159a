"""Privacy settings: how long texts are kept, and what is redacted before they are written.

A pattern of `privacy.redact` runs on every text of a request, and one with excessive backtracking, such as
`(a+)+$`, doubles its time with each character. So `regex` runs it, which most such patterns do not slow down
and which stops after `LIMIT_S`; a pattern that is slow on its own characters is refused at the start.
"""

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import regex
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from armwise.number import Number

LIMIT_S = 0.25
"""Seconds that a pattern may take for a text; then the request fails, and nothing is stored."""

LENGTH = 1000
"""Characters of the texts that a pattern is tried on."""


class Redaction(BaseModel):
    """A pattern, and the text that replaces each match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, description="Name that messages use for the pattern.")
    pattern: re.Pattern[str] = Field(
        description=(
            "Regular expression in the syntax of Python's `re`. If a pattern takes more than 0.25 seconds "
            "for a text, the request fails and nothing is stored."
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
        for character in dict.fromkeys(f"{pattern.pattern}aA1 .-@_"):
            try:
                replace(pattern, "", character * LENGTH + "\0!")
            except TimeoutError:
                raise ValueError(
                    f"{pattern.pattern!r} takes too long for {character!r} repeated {LENGTH} times: let no "
                    r"repetition contain or follow another one of the same characters, and bound them, as in "
                    r"\w{1,64}"
                ) from None
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
        return partial(_redact, self.redact, hook)


def replace(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Replace every match of a pattern in a text. Raises TimeoutError after `LIMIT_S`."""
    replaced: str = regex.sub(pattern.pattern, lambda _: replacement, text, timeout=LIMIT_S)
    return replaced


def _redact(rules: tuple[Redaction, ...], hook: Callable[[str], Any] | None, text: str) -> str:
    for rule in rules:
        text = replace(rule.pattern, rule.replacement, text)
    if hook is not None:
        text = hook(text)
        if not isinstance(text, str):
            raise TypeError(f"privacy.hook returned {type(text).__name__}, and a text was expected")
    return text
