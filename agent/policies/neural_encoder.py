"""A transformer that reads the question, fine-tuned on each reward, with one output an arm.

The question's vector is the encoder's at its first token, as in BERT; the reward of an arm
is a linear function of it. A reward updates the encoder and the output of its own arm by
one step of AdamW on the squared error. Dropout is off, so the state is a function of the
log. It runs on CUDA if available.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agent.policies.base import PolicyError
from arms.models import ModelNotFoundError, compute_cores, locate
from feedback.events import Context

if TYPE_CHECKING:
    import torch

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state of a parameter."""


class EncoderNet:
    """The encoder, the outputs and their optimizer. The encoder is loaded when it is first needed.

    Args:
        model: A hub name, a folder, or `package:NAME/PATH`.
        rate: Learning rate of AdamW.
        decay: Weight decay of AdamW.
        prior: Output of an arm without rewards.
        max_length: Tokens of a question that are read, up to the model's own limit.

    Raises:
        PolicyError: The model is not found.
    """

    def __init__(self, model: str, *, rate: float, decay: float, prior: float, max_length: int) -> None:
        try:
            self._place = locate(model)
        except ModelNotFoundError as error:
            raise PolicyError(str(error)) from error
        self.model, self.prior, self.max_length = model, prior, max_length
        self.rate, self.decay = rate, decay
        self._tokenizer: Any = None
        self._encoder: Any = None
        self._optimizer: Any = None
        self._outputs: dict[str, torch.nn.Linear] = {}

    def scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the expected reward of each arm, shape (n_arms,)."""
        if not any(arm in self._outputs for arm in arms):
            return np.full(len(arms), self.prior)
        import torch

        with torch.inference_mode():
            read = self._read(context.question)
            known = {arm: float(self._outputs[arm](read)) for arm in arms if arm in self._outputs}
        return np.array([known.get(arm, self.prior) for arm in arms])

    def learn(self, context: Context, arm: str, reward: float) -> None:
        """Take one step towards the reward of one arm."""
        self._load()
        output = self._outputs.get(arm) or self._add(arm)
        loss = (output(self._read(context.question)) - reward).square().sum()
        self._optimizer.zero_grad()  # to None: a parameter without a gradient is then not updated
        loss.backward()
        self._optimizer.step()

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the names of the arms, and every parameter that was ever updated with its moments."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, parameter in self._parameters():
            if moved := self._optimizer.state.get(parameter):
                arrays[name] = parameter.detach().cpu().numpy()
                arrays |= {f"{name}/{moment}": moved[moment].cpu().numpy() for moment in MOMENTS}
        return {"arms": [*self._outputs]}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take a state.

        Raises:
            PolicyError: The state is of another encoder.
        """
        if not facts["arms"]:
            return
        import torch

        self._load()
        for arm in facts["arms"]:
            self._add(arm)
        parameters = dict(self._parameters())
        for name in sorted(name for name in arrays if name.rpartition("/")[2] not in MOMENTS):
            shape = tuple(parameters[name].shape) if name in parameters else None
            if arrays[name].shape != shape:
                raise PolicyError(
                    f"state is of another encoder than {self.model!r}: "
                    f"{name!r} has the shape {arrays[name].shape}, where {shape} was expected"
                )
            parameter = parameters[name]
            parameter.data.copy_(torch.from_numpy(arrays[name]))
            self._optimizer.state[parameter] = {
                moment: torch.from_numpy(arrays[f"{name}/{moment}"]).to(parameter.device)
                for moment in MOMENTS
            }

    def _load(self) -> None:
        if self._encoder is not None:
            return
        import torch

        torch.set_num_threads(len(compute_cores()))
        # A copy: the cached encoder is the start of other policies, too.
        self._tokenizer, self._encoder = copy.deepcopy(pretrained(self._place))
        self._encoder.to("cuda" if torch.cuda.is_available() else "cpu")
        self._optimizer = torch.optim.AdamW(
            self._encoder.parameters(), lr=self.rate, weight_decay=self.decay, fused=True
        )

    def _add(self, arm: str) -> "torch.nn.Linear":
        import torch

        width, device = self._encoder.config.hidden_size, self._encoder.device
        output: torch.nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
            torch.nn.Linear, width, 1, device=device
        )
        torch.nn.init.zeros_(output.weight)
        torch.nn.init.constant_(output.bias, self.prior)
        self._optimizer.add_param_group({"params": list(output.parameters())})
        self._outputs[arm] = output
        return output

    def _read(self, question: str) -> "torch.Tensor":
        most = min(self.max_length, self._tokenizer.model_max_length)
        tokens = self._tokenizer(question, truncation=True, max_length=most, return_tensors="pt")
        tokens = tokens.to(self._encoder.device)
        read: torch.Tensor = self._encoder(**tokens).last_hidden_state[0, 0]
        return read

    def _parameters(self) -> Iterator[tuple[str, "torch.nn.Parameter"]]:
        if self._encoder is not None:
            for name, parameter in self._encoder.named_parameters():
                yield f"encoder/{name}", parameter
        for arm, output in self._outputs.items():
            for name, parameter in output.named_parameters():
                yield f"arm/{arm}/{name}", parameter


@lru_cache(maxsize=2)
def pretrained(place: str | Path) -> tuple[Any, Any]:
    """Load a tokenizer and an encoder, cached. Raises PolicyError."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would fill the log
    local = isinstance(place, Path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), local_files_only=local, trust_remote_code=False)
        # Eager attention: the order of sums in faster ones varies on a GPU.
        encoder = AutoModel.from_pretrained(
            str(place),
            local_files_only=local,
            trust_remote_code=False,
            attn_implementation="eager",
            dtype="float32",
        )
    except (OSError, ValueError) as error:
        raise PolicyError(f"encoder {str(place)!r} cannot be loaded: {error}") from error
    return tokenizer, encoder.eval()
