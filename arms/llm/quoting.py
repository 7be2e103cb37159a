"""An answer that a passage gives: its sentences that are nearest to the question, quoted.

It takes the place of an answer of a model where that is a placeholder.
"""

import re
from collections.abc import Sequence
from functools import partial

from armwise.arms.base import Passage
from armwise.arms.stems import find_language, index_words

MOST_WORDS, QUOTED_TOKENS = 80, 200
"""Most words of a passage that are quoted, and tokens that no such answer exceeds."""

NEAR = 0.25
"""Share of the words of a question, without stop words, of which passages must have more to be near it."""

NAMED = 4
"""Most sources that are named in which nothing was found."""

_SOURCE = "\n\n(Quoted from "

_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def quote(
    question: str, passages: Sequence[Passage], searched: Sequence[str] = (), most_words: int = MOST_WORDS
) -> str:
    r"""Return what the best passage says of a question, and where it is from; or that nothing was found.

    It begins with the sentence that has most words of the question, the first of several. Nothing counts as
    found if the passages together have at most `NEAR` of the words of the question.

    Args:
        question: The question.
        passages: What was found, the best one first.
        searched: Names of the sources.
        most_words: Most words of the passage, at least 1.

    >>> text = "Linz is a city. Vienna is the capital of Austria. It is on the Danube."
    >>> passage = Passage("3", "Cities", text)
    >>> quote("What is the capital of Austria?", [passage])
    'Vienna is the capital of Austria. It is on the Danube.\n\n(Quoted from [1] Cities.)'
    >>> quote("Who won the race?", [passage], ["manuals", "wiki"])
    'Nothing found in manuals and wiki about this.'
    >>> quote("Which capitals?", [passage])
    'Vienna is the capital of Austria. It is on the Danube.\n\n(Quoted from [1] Cities.)'
    >>> quote("Is it?", [Passage("3", "", text)], most_words=3)
    'Linz is a ...\n\n(Quoted from [1].)'
    """
    language = find_language(passage.text for passage in passages)
    read = partial(index_words, language=language)  # as keyword search reads them
    asked = set(read(question, stop_words="english"))
    found = {word for passage in passages for word in read(f"{passage.title} {passage.text}")}
    if not passages or (asked and len(asked & found) <= NEAR * len(asked)):
        return f"Nothing found in {' and '.join(searched[:NAMED]) or 'the documents'} about this."
    best = passages[0]
    sentences = [line for sentence in _END.split(best.text) if (line := " ".join(sentence.split()))]
    shared = [len(asked.intersection(read(sentence))) for sentence in sentences]
    first = max(range(len(sentences)), key=lambda at: (shared[at], -at), default=0)
    taken: list[str] = []
    for sentence in sentences[first:]:
        room = most_words - sum(len(one.split()) for one in taken)
        if len(sentence.split()) > room:
            if not taken:
                taken.append(" ".join([*sentence.split()[:room], "..."]))
            break
        taken.append(sentence)
    where = f"[1] {best.title}".strip()
    apart = asked and not any(shared) and asked.isdisjoint(read(best.title))
    hardly = ", which has no word of the question" if apart else ""
    return f"{' '.join(taken)}{_SOURCE}{where}{hardly}.)"


def without_source(answer: str) -> str:
    r"""Return an answer without the line that says where it was quoted from, if it has one.

    >>> without_source("It is on the Danube.\n\n(Quoted from [1] Cities.)"), without_source("Vienna")
    ('It is on the Danube.', 'Vienna')
    """
    return answer.partition(_SOURCE)[0]
