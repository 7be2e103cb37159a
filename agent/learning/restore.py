"""The policies of versions that may have been replaced long ago: from their bytes, or learned again."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from agent.learning.recipe import DIGEST_CHARS, Recipe, spec_of
from agent.policies import Policy, PolicyError, build_policy
from feedback.errors import LogGapError
from feedback.events import Example
from feedback.log import Store
from feedback.registry import Version, arm_sets
from feedback.registry import versions as registry_versions
from feedback.reward import RewardRule
from feedback.training_log import learned_examples

logger = logging.getLogger(__name__)


def restore(empty: Policy, version: Version, state: bytes | None) -> Policy:
    """Return the policy of a version.

    Args:
        empty: A policy as the version's specification builds it.
        version: What was published.
        state: Its bytes; None when they were pruned.

    Raises:
        PolicyError: The bytes are missing or damaged, or the policy refuses them.
    """
    if state is None or registry_versions.digest_of(state) != version.digest:
        raise PolicyError(f"checkpoint of version {version.version} is missing or damaged")
    try:
        return empty.load(state)
    except PolicyError as error:
        raise PolicyError(f"checkpoint of version {version.version} cannot be loaded: {error}") from error


def earlier(store: Store, empty: Policy, version: Version) -> tuple[Policy, int | None]:
    """Return a policy from which that of a version can be learned, and which example it knows last.

    Args:
        store: The log.
        empty: A policy as the version's specification builds it.
        version: Its own bytes are not looked at.

    Returns:
        The policy of the nearest earlier version of the recipe whose bytes are sound, where that
        goes on from them exactly; else the empty one, and None.
    """
    if empty.resumes_exactly:
        for one in registry_versions.kept_upto(store, version.recipe, version.examples_seq):
            if one.version != version.version:
                try:
                    return restore(
                        empty, one, registry_versions.checkpoint(store, one.version)
                    ), one.examples_seq
                except PolicyError as error:
                    logger.warning("%s: going on from an earlier one", error)
    return empty, None


def train_on(policy: Policy, rule: RewardRule, examples: Iterable[Example]) -> None:
    """Let a policy learn examples, in order, as a rule rewards them."""
    for example in examples:
        reward = rule.reward_of(example)
        if reward is not None:
            policy.learn(example.decision, reward)


MAX_QUEUED = 8
"""Calls that may be under way or waiting at once; whoever comes then is sent away."""

CACHED_POLICIES = 2
"""Policies that are kept."""

Found = TypeVar("Found")


class BusyError(Exception):
    """Too many policies of the past are being looked for already."""


class PolicyHistory:
    """Asks policies of the past in a thread of its own, one after another: to find one may take minutes.

    The last two are kept, as decisions are verified in the order in which they were made, and a canary
    makes them with two.

    Args:
        store: The log.
        rule: How rewards are made, for what has to be learned again.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._thread = ThreadPoolExecutor(1, "past")
        self._counting = threading.Lock()
        self._calls = 0
        self._found: dict[int, Policy] = {}  # by version, the one asked last at the end

    def ask(self, versions: Sequence[Version], question: Callable[..., Found]) -> "Future[Found]":
        """Return what a function says of the policies of one version or two, once they are found.

        Args:
            versions: What was published.
            question: Takes their policies, in this order.

        Returns:
            A future, which raises PolicyError where the policy cannot be had.

        Raises:
            BusyError: Too many are waiting already.
        """
        with self._counting:
            if self._calls >= MAX_QUEUED:
                raise BusyError(f"{self._calls} policies of the past are being looked for already")
            self._calls += 1
        answer = self._thread.submit(self._answer, versions, question)
        answer.add_done_callback(self._done)
        return answer

    def close(self) -> None:
        """Stop after the call that is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, _answer: "Future[Found]") -> None:
        with self._counting:
            self._calls -= 1

    def _answer(self, versions: Sequence[Version], question: Callable[..., Found]) -> Found:
        return question(*[self._policy(version) for version in versions])

    def _policy(self, version: Version) -> Policy:
        policy = self._found.pop(version.version, None)
        if policy is None:
            policy = policy_of(self._store, version, self._rule, list(arm_sets.defined(self._store)))
        self._found[version.version] = policy
        for older in list(self._found)[:-CACHED_POLICIES]:
            del self._found[older]
        return policy


def policy_of(store: Store, version: Version, rule: RewardRule, arms: Sequence[str]) -> Policy:
    """Return the policy of a version, learned again where its bytes are lost.

    Args:
        store: The log.
        version: What was published, by whichever recipe; of another one the bytes are needed.
        rule: How rewards are made.
        arms: All that it may have to choose among.

    Raises:
        PolicyError: It cannot be had, or no such policy can be built.
        LogUnavailableError: Try again later.
    """
    return rebuilt(store, build_policy(spec_of(version), arms), rule, version)


def rebuilt(store: Store, empty: Policy, rule: RewardRule, version: Version) -> Policy:
    """Return the policy of a version, learned again where its bytes are lost.

    Args:
        store: The log.
        empty: A policy as the version's specification builds it.
        rule: How rewards are made.
        version: What was published.

    Raises:
        PolicyError: Its bytes are lost, and what the log gives now is another policy.
        LogUnavailableError: Try again later.
    """
    try:
        return restore(empty, version, registry_versions.checkpoint(store, version.version))
    except PolicyError as error:
        lost = error
    try:
        recipe = Recipe.of(version, rule)
    except PolicyError:
        message = f"{lost}, and it was learned by another reward than the one that is configured"
        raise PolicyError(message) from None
    policy, known = earlier(store, empty, version)
    try:
        train_on(policy, rule, learned_examples(store, rule, recipe.start, known, version.examples_seq))
    except LogGapError as gap:
        raise PolicyError(f"{lost}, and it cannot be learned again: {gap}") from gap
    state = policy.save()
    if registry_versions.digest_of(state) != version.digest:
        raise PolicyError(
            f"{lost}, and the log gives another state now, "
            f"{registry_versions.digest_of(state)[:DIGEST_CHARS]}: it was "
            "learned by another library, or the training log was changed; see `armwise rebuild --verify`"
        )
    return empty.load(state)  # as every replica has it
