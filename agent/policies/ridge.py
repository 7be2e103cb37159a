"""Ridge regression of an arm's reward, one model an arm over one that all share, exact after every row.

The reward of arm `a` is modelled as

    reward = theta_a . x + beta . z + noise

with a vector theta_a of each arm's own over the question's columns x, one vector beta
over the columns z that all arms share, and the penalty `ridge` on the square of every
weight. Of a Gaussian with noise of variance 1, this is the posterior.

It is Li et al.'s hybrid model; without shared columns, their disjoint one. They keep
five matrices and invert two of them at every decision. Here, all is two regressions
that take in a row at a time (recursive least squares):

    own     of arm a, on x:     predicts z and the reward together
    shared, on what the own one could not predict of z:     predicts what it could not of the reward

Each is one block, [inverse; solutions], and a row changes a block by a matrix of rank
one (Sherman and Morrison's formula, the solutions included), which BLAS adds in place.

Source: Li et al. 2010, A contextual-bandit approach to personalized news article
recommendation, arXiv:1003.0146, algorithms 1 and 2.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dger

Array = NDArray[np.float64]


class ArmRidge:
    """The posterior of every arm's reward, given all rows so far.

    The last row of `own` is an arm that has learned nothing: it stands for all that are unknown.

    Attributes:
        ridge: Penalty on the square of every weight, positive.
        own: One block an arm, and one more, shape (n_arms + 1, n_own + n_shared + 1, n_own).
        shared: The block of the shared weights, shape (n_shared + 1, n_shared).
    """

    def __init__(self, ridge: float, own: Array, shared: Array) -> None:
        self.ridge, self.own, self.shared = ridge, own, shared

    @classmethod
    def empty(cls, ridge: float, n_own: int, n_shared: int) -> "ArmRidge":
        """Return a model without arms that has seen no row."""
        own, shared = np.zeros((1, n_own + n_shared + 1, n_own)), np.zeros((n_shared + 1, n_shared))
        np.fill_diagonal(own[0], 1.0 / ridge)
        np.fill_diagonal(shared, 1.0 / ridge)
        return cls(ridge, own, shared)

    def posterior(self, rows: NDArray[np.intp], x: Array, z: Array) -> tuple[Array, Array]:
        """Return the mean and the covariance of some arms' rewards, noise left out.

        Args:
            rows: Row of each arm, shape (n,); -1 is an arm never seen.
            x: The question's columns, shape (n_own,).
            z: The shared columns of each arm, shape (n, n_shared).

        Returns:
            Shapes (n,) and (n, n).
        """
        n_own = len(x)
        told = (self.own.reshape(-1, n_own) @ x).reshape(len(self.own), -1).take(rows, axis=0)
        left = z - told[:, n_own:-1]
        covariance = left @ self.shared[:-1] @ left.T
        covariance.flat[:: len(rows) + 1] += told[:, :n_own] @ x
        return told[:, -1] + left @ self.shared[-1], covariance

    def learn(self, row: int, x: Array, z: Array, reward: float) -> None:
        """Take in one reward of one arm.

        Args:
            row: Row of the arm.
            x: The question's columns, shape (n_own,).
            z: The arm's shared columns, shape (n_shared,).
            reward: What it earned.
        """
        left = _absorb(self.own[row], x, np.append(z, reward))
        if self.shared.size:
            _absorb(self.shared, left[:-1], left[-1:])

    def add_arm(self) -> int:
        """Make room for one more arm, and return its row."""
        self.own = np.concatenate([self.own, self.own[-1:]])
        return len(self.own) - 2

    def add_shared(self, n: int) -> None:
        """Make room for more shared columns; all rows so far had zeros there."""
        before = len(self.shared) - 1
        wider = ArmRidge.empty(self.ridge, self.own.shape[2], before + n)
        wider.shared[:before, :before] = self.shared[:-1]
        wider.shared[-1, :before] = self.shared[-1]
        self.own = np.insert(self.own, [-1] * n, 0.0, axis=1)
        self.shared = wider.shared


def _absorb(block: Array, x: Array, targets: Array) -> Array:
    """Take a row into a regression, in place.

    Args:
        block: The inverse of `ridge * I + sum of x x'`, and below it one row of weights a
            target, shape (d + n_targets, d), in C order.
        x: The row, shape (d,).
        targets: What was to be predicted, shape (n_targets,).

    Returns:
        What was not predicted, over its standard deviation, shape (n_targets,).

    >>> block = np.array([[1.0], [0.0]])
    >>> (_absorb(block, np.array([1.0]), np.array([3.0])) * np.sqrt(2)).round(6).tolist()
    [3.0]
    >>> block.round(6).tolist()
    [[0.5], [1.5]]
    """
    d = len(x)
    error = block @ x
    error[d:] -= targets
    error /= math.sqrt(1.0 + error[:d] @ x)
    # Both factors of what the inverse loses are the same numbers: it stays symmetric.
    dger(-1.0, error[:d], error, a=block.T, overwrite_a=True)
    return -error[d:]
