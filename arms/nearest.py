"""The end of an error message about a name that does not exist: what was probably meant."""

import difflib
from collections.abc import Iterable


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
