"""Whether a log tells the truth: some of its distributions, computed again by the versions that gave them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agent.config import AppConfig
from agent.learning import policy_of
from agent.learning import verify as learning_verify
from agent.policies import Policy, PolicyError
from arms.base import Progress
from feedback.dataset import Log
from feedback.events import Decision
from feedback.log import Store
from feedback.registry import arm_sets
from feedback.registry import versions as registry_versions
from feedback.training_log import read_examples

ROWS, VERSIONS = 200, 20
"""How many decisions are computed again, and of how few versions where these made so many: an old one may
have to be learned again from the log, which takes a while."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came out.

    Attributes:
        checked: Decisions that were computed again.
        mismatched: Those of them that came out otherwise.
        lost: Decisions that could not be, as their policy or their floor is not on record.
    """

    checked: int = 0
    mismatched: int = 0
    lost: int = 0


def recompute(
    store: Store, config: AppConfig, log: Log, rng: np.random.Generator, tell: Progress
) -> Recomputed:
    """Compute the distributions of some decisions again.

    Args:
        store: What the log was read from.
        config: Names the reward that versions have learned from, and the salt.
        log: The decisions.
        rng: Source of the choice.
        tell: Told of the progress.

    Raises:
        LogUnavailableError: Try again later.
    """
    checked = mismatched = lost = 0
    policies = _Policies(store, config)
    decisions = sorted(_some(store, config, log, rng), key=lambda one: (one.version, one.candidate))
    for done, decision in enumerate(decisions, start=1):
        try:
            policy = policies.of(decision.version)
            candidate = policies.of(decision.candidate) if decision.share else None
        except PolicyError:
            policy = None
        if policy is None or decision.floor is None:
            lost += 1
        else:
            checked += 1
            mismatched += not learning_verify.verify(
                decision, policy, config.salt, None, candidate
            ).distribution.same
        tell("computing propensities again", done, len(decisions))
    return Recomputed(checked, mismatched, lost)


def _some(store: Store, config: AppConfig, log: Log, rng: np.random.Generator) -> Iterator[Decision]:
    """Yield decisions at random, of a few versions."""
    versions, rows = np.unique(log.version, return_counts=True)
    order = rng.choice(len(versions), len(versions), replace=False, p=rows / rows.sum())
    enough = int(np.searchsorted(rows[order].cumsum(), ROWS)) + 1
    some = versions[order[: max(VERSIONS, enough)]]
    pool = log.seq[np.isin(log.version, some)]
    for seq in rng.choice(pool, min(ROWS, len(pool)), replace=False).tolist():
        for example in read_examples(store, config.reward.join, seq - 1, seq):
            yield example.decision


class _Policies:
    """The policies of versions; that which was asked for last is kept, and so is its fellow of a canary."""

    def __init__(self, store: Store, config: AppConfig) -> None:
        self._store, self._config = store, config
        self._arms = list(arm_sets.defined(store)) or list(config.actions)
        self._found: dict[int, Policy] = {}

    def of(self, number: int) -> Policy:
        """Return the policy of a version. Raises PolicyError where it cannot be had."""
        if number not in self._found:
            version = registry_versions.find(self._store, number)
            if version is None:
                raise PolicyError(f"there is no version {number}")
            if len(self._found) > 1:
                self._found.clear()
            self._found[number] = policy_of(self._store, version, self._config.reward, self._arms)
        return self._found[number]
