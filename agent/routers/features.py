"""The features of a router: of questions, of retrieved passages, of answers.

before a search     build_question_table   form, clauses, comparisons
after the searches  build_retrieved_table  similarities of passages, agreement of retrievers
after the answers   build_answered_table   agreement of answers, and whether passages contain them

`compute_features` combines the features of one question, up to the stage reached.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies import FORM, form
from armwise.agent.routers.dataset import SAME_AS, ArmTable, Features, Floats
from armwise.arms import signals as scoring_signals
from armwise.arms.base import Passage
from armwise.arms.relevance import RelevanceModel
from armwise.arms.tokenizer import normalise, words

Vectors = NDArray[np.float32]

COUNTED: Mapping[str, re.Pattern[str]] = {
    "n_of": re.compile(r"\bof\b", re.IGNORECASE),
    "n_possessives": re.compile(r"\w['\u2019]s\b"),
    "n_commas": re.compile(r","),
    "n_clauses": re.compile(r"(?<=\w )(?:who|which|that|where|whose)\b", re.IGNORECASE),
    "n_comparisons": re.compile(r"\b(?:or|both|same|more|older|younger|earlier|later)\b", re.IGNORECASE),
}
"""Counts of nesting and comparison in a question, which suggest that it needs several passages."""

QUESTION = (*FORM, *COUNTED)
"""Features of a question before any search, in the order of the columns."""

RETRIEVED = (
    *scoring_signals.SIGNALS,
    *(f"{name}.scaled" for name in scoring_signals.SIGNALS),
    *scoring_signals.FOUND,
    *scoring_signals.WORDED,
)
"""Features of an arm after all have searched; `.scaled` is min-max over the arms of the question."""

RELEVANCE = tuple(f"relevance.{name}" for name in ("sum", "max", "first", "discounted", "share"))
"""Features of an arm after all have searched, by the predicted relevance of its passages.

