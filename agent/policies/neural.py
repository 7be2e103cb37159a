"""Epsilon-greedy over a neural network that predicts the reward of every arm: MBA-RAG's policy."""

import copy
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from agent.policies.base import PolicyError
from agent.policies.encoding import check_context, check_reward, check_whole
from agent.policies.epsilon_greedy import Decay, Exploration
from agent.policies.neural_encoder import EncoderNet
from agent.policies.neural_head import HeadNet
from agent.policies.serialization import pack, seal, unpack, unseal
from feedback.events import Context, Decision

ENCODER_LEARNING_RATE = 5e-5
"""Learning rate of the paper."""

HEAD_LEARNING_RATE = 0.005
"""For some thousand weights with a random start."""


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
        """Take the state of another network; this one has learned nothing."""
        ...


class NeuralGreedy:
    """The arm with the best reward predicted by a neural network, or any arm with probability epsilon.

    The network learns from each reward once: one step of AdamW on the squared error of the
    drawn arm. An arm gets an output at its first reward, which starts at `prior` for every
    question, so arms may be added at any time.

    With `encoder`, a transformer reads the question and is fine-tuned. Its state has all its
    weights and two moments of each, 800 MB for DistilBERT. Without, a small network in numpy
    reads the context's embedding and named features: the encoder is frozen.

    MBA-RAG explores with a constant epsilon of 0.1 in the paper (`epsilon=0.1`), and
    with 1 / ln(t) at decision t in its code (`epsilon=1.0, decay="log"`).

    Args:
        encoder: A hub name such as `distilbert/distilbert-base-uncased`, a folder, or
            `package:NAME/PATH`; None for the small network.
        hidden: Units of the small network's hidden layer; 0 for a linear one.
        dims: Columns that the small network sees of the named features, hashed.
        max_length: Tokens of a question that the encoder reads.
        learning_rate: Learning rate of AdamW; None is 5e-5 with an encoder and 0.005 without.
        weight_decay: Weight decay of AdamW.
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Number of rewards after which epsilon is halved, `log` to divide it by
            ln(1 + rewards), None for no decay.
        min_epsilon: Lower bound of epsilon, in [0, epsilon].
        prior: Predicted reward of an arm without rewards.
        seed: Seed that draws the initial weights of the small network.

    Source: Tang et al. 2025, MBA-RAG: a bandit approach for adaptive retrieval-augmented
    generation through question complexity, arXiv:2412.01572.

    Raises:
        PolicyError: A value is out of its range, or the encoder is not found.
    """

    kind = "neural"
    resumes_exactly = True

    def __init__(
        self,
        encoder: str | None = None,
        *,
        hidden: int = 64,
        dims: int = 32,
        max_length: int = 256,
        learning_rate: float | None = None,
        weight_decay: float = 0.01,
        epsilon: float = 0.1,
        decay: Decay = None,
        min_epsilon: float = 0.0,
        prior: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._settings: dict[str, Any] = {
            "encoder": encoder, "hidden": hidden, "dims": dims, "max_length": max_length,
            "learning_rate": learning_rate, "weight_decay": weight_decay,
            "epsilon": epsilon, "decay": decay, "min_epsilon": min_epsilon, "prior": prior, "seed": seed,
        }  # fmt: skip
        check_whole(0, hidden=hidden, dims=dims, seed=seed)
        check_whole(1, max_length=max_length)
        if not 0.0 <= weight_decay < np.inf:
            raise PolicyError(f"weight_decay {weight_decay} is not a finite number of at least 0")
        if not np.isfinite(prior):
            raise PolicyError(f"prior {prior} is not finite")
        if learning_rate is not None and not 0.0 < learning_rate < np.inf:
            raise PolicyError(f"learning_rate {learning_rate} is not a positive number")
        self._exploration = Exploration(epsilon, decay, min_epsilon)
        self.reads_question = encoder is not None
        self._rewards = 0
        self._lock = Lock()
        self._net = self._build()

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return epsilon shared by all arms, plus the rest shared by the best ones.

        Raises:
            PolicyError: A feature is not finite, or the embedding is not as long as those before.
        """
        return self._exploration.spread(self.predictions(context, arms), self._rewards)

    def penalised(
        self, context: Context, arms: Sequence[str], penalty: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the distribution for predictions that are less by a penalty. Raises PolicyError."""
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
            PolicyError: The state is damaged, or of another kind, other settings or another encoder.
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
        rate, prior = settings["learning_rate"], settings["prior"]
        if settings["encoder"] is not None:
            return EncoderNet(
                settings["encoder"],
                rate=ENCODER_LEARNING_RATE if rate is None else rate,
                decay=settings["weight_decay"],
                prior=prior,
                max_length=settings["max_length"],
            )
        return HeadNet(
            dims=settings["dims"],
            hidden=settings["hidden"],
            rate=HEAD_LEARNING_RATE if rate is None else rate,
            decay=settings["weight_decay"],
            prior=prior,
            seed=settings["seed"],
        )
