"""How well a question fits each source, before anything is searched: by its words, and by passages near it.

    words     the mean log-likelihood of words, and of pairs of neighbours, under the source, each smoothed by
              its mean share of all sources
    passages  the mean similarity to the nearest of a sample of passages, if there is an encoder

Both give odds of a source against another, with weights that were fitted to generated questions about nine
corpora and are the same for all services. `benchmarks/made_questions.py` measures them on real questions.

`armwise.arms.retrievers.profiles` counts the words and samples the passages.

The larger a sample is, the nearer are its nearest passages by chance, for any question. So sources are
compared as if every sample were as large as the largest.

Sources: Zhai and Lafferty 2004, A study of smoothing methods for language models, ACM TOIS 22(2); Si and
Callan 2003, Relevant document distribution estimation method for resource selection, SIGIR; the highest of n
normal numbers: Blom 1958, Statistical estimates and transformed beta-variables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from types import MappingProxyType
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import ArmError
from armwise.arms.tokenizer import words

NEAREST = 5
"""Sampled passages, those nearest to the question, whose mean similarity counts."""

SMOOTHING, LEAST = 0.3, 1e-12
"""Weight of the mean share of all sources (Jelinek and Mercer), and the share of what no source has."""

OF_WORDS, OF_PASSAGES = 8.0, 6.0
"""What a difference in mean log-likelihood, and in similarity, adds to the logarithm of the odds."""

CHARACTERS, MOST = 2000, 256
"""Most characters of a question that are read for its words, and the most words that count."""


class ProfileSpec(BaseModel):
    """How a source is described, so that a question can be compared with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str | None = Field(
        default=None,
        description=(
            "Backbone that embeds a sample of passages, with which a question is compared besides its words. "
            "If null, only words count."
        ),
    )
    words: int = Field(
        default=1 << 18,
        ge=1,
        le=1 << 24,
        description=(
            "Words and pairs of neighbouring words whose share is kept per source, the most frequent. Each "
            "takes 8 bytes."
        ),
    )
    passages: int = Field(default=700, ge=1, le=100_000, description="Passages sampled per source.")
    searches: int = Field(
        default=100,
        ge=0,
        description=(
            "Maximum searches that Armwise makes to sample a source without a corpus. Set this to 0 to "
            "skip such sources, for example if searches cost money."
        ),
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a source.

    Attributes:
        terms: Words and pairs of words, as `hash_terms` has them, ascending, shape (n_terms,).
        shares: The share of each in all of the source's, positive, shape (n_terms,).
        vectors: Unit vectors of sampled passages, shape (n, dim), n at least 1; None without an encoder.
    """

    terms: NDArray[np.uint32]
    shares: NDArray[np.float32]
    vectors: NDArray[np.float32] | None = None

    def share(self, terms: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return the share of each term in the source, 0 for one that it lacks, shape (n,)."""
        if not len(self.terms):
            return np.zeros(len(terms))
        at = np.minimum(np.searchsorted(self.terms, terms), len(self.terms) - 1)
        return np.where(self.terms[at] == terms, self.shares[at].astype(np.float64), 0.0)

    def cosines(self, vector: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the similarity of a question to each passage, in [-1, 1], shape (n,).

        Args:
            vector: Unit vector of the question by the same backbone, shape (dim,).

        Raises:
            ArmError: The vector has another length.
        """
        assert self.vectors is not None
        if vector.shape != self.vectors.shape[1:]:
            dims = self.vectors.shape[1]
            raise ArmError(
                f"the profile has vectors of {dims} numbers, but this vector has the shape {vector.shape}"
            )
        return self.vectors @ np.asarray(vector, dtype=np.float32)


Profiles = Mapping[str, Sequence[Profile]]
"""The profiles of the sources of each arm; empty where nothing is known of them."""

NO_PROFILES: Profiles = MappingProxyType({})


def hash_terms(text: str, most: int | None = None) -> list[int]:
    """Return the words of a text, at most so many, and each pair of neighbours, as 32 bits each.

    >>> first, second, pair = hash_terms("deep Sea")
    >>> hash_terms("DEEP") == [first], pair in hash_terms("the deep sea")
    (True, True)
    """
    every = [word.encode(errors="surrogatepass") for word in words(text)[:most]]
    single = [crc32(word) for word in every]
    return single + [crc32(b" " + after, before) for before, after in zip(single, every[1:], strict=False)]


def similarities(
    profiles: Profiles, question: str, vector: NDArray[np.floating] | None = None
) -> dict[str, float]:
    """Return the probability that the answer is in a source of each arm, if all sources are as likely.

    They sum to 1 over the distinct sources, and an arm over several has their sum. An arm of whose sources
    nothing is known counts as one more, which fits as well as the others on average; if nothing is known of
    any, nothing is returned.

    Args:
        profiles: The profiles of each arm.
        question: The text. Of a long one, the beginning counts.
        vector: Unit vector of the question by the backbone of the profiles, shape (dim,); None: words alone.

    Raises:
        ArmError: The vector has another length.
    """
    distinct = list({id(one): one for known in profiles.values() for one in known}.values())
    if not distinct:
        return {}
    terms = np.array(hash_terms(question[:CHARACTERS], MOST), dtype=np.uint32)
    shares = np.stack([one.share(terms) for one in distinct])
    smoothed = (1.0 - SMOOTHING) * shares + SMOOTHING * shares.mean(axis=0) + LEAST
    odds = OF_WORDS * np.log(smoothed).mean(axis=1) if len(terms) else np.zeros(len(distinct))
    if vector is not None and all(one.vectors is not None for one in distinct):
        odds += OF_PASSAGES * measure_nearness([one.cosines(vector) for one in distinct])
    unknown = [name for name, known in profiles.items() if not known]
    odds = np.append(odds, [odds.mean()] * len(unknown))
    fit = np.exp(odds - odds.max())
    fit /= fit.sum()
    at = {id(one): float(value) for one, value in zip(distinct, fit, strict=False)}
    of_unknown = dict(zip(unknown, fit[len(distinct) :].tolist(), strict=True))
    return {
        name: sum(at[key] for key in {id(one): None for one in known}) if known else of_unknown[name]
        for name, known in profiles.items()
    }


def measure_nearness(cosines: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Return the mean similarity to the nearest passages of each source, shape (n_sources,).

    For a sample smaller than the largest, the gain by chance in one as large is added: the standard deviation
    of the similarities within sources, times the difference between the expected highest of as many normal
    numbers.
    """
    sizes = [len(one) for one in cosines]
    spread = math.sqrt(sum(len(one) * float(one.var()) for one in cosines) / sum(sizes))
    near = []
    for one in cosines:
        k = min(NEAREST, len(one))
        lacking = _by_chance(NEAREST, max(sizes)) - _by_chance(NEAREST, len(one))
        near.append(float(np.partition(one, -k)[-k:].mean()) + spread * lacking)
    return np.array(near)


@lru_cache(maxsize=256)
def _by_chance(k: int, n: int) -> float:
    """Return the expected mean of the highest of n standard normal numbers, of k or all, by Blom's formula.

    >>> round(_by_chance(1, 1), 2), round(_by_chance(1, 100), 2), round(_by_chance(5, 700), 2)
    (0.0, 2.5, 2.73)
    """
    normal, k = NormalDist(), min(k, n)
    return sum(normal.inv_cdf((n - rank + 0.625) / (n + 0.25)) for rank in range(1, k + 1)) / k
