"""Epsilon-greedy over a neural network that predicts the reward of every arm: MBA-RAG's policy.

NeuralGreedy    the policy: exploration, and one of two networks
HeadNet         a small network in numpy over the features of a question: its encoder is frozen
EncoderNet      a transformer that reads the question and is fine-tuned
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.encoding import check_context, check_reward, question_columns
from armwise.agent.policies.epsilon_greedy import Decay, EpsilonSchedule
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.arms import extras
from armwise.arms.models import LocalModel, ModelNotFoundError, compute_cores, locate
from armwise.feedback.events import Context, Decision

if TYPE_CHECKING:
    import torch

Array = NDArray[np.float64]

ENCODER_LEARNING_RATE = 5e-5
"""Learning rate of the paper."""

HEAD_LEARNING_RATE = 0.005
"""Learning rate of the small network, which starts with some thousand random weights."""

WEIGHT_DECAY = 0.01
"""Weight decay of AdamW."""

PRIOR = 1.0
"""Predicted reward of an arm without rewards."""

HIDDEN = 64
"""Units of the small network's hidden layer."""

DIMS = 32
"""Columns that the named features are hashed into, for the small network."""

MAX_LENGTH = 256
"""Tokens of a question that the encoder reads, up to the model's own limit."""


class Net(Protocol):
    """A network with one output an arm, and its optimizer."""

    def scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the expected reward of each arm, shape (n_arms,)."""
        ...

    def learn(self, context: Context, arm: str, reward: float) -> None:
        """Take one step towards the reward of one arm."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state of the network and its optimizer: JSON facts and arrays."""
        ...

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the state of another network, before any learning."""
        ...


class NeuralGreedy:
    """Draws the arm that a neural network predicts to be best, or a random arm with probability epsilon.

    The network learns from each reward once: one step of AdamW on the squared error of the
    drawn arm. An arm gets an output at its first reward, which starts at 1 for every
    question, so arms may be added at any time.

    With `encoder`, a transformer reads the question and is fine-tuned. Its state has all its
    weights and two moments of each, 800 MB for DistilBERT. Without, a small network in numpy
    reads the context's embedding and named features: the encoder is frozen.

    MBA-RAG explores with a constant epsilon of 0.1 in the paper (`epsilon=0.1`), and
    with 1 / ln(t) at decision t in its code (`epsilon=1.0, decay="log"`). The service mixes its
    `exploration` or `floor` into both. Its reward is that of `RewardRule` with `cost_weight` 0.1
    for each step: with `clip` [-1, 1] the paper's, correct - 0.1 * steps, and with `clip` [0, 1]
    that of its code, in which a wrong answer is worth 0 after any number of steps.

    Args:
        encoder: Text encoder: a hub name such as `distilbert/distilbert-base-uncased`, a folder, or
            `package:NAME/PATH`. None uses a small network instead.
        learning_rate: Learning rate of AdamW. None means 5e-5 with an encoder and 0.005 without.
        epsilon: Probability of exploring at the start, from 0 to 1.
        decay: How epsilon decreases, as in `epsilon_greedy`.

    Source: Tang et al. 2025, MBA-RAG: a bandit approach for adaptive retrieval-augmented
    generation through question complexity, arXiv:2412.01572.

    Raises:
        PolicyError: A value is out of its range, or the encoder is not found.
    """

    kind = "neural"
    resumes_exactly = True

    def __init__(
        self,
        encoder: LocalModel | None = None,
        *,
        learning_rate: float | None = None,
        epsilon: float = 0.1,
        decay: Decay = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "encoder": encoder, "learning_rate": learning_rate, "epsilon": epsilon, "decay": decay,
        }  # fmt: skip
        if learning_rate is not None and not 0.0 < learning_rate < np.inf:
            raise PolicyError(f"learning_rate {learning_rate} is not a positive number")
        self._exploration = EpsilonSchedule(epsilon, decay)
        self.reads_question = encoder is not None
        self._rewards = 0
        self._lock = Lock()
        self._net = self._build()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Check that the configuration names the encoder. Raises PolicyError."""
        encoder = params.get("encoder")
        if encoder is not None and not configured:
            raise PolicyError(
                f"encoder {encoder!r} may name a file of the service's machine; only the configuration may "
                "name one"
            )

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return epsilon shared by all arms, plus the rest shared by the best ones.

        Raises:
            PolicyError: A feature is not finite, or the embedding differs in length from earlier ones.
        """
        return self._exploration.spread(self.predictions(context, arms), self._rewards)

    def penalise(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution with a penalty subtracted from the predictions. Raises PolicyError."""
        return self._exploration.spread(self.predictions(context, arms) - penalty, self._rewards)

    def predictions(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the expected reward of each arm, shape (n_arms,). Raises PolicyError."""
        check_context(context)
        with self._lock:
            return self._net.scores(context, arms)

    def learn(self, decision: Decision, reward: float) -> None:
        """Take one step towards the reward of the drawn arm."""
        check_reward(decision, reward)
        with self._lock:
            self._net.learn(decision.context, decision.drawn, reward)
            self._rewards += 1

    def save(self) -> bytes:
        """Return the settings and a digest on one line, then the network and its optimizer."""
        with self._lock:
            facts, arrays = self._net.state()
            return seal(self._made_by, pack({"rewards": self._rewards, **facts}, arrays))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, or has another kind, other settings or another encoder.
        """
        facts, arrays = unpack(unseal(state, self._made_by))
        net = self._build()
        net.restore(facts, arrays)
        loaded = copy.copy(self)
        vars(loaded).update(_net=net, _rewards=facts["rewards"], _lock=Lock())
        return loaded

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._settings}

    def _build(self) -> Net:
        settings = self._settings
        rate = settings["learning_rate"]
        if settings["encoder"] is not None:
            return EncoderNet(settings["encoder"], ENCODER_LEARNING_RATE if rate is None else rate)
        return HeadNet(HEAD_LEARNING_RATE if rate is None else rate)


