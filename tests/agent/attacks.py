"""Policies whose model is code: a request that carries one must not have it imported or called."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MODULE = "armwise_trap"
"""A module that leaves a file behind when it is imported, and another one when its function is called."""

CALLS = ("command", "write", "import", "submodule", "missing")


@dataclass(frozen=True)
class Trap:
    """What shows whether code was reached.

    Attributes:
        imported: File that exists once the module was imported.
        called: File that exists once any of the code was called.
    """

    imported: Path
    called: Path

    def call(self, how: str) -> dict[str, Any]:
        """Return parameters of `epsilon_greedy` that reach for code."""
        return {
            "command": {"model": "os.system", "params": {"command": f"touch {self.called}"}},
            "write": {"model": "builtins.open", "params": {"file": str(self.called), "mode": "w"}},
            "import": {"model": f"{MODULE}.call"},
            "submodule": {"model": f"{MODULE}.linear_model.LinearRegression"},
            "missing": {"model": f"{MODULE}.river"},
        }[how]

    def check(self) -> None:
        """Assert that no code was reached."""
        assert not self.called.exists(), "it was called"
        assert not self.imported.exists(), "it was imported"
        assert MODULE not in sys.modules


class Command:
    """An object whose pickle runs a command where it is read."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self._command,)


def a_trap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trap:
    """Put the module on the path of this process, and of its children."""
    trap = Trap(folder / "imported", folder / "called")
    modules = folder / "modules"
    modules.mkdir()
    (modules / f"{MODULE}.py").write_text(
        f"""open({str(trap.imported)!r}, "w").close()

def call(**_):
    open({str(trap.called)!r}, "w").close()
"""
    )
    monkeypatch.syspath_prepend(modules)
    monkeypatch.setenv("PYTHONPATH", str(modules), prepend=":")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    return trap


__all__ = ["CALLS", "MODULE", "Command", "Trap", "a_trap"]
