"""The targets of routers: utilities as points, as pairs, or as a list.

The target of a network defines its numbers, the questions that are used, the loss, and the scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.networks import Array, Network
from armwise.agent.lab.routers.optimizer import SEED, Rows
from armwise.agent.routers.base import Parameters
from armwise.agent.routers.dataset import Floats, RoutingDataset

if TYPE_CHECKING:  # it takes seconds to load, and a fitted router does not need it
    from torch import Tensor

    from armwise.agent.lab.routers.neural.ltrr_training import FeedForward, FitExamples


class CentreParameters(Parameters):
    """Whether utilities are centred."""

    centre: bool = Field(
        True,
        description="Whether to subtract the question's mean utility, which does not distinguish arms.",
    )


def subtract_mean(utility: Floats) -> Floats:
    """Return utilities minus their mean on the question; NaN on questions with fewer than two known arms.

    >>> subtract_mean(np.array([[1.0, 0.0, np.nan], [1.0, np.nan, np.nan]])).tolist()
    [[0.5, -0.5, nan], [nan, nan, nan]]
    """
    count = (~np.isnan(utility)).sum(axis=1, keepdims=True)
    mean = np.nansum(utility, axis=1, keepdims=True) / np.maximum(count, 1)
    return np.where(count > 1, utility - mean, np.nan)


class NetworkTarget(Protocol):
    """The target of a network."""

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the target of each arm, NaN where unknown, shape (n, n_arms)."""
        ...

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return the indices of the questions with a target."""
        ...

    def losses(self, network: "FeedForward", examples: "FitExamples") -> "Callable[[Rows], Tensor]":
        """Return a function from indices of questions to the loss of each, shape (n,)."""
        ...

    def scores(self, network: Network, question: Array, arms: Array) -> Array:
        """Return scores, shape (n, n_arms), from the two parts of the first layer.

        Args:
            network: The fitted network.
            question: First layer's sum over the questions, shape (n, width).
            arms: First layer's sum over the arms, shape (n, n_arms, width).
        """
        return network.rest(question[:, None] + arms)


@dataclass(frozen=True, slots=True)
class Points(NetworkTarget):
    """Each utility by itself, by its squared error.

    Attributes:
        centre: Whether utilities are centred by question.
    """

    centre: bool = True

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the utilities, centred if `centre`."""
        return subtract_mean(labels.utility) if self.centre else labels.utility

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return the questions with a known target."""
        return np.flatnonzero(~np.isnan(self.utility(labels)).all(axis=1))

    def losses(self, network: "FeedForward", examples: "FitExamples") -> "Callable[[Rows], Tensor]":
        """Return the squared errors of each question."""
        from armwise.agent.lab.routers.neural.ltrr_training import compute_squared_losses

        return lambda rows: compute_squared_losses(network(*examples.inputs(rows)), examples.utility[rows])


class _Uncentred(NetworkTarget):
    """Targets that depend only on differences of utilities between arms."""

    __slots__ = ()

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the utilities."""
        return labels.utility

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return the questions on which arms differ."""
        return np.flatnonzero(labels.telling)


@dataclass(frozen=True, slots=True)
class Ranking(_Uncentred):
    """The utilities of a question as a list, by the cross-entropy of which arm comes first.

    Attributes:
        temperature: Divisor of the utilities.
    """

    temperature: float = 1.0

    def losses(self, network: "FeedForward", examples: "FitExamples") -> "Callable[[Rows], Tensor]":
        """Return ListNet's loss of each question."""
        from armwise.agent.lab.routers.neural.ltrr_training import top_one_losses

        return lambda rows: top_one_losses(
            network(*examples.inputs(rows)), examples.utility[rows] / self.temperature
        )


class Pairs(_Uncentred):
    """Which arm of a pair is better, by cross-entropy."""

    def losses(self, network: "FeedForward", examples: "FitExamples") -> "Callable[[Rows], Tensor]":
        """Return the mean loss of the pairs of each question."""
        from armwise.agent.lab.routers.neural.ltrr_training import pair_losses

        rng = np.random.default_rng(SEED)
        return lambda rows: pair_losses(network, examples, rows, rng)

    def scores(self, network: Network, question: Array, arms: Array) -> Array:
        """Return the mean probability of being better than each arm; itself counts as one half."""
        logits = network.rest(question[:, None, None] + (arms[:, :, None] - arms[:, None, :]))
        better = 0.5 + 0.5 * np.tanh(0.5 * logits)  # the logistic function, in a form that does not overflow
        diagonal = np.arange(arms.shape[1])
        better[:, diagonal, diagonal] = 0.5
        return np.asarray(better.mean(axis=2))
