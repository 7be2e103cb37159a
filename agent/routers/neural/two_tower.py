"""The full form of R3AG's encoders: a text model with a token for each arm."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import override

from agent.routers.base import State
from agent.routers.dataset import Features, Floats
from agent.routers.neural.optimizer import seeded
from agent.routers.neural.text_encoder import TextReader

FITTED_LAYERS = 2
"""Last layers of the model that are fitted, as in the paper, besides its word embeddings."""


class TextTower(TextReader):
    """A text model that encodes questions, and the tokens of arms, as unit vectors.

    Args:
        name: A hub name, a folder, or `package:NAME/PATH`.
        n_arms: Number of tokens added to the vocabulary; their embeddings are random.
        at_once: Texts that are encoded together.

    Raises:
        ModelNotFoundError: The model is not found, or cannot be loaded.
        RouterError: It has fewer than two layers.
    """

    def __init__(self, name: str, n_arms: int, at_once: int) -> None:
        super().__init__(name, at_once)
        self.tokens = [f"<RET_{arm}>" for arm in range(n_arms)]
        self._extend()
        self.free_last(FITTED_LAYERS)
        self.body.get_input_embeddings().requires_grad_(True)

    @classmethod
    def restored(cls, name: str, n_arms: int, at_once: int, state: State) -> Self:
        """Return a fitted tower. Raises KeyError if an array is missing."""
        with seeded(0):
            tower = cls(name, n_arms, at_once)
        tower.restore(state)
        return tower

    def inputs(self, features: Features) -> NDArray[Any]:
        """Return the texts."""
        return np.array(features.texts, dtype=object)

    @override
    def forward(self, texts: Sequence[str]) -> Tensor:
        return normalize(super().forward(texts), dim=1)

    def fitted(self) -> Self:
        """Return itself."""
        return self

    def encode(self, features: Features) -> Floats:
        """Return one unit vector a question, shape (n_questions, width)."""
        return self.read(features.texts).astype(np.float64)

    def _extend(self) -> None:
        body, tokenizer = self.body, self.model.tokenizer
        tokenizer.add_tokens(self.tokens, special_tokens=True)
        if len(tokenizer) > body.get_input_embeddings().num_embeddings:  # some models have spare rows
            body.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        rows = body.get_input_embeddings().weight
        with torch.no_grad():
            drawn = torch.randn(len(self.tokens), rows.shape[1]) * rows.std().cpu()
            rows[tokenizer.convert_tokens_to_ids(self.tokens)] = drawn.to(rows.device)
