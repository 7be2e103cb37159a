"""A number of a setting: finite, and neither true nor false, which pydantic would read as 1 and 0."""

from typing import Annotated

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
