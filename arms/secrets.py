"""Secrets: a variable of the environment, or a file that one names, as containers mount them."""

import os
from pathlib import Path


def read_secret(variable: str) -> str:
    """Return the value of a variable, or the text of the file that VARIABLE_FILE names; empty for neither.

    Raises:
        ValueError: The file cannot be read.

    >>> read_secret("NO_SUCH_VARIABLE")
    ''
    """
    path = os.environ.get(f"{variable}_FILE", "")
    if variable in os.environ or not path:
        return os.environ.get(variable, "").strip()
    return read_text(f"{variable}_FILE", path)


def read_text(variable: str, path: str) -> str:
    """Return the text of the file that a variable names, without the space around it. Raises ValueError."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise ValueError(f"{variable}: {path!r} cannot be read ({reason})") from None
