"""A check by a JSON schema: the answer must be one JSON value that satisfies it."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, field_validator

from armwise.arms.base import Passage
from armwise.arms.llm import UNPROMPTED, Bound, Write
from armwise.arms.more.checked.form import open_validator
from armwise.arms.retrievers import CheckResult


class SchemaCheck(BaseModel):
    """A JSON schema checks the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["schema"] = Field(description="A JSON schema checks the answer.")
    satisfies: dict[str, Any] = Field(
        description=(
            "JSON schema. Its draft is 2020-12, unless `$schema` names another one. The answer must be one "
            "JSON value that satisfies the schema, without other text. References must point into the "
            "schema itself."
        )
    )

    @field_validator("satisfies")
    @classmethod
    def _sound(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Check the schema itself, and that its references point into it."""
        from armwise.arms.more.checked import _validate  # `jsonschema`, once a configuration names a schema

        _validate.open_schema(json.dumps(schema))
        for reference in _references(schema):
            if not reference.startswith("#"):
                raise ValueError(f"$ref {reference!r} points outside the schema, and no schema is fetched")
        if (loop := _find_loop(schema)) is not None:
            raise ValueError(f"$ref {loop!r} refers to itself, so no value could be checked")
        return schema

    @property
    def llm(self) -> None:
        """It prompts no language model."""

    def compute_bound(self, answer_tokens: int) -> Bound:
        """Return the bound of no prompt."""
        del answer_tokens
        return UNPROMPTED

    def __call__(self, question: str, passages: Sequence[Passage], answer: str, write: Write) -> CheckResult:
        """Return 1 for a JSON value that satisfies the schema, and 0 with the worst error for others.

        Raises:
            ArmError: The answer could not be validated, or not in time.
        """
        del question, passages, write
        schema = json.dumps(self.satisfies)
        wrong = open_validator(schema).find_error(schema, answer)
        return CheckResult(0.0 if wrong else 1.0, wrong)


def _references(schema: Any) -> list[str]:
    """Return the references anywhere in a schema."""
    named = (part[key] for part in _parts(schema) for key in ("$ref", "$dynamicRef") if key in part)
    return [name for name in named if isinstance(name, str)]


_ALL, _ONE = ("allOf", "anyOf", "oneOf"), ("not", "if", "then", "else")
"""Keywords with a list of schemas, or with one, for the same value."""


def _find_loop(schema: dict[str, Any]) -> str | None:
    """Return a reference by which a schema comes back to itself for the same value; None: there is none."""
    opened, closed = set[int](), set[int]()
    waiting: list[tuple[Any, str, bool]] = [(schema, "", False)]
    while waiting:
        part, reference, seen = waiting.pop()
        if seen:
            opened.remove(id(part))
            closed.add(id(part))
        elif isinstance(part, dict) and id(part) not in closed:
            if id(part) in opened:
                return reference
            opened.add(id(part))
            waiting += [(part, reference, True), *((one, name, False) for one, name in _alike(part, schema))]
    return None


def _alike(part: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield what a part applies to the same value, each with its reference, or else an empty one."""
    if isinstance(reference := part.get("$ref"), str):
        yield _resolve(reference, schema), reference
    yield from ((part.get(key), "") for key in _ONE)
    yield from ((one, "") for key in _ALL for one in part.get(key) or ())
    yield from ((one, "") for one in (part.get("dependentSchemas") or {}).values())


def _resolve(reference: str, schema: dict[str, Any]) -> Any:
    """Return the part of a schema that a pointer names; None where it names none, or is no pointer."""
    part: Any = schema
    for name in reference.removeprefix("#").split("/")[1:]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        elif isinstance(part, dict):
            part = part.get(name)
        else:
            return None
    return part if reference in ("", "#") or reference.startswith("#/") else None


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
