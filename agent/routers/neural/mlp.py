"""A feed-forward network as arrays, which scores arms in microseconds, without torch."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agent.routers.base import State
from agent.routers.dataset import Floats

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Network:
    """A fitted network as arrays.

    The first layer is a sum: the part of the question is the same for all arms, and the part of an arm the
    same for all of its pairs.

    Attributes:
        missing: Learned replacement of missing features of an arm, shape (n_columns,).
        question: Weights of the question in the first layer, shape (d, width).
        own: Weights of the features of an arm, shape (n_columns, width).
        names: Weights of the one-hot code of the arm, shape (n_arms, width).
        bias: Bias of the first layer, shape (width,).
        layers: Weights and biases of the others, shapes (n_in, n_out) and (n_out,); the last has one output.
    """

    missing: Array
    question: Array
    own: Array
    names: Array
    bias: Array
    layers: tuple[tuple[Array, Array], ...]

    def of_question(self, question: Floats) -> Array:
        """Return the part of the first layer from questions (n, d), shape (n, width)."""
        return np.asarray(question.astype(np.float32) @ self.question + self.bias)

    def of_arms(self, own: Floats, at: list[int]) -> Array:
        """Return the part of the first layer from arms, shape (n, n_arms, width).

        Args:
            own: NaN where unknown, shape (n, n_arms, n_columns).
            at: Indices of the arms.
        """
        known = np.where(np.isnan(own), self.missing, own).astype(np.float32)
        return np.asarray(known @ self.own + self.names[at])

    def rest(self, first: Array) -> Array:
        """Return the output, shape (...), from the sum of the first layer, shape (..., width)."""
        values = first.reshape(-1, first.shape[-1])  # one large product is faster than many small ones
        for weight, bias in self.layers:
            values = np.maximum(values, 0.0) @ weight
            values += bias
        return values.reshape(first.shape[:-1])

    def state(self) -> State:
        """Return the arrays that `restore` takes."""
        state = {f"network.{field.name}": getattr(self, field.name) for field in fields(self)[:-1]}
        for number, (weight, bias) in enumerate(self.layers):
            state |= {f"network.weight.{number}": weight, f"network.bias.{number}": bias}
        return state

    @classmethod
    def restore(cls, state: State, n_layers: int) -> Self:
        """Build it from arrays. Raises KeyError if one is missing."""
        missing, question, own, names, bias = (state[f"network.{field.name}"] for field in fields(cls)[:-1])
        layers = (
            (state[f"network.weight.{number}"], state[f"network.bias.{number}"]) for number in range(n_layers)
        )
        return cls(missing, question, own, names, bias, tuple(layers))
