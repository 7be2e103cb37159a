"""Validate an answer against a JSON schema of a request, in a process of its own: see `form`.

    python -I -B _validate.py < '{"schema": {...}, "answer": "..."}'

The exit code is 0 if the answer satisfies the schema, 2 if it does not, and 3 if the schema is none or points
out of itself. What is wrong is printed.
"""

import json
import sys

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

VALID, INVALID, NO_SCHEMA = 0, 2, 3


def main() -> int:
    """Validate what is on the standard input, and return the exit code."""
    given = json.loads(sys.stdin.read())
    schema = given["schema"]
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError:
        return NO_SCHEMA
    try:
        value = json.loads(given["answer"])
        wrong = best_match(kind(schema, registry=Registry()).iter_errors(value))
    except Unresolvable:
        return NO_SCHEMA
    except (ValueError, RecursionError) as error:
        return _report(f"no JSON: {error}")
    return VALID if wrong is None else _report(f"{wrong.json_path}: {wrong.message}")


def _report(wrong: str) -> int:
    """Print what is wrong, and return the exit code."""
    sys.stdout.write(wrong)
    return INVALID


if __name__ == "__main__":
    sys.exit(main())
