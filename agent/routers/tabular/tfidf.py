"""A question as its words: TF-IDF of words and of pairs of neighbouring words."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agent.routers.base import State
from agent.routers.dataset import Floats

WORD = re.compile(r"\b\w\w+\b")
"""Two letters or digits at least."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words and pairs that count, and how much.

    A question weighs each by `(1 + ln(count)) * idf`, and its weights make a unit vector: equal to
    scikit-learn's `TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)`, which takes twenty times as
    long for one question.

    Attributes:
        columns: Where each stands among the weights, in their order.
        idf: `1 + ln((1 + n) / (1 + df))` of each, shape (n_words,): rare ones weigh more.
    """

    columns: Mapping[str, int]
    idf: Floats

    @classmethod
    def of(cls, texts: Sequence[str], least: int) -> Self:
        """Learn from training questions.

        Args:
            texts: The questions.
            least: Questions that a word must stand in to count.
        """
        found = Counter(gram for text in texts for gram in set(grams(text)))
        kept = sorted(gram for gram, count in found.items() if count >= least)
        df = np.array([found[gram] for gram in kept], dtype=np.float64)
        return cls(
            dict(zip(kept, range(len(kept)), strict=True)), 1.0 + np.log((1 + len(texts)) / (1.0 + df))
        )

    def weigh(self, text: str) -> tuple[NDArray[np.intp], Floats]:
        """Return the columns of the words of a question and their weights, each of shape (n_known,)."""
        counts = Counter(column for gram in grams(text) if (column := self.columns.get(gram)) is not None)
        at = np.fromiter(counts, dtype=np.intp, count=len(counts))
        weights = np.array([1.0 + math.log(count) for count in counts.values()]) * self.idf[at]
        return at, weights / (math.sqrt(weights @ weights) or 1.0)

    def matrix(self, texts: Sequence[str]) -> Any:
        """Return the weights of questions, shape (n, n_words), sparse."""
        from scipy import sparse

        rows = [self.weigh(text) for text in texts]
        ends = np.cumsum([0, *(len(at) for at, _ in rows)])
        columns, weights = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        return sparse.csr_matrix((weights, columns, ends), shape=(len(texts), len(self.idf)))

    def product(self, texts: Sequence[str], coefficients: Floats) -> Floats:
        """Return the weights of questions times coefficients (n_words, m), shape (n, m)."""
        product = np.empty((len(texts), coefficients.shape[1]))
        for row, text in zip(product, texts, strict=True):
            at, weights = self.weigh(text)
            np.matmul(weights, coefficients[at], out=row)
        return product

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        text = "\n".join(self.columns).encode()
        return {"words.text": np.frombuffer(text, dtype=np.uint8), "words.idf": self.idf}

    @classmethod
    def restore(cls, state: State) -> Self:
        """Build it of arrays. Raises KeyError where one is missing."""
        words = state["words.text"].tobytes().decode().splitlines()
        return cls(dict(zip(words, range(len(words)), strict=True)), state["words.idf"])


def grams(text: str) -> list[str]:
    """Return the words of a text, and its pairs of neighbouring words.

    >>> grams("Who wrote Emma?")
    ['who', 'wrote', 'emma', 'who wrote', 'wrote emma']
    """
    words = WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]
