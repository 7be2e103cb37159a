"""Suggestions for unknown names, and selection of names by patterns."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """Return a hint for an error about a wrong name: the nearest right one, or all of them.

    >>> did_you_mean("bm52", ["none", "bm25"])
    "; did you mean 'bm25'?"
    >>> did_you_mean("x", ["none", "bm25"]), did_you_mean("x", [])
    ('; available: bm25, none', '; available: none')
    """
    names = sorted(right)
    close = difflib.get_close_matches(wrong, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; available: {', '.join(names) or 'none'}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether some pattern matches a name.

    >>> matches("dense-mpnet", ["bm25", "dense-*"])
    True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def select_names(
    names: Collection[str], patterns: Sequence[str], what: str, error: type[ValueError] = ValueError
) -> list[str]:
    """Return the names that some pattern matches, in their order.

    Args:
        names: The names.
        patterns: Shell patterns.
        what: Subject of the error message, such as `no arm`.
        error: Type of the error.

    Raises:
        error: A pattern matches no name.

    >>> select_names(["a1", "b", "a2"], ["a*"], "no arm")
    ['a1', 'a2']
    """
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            raise error(f"{what} is called {pattern!r}{did_you_mean(pattern, names)}")
    return [name for name in names if matches(name, patterns)]
