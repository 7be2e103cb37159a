"""Names that do not exist: what was probably meant; and names that patterns fit."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase


def nearest(wrong: str, right: Iterable[str]) -> str:
    """Return a hint to put after the wrong name: the nearest right one, or all there are.

    >>> nearest("bm52", ["none", "bm25"])
    "; did you mean 'bm25'?"
    >>> nearest("x", ["none", "bm25"]), nearest("x", [])
    ('; there are: bm25, none', '; there are: none')
    """
    names = sorted(right)
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names) or 'none'}"


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Return whether some pattern fits a name.

    >>> fits("dense-mpnet", ["bm25", "dense-*"])
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def fitting(
    names: Collection[str], patterns: Sequence[str], what: str, error: type[ValueError] = ValueError
) -> list[str]:
    """Return the names that some pattern fits, in their order.

    Args:
        names: To choose from.
        patterns: As a shell's.
        what: What no name of is called so, for the message.
        error: What to raise.

    Raises:
        error: A pattern fits no name.

    >>> fitting(["a1", "b", "a2"], ["a*"], "no arm")
    ['a1', 'a2']
    """
    for pattern in patterns:
        if not any(fits(name, [pattern]) for name in names):
            raise error(f"{what} is called {pattern!r}{nearest(pattern, names)}")
    return [name for name in names if fits(name, patterns)]


__all__ = ["fits", "fitting", "nearest"]
