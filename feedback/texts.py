"""Names of features, which are texts: `w=lovelace`, `tier=free`.

The log and the policies have them by their pseudonyms (`pseudonym`), so that a name can be erased while all
that was learned from it stays. `armwise.feedback.log.facts` has the other texts of a fact. Numbers of a
caller become features through `compress`.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from armwise.feedback.events import (
    ROUTER,
    SIMILARITY,
)

Otherwise = TypeVar("Otherwise", float, None)

QUESTION_WORDS = frozenset(("who", "whom", "whose", "what", "which", "when", "where", "why", "how"))

FORM = (
    *(f"shape={shape}" for shape in ("keyword", "question", "statement")),
    *(f"ask={word}" for word in sorted(QUESTION_WORDS)),
    *("has_mark", "has_digit", "has_quote", "length", "capitals"),
)
"""Names of all features of the form of a question."""

OURS = frozenset((*FORM, "position", ROUTER, SIMILARITY))
"""Names of features that are free of texts of callers: an erasure keeps them."""

_PSEUDONYM = re.compile("#[0-9a-f]{16}")


@lru_cache(maxsize=100_000)
def pseudonym(text: str) -> str:
    """Return a digest of 64 bits that stands for a text; a pseudonym stands for itself.

    It hides only texts that cannot be guessed: a guess can be compared.

    >>> pseudonym("tier=free"), pseudonym(pseudonym("tier=free"))
    ('#6b7ba71074dfcea9', '#6b7ba71074dfcea9')
    """
    if _PSEUDONYM.fullmatch(text):
        return text
    return "#" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def digest_question(question: str) -> str:
    """Return a digest of 64 bits by which decisions on the same question are found: 16 hexadecimal digits."""
    return hashlib.blake2b(question.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def by_pseudonym(features: Mapping[str, float]) -> dict[str, float]:
    """Return features by the pseudonyms of their names; the names `OURS` stay.

    >>> by_pseudonym({"tier=free": 1.0, "length": 0.25})
    {'#6b7ba71074dfcea9': 1.0, 'length': 0.25}
    """
    return {name if name in OURS else pseudonym(name): value for name, value in features.items()}


def find_value(features: Mapping[str, float], name: str, otherwise: Otherwise) -> float | Otherwise:
    """Return a feature by its name, or by the pseudonym that an erasure has left of it.

    >>> find_value({"#6b7ba71074dfcea9": 1.0}, "tier=free", 0.0)
    1.0
    """
    return features[name] if name in features else features.get(pseudonym(name), otherwise)


def find_text(features: Iterable[str], field: str) -> str:
    """Return the text that a caller sent in a field of the context, by the names of features; empty: none.

    >>> find_text(["w=tax", "task=contracts"], "task")
    'contracts'
    """
    start = f"{field}="
    return next((name[len(start) :] for name in features if name.startswith(start)), "")


def compress(value: float) -> float:
    """Return a number of a caller as a policy sees it: unchanged in [-1, 1], beyond that 1 plus its log10.

    All other features are at most 1. Much larger ones would dominate the columns of a linear model that they
    share with others, and the gradients of a network; a million becomes 7.

    >>> compress(0.5), compress(1), compress(1e3), compress(-1e6)
    (0.5, 1.0, 4.0, -7.0)
    """
    size = abs(value)
    return float(value) if size <= 1.0 else math.copysign(1.0 + math.log10(size), value)
