"""Whether an answer has the form that its request asks for.

The schema of a request is of someone else: it may take time without end to validate, by its patterns or by
references that multiply. So it is validated in a process of its own, in limits.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from armwise.arms.more.checked import confined
from armwise.arms.more.checked.command import CommandLimits, run_confined

SCRIPT = Path(confined.__file__).with_name("_validate.py")

WORDS = (sys.executable, "-I", "-B", str(SCRIPT))
"""The command: without -B, Python would write compiled modules cut off at the limit of output."""

VALID, INVALID = 0, 2
"""Exit codes of `SCRIPT`. Others say that nothing is known: Python ends with 1 after an error."""

LIMITS = CommandLimits(seconds=5.0, memory=1 << 30, output=1 << 16)


def satisfies(schema: Mapping[str, Any], answer: str, limits: CommandLimits = LIMITS) -> bool | None:
    """Return whether an answer is a JSON value that satisfies a schema; None: it could not be validated.

    It blocks for some tenths of a second. Nothing that the schema refers to is fetched.

    Args:
        schema: A JSON schema, which may be of anyone.
        answer: Text of the answer.
        limits: CommandLimits of the validation.
    """
    given = json.dumps({"schema": schema, "answer": answer})
    code, _, _ = run_confined(WORDS, given, limits)
    return {VALID: True, INVALID: False}.get(code)
