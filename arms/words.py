"""What a word is to a lexical index: a run of letters, digits and underscores, in lower case.

Which words are left out moves the recall of BM25 more than its own parameters do,
so the list is data of this project, in sight, and a parameter of the arm.
"""

import re
from collections.abc import Set
from typing import Literal

StopWords = Literal["english", "none"]
"""Which words an index leaves out: the function words of a language, or none."""

_WORD = re.compile(r"\w+")

_FUNCTION_WORDS = {
    "determiners": "a an the this that these those each both all any some few more most other such no nor "
    "not only",
    "pronouns": "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself "
    "she her hers herself it its itself they them their theirs themselves",
    "questions": "who whom which what when where why how",
    # of the modal verbs only three: the others are also months and powers
    "verbs": "am is are was were be been being have has had having do does did doing can will should",
    "prepositions": "of in on at by for with from to into about against between through during before after "
    "above below over under up down out off until while",
    "connectives": "and or but if because as than so too very just then there here now again further once",
    # what an apostrophe leaves behind: it's, don't, we'll, they're, I've, I'd, I'm
    "remnants": "s t ll re ve d m don didn doesn isn aren wasn weren hasn haven hadn wouldn couldn shouldn",
}

ENGLISH = frozenset(word for group in _FUNCTION_WORDS.values() for word in group.split())
"""English words that say how a sentence is built and not what it is about."""

STOP_WORDS: dict[StopWords, Set[str]] = {"english": ENGLISH, "none": frozenset()}


def words(text: str, stop_words: StopWords = "none") -> list[str]:
    """Return the words of a text in order, without the stop words.

    >>> words("Who wrote 'The Waste Land'?", "english")
    ['wrote', 'waste', 'land']
    """
    left_out = STOP_WORDS[stop_words]
    return [word for word in _WORD.findall(text.lower()) if word not in left_out]
