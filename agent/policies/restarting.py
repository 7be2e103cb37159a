"""Any policy that learns, made to start anew where the world has changed.

    reward -> watch (adaptive) -> restart? -> a policy that has learned the latest rewards alone
           -> policy

A policy that has learned much unlearns it slowly. Beside it, a linear model of the rewards follows the
world (`armwise.agent.policies.adaptive`); where the errors of that say that the reward of an arm has
changed, the policy is replaced by one that knows only the decisions since. All of it is a function of the
rewards in their order, so a replay of the log restarts at the same places.
"""

import copy
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.adaptive import MOST, Adaptive
from armwise.agent.policies.base import Policy, PolicyError, Restart
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym

_COMPRESSION = 1
"""Level of zlib: the latest decisions are saved with each version, so it has to be quick."""


class Restarting:
    """A policy that is replaced by a fresh one where the rewards say that the world has changed.

    The fresh one learns the decisions since the change, 20 to 500 of them. What it had learned of labels of
    a warm start is gone with the rest: the next run brings new ones.

    Args:
        policy: Policy that decides and learns.
        threshold: Evidence at which the reward of an arm counts as changed, in standard deviations of a
            reward. A lower one notices sooner, and restarts in calm worlds, too.
        slack: By how much the mean of a reward may move without being evidence, in its standard deviations.
        dims: Columns that the named features of the question are hashed into, for the watch.

    Source: Liu et al. 2018, A change-detection based framework for piecewise-stationary multi-armed bandit
    problem, arXiv:1711.03539; the sums are those of Page 1954.

    Raises:
        PolicyError: A value out of its range, or a policy that reads the texts of questions: the decisions
            that are kept have none.
    """

    kind = "restarting"
    parts = ("policy",)
    learns_names = True  # the watch does
    example: ClassVar = {"policy": {"kind": "vowpal"}}

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept: its part is checked by itself."""

    def __init__(
        self, policy: Policy, *, threshold: float = 16.0, slack: float = 0.25, dims: int = 32
    ) -> None:
        if getattr(policy, "reads_question", False):
            raise PolicyError(
                f"policy {policy.kind!r} reads the texts of questions, which are not kept for a restart: "
                "take one that reads features"
            )
        self._watch = Adaptive(threshold=threshold, slack=slack, dims=dims)
        self._policy, self._blank = policy, policy.save()
        self._latest = deque[tuple[Decision, float]](maxlen=MOST)
        self.resumes_exactly = policy.resumes_exactly

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """When it forgot what it had learned, the oldest first."""
        return self._watch.restarts

    def __getattr__(self, name: str) -> Any:
        """Return what the policy has besides the contract: `penalised`, `contributions`, `shadow`, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the policy's distribution, shape (n_arms,)."""
        return self._policy.probabilities(context, arms)

    def learn(self, decision: Decision, reward: float) -> None:
        """Update the policy from one reward, and restart it where that completes the evidence of a change."""
        self._policy.learn(decision, reward)
        self._latest.append((decision, reward))
        n_restarts = len(self._watch.restarts)
        self._watch.learn(decision, reward)
        if len(self._watch.restarts) > n_restarts:
            self._policy = self._policy.load(self._blank)
            for kept in [*self._latest][-self._watch.restarts[-1].kept :]:
                self._policy.learn(*kept)

    def save(self) -> bytes:
        """Return a digest on one line, then the policy, the watch and the latest decisions."""
        rows = json.dumps([_row(decision, reward) for decision, reward in self._latest])
        embeddings = np.array([decision.context.embedding for decision, _ in self._latest], dtype=np.float64)
        arrays: dict[str, NDArray[Any]] = {
            "policy": _bytes(self._policy.save()),
            "watch": _bytes(self._watch.save()),
            "latest": _bytes(zlib.compress(rows.encode(), _COMPRESSION)),
            "embeddings": embeddings,
        }
        return seal({"kind": self.kind}, pack({}, arrays))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state. Raises PolicyError."""
        _, arrays = unpack(unseal(state, {"kind": self.kind}))
        loaded = copy.copy(self)
        loaded._policy = self._policy.load(arrays["policy"].tobytes())  # noqa: SLF001
        loaded._watch = self._watch.load(arrays["watch"].tobytes())  # noqa: SLF001
        rows = json.loads(zlib.decompress(arrays["latest"].tobytes()))
        latest = map(_decision, rows, arrays["embeddings"].tolist())
        loaded._latest = deque(latest, maxlen=MOST)  # noqa: SLF001
        return loaded


def _bytes(state: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(state, dtype=np.uint8)


def _row(decision: Decision, reward: float) -> list[Any]:
    """Return what a policy learns from, without any text of the caller."""
    context = decision.context
    described = {arm: by_pseudonym(features) for arm, features in context.arms.items()}
    features = [by_pseudonym(context.features), described]
    return [reward, decision.drawn, decision.arms, decision.probabilities, decision.policy, *features]


def _decision(row: Sequence[Any], embedding: Sequence[float]) -> tuple[Decision, float]:
    reward, drawn, arms, probabilities, policy, features, described = row
    context = Context("", features, tuple(embedding), described)
    return Decision("", context, tuple(arms), tuple(probabilities), drawn, policy, 0), reward
