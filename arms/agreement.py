"""What retrievers, and the answers written from what they found, tell of each other.

That many find the same passage, or that many passages lead to the same answer, is a sign that
it is right, and it needs no label. It costs the searches, or the answers, of all of them.
"""

import string
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arms.base import Passage

Floats = NDArray[np.float64]

FOUND = ("rank_votes", "shared")
"""What the other retrievers tell of what one found, in the order of the columns."""

ANSWERED = (
    "votes",
    "overlap",
    "kinds",
    "words",
    "characters",
    "digit",
    "verdict",
    "in_question",
    "in_own",
    "in_first",
    "in_all",
)
"""What is told of an answer, in the order of the columns."""

ARTICLES = frozenset({"a", "an", "the"})
VERDICTS = frozenset({"yes", "no"})

_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def found_signals(rankings: Sequence[Sequence[str]]) -> Floats:
    """Return how far retrievers agree, shape (n_arms, 2); NaN for one that found nothing.

    `rank_votes` is the mean over its passages of the sum of 1 / rank in all rankings, `shared`
    the mean share of its passages that each of the others found too.

    Args:
        rankings: Ids of what each arm found, best first, each once.

    >>> found_signals([["a", "b"], ["b", "c"], []])[:2].tolist()
    [[1.25, 0.5], [1.0, 0.5]]
    """
    table = np.full((len(rankings), len(FOUND)), np.nan)
    votes: defaultdict[str, float] = defaultdict(float)
    finders = Counter[str]()
    for ranking in rankings:
        finders.update(ranking)
        for rank, passage in enumerate(ranking, start=1):
            votes[passage] += 1.0 / rank
    others = max(1, sum(1 for ranking in rankings if ranking) - 1)
    for arm, ranking in enumerate(rankings):
        if ranking:
            shared = sum(finders[passage] - 1 for passage in ranking) / others
            table[arm] = np.array([sum(votes[passage] for passage in ranking), shared]) / len(ranking)
    return table


def answer_signals(question: str, answers: Sequence[str], found: Sequence[Sequence[Passage]]) -> Floats:
    """Return what is told of each answer, shape (n_arms, 11).

    `votes` is the share of all answers that are the same, `overlap` the mean F1 of its words with those of
    all answers, `kinds` how many different answers there are for each arm; `words` and `characters` its
    length; `digit`, `verdict` and `in_question` are 1 when it has a digit, is yes or no, or stands in the
    question; `in_own` is the share of its own passages in which it stands, `in_first` 1 when it stands in
    the first of them, `in_all` the number of different passages of all arms in which it stands. An
    empty answer stands nowhere.

    Args:
        question: What was asked.
        answers: One an arm.
        found: The passages that each arm found, best first.

    >>> wrote = Passage("p", "", "Ada wrote.")
    >>> answer_signals("Who?", ["Ada", "ada."], [[wrote], []])[:, [0, 8, 9, 10]].tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    """
    given = [normalised(answer) for answer in answers]
    asked = f" {normalised(question)} "
    folded = {
        passage.id: f" {normalised(passage.title)} {normalised(passage.text)} "
        for passages in found
        for passage in passages
    }
    same = Counter(given)
    bags = [Counter(answer.split()) for answer in given]
    n = len(given)
    table = np.zeros((n, len(ANSWERED)))
    for arm, answer in enumerate(given):
        inside = {name: bool(answer) and f" {answer} " in padded for name, padded in folded.items()}
        own = [inside[passage.id] for passage in found[arm]]
        table[arm] = (
            same[answer] / n,
            sum(_f1(bags[arm], bag) for bag in bags) / n,
            len(same) / n,
            len(answer.split()),
            len(answer),
            any(character.isdigit() for character in answer),
            answer in VERDICTS,
            bool(answer) and f" {answer} " in asked,
            sum(own) / len(own) if own else 0.0,
            bool(own) and own[0],
            sum(inside.values()),
        )
    return table


def _f1(one: Counter[str], other: Counter[str]) -> float:
    total = one.total() + other.total()
    return 2.0 * (one & other).total() / total if total else 1.0


def normalised(answer: str) -> str:
    """Return an answer without case, punctuation, articles and further spaces.

    Source: Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension
    of Text, arXiv:1606.05250; here punctuation and symbols are those of Unicode.

    >>> normalised(" The  U.S.!")
    'us'
    """
    folded = unicodedata.normalize("NFKC", answer).casefold().translate(_NO_ASCII_PUNCTUATION)
    if not folded.isascii():
        folded = "".join(c for c in folded if unicodedata.category(c)[0] not in "PS")
    every = folded.split()
    return " ".join([word for word in every if word not in ARTICLES] or every)


__all__ = ["ANSWERED", "FOUND", "answer_signals", "found_signals", "normalised"]