BETAS = (0.9, 0.999)
"""Decay rates of AdamW's two moments."""

EPSILON = 1e-8
"""Keeps AdamW from dividing by zero."""


class HeadNet:
    """A small network over the features of a question, with one output an arm, and its optimizer.

        hidden = max(0, W . [x, 1])        reward of arm a = output_a . [hidden, 1]

    x is the named features, hashed into columns, and the embedding: with a sentence encoder, this is the head
    of a network with a frozen encoder. A reward updates the hidden layer and the output of its arm by one
    step of AdamW on the squared error. Every output has separate moments and counts of steps, as in PyTorch,
    which skips a parameter without a gradient, so adding an arm leaves the others unchanged.

    Args:
        rate: Learning rate of AdamW.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._rows: dict[str, int] = {}
        # Value, first and second moment. The last output is used for every unknown arm.
        self._layer: Array | None = None  # shape (3, HIDDEN, n_inputs)
        self._outputs: Array | None = None  # shape (3, n_arms + 1, HIDDEN + 1)
        self._steps = np.zeros(1, dtype=np.int64)  # of each output; the layer's are their sum

    def scores(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the expected reward of each arm, shape (n_arms,)."""
        if self._outputs is None:
            return np.full(len(arms), PRIOR)
        rows = [self._rows.get(arm, -1) for arm in arms]
        return np.asarray((self._outputs[0] @ self._compute_hidden(self._inputs(context)))[rows])

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
        hidden = self._compute_hidden(x)
        output = self._outputs[:, row]
        slope = 2.0 * (float(output[0] @ hidden) - reward)
        back = np.where(hidden[:-1] > 0.0, slope * output[0, :-1], 0.0)
        assert self._layer is not None
        adamw(self._layer, np.outer(back, x), int(self._steps.sum()) + 1, self.rate, WEIGHT_DECAY)
        self._steps[row] += 1
        adamw(output, slope * hidden, int(self._steps[row]), self.rate, WEIGHT_DECAY)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the names of the arms, and the arrays."""
        arrays: dict[str, NDArray[Any]] = {"steps": self._steps}
        if self._layer is not None and self._outputs is not None:
            arrays |= {"layer": self._layer, "outputs": self._outputs}
        return {"arms": [*self._rows]}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a state."""
        self._rows = {arm: row for row, arm in enumerate(facts["arms"])}
        self._layer, self._outputs = arrays.get("layer"), arrays.get("outputs")
        self._steps = arrays["steps"]

    def _begin(self, n_inputs: int) -> None:
        """Draw the hidden layer as PyTorch does; the outputs start at the prior for every input."""
        bound = 1.0 / math.sqrt(n_inputs - 1)
        self._layer = np.zeros((3, HIDDEN, n_inputs))
        rng = np.random.default_rng(0)
        self._layer[0] = rng.uniform(-bound, bound, size=self._layer[0].shape)
        self._outputs = np.zeros((3, 1, HIDDEN + 1))
        self._outputs[0, 0, -1] = PRIOR

    def _inputs(self, context: Context) -> Array:
        n = None if self._layer is None else self._layer.shape[2] - 1
        return np.array([*question_columns(context, DIMS, n), 1.0])

    def _compute_hidden(self, x: Array) -> Array:
        """Return the inputs of the outputs, with a 1 at the end for their bias."""
        assert self._layer is not None
        return np.append(np.maximum(self._layer[0] @ x, 0.0), 1.0)


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


MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""AdamW's state of a parameter."""


class EncoderNet:
    """A transformer that reads the question, fine-tuned on each reward, with one output an arm.

    The question's vector is the encoder's at its first token, as in BERT; the reward of an arm
    is a linear function of it. A reward updates the encoder and the output of its own arm by
    one step of AdamW on the squared error. Dropout is off, so that the state is a function of
    the log. It runs on CUDA if available. The encoder is loaded at its first use.

    Args:
        model: A hub name, a folder, or `package:NAME/PATH`.
        rate: Learning rate of AdamW.

    Raises:
        PolicyError: The model is not found.
    """

    def __init__(self, model: str, rate: float) -> None:
        try:
            self._place = locate(model)
        except ModelNotFoundError as error:
            raise PolicyError(str(error)) from error
        self.model, self.rate = model, rate
        self._tokenizer: Any = None
        self._encoder: Any = None
        self._optimizer: Any = None
        self._outputs: dict[str, torch.nn.Linear] = {}

    def scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the expected reward of each arm, shape (n_arms,)."""
        if not any(arm in self._outputs for arm in arms):
            return np.full(len(arms), PRIOR)
        import torch

        with torch.inference_mode():
            read = self._read(context.question)
            scores = {arm: float(self._outputs[arm](read)) for arm in arms if arm in self._outputs}
        return np.array([scores.get(arm, PRIOR) for arm in arms])

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
        """Take over a state.

        Raises:
            PolicyError: The state belongs to another encoder.
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
        self._tokenizer, self._encoder = copy.deepcopy(load_pretrained(self._place))
        self._encoder.to("cuda" if torch.cuda.is_available() else "cpu")
        self._optimizer = torch.optim.AdamW(
            self._encoder.parameters(), lr=self.rate, weight_decay=WEIGHT_DECAY, fused=True
        )

    def _add(self, arm: str) -> "torch.nn.Linear":
        import torch

        width, device = self._encoder.config.hidden_size, self._encoder.device
        output: torch.nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
            torch.nn.Linear, width, 1, device=device
        )
        torch.nn.init.zeros_(output.weight)
        torch.nn.init.constant_(output.bias, PRIOR)
        self._optimizer.add_param_group({"params": list(output.parameters())})
        self._outputs[arm] = output
        return output

    def _read(self, question: str) -> "torch.Tensor":
        most = min(MAX_LENGTH, self._tokenizer.model_max_length)
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
@extras.explain_missing()
def load_pretrained(place: str | Path) -> tuple[Any, Any]:
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
