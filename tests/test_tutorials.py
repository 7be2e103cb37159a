"""The tutorials, page by page as their reader goes through them: each command prints what stands below it.

    python -m pytest tests/test_tutorials.py -m nightly -o log_cli=true --log-cli-level=INFO

shows the seconds of each part. A page runs in an empty folder, with its ports replaced by free ones, and the
shell goes from block to block.
"""

import logging
import os
import re
import sys
from pathlib import Path

import pytest

from tests.live.conftest import free_port
from tests.other_users import exposed
from tests.pages import (
    ELSEWHERE,
    PAGE_S,
    ROOT,
    STOP_S,
    Reader,
    blocks_of,
    difference,
    ports_of,
)

logger = logging.getLogger(__name__)

TUTORIALS = (
    "docs/tutorials/rag-product.md",
    "docs/tutorials/several-models.md",
    "docs/tutorials/production-logs.md",
)


def minutes_of(part: str) -> int | None:
    """Return the minutes that the heading of a part states; None for none.

    >>> minutes_of("Ask (2 minutes)"), minutes_of("A canary (1 minute)"), minutes_of("Next")
    (2, 1, None)
    """
    stated = re.search(r"\((\d+) minutes?\)$", part)
    return int(stated[1]) if stated else None


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(PAGE_S + STOP_S + 60.0)
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_reader_sees_what_stands_below_each_command(page: str, tmp_path: Path) -> None:
    taken = {"PYTHONPATH": str(ROOT), "ARMWISE_HOME": str(tmp_path / "home"), "COLUMNS": "100"}
    taken["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_"))}
    reader = Reader(page, tmp_path, {port: str(free_port()) for port in ports_of(page)}, {**kept, **taken})
    status = reader.run()
    for part, seconds in reader.seconds().items():
        logger.info("%s: %.0f s of %s", page, seconds, part)
    assert status == 0, reader.errors()
    entered = None
    for number, block in enumerate(reader.blocks):
        if block.language == "text":
            assert entered is not None, f"no command stands above {block.text!r}"
            printed = reader.printed(entered)
            line = difference(block.text, printed, block.within)
            assert line is None, f"{line!r} is not printed:\n{printed}"
        entered = number if block.language == "bash" else None
    for part, seconds in reader.seconds().items():
        minutes = minutes_of(part)
        assert minutes is not None, f"{part!r} states no minutes"
        assert seconds <= 60 * minutes, f"{part!r} took {seconds:.0f} s"
    if (home := tmp_path / "home").exists():
        assert exposed(home) == [], "others can read what the commands made"


@pytest.mark.parametrize("page", TUTORIALS)
def test_every_block_is_a_file_a_command_or_what_it_prints(page: str) -> None:
    blocks = blocks_of(page)
    saved = [block.title for block in blocks if block.language not in ("bash", "text")]
    assert all(re.fullmatch(r"[\w.-]+", title) for title in saved), saved
    assert len(saved) == len(set(saved))
    assert any(block.language == "bash" for block in blocks)
    assert {block.language for block in blocks} <= {"bash", "text", "python", "yaml", "html"}


def test_what_is_said_of_single_pages_is_about_their_commands() -> None:
    lines = [line for page in TUTORIALS for block in blocks_of(page) for line in block.text.splitlines()]
    assert [part for part in ELSEWHERE if not any(part in line for line in lines)] == []
