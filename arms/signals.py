"""Signals of the quality of a retrieval without labels, from vectors and from words.

`y` are the cosines of the question with each passage, `m` the mean of the passages' unit vectors:

    overall_sim  cos(question, m)          moran      y smoothed over similar passages, against y
    avg_sim      mean of y                 cross_sim  mean cosine of m with that of the other arms
    max_sim      largest of y
    var_sim      variance of y

Source: Kim, Diaz 2025 (LTRR), arXiv:2506.13743; Moran as Diaz 2007, not centred.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import Passage
from armwise.arms.retrievers import regularize
from armwise.arms.tokenizer import normalise, words

Floats = NDArray[np.float64]

FOUND = ("rank_votes", "shared")
"""Signals of the agreement between retrievers, in the order of the columns."""

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
"""Signals of an answer, in the order of the columns."""

VERDICTS = frozenset({"yes", "no"})


def measure_agreement(rankings: Sequence[Sequence[str]]) -> Floats:
    """Return the agreement of retrievers, shape (n_arms, 2); NaN for an empty ranking.

    `rank_votes` is the mean over an arm's passages of the sum of 1 / rank in all rankings,
    `shared` the mean share of its passages that each of the others found too.

    Args:
        rankings: Distinct ids of the passages of each arm, best first.

    >>> measure_agreement([["a", "b"], ["b", "c"], []])[:2].tolist()
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


def answer_signals(question: str, answers: Sequence[str], rankings: Sequence[Sequence[Passage]]) -> Floats:
    """Return the signals of each answer, shape (n_arms, 11).

    `votes` is the share of equal answers, `overlap` the mean F1 of its words with those of all
    answers, `kinds` the number of distinct answers per arm; `words` and `characters` its length;
    `digit`, `verdict` and `in_question` are 1 if it has a digit, is yes or no, or occurs in the
    question; `in_own` is the share of its own passages in which it occurs, `in_first` 1 if it occurs
    in the first of them, `in_all` the number of distinct passages of all arms in which it occurs.
    An empty answer occurs nowhere.

    Args:
        question: The question.
        answers: One per arm.
        rankings: The passages of each arm, best first.

    >>> wrote = Passage("p", "", "Ada wrote.")
    >>> answer_signals("Who?", ["Ada", "ada."], [[wrote], []])[:, [0, 8, 9, 10]].tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]]
    """
    given = [normalise(answer) for answer in answers]
    padded_question = f" {normalise(question)} "
    folded = {
        passage.id: f" {normalise(passage.title)} {normalise(passage.text)} "
        for passages in rankings
        for passage in passages
    }
    same = Counter(given)
    bags = [Counter(answer.split()) for answer in given]
    n = len(given)
    table = np.zeros((n, len(ANSWERED)))
    for arm, answer in enumerate(given):
        inside = {name: bool(answer) and f" {answer} " in padded for name, padded in folded.items()}
        occurrences = [inside[passage.id] for passage in rankings[arm]]
        table[arm] = (
            same[answer] / n,
            sum(_f1(bags[arm], bag) for bag in bags) / n,
            len(same) / n,
            len(answer.split()),
            len(answer),
            any(character.isdigit() for character in answer),
            answer in VERDICTS,
            bool(answer) and f" {answer} " in padded_question,
            sum(occurrences) / len(occurrences) if occurrences else 0.0,
            bool(occurrences) and occurrences[0],
            sum(inside.values()),
        )
    return table


def _f1(left: Counter[str], right: Counter[str]) -> float:
    total = left.total() + right.total()
    return 2.0 * (left & right).total() / total if total else 1.0


BRACKETED = re.compile(r"\([^()]*\)")
"""Disambiguation of a title: Paris (Texas)."""

WORDED = ("coverage", "best_coverage", "mean_coverage", "first_coverage", "titled", "title_words", "pairs")
"""Signals from words, in the order of the columns."""

SIGNALS = ("overall_sim", "avg_sim", "max_sim", "var_sim", "moran", "cross_sim")
"""Signals from vectors, in the order of the columns."""