`discounted` is the sum discounted by rank as in DCG, `share` the sum over that of as many of the best
passages of all arms.
"""

SUPPORT = tuple(f"relevance.{name}" for name in ("support", "support_max", "support_own"))
"""Features of an answer, from the relevance of passages that contain it: the sum over those of all arms, the
maximum, and the sum over those of the answering arm."""


def terms(text: str) -> list[str]:
    """Return the words of a question, without single English letters, and its pairs of consecutive words.

    >>> terms("Who wrote a book?")
    ['who', 'wrote', 'book', 'who wrote', 'wrote book']
    """
    every = [word for word in words(text) if len(word) > 1 or not word.isascii()]
    return [*every, *map(" ".join, pairwise(every))]


def build_question_table(texts: Sequence[str]) -> Floats:
    """Return the features of each question before any search, shape (n_questions, n_names).

    >>> table = build_question_table(["Who is the son of the king of Siam?"])
    >>> table[0, QUESTION.index("n_of")].item()
    2.0
    """
    column = {name: number for number, name in enumerate(QUESTION)}
    table = np.zeros((len(texts), len(QUESTION)))
    for row, text in enumerate(texts):
        for name, value in form(text).items():
            table[row, column[name]] = value
        for name, pattern in COUNTED.items():
            table[row, column[name]] = len(pattern.findall(text))
    return table


def build_fit(fits: Sequence[Mapping[str, float]], arms: Sequence[str]) -> Floats:
    """Return how well each question fits the sources of each arm, shape (n_questions, n_arms).

    An arm that searches nothing has 0. The others sum to 1, so that arms that are not scored do not count.

    >>> build_fit([{"docs": 0.5, "wiki": 0.125, "far": 0.375}, {}], ["docs", "wiki", "none"]).tolist()
    [[0.8, 0.2, 0.0], [0.0, 0.0, 0.0]]
    """
    rows: Floats = np.array([[fit.get(arm, 0.0) for arm in arms] for fit in fits], dtype=float)
    rows = rows.reshape(len(fits), len(arms))
    total = rows.sum(axis=1, keepdims=True)
    return rows / np.where(total > 0.0, total, 1.0)


def build_retrieved_table(
    texts: Sequence[str],
    embedding: Vectors,
    found: Sequence[Sequence[Sequence[Passage]]],
    vectors: Mapping[str, Vectors],
) -> ArmTable:
    """Return the features of each arm on each question after all have searched.

    Args:
        texts: The questions.
        embedding: Unit vectors of the questions, shape (n_questions, dim).
        found: Passages of each arm, best first: `found[question][arm]`.
        vectors: Unit vector of each of these passages by the same backbone, shape (dim,), by id.
    """
    n_arms = len(found[0]) if found else 0
    table = np.full((len(found), n_arms, len(RETRIEVED)), np.nan)
    empty = np.empty((0, embedding.shape[1]), dtype=np.float32)
    for row, (text, of_arms) in enumerate(zip(texts, found, strict=True)):
        ids = [[passage.id for passage in passages] for passages in of_arms]
        stacked = [np.stack([vectors[name] for name in names]) if names else empty for names in ids]
        signals = scoring_signals.signals(embedding[row], stacked)
        table[row] = np.hstack(
            [
                signals,
                scale_columns(signals),
                scoring_signals.measure_agreement(ids),
                scoring_signals.word_signals(text, of_arms),
            ]
        )
    return ArmTable(RETRIEVED, table)


def scale_columns(values: Floats) -> Floats:
    """Scale each column to [0, 1] by its smallest and largest known values; 0.5 if all are equal.

    >>> scale_columns(np.array([[1.0, 7.0], [3.0, 7.0], [np.nan, np.nan]])).tolist()
    [[0.0, 0.5], [1.0, 0.5], [nan, nan]]
    """
    is_known = ~np.isnan(values)
    low = np.where(is_known, values, np.inf).min(axis=0)
    high = np.where(is_known, values, -np.inf).max(axis=0)
    differ = np.isfinite(low) & (high > low)
    spread = np.where(differ, high - low, 1.0)
    least = np.where(np.isfinite(low), low, 0.0)
    return np.where(is_known, np.where(differ, (values - least) / spread, 0.5), np.nan)


def build_answered_table(
    texts: Sequence[str],
    arms: Sequence[str],
    answers: Sequence[Sequence[str]],
    found: Sequence[Sequence[Sequence[Passage]]],
) -> ArmTable:
    """Return the features of each arm on each question after the language model has answered.

    Besides `answer_signals`, a column `same_as:<arm>` for each arm marks equal answers.

    Args:
        texts: The questions.
        arms: Names of the arms.
        answers: `answers[question][arm]`.
        found: Passages of each arm, best first: `found[question][arm]`.
    """
    rows = []
    for text, given, of_arms in zip(texts, answers, found, strict=True):
        alike = np.array([normalise(answer) for answer in given])
        rows.append(
            np.hstack(
                [scoring_signals.answer_signals(text, given, of_arms), alike[:, None] == alike[None, :]]
            )
        )
    names = (*scoring_signals.ANSWERED, *(f"{SAME_AS}{arm}" for arm in arms))
    return ArmTable(names, np.array(rows, dtype=np.float64).reshape(len(texts), len(arms), len(names)))


def with_relevance(
    features: Features,
    relevance: Sequence[Mapping[str, float]],
    found: Sequence[Sequence[Sequence[Passage]]],
    answers: Sequence[Sequence[str]] | None = None,
) -> Features:
    """Return features with the columns `RELEVANCE`, and `SUPPORT` if there are answers.

    Args:
        features: Features of all questions, after the searches.
        relevance: Relevance of each passage of each question, by id.
        found: Passages of each arm, best first: `found[question][arm]`.
        answers: `answers[question][arm]`, if `features` has an `answered` table.
    """
    assert features.retrieved is not None
    rows = [_relevance(by_id, of_arms) for by_id, of_arms in zip(relevance, found, strict=True)]
    features = replace(features, retrieved=_extend(features.retrieved, RELEVANCE, rows))
    if features.answered is None:
        return features
    assert answers is not None
    rows = [_support(*inputs) for inputs in zip(relevance, found, answers, strict=True)]
    return replace(features, answered=_extend(features.answered, SUPPORT, rows))


def _extend(table: ArmTable, names: tuple[str, ...], rows: Sequence[Floats]) -> ArmTable:
    return ArmTable((*table.names, *names), np.concatenate([table.values, np.stack(rows)], axis=2))


def _relevance(relevance: Mapping[str, float], of_arms: Sequence[Sequence[Passage]]) -> Floats:
    """Return the columns `RELEVANCE` of a question, shape (n_arms, 5); NaN without passages.

    >>> a, b = Passage("a", "", "one"), Passage("b", "", "two")
    >>> _relevance({"a": 0.25, "b": 0.5}, [[a], [a, b]]).round(3).tolist()
    [[0.25, 0.25, 0.25, 0.25, 0.5], [0.75, 0.5, 0.25, 0.565, 1.0]]
    """
    ideal = np.cumsum(sorted(relevance.values(), reverse=True))
    table = np.full((len(of_arms), len(RELEVANCE)), np.nan)
    for row, passages in zip(table, of_arms, strict=True):
        if passages:
            gains = np.array([relevance[passage.id] for passage in passages])
            discounted = (gains / np.log2(np.arange(2, len(gains) + 2))).sum()
            row[:] = gains.sum(), gains.max(), gains[0], discounted, gains.sum() / ideal[len(gains) - 1]
    return table


def _support(
    relevance: Mapping[str, float], of_arms: Sequence[Sequence[Passage]], answers: Sequence[str]
) -> Floats:
    """Return the columns `SUPPORT` of a question, shape (n_arms, 3).

    >>> a, b = Passage("a", "", "Emma, by Austen"), Passage("b", "Austen", "She wrote.")
    >>> _support({"a": 0.25, "b": 0.5}, [[a], [b]], ["Emma", "Austen"]).tolist()
    [[0.25, 0.25, 0.25], [0.75, 0.5, 0.5]]
    """
    read = {
        passage.id: f" {normalise(passage.title)} {normalise(passage.text)} "
        for passages in of_arms
        for passage in passages
    }
    table = np.zeros((len(of_arms), len(SUPPORT)))
    for row, passages, answer in zip(table, of_arms, map(normalise, answers), strict=True):
        inside = {name for name, text in read.items() if answer and f" {answer} " in text}
        hits = inside.intersection(passage.id for passage in passages)
        row[:] = [
            math.fsum(relevance[name] for name in inside),
            max((relevance[name] for name in inside), default=0.0),
            math.fsum(relevance[name] for name in hits),
        ]
    return table


def compute_features(
    text: str,
    embedding: Vectors,
    arms: Sequence[str],
    found: Sequence[Sequence[Passage]] | None = None,
    vectors: Mapping[str, Vectors] | None = None,
    answers: Sequence[str] | None = None,
    relevance: RelevanceModel | None = None,
    fit: Mapping[str, float] | None = None,
) -> Features:
    """Return the features of one question.

    Args:
        text: The question.
        embedding: Unit vector, shape (dim,).
        arms: Arms to score.
        found: Passages of each arm, best first, once they have searched.
        vectors: Unit vectors of passages by id, shape (dim,); passages without a vector are left out.
        answers: The answer from each arm, once they have answered.
        relevance: Predicts the relevance of passages, for a router with columns of it.
        fit: How well it fits the sources of each arm, as far as that is known; None: nobody asked.
    """
    embeddings, texts = embedding[None], (text,)
    table, fits = build_question_table(texts), None if fit is None else build_fit([fit], arms)
    features = Features(tuple(arms), texts, QUESTION, table, embeddings, fit=fits)
    if found is None or vectors is None:
        return features
    rankings = [[[passage for passage in passages if passage.id in vectors] for passages in found]]
    features = replace(
        features,
        retrieved=build_retrieved_table(texts, embeddings, rankings, vectors),
        answered=None if answers is None else build_answered_table(texts, arms, [answers], rankings),
    )
    if relevance is None:
        return features
    predicted = relevance.relevance(text, dict(zip(arms, rankings[0], strict=True)))
    return with_relevance(features, [predicted], rankings, None if answers is None else [answers])
