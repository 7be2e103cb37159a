"""No regular expression takes more than time in proportion to its text, whatever the text is."""

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

LENGTH = 100_000
"""Characters of an attack: quadratic work is billions of steps, linear work some milliseconds."""

LIMIT_S = 1.0
"""CPU seconds that one attack may take."""

PIECES = (
    *("a", "1", " ", "\t", "\n", "\n ", "\n#", "# ", "# a #", "```\n", "~~~\n"),
    *("(", ")", "( ", "a(", "()", " (", "<", "< ", "</", "< answer", "<answer>", ",", ", ", "\\"),
    *("://", "://a:", "@", "!", "'", "a'", '"', "->", "-", "{", "{k", " at 0x", ' xmlns="'),
    *("password=", "query", "query ", "search ", "follow-up ", "DONE ", "done "),
)
"""What an attack repeats: the beginnings of what the expressions look for."""

BORDERS = (("", ">"), ("# a", "\0"), ("://a:", "/\nx"))
"""What stands before and after the repetitions: a last character that makes the match fail, mostly."""


class Use(NamedTuple):
    """An expression, and the method that applies it."""

    place: str
    pattern: str
    flags: int


def uses(source: str, place: str) -> Iterator[Use]:
    """Yield the expressions of a source file. Fails where one is not a literal."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        if node.func.attr == "escape":
            continue
        pattern = node.args[0]
        assert isinstance(pattern, ast.Constant), f"{place}:{node.lineno}: the expression is not a literal"
        names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        flags = sum(flag for flag in re.RegexFlag if flag.name in names)
        yield Use(f"{place}:{node.lineno}", str(pattern.value), flags)


ALL = [
    use
    for package in ("agent", "arms", "feedback")
    for path in sorted((ROOT / package).rglob("*.py"))
    if re.search(r"\bre\.", source := path.read_text(encoding="utf-8"))
    for use in uses(source, str(path.relative_to(ROOT)))
]


def slow(
    expression: re.Pattern[str], length: int = LENGTH, limit_s: float = LIMIT_S
) -> list[tuple[str, str, str]]:
    """Return the attacks that take too long, the first one only.

    A fifth of the length tells which may: where work is quadratic, it takes a 25th of the time.
    """

    def takes_longer(part: int) -> bool:
        text = before + piece * (length // part // len(piece)) + after
        began = time.process_time()
        expression.sub("", text)
        return time.process_time() - began > limit_s / part**2

    for piece in PIECES:
        for before, after in BORDERS:
            if takes_longer(5) and takes_longer(1):
                return [(before, piece, after)]
    return []


@pytest.mark.parametrize("use", ALL, ids=lambda use: use.place)
def test_an_expression_is_linear_in_its_text(use: Use) -> None:
    assert slow(re.compile(use.pattern, use.flags)) == []


@pytest.mark.parametrize("pattern", [r"\s*\([^)]*\)", r"(.+?)\s*\(", r"<\s*/[^>]*$"])
@pytest.mark.slow
def test_an_expression_that_backtracks_is_found(pattern: str) -> None:
    assert slow(re.compile(pattern), length=20_000, limit_s=0.02) != []
