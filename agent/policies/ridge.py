"""Online ridge regression of the rewards of arms: one model an arm plus shared weights, exact after each row.

The reward of arm `a` is modelled as

    reward = theta_a . x + beta . z + noise

with a vector theta_a of each arm's own over the question's columns x, one vector beta
over the columns z that all arms share, and the penalty `ridge` on the square of every
weight. With Gaussian noise of variance 1, the solution is the mean of the posterior.

It is Li et al.'s hybrid model; without shared columns, their disjoint one. They keep
five matrices and invert two of them at every decision. Here, two regressions are updated
a row at a time (recursive least squares):

    own, of arm a    on x: predicts z and the reward together
    shared           on the residual of z: predicts the residual of the reward

The shared columns begin with x itself, and what a ridge regression on x leaves of x is `ridge` times
its inverse times x: that is not a block of weights, but a vector which every step computes anyway.

Each is one block, [inverse; solutions], and a row changes a block by a matrix of rank
one (Sherman and Morrison's formula, the solutions included), which BLAS adds in place.

Source: Li et al. 2010, A contextual-bandit approach to personalized news article
recommendation, arXiv:1003.0146, algorithms 1 and 2.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


class ArmRidge:
    """The posterior of every arm's reward, given all rows so far.

    The last row of `own` is an arm without rewards; it is used for every unknown arm.

    Attributes:
        ridge: Penalty on the square of every weight, positive.
        own: One block an arm, and one more: its inverse, its weights for the shared columns after x, and
            those for the reward, shape (n_arms + 1, max(n_own, n_shared) + 1, n_own).
        shared: The block of the shared weights, shape (n_shared + 1, n_shared).
    """

    def __init__(self, ridge: float, own: Array, shared: Array) -> None:
        self.ridge, self.own, self.shared = ridge, own, shared

    @classmethod
    def empty(cls, ridge: float, n_own: int, n_shared: int) -> "ArmRidge":
        """Return a model without arms and without rows; `n_shared` is 0, or at least `n_own`."""
        own = np.zeros((1, max(n_own, n_shared) + 1, n_own))
        shared = np.zeros((n_shared + 1, n_shared))
        np.fill_diagonal(own[0], 1.0 / ridge)
        np.fill_diagonal(shared, 1.0 / ridge)
        return cls(ridge, own, shared)

    def posterior(self, rows: Rows, x: Array, z: Array) -> tuple[Array, Array]:
        """Return the mean and the covariance of some arms' rewards, without the noise.

        Args:
            rows: Row of each arm, shape (n,); -1 is an unknown arm.
            x: The question's columns, shape (n_own,).
            z: The shared columns of each arm, x first, shape (n, n_shared).

        Returns:
            Shapes (n,) and (n, n).
        """
        n_own = len(x)
        product = (self.own.reshape(-1, n_own) @ x).reshape(len(self.own), -1).take(rows, axis=0)
        gain = product[:, :n_own]
        variance, mean = gain @ x, product[:, -1]
        if not self.shared.size:
            return mean, np.diag(variance)
        residual = np.empty(z.shape)
        np.multiply(gain, self.ridge, out=residual[:, :n_own])
        np.subtract(z[:, n_own:], product[:, n_own:-1], out=residual[:, n_own:])
        covariance = residual @ self.shared[:-1] @ residual.T
        covariance.flat[:: len(rows) + 1] += variance
        return mean + residual @ self.shared[-1], covariance

    def learn(self, row: int, x: Array, z: Array, reward: float) -> None:
        """Update from one reward of one arm.

        Args:
            row: Row of the arm.
            x: The question's columns, shape (n_own,).
            z: The arm's shared columns, x first, shape (n_shared,).
            reward: Reward of the arm.
        """
        n_own, n_shared = len(x), len(z)
        if not n_shared:
            _update(self.own[row], x, np.array((reward,)))
            return
        targets = np.empty(n_shared - n_own + 1)
        targets[:-1], targets[-1] = z[n_own:], reward
        residual = _update(self.own[row], x, targets)
        residual[:n_own] *= -self.ridge
        _update(self.shared, -residual[:-1], -residual[-1:])

    def replay(
        self, x: Array, rows: Rows, z: Array, drawn: Rows, taught: Rows, reward: Array
    ) -> tuple[Array, Array]:
        """Return `posterior` at each of several steps, and learn a reward after some: equal but for rounding.

        Args:
            x: The question's columns at each step, shape (n_steps, n_own).
            rows: Row of each arm, shape (n,).
            z: The shared columns of each arm after x, shape (n_steps, n, n_shared - n_own).
            drawn: Index in `rows` of the arm whose reward is learned, shape (n_learned,).
            taught: The steps after which it is, rising, shape (n_learned,).
            reward: Rewards, shape (n_learned,).

        Returns:
            Shapes (n_steps, n) and (n_steps, n, n).
        """
        steps, n_own = np.arange(len(x)), x.shape[1]
        is_shared, n_further = bool(self.shared.size), len(self.own[0]) - n_own
        targets = np.column_stack([z[taught, drawn], reward]) if is_shared else reward[:, None]
        product = np.empty((len(x), len(rows), len(self.own[0])))
        errors = np.empty((len(taught), n_own + n_further))
        for arm, row in enumerate(rows):
            own = np.flatnonzero(drawn == arm)
            at = taught[own]
            product[:, arm], errors[own] = _replay(self.own[row], x, steps[:, None], x[at], at, targets[own])
        variance, mean = np.einsum("tnd,td->tn", product[..., :n_own], x), product[..., -1]
        if not is_shared:
            return mean, variance[..., None] * np.eye(len(rows))
        residual = z - product[..., n_own:-1]
        residual = np.concatenate([self.ridge * product[..., :n_own], residual], axis=2)
        errors[:, :n_own] *= -self.ridge
        when, further = steps[:, None, None], -errors
        found, _ = _replay(self.shared, residual, when, further[:, :-1], taught, further[:, -1:])
        covariance = found[..., :-1] @ residual.transpose(0, 2, 1)
        covariance[:, range(len(rows)), range(len(rows))] += variance
        return mean + found[..., -1], covariance

    def add_arm(self) -> int:
        """Add an arm, and return its row."""
        self.own = np.concatenate([self.own, self.own[-1:]])
        return len(self.own) - 2

    def add_shared(self, n: int) -> None:
        """Add shared columns, which are 0 in all rows so far."""
        before = len(self.shared) - 1
        wider = ArmRidge.empty(self.ridge, self.own.shape[2], before + n)
        wider.shared[:before, :before] = self.shared[:-1]
        wider.shared[-1, :before] = self.shared[-1]
        self.own = np.insert(self.own, [-1] * n, 0.0, axis=1)
        self.shared = wider.shared


def _update(block: Array, x: Array, targets: Array) -> Array:
    """Add a row to a regression, in place.

    Args:
        block: The inverse of `ridge * I + sum of x x'`, and below it one row of weights a
            target, shape (d + n_targets, d), in C order.
        x: The row, shape (d,).
        targets: Shape (n_targets,).

    Returns:
        The inverse times x, and the errors of the prediction, before the update and over the standard
        deviation of these errors, shape (d + n_targets,).

    >>> block = np.array([[1.0], [0.0]])
    >>> (_update(block, np.array([1.0]), np.array([3.0])) * np.sqrt(2)).round(6).tolist()
    [1.0, -3.0]
    >>> block.round(6).tolist()
    [[0.5], [1.5]]
    """
    d = len(x)
    error = block @ x
    error[d:] -= targets
    error /= math.sqrt(1.0 + error[:d] @ x)
    # The inverse loses the outer product of a vector with itself, so it stays symmetric.
    _dger()(-1.0, error[:d], error, a=block.T, overwrite_a=True)
    return error


def _replay(
    block: Array, asked: Array, when: Rows, x: Array, at: Rows, targets: Array
) -> tuple[Array, Array]:
    """Return what a regression says of some rows at their times, while it learns others: `_update` in bulk.

    Each learned row depends on those before it, as in the factor of a Cholesky decomposition.

    Args:
        block: As in `_update`.
        asked: Rows, shape (..., d).
        when: Their times, of a shape that goes with (..., n_learned).
        x: Rows to learn, shape (n_learned, d).
        at: After which times, rising, shape (n_learned,).
        targets: Shape (n_learned, n_targets).

    Returns:
        The block times each asked row, shape (..., d + n_targets), and what `_update` returns for each
        learned row, shape (n_learned, d + n_targets).
    """
    d = x.shape[1]
    found, errors = asked @ block.T, x @ block.T
    if len(x):
        errors[:, d:] -= targets
        gram = errors[:, :d] @ x.T
        gram.flat[:: len(x) + 1] += 1.0
        # numpy's LAPACK: SciPy's starts threads even for these
        errors = np.linalg.solve(np.linalg.cholesky(gram), errors)
        found -= (asked @ errors[:, :d].T * (at < when)) @ errors
        block -= errors.T @ errors[:, :d]
    return found, errors


@cache
def _dger() -> Callable[..., Array]:
    """Return BLAS's update of rank one; a process that learns nothing does not load SciPy."""
    from scipy.linalg.blas import dger

    update: Callable[..., Array] = dger
    return update
