"""A pickle that runs a command where it is read."""

import os
from collections.abc import Callable


class Command:
    """An object whose pickle runs a command where it is read."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self._command,)
