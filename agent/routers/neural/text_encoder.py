"""A text model that encodes questions, whose last layers can be fitted."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from transformers.utils import logging
from typing_extensions import override

from agent.routers.base import State
from agent.routers.dataset import RouterError
from agent.routers.neural.optimizer import on_threads
from arms.models import ModelNotFoundError, compute_cores, locate

READING = threading.Lock()
"""One encodes at a time: a fast tokenizer refuses two threads, and torch's number of threads is global."""


class TextReader(nn.Module):
    """A model of sentence-transformers, with the pooling of its folder, or the mean without one.

    It runs on CUDA if available. All its layers are frozen at first. Once fitted, it is thread-safe.

    Args:
        name: A hub name, a folder, or `package:NAME/PATH`.
        at_once: Texts that are encoded together.
        max_length: Tokens of a text that are read; None is the model's own limit.

    Attributes:
        width: Length of its vectors.

    Raises:
        ModelNotFoundError: The model is not found, or cannot be loaded.
    """

    def __init__(self, name: str, at_once: int, max_length: int | None = None) -> None:
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
        if max_length is not None:
            self.model.max_seq_length = max_length
        self.name, self.at_once = name, at_once
        self.width = int(self.model.get_embedding_dimension() or 0)
        self.requires_grad_(False)
        self.eval()

    @property
    def body(self) -> Any:
        """The model of transformers inside."""
        return self.model.transformers_model

    def free_last(self, count: int) -> None:
        """Unfreeze the last layers. Raises RouterError if there are fewer."""
        stacks = (module for module in self.body.modules() if isinstance(module, nn.ModuleList))
        layers = max(stacks, key=len)
        if count > len(layers):
            raise RouterError(
                f"{count} layers of model {self.name!r} are to be fitted, but it has {len(layers)}"
            )
        layers[len(layers) - count :].requires_grad_(True)

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Return one vector a text, shape (n, width)."""
        read = batch_to_device(self.model.preprocess(list(texts)), self.model.device)
        vectors: Tensor = self.model(read)["sentence_embedding"]
        return vectors

    def read(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector a text in numpy, shape (n, width), without gradients."""
        starts = range(0, len(texts), self.at_once)
        with READING, on_threads(len(compute_cores())), torch.inference_mode():
            parts = [self(texts[start : start + self.at_once]).cpu().numpy() for start in starts]
        return np.concatenate([np.empty((0, self.width), dtype=np.float32), *parts])

    def state(self) -> State:
        """Return the fitted parameters; the others are the model's own."""
        return {name: value.detach().cpu().numpy() for name, value in self._free()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Take what `state` returned. Raises KeyError if an array is missing."""
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
