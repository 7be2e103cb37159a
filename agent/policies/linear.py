"""Linear bandits: a ridge regression of the reward, and two ways to act on what it is not sure of.

    LinUCB           the arm that may be the best, by the upper end of what is believed of it
    LinearThompson   each arm as often as it is believed to be the best

A decision costs the square of the columns for every arm: some 32 numbers of an embedding
are cheap, all 384 of them are not.
"""

import numpy as np
from scipy.special import ndtr

from agent.policies.ridge import Array
from agent.policies.ridge_policy import RidgePolicy
from agent.policy import PolicyError, greedy

NODES = np.linspace(-3.5, 3.5, 16)
"""Where each arm's normal distribution is looked at, in standard deviations."""


class LinUCB(RidgePolicy):
    """The arm whose reward may be the highest; arms that tie share the mass.

    How high a reward may be is its mean plus `alpha` standard deviations.

    Args:
        alpha: Standard deviations to hope for, not negative; with 0, nothing is explored.
        ridge: Penalty on the square of a weight: about how many rewards it takes to believe
            in one. By default 10; with `prior_feature` 3000, so that a good router is not
            unlearned from the noise of single rewards, and a wrong one is corrected.
        dims: Columns that the named features of the question are hashed into; 0 leaves them out.
        shared: Whether arms share weights (Li et al.'s hybrid model) or learn apart
            (disjoint); the features of an arm are looked at only where they do.
        prior: Reward expected of an arm of which nothing is known; at the top of the
            range, new arms look good and are tried.
        prior_feature: A feature of an arm that tells its expected reward, such as the score
            `router` of a trained one: it ranks the arms from the start, and what is learned is
            the rest. It should be in the unit of the reward, as the scores of a router of kind
            `calibrated` are. `prior` counts for an arm without it.

    Source: Li et al. 2010, arXiv:1003.0146.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "linucb"

    def __init__(
        self,
        *,
        alpha: float = 0.2,
        ridge: float | None = None,
        dims: int = 32,
        shared: bool = True,
        prior: float = 1.0,
        prior_feature: str | None = None,
    ) -> None:
        if not 0.0 <= alpha < np.inf:
            raise PolicyError(f"alpha {alpha} is not a number from 0 on")
        super().__init__(
            alpha=alpha, ridge=ridge, dims=dims, shared=shared, prior=prior, prior_feature=prior_feature
        )

    def _distribution(self, mean: Array, covariance: Array) -> Array:
        return greedy(mean + self._settings["alpha"] * np.sqrt(covariance.diagonal()))


class LinearThompson(RidgePolicy):
    """Each arm with the probability that its reward is the highest, as far as is known.

    That is what Thompson sampling draws from; here it is computed and not drawn. Where arms
    share weights, their rewards are not independent: what moves all of them alike is
    left out, as it cannot change which is the highest, and the rest is taken as independent.

    Args:
        scale: Standard deviation of the noise of a reward, which all doubt is a multiple of.
        ridge: As in `LinUCB`, like all that follow.
        dims: Columns of the named features.
        shared: Whether arms share weights.
        prior: Reward expected of an arm of which nothing is known.
        prior_feature: A feature of an arm that tells its expected reward.

    Source: Agrawal and Goyal 2013, Thompson sampling for contextual bandits with linear
    payoffs, arXiv:1209.3352.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "linear_thompson"

    def __init__(
        self,
        *,
        scale: float = 0.1,
        ridge: float | None = None,
        dims: int = 32,
        shared: bool = True,
        prior: float = 1.0,
        prior_feature: str | None = None,
    ) -> None:
        if not 0.0 < scale < np.inf:
            raise PolicyError(f"scale {scale} is not a positive number")
        super().__init__(
            scale=scale, ridge=ridge, dims=dims, shared=shared, prior=prior, prior_feature=prior_feature
        )

    def _distribution(self, mean: Array, covariance: Array) -> Array:
        alone = covariance.diagonal()
        variance = np.maximum(alone - max(0.0, float(covariance.min())), 1e-6 * alone)
        return highest(mean, self._settings["scale"] * np.sqrt(variance))


def highest(mean: Array, deviation: Array) -> Array:
    """Return the probability that each of some independent normal variables is the highest.

    It is the integral of each density times the distribution functions of the others,
    by the midpoint rule between the nodes of all of them: where one is a hundred times as
    wide as another, nodes of its own alone would step over the other. Right to 0.005, and
    mostly to 0.0005.

    Args:
        mean: Shape (n,).
        deviation: Standard deviations, positive, shape (n,).

    >>> highest(np.array([0.0, 0.0, -9.0]), np.array([1.0, 0.1, 1.0])).round(3).tolist()
    [0.5, 0.5, 0.0]
    """
    at = (mean + NODES[:, None] * deviation).ravel()
    at = at[at >= (mean + NODES[0] * deviation).max()]  # below, one of them is surely higher
    at.sort()
    below = ndtr((at - mean[:, None]) / deviation[:, None])
    between = np.maximum(below[:, 1:] + below[:, :-1], 1e-300)
    p = ((below[:, 1:] - below[:, :-1]) * (between.prod(axis=0) / between)).sum(axis=1)
    return np.asarray(p / p.sum())
