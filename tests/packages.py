"""Installed packages that register kinds: a module and its entry points on the path of imports."""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest


def install_package(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str, group: str, points: Iterable[str]
) -> None:
    """Install a module, and for each entry point a distribution of its own, until the test ends."""
    (folder / f"{module}.py").write_text(source)
    for number, point in enumerate(points):
        about = folder / f"theirs_{number}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: theirs-{number}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
