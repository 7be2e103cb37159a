"""Topics of questions: clusters of embeddings or of words, named by their most distinctive words.

texts --vectors--> unit vectors --spherical k-means--> clusters --> names
"""

from collections import Counter
from collections.abc import Sequence
from math import log

import numpy as np

from armwise.arms.tokenizer import ENGLISH, split_words
from armwise.feedback.arrays import Floats, Integers

LEAST = 30
"""Fewest texts that are grouped."""

FEWEST_TOPICS, MOST_TOPICS = 3, 8

WORDS = 800
"""Most different words that texts are compared by."""

FACTORS = 40
"""Dimensions that words are reduced to."""

ROUNDS, STARTS = 25, 3
"""Most rounds of k-means, and its starts."""

NAME_WORDS = 3


def find_topics(texts: Sequence[str], embeddings: Sequence[Sequence[float]] = ()) -> list[str | None]:
    """Return the name of the topic of each text; None if it has no words, or there are too few texts.

    Args:
        texts: The texts.
        embeddings: An embedding for each; without these, or if their lengths differ, words are compared.
    """
    words = [list_words(text) for text in texts]
    rows = [row for row, some in enumerate(words) if some]
    names: list[str | None] = [None] * len(texts)
    if len(rows) < LEAST:
        return names
    kept, dense = [words[row] for row in rows], [embeddings[row] for row in rows] if embeddings else []
    lengths = {len(one) for one in dense} or {0}
    if lengths != {0} and len(lengths) == 1:
        vectors = np.array(dense)
        vectors = vectors - vectors.mean(axis=0)
    else:
        vectors = weigh_words(kept)
    found = cluster(_normalise(vectors), min(MOST_TOPICS, len(rows) // 10))
    named = name_clusters(kept, found)
    for row, number in zip(rows, found.tolist(), strict=True):
        names[row] = named[number]
    return names


def list_words(text: str) -> frozenset[str]:
    """Return the words of a text that may say what it is about."""
    lower = (word.lower() for word in split_words(text, contractions=True, pairs=True))
    return frozenset(word for word in lower if word not in ENGLISH and not word.isdigit())


def weigh_words(texts: Sequence[frozenset[str]]) -> Floats:
    """Return the TF-IDF vectors of texts, reduced to their main directions, shape (n, d)."""
    counts = Counter(word for text in texts for word in text)
    frequent = [(word, n) for word, n in counts.most_common(WORDS) if n > 1] or counts.most_common(WORDS)
    column = {word: i for i, (word, _) in enumerate(frequent)}
    matrix = np.zeros((len(texts), len(column)))
    for row, text in enumerate(texts):
        matrix[row, [column[word] for word in text if word in column]] = 1.0
    matrix = _normalise(matrix * [1.0 + log(len(texts) / n) for _, n in frequent])
    _, directions = np.linalg.eigh(matrix.T @ matrix)
    reduced: Floats = matrix @ directions[:, -FACTORS:]
    return reduced


def _normalise(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 1e-9)
    return unit


def cluster(vectors: Floats, most: int) -> Integers:
    """Return the cluster of each vector, shape (n,), by spherical k-means with a fixed seed.

    The number of clusters is the one for which vectors are nearest to their own centre, compared with the
    next one.

    Args:
        vectors: Unit vectors, shape (n, d).
        most: Most clusters.
    """
    rng, best, found = np.random.default_rng(0), -np.inf, np.zeros(len(vectors), dtype=np.int64)
    for k in range(FEWEST_TOPICS, most + 1):
        for _ in range(STARTS):
            numbers, similarity = _k_means(vectors, k, rng)
            nearest = np.sort(similarity, axis=1)
            apart = float(np.mean(nearest[:, -1] - nearest[:, -2]))
            if apart > best:
                best, found = apart, numbers
    return found


def _k_means(vectors: Floats, k: int, rng: np.random.Generator) -> tuple[Integers, Floats]:
    """Return the cluster of each vector, shape (n,), and its similarity to each centre, shape (n, k)."""
    centres = vectors[[rng.integers(len(vectors))]]
    while len(centres) < k:  # k-means++: far ones are likely to be the next
        distance = np.maximum(0.0, 1.0 - (vectors @ centres.T).max(axis=1)) + 1e-12
        centres = np.vstack([centres, vectors[rng.choice(len(vectors), p=distance / distance.sum())]])
    numbers = np.full(len(vectors), -1)
    for _ in range(ROUNDS):
        similarity = vectors @ centres.T
        now = similarity.argmax(axis=1)
        if (now == numbers).all():
            break
        numbers = now
        sums = np.zeros_like(centres)
        np.add.at(sums, numbers, vectors)
        centres = np.where(np.abs(sums).sum(axis=1, keepdims=True) > 0.0, _normalise(sums), centres)
    return numbers, vectors @ centres.T


def name_clusters(texts: Sequence[frozenset[str]], found: Integers) -> dict[int, str]:
    """Return the most distinctive words of each cluster: frequent in it, and rarer in all texts."""
    of_all, names = Counter(word for text in texts for word in text), dict[int, str]()
    for number in np.unique(found).tolist():
        inside = np.flatnonzero(found == number).tolist()
        counts = Counter(word for row in inside for word in texts[row])
        lift = {
            word: n / len(inside) * log(n / len(inside) / (of_all[word] / len(texts)) + 1e-12)
            for word, n in counts.items()
        }
        ranked = sorted(counts, key=lambda word: (-lift[word], word))[:NAME_WORDS]
        name = ", ".join(ranked)
        names[number] = name if name not in names.values() else f"{name} ({number})"
    return names
