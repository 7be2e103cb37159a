"""JSON schemas by the library `jsonschema`, which is loaded once a configuration names one."""

from collections.abc import Callable
from typing import Any

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable


def check_schema(schema: dict[str, Any]) -> None:
    """Check a schema itself. Raises ValueError."""
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"no JSON schema: {error.json_path}: {error.message}") from None


def open_schema(schema: dict[str, Any]) -> Callable[[Any], str]:
    """Return the function that says what is wrong with a value; empty if it satisfies the schema."""
    validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())

    def find_error(value: Any) -> str:
        try:
            wrong = best_match(validator.iter_errors(value))
        except Unresolvable as error:  # the registry is empty and fetches nothing
            return f"a reference of the schema leads nowhere: {error}"
        return "" if wrong is None else f"{wrong.json_path}: {wrong.message}"

    return find_error
