"""Text models that encode questions, and whose last layers can be fitted; R3AG's has a token per arm."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize
from transformers.utils import logging
from typing_extensions import override

from armwise.agent.lab.routers.optimizer import on_threads, seed_torch
from armwise.agent.routers.base import State
from armwise.agent.routers.dataset import Features, Floats, RouterError
from armwise.arms.models import ModelNotFoundError, compute_cores, locate

READING = threading.Lock()
"""Lock of encoding: a fast tokenizer refuses concurrent use, and torch's number of threads is global."""


AT_ONCE = 64
"""Texts that are encoded together."""

ALIKE = 16
"""Texts of similar length that a CPU encodes together, so that it computes little padding."""

FITTED_LAYERS = 2
"""Number of last layers that R3AG fits, as in the paper, besides the word embeddings."""


class TextReader(nn.Module):
    """A model of sentence-transformers, with the pooling of its folder, by default the mean.

    It runs on CUDA if available. All its layers are frozen until `free_last`. Reading is thread-safe.

    Args:
        name: A hub name, a folder, or `package:NAME/PATH`.

    Attributes:
        width: Length of its vectors.

    Raises:
        ModelNotFoundError: The model is not found, or cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would fill the log
        place = locate(name)
        try:
            self.model = SentenceTransformer(
                str(place),
                local_files_only=isinstance(place, Path),
                # eager attention: the order of sums in faster ones varies on a GPU
                model_kwargs={"dtype": torch.float32, "attn_implementation": "eager"},
            )
        except (OSError, ValueError) as error:
            raise ModelNotFoundError(f"model {name!r} cannot be loaded: {error}") from error
        self.name = name
        self.width = int(self.model.get_embedding_dimension() or 0)
        self.requires_grad_(False)
        self.eval()

    @property
    def body(self) -> Any:
        """The model of transformers inside."""
        return self.model.transformers_model

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return a vector per text, shape (n, width)."""
        size = ALIKE if self.model.device.type == "cpu" else len(texts)
        by_length = np.argsort([len(text) for text in texts], kind="stable")
        vectors = torch.cat(
            [
                self._read_alike([texts[at] for at in by_length[start : start + size]])
                for start in range(0, len(texts), size)
            ]
        )
        return vectors[np.argsort(by_length)]

    def _read_alike(self, texts: list[str]) -> Tensor:
        read = batch_to_device(self.model.preprocess(texts), self.model.device)
        vectors: Tensor = self.model(read)["sentence_embedding"]
        return vectors

    def read(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a vector per text in numpy, shape (n, width), without gradients."""
        starts = range(0, len(texts), AT_ONCE)
        with READING, on_threads(len(compute_cores())), torch.inference_mode():
            parts = [self(texts[start : start + AT_ONCE]).cpu().numpy() for start in starts]
        return np.concatenate([np.empty((0, self.width), dtype=np.float32), *parts])

    def free_last(self, count: int) -> None:
        """Let a fit change the last layers, at least one, and the word embeddings.

        Raises:
            RouterError: The model has fewer layers.
        """
        stacks = (module for module in self.body.modules() if isinstance(module, nn.ModuleList))
        layers = max(stacks, key=len)
        if len(layers) < count:
            raise RouterError(
                f"{count} layers of model {self.name!r} are to be fitted, but it has {len(layers)}"
            )
        layers[-count:].requires_grad_(True)
        self.body.get_input_embeddings().requires_grad_(True)

    def state(self) -> State:
        """Return the fitted parameters; the model's files have all others."""
        return {name: value.detach().cpu().numpy() for name, value in self._free()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Set the parameters of `state`. Raises KeyError if an array is missing."""
        for name, value in self._free():
            value.copy_(torch.from_numpy(state[name]))
        self.eval()

    def _free(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self.named_parameters() if value.requires_grad]


class ScaledReader(TextReader):
    """A text model whose vectors are scaled to mean 0 and variance 1."""

    @override
    def forward(self, texts: Sequence[str]) -> Tensor:
        return layer_norm(super().forward(texts), (self.width,))


class TextTower(TextReader):
    """R3AG's full encoder: a text model that encodes questions, and the tokens of arms, as unit vectors.

    Args:
        name: A hub name, a folder, or `package:NAME/PATH`.
        n_arms: Number of tokens added to the vocabulary; their embeddings are random.

    Raises:
        ModelNotFoundError: The model is not found, or cannot be loaded.
        RouterError: It has fewer than two layers.
    """

    def __init__(self, name: str, n_arms: int) -> None:
        super().__init__(name)
        self.tokens = [f"<RET_{arm}>" for arm in range(n_arms)]
        self._extend()
        self.free_last(FITTED_LAYERS)

    @classmethod
    def from_state(cls, name: str, n_arms: int, state: State) -> Self:
        """Return a fitted tower. Raises KeyError if an array is missing."""
        with seed_torch():
            tower = cls(name, n_arms)
        tower.restore(state)
        return tower

    def inputs(self, features: Features) -> NDArray[Any]:
        """Return the texts."""
        return np.array(features.texts, dtype=object)

    @override
    def forward(self, texts: Sequence[str]) -> Tensor:
        return normalize(super().forward(texts), dim=1)

    def to_encoder(self) -> Self:
        """Return itself."""
        return self

    def encode(self, features: Features) -> Floats:
        """Return a unit vector per question, shape (n_questions, width)."""
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
