"""Any learning policy, restarted when the rewards change.

    reward -> change detector -> restart?
           -> policy, or a fresh one that has learned only the latest rewards

A policy that has learned much unlearns it slowly. So a detector follows the rewards of each arm
(`armwise.agent.policies.change_detector`); when it detects a change, the policy is replaced by one that has
learned only the latest decisions. The state is a function of the rewards in their order, so a replay of the
log restarts at the same places.
"""

import copy
import json
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import Policy, PolicyError, Restart
from armwise.agent.policies.change_detector import (
    MOST,
    REMOVED,
    RUN_LENGTH,
    ChangeDetector,
    restart_after,
)
from armwise.agent.policies.encoding import check_reward, check_whole, question_columns
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import Context, Decision
from armwise.feedback.texts import by_pseudonym

_COMPRESSION = 1
"""Level of zlib; a fast one, since the latest decisions are saved with each version."""

LAYOUT = 2
"""Version of the layout of a state; a state of another layout is learned again from the log."""


class Restarting:
    """A policy that is replaced by a fresh one where the rewards say that the world has changed.

    The fresh one learns the decisions since the change, 100 to 500 of them. Labels of a warm start are
    forgotten, too, until the next run brings new ones.

    Args:
        policy: Policy that decides and learns.
        run_length: Expected number of rewards, of all arms together, between two restarts where nothing
            changes. A shorter one follows a change sooner.
        dims: Columns that the named features of the question are hashed into, for the detector.

    Source: Liu et al. 2018, A change-detection based framework for piecewise-stationary multi-armed bandit
    problem, arXiv:1711.03539.

    Raises:
        PolicyError: A value out of its range, or a policy that reads the texts of questions: the decisions
            that are kept have none.
    """

    kind = "restarting"
    parts = ("policy",)
    learns_names = True  # the detector does
    removed: ClassVar = REMOVED
    example: ClassVar = {"policy": {"kind": "vowpal"}}

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters: the policy within is checked by itself."""

    def __init__(self, policy: Policy, *, run_length: float = RUN_LENGTH, dims: int = 32) -> None:
        if getattr(policy, "reads_question", False):
            raise PolicyError(
                f"policy {policy.kind!r} reads the texts of questions, which are not kept for a restart: "
                "take one that reads features"
            )
        check_whole(0, dims=dims)
        self._made_by = {"kind": self.kind, "layout": LAYOUT, "run_length": run_length, "dims": dims}
        self._dims = dims
        self._detector = ChangeDetector(run_length)
        self._n_columns: int | None = None
        self._policy, self._blank = policy, policy.save()
        self._latest = deque[tuple[Decision, float]](maxlen=MOST)
        self._rewards, self._restarts = 0, list[Restart]()
        self.resumes_exactly = policy.resumes_exactly

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """The times at which it forgot what it had learned, the oldest first."""
        return tuple(self._restarts)

    def __getattr__(self, name: str) -> Any:
        """Return an optional member of the policy, such as `penalised` or `contributions`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        """Return the policy's distribution, shape (n_arms,)."""
        return self._policy.probabilities(context, arms)

    def learn(self, decision: Decision, reward: float) -> None:
        """Update the policy from one reward, and restart it if that completes the evidence of a change."""
        check_reward(decision, reward)
        x = np.array(question_columns(decision.context, self._dims, self._n_columns), dtype=np.float64)
        self._n_columns = len(x)
        self._policy.learn(decision, reward)
        self._latest.append((decision, reward))
        self._rewards += 1
        change = self._detector.see(decision.drawn, reward, x)
        if change is not None:
            rewards = [(one.drawn, earned) for one, earned in self._latest]
            self._restarts.append(restart_after(change, self._rewards, rewards))
            self._policy = self._policy.load(self._blank)
            for kept in [*self._latest][-self._restarts[-1].kept :]:
                self._policy.learn(*kept)

    def save(self) -> bytes:
        """Return the settings and a digest, then the policy, the detector and the latest decisions."""
        facts = {
            "rewards": self._rewards,
            "restarts": [asdict(one) for one in self._restarts],
            "columns": self._n_columns,
            "watched": self._detector.arms,
        }
        rows = json.dumps([_row(decision, reward) for decision, reward in self._latest])
        embeddings = np.array([decision.context.embedding for decision, _ in self._latest], dtype=np.float64)
        arrays: dict[str, NDArray[Any]] = {
            "policy": _bytes(self._policy.save()),
            "latest": _bytes(zlib.compress(rows.encode(), _COMPRESSION)),
            "embeddings": embeddings,
        }
        return seal(self._made_by, pack(facts, arrays | self._detector.arrays()))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state. Raises PolicyError."""
        facts, arrays = unpack(unseal(state, self._made_by))
        rows = json.loads(zlib.decompress(arrays["latest"].tobytes()))
        latest = map(_decision, rows, arrays["embeddings"].tolist())
        loaded = copy.copy(self)
        vars(loaded).update(
            _policy=self._policy.load(arrays["policy"].tobytes()),
            _detector=self._detector.load(facts["watched"], arrays["watched"], arrays["seen"]),
            _n_columns=facts["columns"],
            _latest=deque(latest, maxlen=MOST),
            _rewards=facts["rewards"],
            _restarts=[Restart(**one) for one in facts["restarts"]],
        )
        return loaded


def _bytes(state: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(state, dtype=np.uint8)


def _row(decision: Decision, reward: float) -> list[Any]:
    """Return what a policy learns from as JSON, without the caller's texts."""
    context = decision.context
    described = {arm: by_pseudonym(features) for arm, features in context.arms.items()}
    features = [by_pseudonym(context.features), described]
    return [reward, decision.drawn, decision.arms, decision.probabilities, decision.policy, *features]


def _decision(row: Sequence[Any], embedding: Sequence[float]) -> tuple[Decision, float]:
    reward, drawn, arms, probabilities, policy, features, described = row
    context = Context("", features, tuple(embedding), described)
    return Decision("", context, tuple(arms), tuple(probabilities), drawn, policy, 0), reward