def signals(question: NDArray[np.float32], retrieved: Sequence[NDArray[np.float32]]) -> Floats:
    """Return the signals of each arm from vectors, shape (n_arms, 6); NaN without passages.

    Args:
        question: Unit vector, shape (dim,).
        retrieved: Unit vectors of each arm's passages, of shape (n_passages, dim), maybe without rows.

    >>> signals(np.array([1.0, 0.0]), [np.eye(2), np.empty((0, 2))]).round(2).tolist()[0]
    [0.71, 0.5, 1.0, 0.25, 1.0, nan]
    """
    table = np.full((len(retrieved), len(SIGNALS)), np.nan)
    answered = [arm for arm, vectors in enumerate(retrieved) if len(vectors)]
    if not answered:
        return table
    means = np.stack([retrieved[arm].mean(axis=0, dtype=np.float64) for arm in answered])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    cosines = means @ means.T
    for row, arm in enumerate(answered):
        vectors = retrieved[arm].astype(np.float64)
        y = vectors @ question
        table[arm, :5] = means[row] @ question, y.mean(), y.max(), y.var(), _moran(vectors, y)
        if len(answered) > 1:
            table[arm, 5] = (cosines[row].sum() - cosines[row, row]) / (len(answered) - 1)
    return table


def _moran(vectors: Floats, y: Floats) -> float:
    """Return the cosine of `y` with itself, smoothed once over similar passages.

    >>> round(_moran(np.eye(2), np.array([1.0, 1.0])), 6)
    1.0
    """
    smoothed = regularize(y, vectors, len(y))
    norm = float(np.linalg.norm(y) * np.linalg.norm(smoothed))
    return float(smoothed @ y) / norm if norm > 0.0 else 0.0


def word_signals(question: str, retrieved: Sequence[Sequence[Passage]]) -> Floats:
    """Return the signals of each arm from words, shape (n_arms, 7); NaN without passages.

    The first four are the share of the question's words, without stop words, that occur in any of the
    passages, in the best of them, in one on average, and in the first. `titled` is the share of passages
    whose title occurs in the question, `title_words` the mean share of a title's words that do, and
    `pairs` the largest share of the question's bigrams that occur in a passage.

    >>> emma = Passage("p", "Emma", "A novel by Jane Austen.")
    >>> word_signals("Who wrote Emma?", [[emma], []])[0].tolist()
    [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 0.0]
    """
    every = words(question)
    padded, content = f" {' '.join(every)} ", set(words(question, "english"))
    pairs = set(pairwise(every))
    features = {
        passage.id: _read(passage, padded, content, pairs) for ranking in retrieved for passage in ranking
    }
    table = np.full((len(retrieved), len(WORDED)), np.nan)
    for arm, ranking in enumerate(retrieved):
        if ranking:
            read = [features[passage.id] for passage in ranking]
            shares = np.array(
                [[len(overlap.words), overlap.titled, overlap.title_words, overlap.pairs] for overlap in read]
            )
            covered = shares[:, 0] / max(1, len(content))
            anywhere = len(set[str]().union(*(overlap.words for overlap in read))) / max(1, len(content))
            _, titled, title_words, _ = shares.mean(axis=0)
            table[arm] = (
                *(anywhere, covered.max(), covered.mean(), covered[0]),
                *(titled, title_words, shares[:, 3].max()),
            )
    return table


@dataclass(frozen=True, slots=True)
class _Read:
    """Overlap of a passage with a question: words, whether it names the title, shares of title and pairs."""

    words: set[str]
    titled: bool
    title_words: float
    pairs: float


def _read(passage: Passage, padded: str, content: set[str], pairs: set[tuple[str, str]]) -> _Read:
    every = words(f"{passage.title} {passage.text}")
    title = words(BRACKETED.sub("", passage.title))
    title_words = set(words(passage.title, "english"))
    return _Read(
        content.intersection(every),
        bool(title) and f" {' '.join(title)} " in padded,
        len(title_words.intersection(padded.split())) / max(1, len(title_words)),
        len(pairs.intersection(pairwise(every))) / max(1, len(pairs)),
    )
