"""Pages of the documentation as their reader uses them: blocks of code, and what the blocks print.

Below a heading, a block with a title that is a name (```` ```yaml title="rag.yaml" ````) is a file that the
reader saves, a block `bash` is entered into a shell, and a block `text` below that is what it prints.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

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
