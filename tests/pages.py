"""Pages of the documentation as their reader uses them: blocks of code, and what the blocks print.

Below a heading, a block with a title that is a name (```` ```yaml title="rag.yaml" ````) is a file that the
reader saves, a block `bash` is entered into a shell, and a block `text` below that is what it prints.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.other_users import USUAL

ROOT = Path(__file__).parents[1]

BORROWED = {
    "docs/tutorials/rag-product.md": ("docs/tutorials/several-models.md", "models.py"),
    "docs/guide/litellm.md": ("docs/tutorials/several-models.md", "models.py"),
}
"""Pages that send their reader to a file of another page."""

ELSEWHERE = {"pip install": "what the environment of the tests has"}
"""Commands that are not run here, by a part of their line, and why."""

PAGE_S = 600.0

STOP_S = 60.0

_PORT = re.compile(r"(?<=127\.0\.0\.1:)81\d\d|(?<=127\.0\.0\.1\", )81\d\d|(?<=port: )81\d\d")

_PART = re.compile(r"^```(\w*)(?: title=\"([^\"\n]*)\")?\n(.*?)^```$|^## ([^\n]+)$", re.MULTILINE | re.DOTALL)

_FIGURE = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])|\.\.\.|\s+")


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        part: Heading that it is below; empty for none.
        language: Language, such as `bash`.
        title: Title; empty for none.
        text: Code, or what code prints.
    """

    part: str
    language: str
    title: str
    text: str

    @property
    def within(self) -> float:
        """Share by which figures of a text may differ from those that are printed, as its title says.

        >>> Block("", "text", "figures differ by up to 20 %", "").within
        0.2
        >>> Block("", "text", "", "").within
        0.0
        """
        stated = re.search(r"(\d+) %", self.title)
        return int(stated[1]) / 100 if stated else 0.0


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, by its path from the root of the project."""
    found, part = [], ""
    for language, title, text, heading in _PART.findall((ROOT / page).read_text(encoding="utf-8")):
        part = heading or part
        if not heading:
            found.append(Block(part, language, title, text))
    return found


def commands_of(page: str) -> list[str]:
    """Return what a page enters into a shell, block by block."""
    return [block.text for block in blocks_of(page) if block.language == "bash"]


def ports_of(page: str) -> list[str]:
    """Return the ports at which a page starts something."""
    return sorted({port for block in blocks_of(page) for port in _PORT.findall(block.text)})


class Reader:
    """Goes through a page in a folder: saves its files and enters its commands.

    Args:
        page: Path of the page from the root of the project.
        folder: An empty folder.
        instead: Texts that stand for those of the page, such as a free port for each port.
        environ: Variables of the shell.
    """

    def __init__(
        self, page: str, folder: Path, instead: Mapping[str, str], environ: Mapping[str, str]
    ) -> None:
        self.folder, self._instead, self._environ = folder, instead, environ
        self.blocks = blocks_of(page)
        for source, title in [BORROWED[page]] if page in BORROWED else []:
            self._save(next(block for block in blocks_of(source) if block.title == title))
        self._outputs = folder / "outputs"
        self._outputs.mkdir()

    def run(self, limit_s: float = PAGE_S) -> int:
        """Save the files and enter the commands up to the first that fails; return the exit status."""
        script = "".join(self._entered(number, block) for number, block in enumerate(self.blocks))
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._environ,
            umask=USUAL,
            start_new_session=True,
        )
        try:
            return shell.wait(limit_s)
        finally:
            self._end(shell)

    def printed(self, number: int) -> str:
        """Return what the block of a number has printed, with the ports of the page."""
        text = (self._outputs / str(number)).read_text(encoding="utf-8")
        return _replace(text, {used: shown for shown, used in self._instead.items()})

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
        text = _replace("\n".join(lines), self._instead).replace("curl -s ", "curl -sS --fail-with-body ")
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
        (self.folder / block.title).write_text(_replace(block.text, self._instead), encoding="utf-8")

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


def _replace(text: str, instead: Mapping[str, str]) -> str:
    """Replace texts that are no part of a longer number."""
    if not instead:
        return text
    names = "|".join(map(re.escape, instead))
    return re.sub(rf"(?<!\d)(?:{names})(?!\d)", lambda found: instead[found[0]], text)


def difference(shown: str, printed: str, within: float = 0.0) -> str | None:
    r"""Return the first line of a page that is not printed in its place; None where all are.

    A line `...` stands for any lines, and `...` in a line for anything. Lines are compared without the number
    of blanks, and figures by their share.

    >>> difference("mean 0.50\n...\ndone in ... s", "mean 0.51\n1\n2\ndone in 4 s\n", within=0.1)
    >>> difference("mean 0.50", "mean 0.51")
    'mean 0.50'
    >>> difference("a\n...", "b\n") or difference("a", "a\nb\n") or difference("a\n...\na", "a\n")
    'a'
    """
    return _difference(shown.splitlines(), printed.splitlines(), within)


def _difference(shown: Sequence[str], printed: Sequence[str], within: float) -> str | None:
    for place, line in enumerate(shown):
        if line.strip() == "...":
            rest = list(shown[place + 1 :])
            ends = [_difference(rest, printed[start:], within) for start in range(place, len(printed) + 1)]
            return None if not rest or None in ends else max(ends, key=lambda one: rest.index(str(one)))
        if place >= len(printed) or not _alike(line, printed[place], within):
            return line
    return None if len(shown) == len(printed) else shown[-1] if shown else ""


def _alike(shown: str, printed: str, within: float) -> bool:
    figures: list[float] = []
    pattern = "".join(_patterns(shown.strip(), figures))
    found = re.fullmatch(pattern, printed.strip())
    return found is not None and all(
        abs(float(own.replace(",", "")) - figure) <= within * abs(figure)
        for own, figure in zip(found.groups(), figures, strict=True)
    )


def _patterns(line: str, figures: list[float]) -> Iterator[str]:
    """Yield a regular expression of a line, piece by piece, with a group for each figure."""
    end = 0
    for found in _FIGURE.finditer(line):
        yield re.escape(line[end : found.start()])
        end = found.end()
        if found[0] == "...":
            yield ".*?"
        elif found[0].isspace():
            yield r"\s+"
        else:
            figures.append(float(found[0].replace(",", "")))
            yield r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)"
    yield re.escape(line[end:])
