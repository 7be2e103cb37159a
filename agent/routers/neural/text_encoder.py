"""A text model that reads questions, of which some layers can be fitted."""

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
"""One reads at a time: a fast tokenizer refuses two threads, and all share the number of torch's."""


class TextReader(nn.Module):
    """A model of sentence-transformers, pooled as its folder says, or by the mean where it says nothing.

    It runs on CUDA where there is one. Nothing of it can be fitted at first. Once it is fitted, it is safe to
    use from many threads.

    Args:
        name: A hub name, a folder, or `package:NAME/PATH`.
        at_once: Texts that it reads together when asked.
        max_length: Tokens of a text that are read; None is the model's own limit.

    Attributes:
        width: Numbers that a text becomes.

    Raises:
        ModelNotFoundError: The model is not there, or cannot be loaded.
    """

    def __init__(self, name: str, at_once: int, max_length: int | None = None) -> None:
        super().__init__()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading: noise in a log
        place = locate(name)
        try:
            self.model = SentenceTransformer(
                str(place),
                local_files_only=isinstance(place, Path),
                # faster attention does not add up in the same order twice on a GPU
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
        """Let the last layers be fitted. Raises RouterError where there are fewer."""
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
        """Return the same in numpy, and leave no trace."""
        starts = range(0, len(texts), self.at_once)
        with READING, on_threads(len(compute_cores())), torch.inference_mode():
            parts = [self(texts[start : start + self.at_once]).cpu().numpy() for start in starts]
        return np.concatenate([np.empty((0, self.width), dtype=np.float32), *parts])

    def state(self) -> State:
        """Return what was fitted; the rest is the model's own."""
        return {name: value.detach().cpu().numpy() for name, value in self._free()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Take over what `state` returned. Raises KeyError where an array is missing."""
        for name, value in self._free():
            value.copy_(torch.from_numpy(state[name]))
        self.eval()

    def _free(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, value) for name, value in self.named_parameters() if value.requires_grad]


class ScaledReader(TextReader):
    """Its vectors have mean 0 and variance 1, whatever the model."""

    @override
    def forward(self, texts: Sequence[str]) -> Tensor:
        return layer_norm(super().forward(texts), (self.width,))
