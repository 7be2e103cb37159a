"""The fit of LTRR's networks in torch, with a pointwise, pairwise or listwise loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from armwise.agent.lab.routers.networks import Network
from armwise.agent.lab.routers.optimizer import Rows
from armwise.agent.routers.dataset import Floats

if TYPE_CHECKING:
    from armwise.agent.lab.routers.neural.text_encoder import TextReader

DROPOUT = 0.2
"""Share of the units that are dropped in a step."""

MOST_PAIRS = 16
"""Most pairs of a question that a step draws, each in both directions."""

Pairs = NDArray[np.bool_]
"""Whether the first arm is better than the second, shape (n, n_arms, n_arms)."""


@dataclass(frozen=True, slots=True)
class FitExamples:
    """The inputs and targets of a fit.

    Attributes:
        question: Features of the questions, shape (n, d).
        own: Features of the arms, NaN where unknown, shape (n, n_arms, n_columns).
        utility: Utilities, NaN where unknown, shape (n, n_arms).
    """

    question: Tensor
    own: Tensor
    utility: Tensor

    @classmethod
    def from_arrays(cls, question: Floats, own: Floats, utility: Floats) -> Self:
        """Convert arrays."""
        return cls(*(torch.from_numpy(values).float() for values in (question, own, utility)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of features of a question, of features of an arm, and of arms."""
        return self.question.shape[1], self.own.shape[2], self.own.shape[1]

    def inputs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the inputs of some questions."""
        return self.question[rows], self.own[rows]


@dataclass(frozen=True, slots=True)
class ReadExamples(FitExamples):
    """The inputs and targets while a text model is fitted, too: each step computes its vectors.

    Attributes:
        reader: The text model.
        texts: Texts of the questions.
    """

    reader: "TextReader"
    texts: Sequence[str]

    def inputs(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the inputs of some questions, read anew."""
        question, own = FitExamples.inputs(self, rows)
        read = self.reader([self.texts[row] for row in rows]).cpu()
        return torch.cat([read, question[:, self.reader.width :]], dim=1), own


class FeedForward(nn.Module):
    """The network of `networks.Network` as a torch module.

    Args:
        shape: Number of features of a question, of features of an arm, and of arms.
        hidden: Units of each hidden layer.
        identity: Whether it reads the one-hot code of the arm.
    """

    def __init__(self, shape: tuple[int, int, int], hidden: Sequence[int], *, identity: bool) -> None:
        super().__init__()
        d, n_columns, n_arms = shape
        drawn = partial(_draw_weights, inputs=d + n_columns + 1)
        self.missing = nn.Parameter(torch.zeros(n_columns))  # the medians, after scaling
        self.question = nn.Parameter(drawn(d, hidden[0]))
        self.own = nn.Parameter(drawn(n_columns, hidden[0]))
        names = drawn(n_arms, hidden[0]) if identity else torch.zeros(n_arms, hidden[0])
        self.names = nn.Parameter(names, requires_grad=identity)
        self.bias = nn.Parameter(drawn(hidden[0]))
        layers: list[nn.Module] = []
        for width, following in zip(hidden, [*hidden[1:], 1], strict=True):
            layers += [nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(width, following)]
        self.rest = nn.Sequential(*layers)

    def project_question(self, question: Tensor) -> Tensor:
        """Return the part of the first layer from questions, shape (n, width)."""
        return question @ self.question + self.bias

    def project_arms(self, own: Tensor) -> Tensor:
        """Return the part of the first layer from arms, shape (n, n_arms, width)."""
        return torch.where(own.isnan(), self.missing, own) @ self.own + self.names

    def forward(self, question: Tensor, own: Tensor) -> Tensor:
        """Return the score of each arm, shape (n, n_arms)."""
        first = self.project_question(question)[:, None] + self.project_arms(own)
        return torch.as_tensor(self.rest(first)[..., 0])

    def as_arrays(self) -> Network:
        """Return the network in numpy."""
        arrays = {name: value.numpy() for name, value in self.state_dict().items()}
        numbers = [number for number, layer in enumerate(self.rest) if isinstance(layer, nn.Linear)]
        layers = ((arrays[f"rest.{number}.weight"].T, arrays[f"rest.{number}.bias"]) for number in numbers)
        return Network(
            arrays["missing"],
            arrays["question"],
            arrays["own"],
            arrays["names"],
            arrays["bias"],
            tuple(layers),
        )


def compute_squared_losses(scores: Tensor, utility: Tensor) -> Tensor:
    """Return each question's sum of squared errors over known arms, divided by all arms, shape (n,).

    Args:
        scores: Scores of the arms, shape (n, n_arms).
        utility: Utilities, NaN where unknown, shape (n, n_arms).
    """
    return torch.where(utility.isnan(), 0.0, scores - utility.nan_to_num()).square().mean(dim=1)


def top_one_losses(scores: Tensor, utility: Tensor) -> Tensor:
    """Return ListNet's loss of each question, shape (n,): minus sum of softmax(u) * log softmax(s).

    Args:
        scores: Scores of the arms, shape (n, n_arms).
        utility: Utilities, NaN where unknown, shape (n, n_arms). Unknown arms are left out of both softmaxes;
            each question needs a known arm.

    Source: Cao et al. 2007, Learning to rank: from pairwise approach to listwise approach, section 4.3.
    """
    unknown = utility.isnan()
    target = utility.masked_fill(unknown, -torch.inf).softmax(dim=1)
    chances = scores.masked_fill(unknown, -torch.inf).log_softmax(dim=1)
    return -(target * chances.masked_fill(unknown, 0.0)).sum(dim=1)


def pair_losses(network: FeedForward, examples: FitExamples, rows: Rows, rng: np.random.Generator) -> Tensor:
    """Return the mean cross-entropy of the pairs of each question, shape (n,).

    In training mode, some pairs of each question are drawn; otherwise all count.

    Args:
        network: Predicts the log-odds that the first arm of a pair is better than the second.
        examples: Inputs and utilities; arms with unknown utility are in no pair.
        rows: Indices of questions on which at least one arm is better than another.
        rng: Random generator that draws the pairs.
    """
    utility = examples.utility[rows].numpy()
    better = utility[:, :, None] > utility[:, None, :]
    if network.training:
        better = _some(better, MOST_PAIRS, rng)
    row, winner, loser = (torch.from_numpy(at) for at in np.nonzero(better))
    question, arm_features = examples.inputs(rows)
    arms = network.project_arms(arm_features)
    difference = arms[row, winner] - arms[row, loser]
    first = network.project_question(question)[row]
    won, lost = (network.rest(first + sign * difference)[:, 0] for sign in (1.0, -1.0))
    losses = binary_cross_entropy_with_logits(won, torch.ones_like(won), reduction="none")
    losses = losses + binary_cross_entropy_with_logits(lost, torch.zeros_like(lost), reduction="none")
    counts = torch.from_numpy(better.sum(axis=(1, 2)))
    return torch.zeros(len(rows)).index_add(0, row, losses / (2.0 * counts[row]))


def _some(pairs: Pairs, most: int, rng: np.random.Generator) -> Pairs:
    """Draw at most `most` pairs of each question."""
    drawn = np.where(pairs, rng.random(pairs.shape), np.inf).reshape(len(pairs), -1)
    last = np.sort(drawn, axis=1)[:, :most][:, -1]
    return pairs & (drawn <= last[:, None]).reshape(pairs.shape)


def _draw_weights(*shape: int, inputs: int) -> Tensor:
    """Draw initial weights as torch does for a layer with this number of inputs."""
    return torch.empty(shape).uniform_(-1.0, 1.0) / math.sqrt(inputs)
