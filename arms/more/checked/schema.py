"""A check by a JSON schema: the answer must be one JSON value that satisfies it."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from armwise.arms.base import Passage
from armwise.arms.llm import UNPROMPTED, Bound, Write
from armwise.arms.retrievers import CheckResult

MOST_SAID = 300
"""Most characters of what is wrong with an answer."""


class SchemaCheck(BaseModel):
    """A check by a JSON schema."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["schema"] = Field(description="A JSON schema checks the answer.")
    satisfies: dict[str, Any] = Field(
        description="A JSON schema (2020-12, unless `$schema` names another draft). The answer must be one "
        "JSON value that satisfies it, without text around it. References point into the schema itself."
    )

    @field_validator("satisfies")
    @classmethod
    def _sound(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Check the schema itself, and that its references point into it."""
        from armwise.arms.more.checked import _json_schema

        _json_schema.check_schema(schema)
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise ValueError(f"$ref {reference!r} points out of the schema: nothing is fetched")
        return schema

    @property
    def llm(self) -> None:
        """It prompts no language model."""

    @property
    def has_patterns(self) -> bool:
        """Whether the schema has regular expressions, which can take long on some answers."""
        return any(key in part for part in _parts(self.satisfies) for key in ("pattern", "patternProperties"))

    def bound(self, answer_tokens: int) -> Bound:
        """Return the bound of no prompt."""
        del answer_tokens
        return UNPROMPTED

    @cached_property
    def _find_error(self) -> Callable[[Any], str]:
        from armwise.arms.more.checked import _json_schema

        return _json_schema.open_schema(self.satisfies)

    def __call__(self, question: str, passages: Sequence[Passage], answer: str, write: Write) -> CheckResult:
        """Return 1 for a JSON value that satisfies the schema, and 0 with the worst error for others."""
        del question, passages, write
        try:
            value = json.loads(answer, parse_constant=_refuse)
            wrong = self._find_error(value)
        except (ValueError, RecursionError) as error:
            return CheckResult(0.0, f"no JSON: {error}"[:MOST_SAID])
        return CheckResult(0.0 if wrong else 1.0, wrong[:MOST_SAID])


def _refuse(name: str) -> None:
    """Refuse `NaN` and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def _references(schema: Any) -> list[str]:
    """Return the references anywhere in a schema."""
    named = (part[key] for part in _parts(schema) for key in ("$ref", "$dynamicRef") if key in part)
    return [name for name in named if isinstance(name, str)]


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the objects inside of it."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
