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

ENCODER_RATE = 5e-5
"""The paper's step for its encoder."""

HEAD_RATE = 0.005
"""A step for some thousand weights that begin at random."""


class Net(Protocol):
    """A network with one output an arm, and its optimizer."""

    def scores(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the reward expected of each arm, shape (n_arms,)."""
        ...

    def learn(self, context: Context, arm: str, reward: float) -> None:
        """Take one step towards the reward of one arm."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all that was learned, the optimizer's part included: JSON facts and arrays."""
        ...

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` of another returned, before anything was learned."""
        ...


class NeuralGreedy:
    """The arm with the best reward predicted by a neural network, or any arm with probability epsilon.

    The network learns from each reward once: one step of AdamW on the squared error of the
    arm that was drawn. An arm gets an output when it is first rewarded, which begins at
    `prior` for every question: arms may appear in any order.

    With `encoder`, a transformer reads the question and is fine-tuned. Its state is that of
    all its weights three times over, 800 MB for DistilBERT. Without, a small network reads
    the context's embedding and named features: the same with a frozen encoder. It runs
    in numpy.

    MBA-RAG explores with a constant epsilon of 0.1 in the paper (`epsilon=0.1`), and
    with 1 / ln(t) at decision t in its code (`epsilon=1.0, decay="log"`).

    Args:
        encoder: A hub name such as `distilbert/distilbert-base-uncased`, a folder, or
            `package:NAME/PATH`; None for the small network.
        hidden: Units of the small network's hidden layer; 0 for a linear one.
        dims: Columns that the small network sees of the named features, hashed.
        max_length: Tokens of a question that the encoder reads.
        learning_rate: Step of AdamW; None is 5e-5 with an encoder and 0.005 without.
        weight_decay: Weight decay of AdamW.
        epsilon: Probability of exploring at the start, in [0, 1].
        decay: Rewards after which epsilon has halved, `log` to divide it by ln(1 + rewards),
            None to keep it as it is.
        min_epsilon: Where the decay ends, in [0, epsilon].
        prior: Predicted reward of an arm that was never tried.
        seed: Of the small network's first weights.

    Source: Tang et al. 2025, MBA-RAG: a bandit approach for adaptive retrieval-augmented
    generation through question complexity, arXiv:2412.01572.

    Raises:
        PolicyError: A value out of its range, or an encoder that is not where its name says.
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
            raise PolicyError(f"weight_decay {weight_decay} is not a number from 0 on")
        if not np.isfinite(prior):
            raise PolicyError(f"prior {prior} is not finite")
        if learning_rate is not None and not 0.0 < learning_rate < np.inf:
            raise PolicyError(f"learning_rate {learning_rate} is not a positive number")
        self._exploration = Exploration(epsilon, decay, min_epsilon)
        self._rewards = 0
        self._lock = Lock()
        self._net = self._build()

    @property
    def epsilon_now(self) -> float:
        """Probability of exploring at the next decision, in [min_epsilon, epsilon]."""
        return self._exploration.at(self._rewards)

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return epsilon shared by all arms, plus the rest shared by the best ones.

        Raises:
            PolicyError: A feature is not finite, or the embedding is not as long as those before.
        """
        return self._exploration.spread(self.predictions(context, arms), self._rewards)

    def predictions(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the reward expected of each arm, shape (n_arms,). Raises PolicyError."""
        check_context(context)
        with self._lock:
            return self._net.scores(context, arms)

    def learn(self, decision: Decision, reward: float) -> None:
        """Move the network towards the reward of the arm that was drawn."""
        check_reward(decision, reward)
        with self._lock:
            self._net.learn(decision.context, decision.drawn, reward)
            self._rewards += 1

    def save(self) -> bytes:
        """Return the settings and a digest on one line, and the network and its optimizer after it."""
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
        told = self._settings
        rate, prior = told["learning_rate"], told["prior"]
        if told["encoder"] is not None:
            return EncoderNet(
                told["encoder"],
                rate=ENCODER_RATE if rate is None else rate,
                decay=told["weight_decay"],
                prior=prior,
                max_length=told["max_length"],
            )
        return HeadNet(
            dims=told["dims"],
            hidden=told["hidden"],
            rate=HEAD_RATE if rate is None else rate,
            decay=told["weight_decay"],
            prior=prior,
            seed=told["seed"],
        )
