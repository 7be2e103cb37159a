"""An answer that a passage gives: its sentences that are nearest to the question, quoted.

It takes the place of an answer of a model where that is a placeholder.
"""

import re

from armwise.arms.base import Passage
from armwise.arms.tokenizer import words

MOST_WORDS, QUOTED_TOKENS = 80, 200
"""Most words of a passage that are quoted, and tokens that no such answer exceeds."""

_SOURCE = "\n\n(Quoted from "

_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


def quote(question: str, passage: Passage, most_words: int = MOST_WORDS) -> str:
    r"""Return what a passage says of a question, and where it is from.

    It begins with the sentence that has most words of the question, the first of several.

    Args:
        question: The question.
        passage: The best passage, the first of an answer.
        most_words: Most words of the passage, at least 1.

    >>> text = "Linz is a city. Vienna is the capital of Austria. It is on the Danube."
    >>> quote("What is the capital of Austria?", Passage("3", "Cities", text))
    'Vienna is the capital of Austria. It is on the Danube.\n\n(Quoted from [1] Cities.)'
    >>> quote("Who won the race?", Passage("3", "Cities", text), 3)
    'Linz is a ...\n\n(Quoted from [1] Cities, which has no word of the question.)'
    >>> quote("Is it?", Passage("3", "", text), 3)
    'Linz is a ...\n\n(Quoted from [1].)'
    """
    sentences = [line for sentence in _END.split(passage.text) if (line := " ".join(sentence.split()))]
    asked = set(words(question, "english"))
    shared = [len(asked.intersection(words(sentence))) for sentence in sentences]
    first = max(range(len(sentences)), key=lambda at: (shared[at], -at), default=0)
    taken: list[str] = []
    for sentence in sentences[first:]:
        room = most_words - sum(len(one.split()) for one in taken)
        if len(sentence.split()) > room:
            if not taken:
                taken.append(" ".join([*sentence.split()[:room], "..."]))
            break
        taken.append(sentence)
    where = f"[1] {passage.title}".strip()
    apart = asked and not any(shared) and asked.isdisjoint(words(passage.title))
    hardly = ", which has no word of the question" if apart else ""
    return f"{' '.join(taken)}{_SOURCE}{where}{hardly}.)"


def without_source(answer: str) -> str:
    r"""Return an answer without the line that says where it was quoted from, if it has one.

    >>> without_source("It is on the Danube.\n\n(Quoted from [1] Cities.)"), without_source("Vienna")
    ('It is on the Danube.', 'Vienna')
    """
    return answer.partition(_SOURCE)[0]
