"""A number of a setting: finite, and neither true nor false, which pydantic would read as 1 and 0."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")  # noqa: TRY004 - what pydantic catches
    return value


Number = Annotated[float, BeforeValidator(_refuse_boolean), Field(allow_inf_nan=False)]
"""The type of every number with a fraction in the configuration; a text such as 1e-6 is read as YAML has it.

>>> from pydantic import TypeAdapter
>>> TypeAdapter(Number).validate_python("1e-6")
1e-06
"""

BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""Keywords of JSON Schema by those that pydantic leaves in the schema of an optional `Number`."""


def with_bounds(schema: Any) -> Any:
    """Return a JSON Schema in which bounds of numbers have their keywords.

    >>> with_bounds({"anyOf": [{"type": "number", "ge": 0}, {"type": "null"}]})
    {'anyOf': [{'type': 'number', 'minimum': 0}, {'type': 'null'}]}
    """
    if isinstance(schema, list):
        return [with_bounds(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    names = BOUNDS if schema.get("type") == "number" else {}
    return {names.get(name, name): with_bounds(part) for name, part in schema.items()}
