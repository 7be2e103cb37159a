"""Other words for a question, because people do not know the words of the passage that answers them.

Word for word, a question made from a passage is found by its words alone, and an arm that compares words
looks better than it is. Here some words are replaced by common synonyms, rare ones are left out, what is
asked for is called by its kind, and a long question is cut.

Source: Furnas et al. 1987, The vocabulary problem in human-system communication, Communications of the ACM
30(11): two people name the same thing by the same word in fewer than one case in five.
"""

from collections.abc import Callable

import numpy as np

from arms.tokenizer import ENGLISH

OTHERWISE = 0.7
"""Chance that a word with a synonym is replaced."""

FORGOTTEN = 0.5
"""Chance that a rare word is left out."""

FILLED = 0.7
"""Chance that a question word is replaced by the kind of what is asked for."""

SHORTEST, LONGEST = 7, 12
"""A question is cut to a length between these, in words."""

SYNONYMS = {
    word: other
    for one, two in (
        *(
            ("begin", "start"),
            ("film", "movie"),
            ("large", "big"),
            ("purchase", "buy"),
            ("build", "construct"),
        ),
        *(("show", "display"), ("make", "create"), ("get", "receive"), ("end", "finish"), ("help", "assist")),
        *(("children", "kids"), ("song", "track"), ("location", "place"), ("job", "occupation")),
        *(
            ("author", "writer"),
            ("company", "firm"),
            ("country", "nation"),
            ("town", "city"),
            ("area", "region"),
        ),
        *(
            ("located", "situated"),
            ("founded", "established"),
            ("written", "authored"),
            ("released", "published"),
        ),
        *(
            ("starring", "featuring"),
            ("television", "tv"),
            ("show", "series"),
            ("road", "street"),
            ("war", "conflict"),
        ),
        *(
            ("die", "pass away"),
            ("allow", "let"),
            ("use", "employ"),
            ("need", "require"),
            ("delete", "remove"),
        ),
        *(("function", "method"), ("option", "setting"), ("error", "failure"), ("file", "document")),
        *(("return", "give back"), ("change", "modify"), ("select", "choose"), ("directory", "folder")),
        *(
            ("argument", "parameter"),
            ("fast", "quick"),
            ("small", "little"),
            ("old", "ancient"),
            ("rich", "wealthy"),
        ),
        *(
            ("team", "club"),
            ("game", "match"),
            ("leader", "head"),
            ("member", "part"),
            ("population", "inhabitants"),
        ),
        *(("award", "prize"), ("main", "primary"), ("important", "significant")),
        *(("century", "hundred years"), ("college", "university"), ("law", "act"), ("money", "cash")),
        *(
            ("born", "birth"),
            ("american", "us"),
            ("british", "uk"),
            ("originally", "at first"),
            ("called", "named"),
        ),
    )
    for word, other in ((one, two), (two, one))
}
"""Common words for each other; a phrase is only put in, never replaced."""

KINDS = {
    "Who": ("Which person", "What is the name of the person who"),
    "When": ("In what year", "What year", "On what date"),
    "Where": ("In what place", "In which city", "In which country"),
}
"""Longer ways to ask for a person, a time or a place."""

_LAST = frozenset(
    {"in", "on", "at", "by", "of", "for", "with", "from", "to", "and", "or", "as", "that", "which"}
)


def reworded(
    question: str, is_rare: Callable[[str], bool], rng: np.random.Generator, *, cut: bool = True
) -> str:
    """Return a question in other words; names, which have capital letters, stay as they are.

    >>> reworded("When was Faust published?", lambda _: False, np.random.default_rng(1))
    'On what date was Faust released?'
    """
    first, *rest = question.rstrip("?").split()
    if first in KINDS and rng.random() < FILLED:
        ways = KINDS[first]
        first = ways[int(rng.integers(len(ways)))]
    found = [first, *filter(None, (_other(word, is_rare, rng) for word in rest))]
    limit = int(rng.integers(SHORTEST, LONGEST + 1))
    if cut and len(found) > limit:
        end = next(
            (at for at in range(limit, 4, -1) if found[at] in _LAST or found[at - 1].endswith(",")), limit
        )
        found = found[:end]
    while found[-1].lower() in ENGLISH and len(found) > 4:
        found.pop()
    return f"{' '.join(found).rstrip(' ,;')}?"


def _other(word: str, is_rare: Callable[[str], bool], rng: np.random.Generator) -> str:
    """Return a word, a synonym of it, or nothing."""
    bare = word.rstrip(",;:")
    if not bare.islower() or bare in ENGLISH or not bare.isalpha():
        return word
    if bare in SYNONYMS:
        return SYNONYMS[bare] if rng.random() < OTHERWISE else word
    return "" if is_rare(bare) and rng.random() < FORGOTTEN else word
