"""Profiles of sources: vectors of sampled passages, with which a question is compared.

`armwise.arms.retrievers.profiles` samples the sources.

The larger a sample is, the nearer are its nearest passages by chance, for any question. So sources are
compared as if every sample were as large as the largest.

Sources: Si and Callan 2003, Relevant document distribution estimation method for resource selection, SIGIR;
the highest of n normal numbers: Blom 1958, Statistical estimates and transformed beta-variables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import ArmError

NEAREST = 5
"""Sampled passages, those nearest to the question, whose mean similarity counts."""


class ProfileSpec(BaseModel):
    """How a source is sampled and compared with a question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(description="Backbone that embeds the sampled passages and the questions.")
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
    """A sample of the source of an arm.

    Attributes:
        vectors: Unit vectors of the sampled passages, shape (n, dim), n at least 1.
    """

    vectors: NDArray[np.float32]

    def cosines(self, vector: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the similarity of a question to each passage, in [-1, 1], shape (n,).

        Args:
            vector: Unit vector of the question by the same backbone, shape (dim,).

        Raises:
            ArmError: The vector has another length.
        """
        if vector.shape != self.vectors.shape[1:]:
            dims = self.vectors.shape[1]
            raise ArmError(
                f"the profile has vectors of {dims} numbers, but this vector has the shape {vector.shape}"
            )
        return self.vectors @ np.asarray(vector, dtype=np.float32)


NO_PROFILES: Mapping[str, Profile] = MappingProxyType({})


def similarities(profiles: Mapping[str, Profile], vector: NDArray[np.floating]) -> dict[str, float]:
    """Return the similarity of a question to the source of each arm; a shared profile is compared once.

    It is the mean similarity to the nearest passages. For a sample smaller than the largest, the gain by
    chance in one as large is added: the standard deviation of the similarities within the sources, times the
    difference between the expected highest of as many normal numbers. So it is in [-1, 1] for the largest
    sample, and may exceed that for others.

    Args:
        profiles: The profile of each arm.
        vector: Unit vector of the question by their backbone, shape (dim,).

    Raises:
        ArmError: The vector has another length.
    """
    distinct = {id(profile): (profile, profile.cosines(vector)) for profile in profiles.values()}
    sizes = [len(cosines) for _, cosines in distinct.values()]
    squares = sum(len(cosines) * float(cosines.var()) for _, cosines in distinct.values())
    spread = math.sqrt(squares / max(sum(sizes), 1))
    near = {}
    for key, (_, cosines) in distinct.items():
        k = min(NEAREST, len(cosines))
        lacking = _by_chance(NEAREST, max(sizes)) - _by_chance(NEAREST, len(cosines))
        near[key] = float(np.partition(cosines, -k)[-k:].mean()) + spread * lacking
    return {name: near[id(profile)] for name, profile in profiles.items()}


@lru_cache(maxsize=256)
def _by_chance(k: int, n: int) -> float:
    """Return the expected mean of the highest of n standard normal numbers, of k or all, by Blom's formula.

    >>> round(_by_chance(1, 1), 2), round(_by_chance(1, 100), 2), round(_by_chance(5, 700), 2)
    (0.0, 2.5, 2.73)
    """
    normal, k = NormalDist(), min(k, n)
    return sum(normal.inv_cdf((n - rank + 0.625) / (n + 0.25)) for rank in range(1, k + 1)) / k
