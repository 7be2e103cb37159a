"""Values of options that are written `name=value`."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def renamed(text: str) -> tuple[str, str]:
    """Read one `declared=score`; a name alone is both.

    >>> renamed("answer_correct=em"), renamed("recall")
    (('answer_correct', 'em'), ('recall', 'recall'))
    """
    name, _, score = text.partition("=")
    return name, score or name


def weighted(text: str) -> tuple[str, float]:
    """Read one `score=weight`; a name alone has weight 1.

    >>> weighted("em"), weighted("f1=0.2")
    (('em', 1.0), ('f1', 0.2))
    """
    name, _, weight = text.partition("=")
    try:
        return name, float(weight or 1.0)
    except ValueError:
        raise ValueError(f"--measure {text}: {weight!r} is no number; score=weight was expected") from None


def unique(option: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return the value that an option gives each name.

    Raises:
        ValueError: A name is given twice.

    >>> unique("--measure", [("em", 1.0), ("f1", 0.2)])
    {'em': 1.0, 'f1': 0.2}
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{option} {name} is given twice: with {found[name]} and with {value}")
        found[name] = value
    return found
