"""Metrics of answers and of retrieved passages, against right answers and supporting passages.

Answers are compared as SQuAD compares them: lower case, no punctuation, no
articles, single spaces. An answer is scored against each right answer and
keeps the best score. Every score is in [0, 1], higher is better.

Source: Rajpurkar et al. 2016 (SQuAD 1.1) for exact match and F1; Yang et al.
2018 (HotpotQA) for yes and no; Mallen et al. 2023 for accuracy; Lewis et al. 2020 (MLQA)
for characters as words.
"""

import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import regex

ARTICLES = frozenset({"a", "an", "the"})

VERDICTS = frozenset({"yes", "no", "noanswer"})
"""Answers that are entirely right or wrong: sharing a word with one of them scores 0."""

_NO_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)

_UNSPACED_CHARACTER = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Line_Break=SA}\u3006\u3031-\u3035\u30fc]\p{M}*"
)
"""As `armwise.arms.tokenizer.UNSPACED`; neither package imports the other."""


def words(text: str) -> list[str]:
    """Return the words that count: lower case, punctuation and articles removed.

    Compatibility forms are folded first (NFKC), so that a composed and a decomposed accent are the same
    letter; punctuation is that of Unicode. A text of articles only keeps them: "A" may be the answer. In
    scripts that omit blanks between words, each character is a word.

    >>> words("The “Café”,  an U.S. landmark!")
    ['café', 'us', 'landmark']
    """
    kept = unicodedata.normalize("NFKC", text).lower().translate(_NO_ASCII_PUNCTUATION)
    if not kept.isascii():
        kept = "".join(c for c in kept if not unicodedata.category(c).startswith("P"))
        kept = _UNSPACED_CHARACTER.sub(r" \g<0> ", kept)
    every = kept.split()
    return [word for word in every if word not in ARTICLES] or every


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """Return 1 when the answer is one of the right ones, word for word, else 0.

    Raises:
        ValueError: There are no right answers to compare with.

    >>> exact_match("the Eiffel Tower.", ["Eiffel tower", "La tour Eiffel"])
    1.0
    """
    given = words(answer)
    return _best(golds, lambda gold: float(given == words(gold)))


def token_f1(answer: str, golds: Sequence[str]) -> float:
    """Return the harmonic mean of the precision and recall of the answer's words.

    An empty answer agrees only with another empty one. If either side is yes or no, all words must agree.

    Raises:
        ValueError: There are no right answers to compare with.

    >>> token_f1("in the city of Paris", ["Paris"])
    0.4
    >>> token_f1("no, never", ["no"])
    0.0
    """
    given = words(answer)
    return _best(golds, lambda gold: _overlap(given, words(gold)))


def accuracy(answer: str, golds: Sequence[str]) -> float:
    """Return 1 when a right answer occurs in the answer as a run of whole words, else 0.

    Raises:
        ValueError: There is no right answer to compare with.

    >>> accuracy("It was Marie Curie, in 1898.", ["Marie Curie"])
    1.0
    >>> accuracy("I do not know", ["no"])
    0.0
    """
    given = words(answer)
    return _best(golds, lambda gold: float(_contains(given, words(gold))))


def recall_at_k(ids: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return the fraction of the supporting passages that are among the first `k`.

    Args:
        ids: Ids of the passages that were returned, best first.
        gold: Ids of the passages that support the answer; repeats count once.
        k: Number of passages that count, at least 1.

    Raises:
        ValueError: `gold` is empty, so recall is undefined, or `k` is below 1.

    >>> recall_at_k(["p7", "p1", "p2"], {"p1", "p2"}, k=2)
    0.5
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    supporting = set(gold)
    if not supporting:
        raise ValueError("gold is empty: recall needs at least one passage that supports the answer")
    return len(supporting.intersection(ids[:k])) / len(supporting)


METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = MappingProxyType(
    {"em": exact_match, "f1": token_f1, "acc": accuracy}
)
"""Functions that score an answer against the right ones, by short name."""


def _best(golds: Sequence[str], score: Callable[[str], float]) -> float:
    if isinstance(golds, str):
        raise TypeError(f"golds must be a list of right answers, got the text {golds!r}")
    if not golds:
        raise ValueError("golds is empty: scoring needs at least one right answer")
    return max(map(score, golds))


def _overlap(given: list[str], gold: list[str]) -> float:
    alone = {side[0] for side in (given, gold) if len(side) == 1}
    if alone & VERDICTS or not given or not gold:
        return float(given == gold)
    shared = (Counter(given) & Counter(gold)).total()
    return 2.0 * shared / (len(given) + len(gold))


def _contains(given: list[str], gold: list[str]) -> bool:
    if not gold:
        return not given
    return f" {' '.join(gold)} " in f" {' '.join(given)} "
