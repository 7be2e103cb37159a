"""What routers are fitted to: utilities as points, as pairs of which one is better, or as a list.

A target of networks says which numbers they are, which questions teach them, and what an error costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from pydantic import Field

from agent.routers.base import Parameters
from agent.routers.dataset import Floats, RoutingDataset
from agent.routers.neural.optimizer import Rows

if TYPE_CHECKING:  # it takes seconds to load, and asking a fitted router does not need it
    from torch import Tensor

    from agent.routers.neural.ltrr_training import Examples, FeedForward


class CentreParameters(Parameters):
    """What a utility is."""

    centre: bool = Field(
        True,
        description="Whether the mean utility of a question is taken off: how hard it is says nothing of "
        "arms. A question of which one arm is known then teaches nothing.",
    )


def centred(utility: Floats) -> Floats:
    """Return utilities less their mean on the question; NaN where fewer than two arms are known.

    >>> centred(np.array([[1.0, 0.0, np.nan], [1.0, np.nan, np.nan]])).tolist()
    [[0.5, -0.5, nan], [nan, nan, nan]]
    """
    count = (~np.isnan(utility)).sum(axis=1, keepdims=True)
    mean = np.nansum(utility, axis=1, keepdims=True) / np.maximum(count, 1)
    return np.where(count > 1, utility - mean, np.nan)


class Target(Protocol):
    """What a network is fitted to."""

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the numbers, NaN where unknown, shape (n, n_arms)."""
        ...

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return the questions that teach something."""
        ...

    def losses(self, network: "FeedForward", examples: "Examples") -> "Callable[[Rows], Tensor]":
        """Return what turns some questions into a loss of each, shape (n,)."""
        ...


@dataclass(frozen=True, slots=True)
class Points:
    """Each utility by itself, by its squared error.

    Attributes:
        centre: Whether utilities are centred by question.
    """

    centre: bool = True

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the utilities, centred if told to."""
        return centred(labels.utility) if self.centre else labels.utility

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return those of which anything is known."""
        return np.flatnonzero(~np.isnan(self.utility(labels)).all(axis=1))

    def losses(self, network: "FeedForward", examples: "Examples") -> "Callable[[Rows], Tensor]":
        """Return the squared errors of each question."""
        from agent.routers.neural.ltrr_training import squared_losses

        return lambda rows: squared_losses(network(*examples.inputs(rows)), examples.utility[rows])


class _Compared:
    """Utilities as they are, of which only differences count."""

    __slots__ = ()

    def utility(self, labels: RoutingDataset) -> Floats:
        """Return the utilities."""
        return labels.utility

    def questions(self, labels: RoutingDataset) -> Rows:
        """Return those that tell arms apart."""
        return np.flatnonzero(labels.telling)


@dataclass(frozen=True, slots=True)
class Ranking(_Compared):
    """The utilities of a question as a list, by the cross-entropy of which arm comes first.

    Attributes:
        temperature: What utilities are divided by.
    """

    temperature: float = 1.0

    def losses(self, network: "FeedForward", examples: "Examples") -> "Callable[[Rows], Tensor]":
        """Return ListNet's loss of each question."""
        from agent.routers.neural.ltrr_training import top_one_losses

        return lambda rows: top_one_losses(
            network(*examples.inputs(rows)), examples.utility[rows] / self.temperature
        )


@dataclass(frozen=True, slots=True)
class Duels(_Compared):
    """Which arm of a pair is better, by cross-entropy.

    Attributes:
        most: Pairs of a question that are drawn while the network is trained.
        seed: Of the draws.
    """

    most: int
    seed: int

    def losses(self, network: "FeedForward", examples: "Examples") -> "Callable[[Rows], Tensor]":
        """Return the mean loss of the pairs of each question."""
        from agent.routers.neural.ltrr_training import pair_losses

        rng = np.random.default_rng(self.seed)
        return lambda rows: pair_losses(network, examples, rows, self.most, rng)
