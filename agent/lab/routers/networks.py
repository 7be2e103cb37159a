"""Fitted networks as numpy arrays, which score arms in microseconds without torch."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.routers.base import State
from armwise.agent.routers.dataset import Features, Floats

Array = NDArray[np.float32]

TINY = 1e-12
"""Smallest length by which a vector is divided."""


@dataclass(frozen=True, slots=True)
class Network:
    """A fitted network as arrays.

    The first layer is a sum of two parts: that of the question is shared by all arms, and that of an arm by
    all of its pairs.

    Attributes:
        missing: Learned replacement of missing features of an arm, shape (n_columns,).
        question: Weights of the question in the first layer, shape (d, width).
        own: Weights of the features of an arm, shape (n_columns, width).
        names: Weights of the one-hot code of the arm, shape (n_arms, width).
        bias: Bias of the first layer, shape (width,).
        layers: Weights and biases of later layers, shapes (n_in, n_out) and (n_out,); one output at the end.
    """

    missing: Array
    question: Array
    own: Array
    names: Array
    bias: Array
    layers: tuple[tuple[Array, Array], ...]

    def project_question(self, question: Floats) -> Array:
        """Return the questions' part of the first layer, shape (n, width), from features of shape (n, d)."""
        return np.asarray(question.astype(np.float32) @ self.question + self.bias)

    def project_arms(self, own: Floats, at: list[int]) -> Array:
        """Return the arms' part of the first layer, shape (n, n_arms, width).

        Args:
            own: Features of the arms, NaN where unknown, shape (n, n_arms, n_columns).
            at: Indices of the arms.
        """
        filled = np.where(np.isnan(own), self.missing, own).astype(np.float32)
        return np.asarray(filled @ self.own + self.names[at])

    def rest(self, first: Array) -> Array:
        """Return the output, shape (...), from the first layer's sum, shape (..., width)."""
        values = first.reshape(-1, first.shape[-1])  # a large product is faster than many small ones
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
    def restore(cls, state: State) -> Self:
        """Restore from the arrays of `state`. Raises KeyError if an array is missing."""
        missing, question, own, names, bias = (state[f"network.{field.name}"] for field in fields(cls)[:-1])
        n_layers = sum(name.startswith("network.weight.") for name in state)
        layers = (
            (state[f"network.weight.{number}"], state[f"network.bias.{number}"]) for number in range(n_layers)
        )
        return cls(missing, question, own, names, bias, tuple(layers))


class Encoder(Protocol):
    """Encodes questions as unit vectors; thread-safe."""

    def encode(self, features: Features) -> Floats:
        """Return a unit vector per question, shape (n_questions, width)."""
        ...

    def state(self) -> State:
        """Return the fitted arrays."""
        ...


@dataclass(frozen=True)
class Head:
    """The reduced encoder: a hidden layer and a projection of the embedding.

    Attributes:
        weights: Weights by name: `0` is the hidden layer, `2` the projection.
    """

    weights: State

    def encode(self, features: Features) -> Floats:
        """Return a unit vector per question, shape (n_questions, width)."""
        weights = self.weights
        hidden = np.maximum(features.embedding @ weights["0.weight"].T + weights["0.bias"], 0.0)
        vectors = (hidden @ weights["2.weight"].T + weights["2.bias"]).astype(np.float64)
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), TINY))

    def state(self) -> State:
        """Return the weights."""
        return self.weights


@dataclass(frozen=True)
class Fusion:
    """Attention over the capabilities of each arm, with all parts precomputed that ignore the question.

    A question with quality vector r gives capability c of arm i, in head h, a share: the softmax over c
    of `ask[i, c, h] . r + offset[i, c, h]`. The fused vector is the sum of `give[i, c, h]` by them.

    Attributes:
        ask: Shape (n_arms, n_capabilities, heads, width).
        offset: Shape (n_arms, n_capabilities, heads).
        give: Shape (n_arms, n_capabilities, heads, width).
    """

    ask: NDArray[np.float32]
    offset: NDArray[np.float32]
    give: NDArray[np.float32]

    @classmethod
    def mean(cls, vectors: NDArray[np.float32]) -> Self:
        """Return the fusion that averages the capabilities of an arm, whatever is asked.

        Args:
            vectors: Shape (n_arms, n_capabilities, width).
        """
        give = vectors[:, :, None]
        return cls(np.zeros_like(give), np.zeros(give.shape[:3], dtype=np.float32), give)

    def scores(self, asks: Floats, needs: Floats) -> Floats:
        """Return the cosine of each question's needs and each arm's fused vector.

        The fused vectors are never formed: their products with `needs` and their lengths follow from products
        of `give` alone.

        Args:
            asks: Quality vectors of the questions, shape (n, width).
            needs: Utility vectors of the questions, unit length, shape (n, width).

        Returns:
            Cosines in [-1, 1], shape (n, n_arms).
        """
        n_arms, _, _, width = self.ask.shape
        shape = (len(asks), *self.offset.shape)
        logits = (asks @ self.ask.reshape(-1, width).T).reshape(shape) + self.offset
        shares = np.exp(logits - logits.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        along = (shares * (needs @ self.give.reshape(-1, width).T).reshape(shape)).sum(axis=(2, 3))
        by_arm = shares.reshape(len(asks), n_arms, -1).transpose(1, 0, 2)
        lengths = np.sqrt(np.maximum(((by_arm @ self._products) * by_arm).sum(axis=2).T, TINY))
        return np.asarray(along / lengths)

    @cached_property
    def _products(self) -> Floats:
        gives = self.give.reshape(len(self.give), -1, self.give.shape[3]).astype(np.float64)
        return np.asarray(gives @ gives.transpose(0, 2, 1))

    def state(self) -> State:
        """Return its arrays."""
        return {"ask": self.ask, "offset": self.offset, "give": self.give}
