"""The fit of R3AG's router: two towers by a contrastive loss, then the attention over their vectors.

A tower is a head over embeddings, or in the full form a text model (`text_encoder.TextTower`).
"""

from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity, normalize

from armwise.agent.lab.routers.networks import Encoder, Fusion, Head
from armwise.agent.lab.routers.optimizer import Descent, Mask, Rows, choice_losses
from armwise.agent.routers.dataset import Features, Floats


class Tower(Protocol):
    """An encoder that is being fitted; also a module of torch.

    Attributes:
        width: Width of its vectors.
        tokens: An input per arm, encoded like a question.
    """

    width: int
    tokens: Any

    def inputs(self, features: Features) -> Any:
        """Return an input per question, to be indexed by rows."""
        ...

    def __call__(self, inputs: Any) -> Tensor:
        """Return a unit vector per input, shape (n, width)."""
        ...

    def to_encoder(self) -> Encoder:
        """Return the fitted encoder."""
        ...


class HeadTower(nn.Module):
    """A hidden layer and a projection of embeddings, and of tokens of the same length.

    Args:
        dim: Dimension of the embeddings.
        n_arms: Number of tokens.
        width: Width of its vectors, and of the hidden layer.
    """

    def __init__(self, dim: int, n_arms: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.tokens = nn.Parameter(normalize(torch.randn(n_arms, dim), dim=1))
        self.head = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, width))

    def inputs(self, features: Features) -> Tensor:
        """Return the embeddings."""
        return torch.from_numpy(features.embedding)

    def forward(self, inputs: Tensor) -> Tensor:
        """Project and normalise."""
        return normalize(self.head(inputs), dim=1)

    def to_encoder(self) -> Head:
        """Return the head; the tokens are left out."""
        return Head({name: value.numpy() for name, value in self.head.state_dict().items()})


def fit_encoder(
    tower: Tower, features: Features, right: Mask, known: Mask, descent: Descent, temperature: float
) -> tuple[Encoder, NDArray[np.float32]]:
    """Fit a tower so that the vector of a question is near those of its positive arms.

    Args:
        tower: The tower to fit.
        features: Features of the questions.
        right: Positive arms, shape (n_questions, n_arms); questions without positives are left out.
        known: Arms with a label, shape (n_questions, n_arms).
        descent: Settings of the fit.
        temperature: Divisor of the cosines.

    Returns:
        The encoder, and the vectors of the arms, shape (n_arms, width).

    Source: R3AG, section 4.2.1.
    """
    inputs = tower.inputs(features)

    def losses(rows: Rows) -> Tensor:
        cosines = tower(inputs[rows]) @ tower(tower.tokens).T
        return choice_losses(cosines / temperature, right[rows], known[rows], "sum")

    descent.run(cast(nn.Module, tower), losses, np.flatnonzero(right.any(axis=1)))
    with torch.inference_mode():
        arms: NDArray[np.float32] = tower(tower.tokens).cpu().numpy()
    return tower.to_encoder(), arms


def fit_fusion(
    arms: NDArray[np.float32],
    asks: Floats,
    needs: Floats,
    right: Mask,
    known: Mask,
    descent: Descent,
    heads: int,
    regularization: float,
) -> Fusion:
    """Fit the attention by which a question weighs the capabilities of an arm.

    Args:
        arms: Quality and utility of each arm, shape (n_arms, 2, width).
        asks: Quality vector of each question, shape (n_questions, width).
        needs: Utility vector of each question, shape (n_questions, width).
        right: Positive arms, shape (n_questions, n_arms), as in `fit_encoder`.
        known: Arms with a label, shape (n_questions, n_arms).
        descent: Settings of the fit.
        heads: Heads of the attention.
        regularization: Weight of the distance from an arm's utility.
    """
    pairs = torch.from_numpy(arms)
    wide_asks, wide_needs = torch.from_numpy(asks).float(), torch.from_numpy(needs).float()
    attention = nn.MultiheadAttention(pairs.shape[2], heads, batch_first=True)

    def losses(rows: Rows) -> Tensor:
        fused = fuse(attention, wide_asks[rows], pairs)
        return fusion_losses(fused, wide_needs[rows], pairs[:, 1], right[rows], known[rows], regularization)

    descent.run(attention, losses, np.flatnonzero(right.any(axis=1)))
    return fold(attention, pairs)


def fuse(attention: nn.MultiheadAttention, asks: Tensor, pairs: Tensor) -> Tensor:
    """Return the fused vector of each arm on each question, shape (n, n_arms, width)."""
    fused, _ = attention(asks.expand(len(pairs), -1, -1), pairs, pairs, need_weights=False)
    return torch.as_tensor(fused).transpose(0, 1)


def fusion_losses(
    fused: Tensor, needs: Tensor, utilities: Tensor, right: Mask, known: Mask, regularization: float
) -> Tensor:
    """Return the loss of each question, summed over its known arms, shape (n,).

    Args:
        fused: Fused vectors of each arm on each question, shape (n, n_arms, width).
        needs: Utility vectors of the questions, shape (n, width).
        utilities: Utility vectors of the arms, shape (n_arms, width).
        right: Arms among the best by utility, shape (n, n_arms).
        known: Arms with a label, shape (n, n_arms).
        regularization: Weight of the squared distance between `fused` and `utilities`.

    Source: R3AG, equations 6 to 9.
    """
    near = cosine_similarity(fused, needs[:, None], dim=2)
    useful = torch.as_tensor(right, dtype=near.dtype)
    wrong = binary_cross_entropy_with_logits(near, useful, reduction="none")
    far = (fused - utilities).square().sum(dim=2)
    return (wrong + regularization * far).masked_fill(~torch.as_tensor(known), 0.0).sum(dim=1)


@torch.no_grad()
def fold(attention: nn.MultiheadAttention, pairs: Tensor) -> Fusion:
    """Precompute the attention over arms, whose vectors are the same for all questions.

    With one head, and `W_k c` and `W_v c` as key and value of a capability c, the weight of c follows from
    r_q . (W_q^T W_k c), and c contributes W_o W_v c by that weight. Only the weights depend on the question.
    """
    n_arms, _, width = pairs.shape
    heads, head = attention.num_heads, attention.head_dim
    asking, keys, values = attention.in_proj_weight.chunk(3)
    asking_bias, keys_bias, values_bias = attention.in_proj_bias.chunk(3)
    shape = (n_arms, 2, heads, head)
    key = (pairs @ keys.T + keys_bias).reshape(shape) / head**0.5
    value = (pairs @ values.T + values_bias).reshape(shape)
    ask = torch.einsum("icht,htw->ichw", key, asking.reshape(heads, head, width))
    offset = torch.einsum("icht,ht->ich", key, asking_bias.reshape(heads, head))
    out = attention.out_proj
    give = torch.einsum("icht,wht->ichw", value, out.weight.reshape(width, heads, head)) + out.bias / heads
    return Fusion(ask.numpy(), offset.numpy(), give.numpy())
