"""Scale features, project embeddings and impute missing values, by statistics of the training questions."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import IdentityParameters, State
from armwise.agent.routers.dataset import Features, Floats, RouterError


@dataclass(frozen=True, slots=True)
class Preparation:
    """Statistics of the training questions.

    Attributes:
        mean: Mean of each feature of a question, shape (n_names,).
        spread: Standard deviation of each feature of a question, 1 for a constant, shape (n_names,).
        centre: Mean embedding, shape (dim,).
        directions: Principal directions of the embedding, shape (dim, dims).
        median: Median of each feature of an arm, 0 if no arm has it, shape (n_columns,).
        arm_spread: Standard deviation of each feature of an arm, 1 for a constant, shape (n_columns,).
    """

    mean: Floats
    spread: Floats
    centre: Floats
    directions: Floats
    median: Floats
    arm_spread: Floats

    @classmethod
    def fit(cls, features: Features, dims: int) -> Self:
        """Compute the statistics of training questions.

        Args:
            features: Features of at least two questions.
            dims: Most principal directions to keep.
        """
        embedding = features.embedding.astype(np.float64)
        centre = embedding.mean(axis=0)
        _, _, directions = np.linalg.svd(embedding - centre, full_matrices=False)
        flat = np.concatenate(stack_tables(features))
        is_known = ~np.isnan(flat).all(axis=0)
        median, spread = np.zeros(flat.shape[1]), np.ones(flat.shape[1])
        median[is_known] = np.nanmedian(flat[:, is_known], axis=0)
        spread[is_known] = _positive(np.nanstd(flat[:, is_known], axis=0))
        return cls(
            features.question.mean(axis=0),
            _positive(features.question.std(axis=0)),
            centre,
            _fix_signs(directions[:dims]).T,
            median,
            spread,
        )

    def question(self, features: Features) -> Floats:
        """Return z-scores of the features of each question, then principal components; shape (n, d)."""
        numbers = (features.question - self.mean) / self.spread
        return np.hstack([numbers, (features.embedding - self.centre) @ self.directions])

    def arms(self, features: Features) -> Floats:
        """Return z-scores of the features of each arm, NaN where unknown, shape (n, n_arms, n_columns)."""
        scaled: Floats = (stack_tables(features) - self.median) / self.arm_spread
        return scaled

    def impute(self, features: Features) -> Floats:
        """Return `arms` with NaN replaced by the training medians, which are 0 after scaling."""
        return np.nan_to_num(self.arms(features), nan=0.0)

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        return {f"preparation.{name}": getattr(self, name) for name in self.__slots__}

    @classmethod
    def restore(cls, state: State) -> Self:
        """Restore from the arrays of `state`. Raises KeyError if an array is missing."""
        return cls(*(state[f"preparation.{name}"] for name in cls.__slots__))


def check_rows_differ(kind: str, chosen: IdentityParameters, features: Features) -> None:
    """Check that the rows of a router differ between arms. Raises RouterError."""
    if not chosen.identity and not stack_tables(features).shape[2]:
        raise RouterError(
            f"{kind}: identity is false, and no feature of an arm is known at stage {chosen.stage!r}: "
            "the rows of all arms would be the same"
        )


def stack_tables(features: Features) -> Floats:
    """Return all features of each arm, in the order of the tables, shape (n, n_arms, n_columns)."""
    tables = [table.values for table in (features.retrieved, features.answered) if table is not None]
    return np.concatenate([np.empty((len(features), len(features.arms), 0)), *tables], axis=2)


def _positive(spread: Floats) -> Floats:
    return np.where(spread > 0.0, spread, 1.0)


def _fix_signs(directions: NDArray[np.float64]) -> Floats:
    """Flip directions so that the largest component of each is positive: the sign of an SVD is arbitrary."""
    turned = -directions.min(axis=1, initial=0.0) > directions.max(axis=1, initial=0.0)
    return np.where(turned[:, None], -directions, directions)
