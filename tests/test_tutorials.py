"""The tutorials, page by page as their reader goes through them: each command prints what stands below it.

    python -m pytest tests/test_tutorials.py -m nightly -o log_cli=true --log-cli-level=INFO

shows the seconds of each part. A page runs in an empty folder, with its ports replaced by free ones, and the
shell goes from block to block. What the reader does beside the shell, a command of `BESIDE` does.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.conftest import free_port
from tests.other_users import USUAL, exposed
from tests.pages import ROOT, Block, blocks_of, difference

logger = logging.getLogger(__name__)

TUTORIALS = (
    "docs/tutorials/rag-product.md",
    "docs/tutorials/several-models.md",
    "docs/tutorials/production-logs.md",
    "docs/guide/policy-router.md",
)

ELSEWHERE = {"pip install": "what the environment of the tests has"}
"""Commands that are not run here, by a part of their line, and why."""

BORROWED = {"docs/tutorials/rag-product.md": ("docs/tutorials/several-models.md", "models.py")}
"""Pages that send their reader to a file of another page."""

BESIDE = {"python product.py": f"{sys.executable} -m tests.press_thumb http://127.0.0.1:8103"}
"""What the reader does after a block that has a command."""

PAGE_S = 600.0

STOP_S = 60.0

_PORT = re.compile(r"(?<=127\.0\.0\.1:)81\d\d|(?<=127\.0\.0\.1\", )81\d\d|(?<=port: )81\d\d")


class Reader:
    """Goes through a page in a folder.

    Args:
        page: Path of the page from the root of the project.
        folder: An empty folder.
        free: Ports that stand for those of the page.
    """

    def __init__(self, page: str, folder: Path, free: dict[str, str]) -> None:
        self.folder, self._free = folder, free
        self.blocks = blocks_of(page)
        for source, title in [BORROWED[page]] if page in BORROWED else []:
            self._save(next(block for block in blocks_of(source) if block.title == title))
        self._outputs = folder / "outputs"
        self._outputs.mkdir()

    def run(self) -> int:
        """Save the files and enter the commands up to the first that fails; return the exit status."""
        script = "".join(self._entered(number, block) for number, block in enumerate(self.blocks))
        taken = {"PYTHONPATH": str(ROOT), "ARMWISE_HOME": str(self.folder / "home"), "COLUMNS": "100"}
        taken["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_"))}
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**kept, **taken},
            umask=USUAL,
            start_new_session=True,
        )
        try:
            return shell.wait(PAGE_S)
        finally:
            self._end(shell)

    def printed(self, number: int) -> str:
        """Return what the block of a number has printed, with the ports of the page."""
        text = (self._outputs / str(number)).read_text(encoding="utf-8")
        for shown, used in self._free.items():
            text = text.replace(used, shown)
        return text

    def errors(self) -> str:
        """Return the last lines that went to the standard error."""
        return "".join(
            path.read_text(encoding="utf-8")[-2000:] for path in sorted(self._outputs.glob("*.error"))[-2:]
        )

    def seconds(self) -> dict[str, float]:
        """Return how long the commands of each part have taken."""
        parts: dict[str, float] = {}
        stamps = [
            (number, *(path.stat().st_mtime for path in (self._begun(number), self._ended(number))))
            for number in range(len(self.blocks))
            if self._ended(number).exists()
        ]
        for number, begun, ended in stamps:
            part = self.blocks[number].part
            if not part:
                continue
            parts[part] = parts.get(part, 0.0) + ended - begun
        return parts

    def _entered(self, number: int, block: Block) -> str:
        """Return what the shell does at a block."""
        if block.language != "bash":
            if block.title and block.language != "text":
                self._save(block)
            return ""
        lines = [line for line in block.text.splitlines() if not any(part in line for part in ELSEWHERE)]
        beside = [command for part, command in BESIDE.items() if part in block.text]
        text = self._ours("\n".join([*lines, *beside])).replace("curl -s ", "curl -sS --fail-with-body ")
        output = self._outputs / str(number)
        return (
            f"touch {self._begun(number)}\nexec >{output} 2>{output}.error\n{text}\n"
            f"touch {self._ended(number)}\n"
        )

    def _begun(self, number: int) -> Path:
        return self._outputs / f"{number}.begun"

    def _ended(self, number: int) -> Path:
        return self._outputs / f"{number}.ended"

    def _save(self, block: Block) -> None:
        (self.folder / block.title).write_text(self._ours(block.text), encoding="utf-8")

    def _ours(self, text: str) -> str:
        return _PORT.sub(lambda found: self._free[found[0]], text)

    def _end(self, shell: "subprocess.Popen[bytes]") -> None:
        """End what the page has left running, as the reader does who closes the terminal."""
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            while time.monotonic() < deadline:
                shell.poll()
                os.killpg(shell.pid, 0)
                time.sleep(0.1)
            os.killpg(shell.pid, signal.SIGKILL)


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
    ports = sorted({port for block in blocks_of(page) for port in _PORT.findall(block.text)})
    reader = Reader(page, tmp_path, {port: str(free_port()) for port in ports})
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
    assert [part for part in (*ELSEWHERE, *BESIDE) if not any(part in line for line in lines)] == []
