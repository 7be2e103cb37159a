"""The page on evaluation in Python is a notebook: its blocks run in order and print what is below them."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tests.pages import blocks_of, difference

PAGE = "docs/guide/evaluation-in-python.md"
BLOCKS = blocks_of(PAGE)


def test_every_block_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [block.language for block in BLOCKS] == ["python", "text"] * (len(BLOCKS) // 2)
    assert len(BLOCKS) >= 10
    scope: dict[str, Any] = {}
    for source, shown in zip(BLOCKS[::2], BLOCKS[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source.text, PAGE, "exec"), scope)
        assert difference(shown.text, printed.getvalue(), shown.within) is None, printed.getvalue()
