"""Validate answers against JSON schemas, one after another, in a process of its own: see `form`.

    python -I _validate.py 1073741824

The argument is the limit of memory in bytes. Each line of the input is a JSON list: the text of a schema, the
text of an answer, and how many seconds the validation may take. When they have passed, the kernel ends the
process. Each line of the output is a JSON list: whether the answer satisfies the schema (null: that cannot be
known), and what is wrong with it.
"""

import json
import resource
import signal
import sys
from functools import lru_cache
from typing import NoReturn

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

MOST_SAID = 300
"""Most characters of what is wrong with an answer."""


@lru_cache(16)
def open_schema(text: str) -> Validator:
    """Return what validates values against a schema. Raises ValueError if it is no JSON schema."""
    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"not a JSON schema: {error.json_path}: {error.message}") from None
    validator: Validator = kind(schema, registry=Registry())  # it is empty, and fetches nothing
    return validator


def validate(schema: str, answer: str) -> tuple[bool | None, str]:
    """Return whether an answer satisfies a schema, and what is wrong with it; None if it cannot be known."""
    try:
        validator = open_schema(schema)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    try:
        value = json.loads(answer, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return False, f"not JSON: {error}"
    try:
        wrong = best_match(validator.iter_errors(value))
    except Unresolvable as error:
        return None, f"a reference of the schema leads nowhere: {error}"
    except (ArithmeticError, RecursionError) as error:  # such as 1e999 for `multipleOf`
        return None, f"{type(error).__name__}: {error}"
    return wrong is None, "" if wrong is None else f"{wrong.json_path}: {wrong.message}"


def _refuse(name: str) -> NoReturn:
    """Refuse `NaN` and the infinities, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def main(memory: int) -> None:
    """Answer the lines of the standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    for line in sys.stdin:
        schema, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        valid, said = validate(schema, answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps([valid, said[:MOST_SAID]]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
