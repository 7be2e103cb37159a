"""What a source is about: some of its passages as vectors, which a question is compared with.

`arms.retrievers.profiles` samples the sources.

Source: Si and Callan 2003, Relevant document distribution estimation method for resource selection, SIGIR.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from arms.base import ArmError


class ProfileSpec(BaseModel):
    """How a source is sampled, and compared with a question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backbone: str = Field(description="Backbone that embeds the sampled passages, and questions.")
    passages: int = Field(
        default=700, ge=1, le=100_000, description="Passages of each source that are sampled."
    )
    nearest: int = Field(
        default=5,
        ge=1,
        description="Sampled passages, those nearest to the question, whose similarity counts.",
    )
    searches: int = Field(
        default=100,
        ge=0,
        description="Most searches by which a source without a corpus is sampled; 0 leaves it without a "
        "profile, such as one that is paid by the search.",
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """What the source of an arm is about.

    Attributes:
        vectors: Unit vectors of the sampled passages, shape (n, dim), n at least 1.
        nearest: The nearest passages whose mean similarity counts.
    """

    vectors: NDArray[np.float32]
    nearest: int

    def similarity(self, vector: NDArray[np.floating]) -> float:
        """Return the mean similarity of a question to the passages that are nearest to it, in [-1, 1].

        Args:
            vector: Unit vector of the question by the same backbone, shape (dim,).

        Raises:
            ArmError: The vector has another length.
        """
        if vector.shape != self.vectors.shape[1:]:
            dims = self.vectors.shape[1]
            raise ArmError(
                f"a profile of vectors of {dims} numbers is compared with one of shape {vector.shape}"
            )
        cosines = self.vectors @ vector
        k = min(self.nearest, len(cosines))
        return float(np.partition(cosines, -k)[-k:].mean())


NO_PROFILES: Mapping[str, Profile] = MappingProxyType({})


def similarities(profiles: Mapping[str, Profile], vector: NDArray[np.floating]) -> dict[str, float]:
    """Return the similarity of a question to the source of each arm; arms that share a profile cost one."""
    distinct = {id(one): one for one in profiles.values()}
    near = {key: one.similarity(vector) for key, one in distinct.items()}
    return {name: near[id(one)] for name, one in profiles.items()}
