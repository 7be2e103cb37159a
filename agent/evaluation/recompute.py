"""Compute the distributions of some logged decisions again: a difference means that the log was changed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from armwise.agent.config import AppConfig
from armwise.agent.learning import restore_policy, verify
from armwise.agent.policies import Policy, PolicyError
from armwise.arms.base import Progress
from armwise.feedback.events import FOREIGN, Decision
from armwise.feedback.log import Store
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.registry import arm_sets
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.training_log import read_examples

ROWS, VERSIONS = 200, 20
"""Decisions to recompute, and most versions that they come from, since relearning an old version is slow."""


@dataclass(frozen=True, slots=True)
class RecomputedCheck:
    """The result of a check.

    Attributes:
        checked: Decisions that were recomputed.
        mismatched: Recomputed decisions that differ.
        lost: Decisions that cannot be recomputed: their policy or floor is missing, or another system made
            them.
    """

    checked: int = 0
    mismatched: int = 0
    lost: int = 0


def recompute(
    store: Store, config: AppConfig, log: LoggedDraws, rng: np.random.Generator, on_progress: Progress
) -> RecomputedCheck:
    """Recompute the distributions of some decisions.

    Args:
        store: The log.
        config: Has the reward that versions have learned from.
        log: The decisions.
        rng: Selects the decisions.
        on_progress: Called with the progress.

    Raises:
        LogUnavailableError: Try again later.
    """
    checked = mismatched = lost = 0
    own, arms = config.build_steps(), arm_sets.list_defined(store) or list(config.actions)

    @lru_cache(maxsize=2)  # such as a version and its canary
    def find_policy(number: int) -> Policy:
        version = registry_versions.find(store, number)
        if version is None:
            raise PolicyError(f"there is no version {number}")
        return restore_policy(store, version, config.reward, arms)

    decisions = sorted(
        _some(store, config, log, rng), key=lambda decision: (decision.version, decision.candidate)
    )
    for done, decision in enumerate(decisions, start=1):
        try:
            versions = {decision.version, *([decision.candidate] if decision.share else ())}
            recalled = {version: find_policy(version) for version in versions}
        except PolicyError:
            recalled = {}
        if not recalled or decision.policy in FOREIGN or decision.floor is None:
            lost += 1
        else:
            checked += 1
            recomputed = verify(decision, recalled, salt="", steps=own)
            mismatched += not recomputed.distribution.same  # only distributions are compared
        on_progress("computing propensities again", done, len(decisions))
    return RecomputedCheck(checked, mismatched, lost)


def _some(store: Store, config: AppConfig, log: LoggedDraws, rng: np.random.Generator) -> Iterator[Decision]:
    """Yield decisions at random, of a few versions."""
    versions, rows = np.unique(log.version, return_counts=True)
    order = rng.choice(len(versions), len(versions), replace=False, p=rows / rows.sum())
    enough = int(np.searchsorted(rows[order].cumsum(), ROWS)) + 1
    some = versions[order[: max(VERSIONS, enough)]]
    pool = log.seq[np.isin(log.version, some)]
    for seq in rng.choice(pool, min(ROWS, len(pool)), replace=False).tolist():
        for example in read_examples(store, config.reward.join, seq - 1, seq):
            yield example.decision
