"""A small neural network over the features of a question, with one output an arm, in numpy.

    hidden = max(0, W . [x, 1])        reward of arm a = output_a . [hidden, 1]

x is the named features, hashed into columns, and the embedding: with a sentence encoder,
this is the head of a network with a frozen encoder. A reward updates the hidden layer and
the output of its own arm by one step of AdamW on the squared error. Every output has its
own moments and count of steps, as in PyTorch, which skips a parameter without a gradient:
an arm learns the same whenever others are added.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.policies.base import PolicyError
from agent.policies.encoding import hashed
from feedback.events import Context

Array = NDArray[np.float64]

BETAS = (0.9, 0.999)
"""Decay rates of AdamW's two moments."""

EPSILON = 1e-8
"""Keeps AdamW from dividing by zero."""


class HeadNet:
    """The network and its optimizer.

    Args:
        dims: Columns that the named features are hashed into.
        hidden: Units of the hidden layer; with 0 there is none, and the outputs are linear in x.
        rate: Learning rate of AdamW.
        decay: Weight decay of AdamW.
        prior: Output of an arm without rewards.
        seed: Seed that draws the initial weights of the hidden layer.
    """

    def __init__(self, *, dims: int, hidden: int, rate: float, decay: float, prior: float, seed: int) -> None:
        self.dims, self.hidden, self.rate, self.decay = dims, hidden, rate, decay
        self.prior, self.seed = prior, seed
        self._rows: dict[str, int] = {}
        # Value, first and second moment. The last output is used for every unknown arm.
        self._layer: Array | None = None  # shape (3, hidden, n_inputs)
        self._outputs: Array | None = None  # shape (3, n_arms + 1, n_hidden + 1)
        self._steps = np.zeros(1, dtype=np.int64)  # of each output; the layer's are their sum

    def scores(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the expected reward of each arm, shape (n_arms,)."""
        if self._outputs is None:
            return np.full(len(arms), self.prior)
        rows = [self._rows.get(arm, -1) for arm in arms]
        return np.asarray((self._outputs[0] @ self._hidden(self._inputs(context)))[rows])

    def learn(self, context: Context, arm: str, reward: float) -> None:
        """Take one step towards the reward of one arm."""
        x = self._inputs(context)
        if self._outputs is None:
            self._begin(len(x))
        assert self._outputs is not None
        if arm not in self._rows:
            self._rows[arm] = len(self._steps) - 1
            self._outputs = np.concatenate([self._outputs, self._outputs[:, -1:]], axis=1)
            self._steps = np.append(self._steps, 0)
        row = self._rows[arm]
        hidden = self._hidden(x)
        output = self._outputs[:, row]
        slope = 2.0 * (float(output[0] @ hidden) - reward)
        if self._layer is not None:
            back = np.where(hidden[:-1] > 0.0, slope * output[0, :-1], 0.0)
            adamw(self._layer, np.outer(back, x), int(self._steps.sum()) + 1, self.rate, self.decay)
        self._steps[row] += 1
        adamw(output, slope * hidden, int(self._steps[row]), self.rate, self.decay)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the names of the arms, and the arrays."""
        arrays: dict[str, NDArray[Any]] = {"steps": self._steps}
        if self._layer is not None:
            arrays["layer"] = self._layer
        if self._outputs is not None:
            arrays["outputs"] = self._outputs
        return {"arms": [*self._rows]}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a state."""
        self._rows = {arm: row for row, arm in enumerate(facts["arms"])}
        self._layer, self._outputs = arrays.get("layer"), arrays.get("outputs")
        self._steps = arrays["steps"]

    def _begin(self, n_inputs: int) -> None:
        """Draw the hidden layer as PyTorch does; the outputs start at the prior for every input."""
        if self.hidden:
            bound = 1.0 / math.sqrt(n_inputs - 1)
            self._layer = np.zeros((3, self.hidden, n_inputs))
            rng = np.random.default_rng(self.seed)
            self._layer[0] = rng.uniform(-bound, bound, size=self._layer[0].shape)
        self._outputs = np.zeros((3, 1, 1 + (self.hidden or n_inputs - 1)))
        self._outputs[0, 0, -1] = self.prior

    def _inputs(self, context: Context) -> Array:
        x = np.array([*hashed(context.features, self.dims), *context.embedding, 1.0])
        seen = self._layer if self._layer is not None else self._outputs
        if seen is not None and len(x) != seen.shape[2]:
            expected = seen.shape[2] - 1 - self.dims
            raise PolicyError(
                f"an embedding of {expected} numbers was expected, as before; got {len(context.embedding)}"
            )
        return x

    def _hidden(self, x: Array) -> Array:
        """Return the inputs of the outputs, with a 1 at the end for their bias."""
        return x if self._layer is None else np.append(np.maximum(self._layer[0] @ x, 0.0), 1.0)


def adamw(state: Array, gradient: Array, step: int, rate: float, decay: float) -> None:
    """Take one step of AdamW, in place.

    Args:
        state: Value, first and second moment, shape (3, ...).
        gradient: Gradient of the loss by the value, shape (...).
        step: Number of this step, from 1.
        rate: Learning rate.
        decay: Weight decay.

    Source: Loshchilov and Hutter 2019, Decoupled weight decay regularization, arXiv:1711.05101.

    >>> state = np.array([[1.0], [0.0], [0.0]])
    >>> adamw(state, np.array([5.0]), 1, 0.1, 0.0)
    >>> state[0].round(6).tolist()
    [0.9]
    """
    value, first, second = state
    value *= 1.0 - rate * decay
    first *= BETAS[0]
    first += (1.0 - BETAS[0]) * gradient
    second *= BETAS[1]
    second += (1.0 - BETAS[1]) * gradient * gradient
    width = np.sqrt(second) / math.sqrt(1.0 - BETAS[1] ** step)
    width += EPSILON
    value -= (rate / (1.0 - BETAS[0] ** step)) * first / width
