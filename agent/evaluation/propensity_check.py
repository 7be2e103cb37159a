"""Check logged propensities: recompute some distributions from the versions that gave them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agent.config import AppConfig
from agent.learning import restore_policy
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
"""Decisions that are recomputed, and versions that they are taken from at most: an old version may have to
be learned again from the log, which is slow."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The result of a check.

    Attributes:
        checked: Decisions that were recomputed.
        mismatched: Those of them that differ.
        lost: Decisions that could not be recomputed, as their policy or their floor is not on record.
    """

    checked: int = 0
    mismatched: int = 0
    lost: int = 0


def recompute(
    store: Store, config: AppConfig, log: Log, rng: np.random.Generator, on_progress: Progress
) -> Recomputed:
    """Recompute the distributions of some decisions.

    Args:
        store: The log.
        config: Has the reward that versions have learned from.
        log: The decisions.
        rng: Source of the choice.
        on_progress: Called with the progress.

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
            recomputed = learning_verify.verify(decision, policy, salt="", candidate=candidate)
            mismatched += not recomputed.distribution.same  # the draw has no part in it
        on_progress("computing propensities again", done, len(decisions))
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
    """The policies of versions; the last two are cached, such as a version and its canary."""

    def __init__(self, store: Store, config: AppConfig) -> None:
        self._store, self._config = store, config
        self._arms = list(arm_sets.defined(store)) or list(config.actions)
        self._found: dict[int, Policy] = {}

    def of(self, number: int) -> Policy:
        """Return the policy of a version. Raises PolicyError where it is lost."""
        if number not in self._found:
            version = registry_versions.find(self._store, number)
            if version is None:
                raise PolicyError(f"there is no version {number}")
            if len(self._found) > 1:
                self._found.clear()
            self._found[number] = restore_policy(self._store, version, self._config.reward, self._arms)
        return self._found[number]
