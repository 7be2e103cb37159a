"""The page on evaluation in Python is a notebook: its blocks run in order and print what is below them."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "evaluation-in-python.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_block_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [kind for kind, _ in BLOCKS] == ["python", "text"] * (len(BLOCKS) // 2)
    assert len(BLOCKS) >= 14
    scope: dict[str, Any] = {}
    for (_, source), (_, expected) in zip(BLOCKS[::2], BLOCKS[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, PAGE.name, "exec"), scope)
        assert printed.getvalue() == expected
