"""Refuse a pattern of `privacy.redact` that some text makes slow, since it is run on every text of a request.

Python's `re` goes back: `(a+)+$` needs twice the time for each further character. So a pattern is run on
texts that are built from its own parts: what comes before a repetition, its body many times, and an end that
does not match. They grow by an eighth until one takes `LIMIT_S`, or has `LENGTH` characters. Linear patterns
then take microseconds and quadratic ones milliseconds; worse ones exceed the limit while the text is short.
"""

import re
import time
from collections.abc import Iterator
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]
from typing import Any

LENGTH = 1000
"""Characters of the longest text."""

LIMIT_S = 0.25
"""Seconds of the processor that one text may take."""

ANY = ("a", "A", "1", " ", ".", "-", "@", "_")
"""Characters that are repeated whatever the pattern is."""

MOST = 40
"""Texts that are tried and grown."""

END = "\0!"

_CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " "}


@lru_cache(maxsize=256)
def slow_text(pattern: re.Pattern[str]) -> tuple[str, int] | None:
    """Return what makes a pattern slow when it is repeated, and how often; None where nothing was found.

    >>> slow_text(re.compile(r"[a-z]{1,64}@[a-z]{1,64}")), (slow_text(re.compile("(b+)+$")) or "")[0]
    (None, 'b')
    """
    tried = dict.fromkeys(_repeated(pattern))
    for before, piece in list(tried)[:MOST]:
        times = 8
        while len(piece) * times <= LENGTH:
            text = before + piece * times + END
            began = time.thread_time()
            pattern.search(text)
            if time.thread_time() - began > LIMIT_S:
                return piece, times
            times += max(1, times // 8)
    return None


def _repeated(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield texts to repeat, each after what the pattern expects before it."""
    parsed = _parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    found = list(_repetitions(list(parsed), ""))
    yield from found
    for before in dict.fromkeys(before for before, _ in found):
        yield from ((before, one) for one in ANY)


def _repetitions(nodes: list[Any], before: str) -> Iterator[tuple[str, str]]:
    for kind, value in nodes:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                yield before, _sample(list(value[2])) or "a"
                yield from _repetitions(list(value[2]), before)
            case "SUBPATTERN":
                yield from _repetitions(list(value[3]), before)
            case "BRANCH":
                for branch in value[1]:
                    yield from _repetitions(list(branch), before)
            case "ATOMIC_GROUP":
                yield from _repetitions(list(value), before)
            case "ASSERT" | "ASSERT_NOT":
                yield from _repetitions(list(value[1]), before)
        before += _sample([(kind, value)])


def _sample(nodes: list[Any]) -> str:
    """Return a short text that nodes of a parsed pattern match, mostly."""
    return "".join(_sample_of(str(kind), value) for kind, value in nodes)


def _sample_of(kind: str, value: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "IN":
            return _sample(value[:1])
        case "RANGE":
            return chr(value[0])
        case "CATEGORY":
            return _CATEGORIES.get(str(value), "a")
        case "ANY" | "NOT_LITERAL" | "NEGATE":
            return "a"
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            least: int = value[0]
            return _sample(list(value[2])) * max(1, min(least, 3))
        case "SUBPATTERN":
            return _sample(list(value[3]))
        case "BRANCH":
            return _sample(list(value[1][0]))
        case "ATOMIC_GROUP":
            return _sample(list(value))
    return ""
