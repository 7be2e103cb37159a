"""How long texts are kept, and what is taken out of them before they are written."""

import importlib
import re
from collections.abc import Callable
from functools import partial

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agent.config.redaction_patterns import slow_text


class Redaction(BaseModel):
    """One pattern, and what stands in the place of each match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, description="Says what it is about; for people.")
    pattern: re.Pattern[str] = Field(
        description="A regular expression of Python's `re`. It is run on every text; one that a text of a "
        "thousand characters makes slow is refused.",
    )
    replacement: str = Field(
        default="[redacted]", max_length=100, description="A text, without references to groups."
    )

    @field_validator("pattern")
    @classmethod
    def _takes_something(cls, pattern: re.Pattern[str]) -> re.Pattern[str]:
        if pattern.search("") is not None:
            raise ValueError(f"{pattern.pattern!r} matches the empty text: everything would be redacted")
        if found := slow_text(pattern):
            piece, times = found
            raise ValueError(
                f"{pattern.pattern!r} takes too long for {piece!r} repeated {times} times: let no repetition "
                r"contain or follow another one of the same characters, and bound them, as in \w{1,64}"
            )
        return pattern


class Privacy(BaseModel):
    """What the log keeps of texts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_texts_days: float | None = Field(
        default=None,
        gt=0,
        le=36_500,
        description="Days after which questions, answers, passages and comments are overwritten; features, "
        "probabilities, costs and values stay. Null keeps them.",
    )
    redact: tuple[Redaction, ...] = Field(
        default=(),
        max_length=100,
        description="Taken out of questions, contexts, answers, comments and tags, in this order, before a "
        "feature is made of them and before they are written.",
    )
    hook: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="A function of yours after these, `module:function`: takes a text and returns one. Where "
        "it raises, nothing is written, and the request fails.",
    )

    @model_validator(mode="after")
    def _settles(self) -> "Privacy":
        for one in self.redact:
            for other in self.redact:
                if other.pattern.search(one.replacement):
                    raise ValueError(
                        f"the replacement {one.replacement!r} of {one.name!r} matches the pattern of "
                        f"{other.name!r}: it would be redacted again"
                    )
        return self

    def redactor(self) -> Callable[[str], str] | None:
        r"""Return what every text passes through; None where there is nothing to do.

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
        steps = [(one.pattern, one.replacement) for one in self.redact]
        return partial(_redacted, steps, hook)


def _redacted(steps: list[tuple[re.Pattern[str], str]], hook: Callable[[str], str] | None, text: str) -> str:
    for pattern, replacement in steps:
        text = pattern.sub(lambda _, found=replacement: found, text)  # type: ignore[misc]
    if hook is not None:
        text = hook(text)
        if not isinstance(text, str):
            raise TypeError(f"privacy.hook returned {type(text).__name__}, and a text was expected")
    return text
