"""Policies of published versions: from their bytes, or relearned from the training log.

    checkpoint of the version  -->  checkpoint of an earlier one, and a replay  -->  replay from the start

Each step is tried if the one before fails. `restore_policy` takes all of them; replicas and the learner,
which can go on with another version, only the first ones.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.recipe import DIGEST_CHARS, Recipe, read_spec
from armwise.agent.learning.training import learn
from armwise.agent.policies import Policy, PolicyError, build_policy
from armwise.feedback.errors import LogGapError
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, arm_sets, versions
from armwise.feedback.reward import RewardRule

logger = logging.getLogger(__name__)


def restore_policy(
    store: Store,
    version: Version,
    rule: RewardRule,
    arms: Sequence[str],
    *,
    empty: Policy | None = None,
    relearn: bool = True,
) -> Policy:
    """Return the policy of a version, relearned if its checkpoint is lost.

    Args:
        store: The log.
        version: Version of any recipe; one with another reward needs its checkpoint.
        rule: How rewards are computed.
        arms: All arms that the policy may choose among.
        empty: A policy of the version's specification before any learning; None to build it.
        relearn: Whether to relearn the policy, which may take minutes; else a lost checkpoint is an error.

    Raises:
        PolicyError: The specification cannot be built; or the checkpoint is lost, and the log gives another
            state although the arithmetic is the same.
        LogUnavailableError: Try again later.
    """
    if empty is None:
        empty = build_policy(read_spec(version), arms)
    try:
        return load_checkpoint(store, empty, version)
    except PolicyError as error:
        if not relearn:
            raise
        lost = error
    try:
        recipe = Recipe.from_version(version, rule)
    except PolicyError:
        message = f"{lost}, and it was learned with another reward than the configured one"
        raise PolicyError(message) from None
    policy, last_seq = resume_point(store, empty, version)
    try:
        learn(store, recipe, policy, last_seq, version.examples_seq)
    except LogGapError as gap:
        raise PolicyError(f"{lost}, and it cannot be learned again: {gap}") from gap
    state = policy.save()
    # computed by another processor, the numbers are equal up to rounding, but the digest differs
    if (digest := versions.digest_state(state)) != version.digest and versions.is_computed_alike(
        store, version, arithmetic()
    ):
        raise PolicyError(
            f"{lost}, and learning again from the log gives another state, {digest[:DIGEST_CHARS]}: "
            "the training log was changed; see `armwise log rebuild --verify`"
        )
    return empty.load(state)  # as every replica loads it


def load_checkpoint(store: Store, empty: Policy, version: Version) -> Policy:
    """Return the policy of a version from its checkpoint.

    Args:
        store: The log.
        empty: A policy of the version's specification before any learning.
        version: The version.

    Raises:
        PolicyError: The checkpoint is missing or damaged, or the policy refuses it.
    """
    state = versions.checkpoint(store, version.version)
    if state is None or versions.digest_state(state) != version.digest:
        raise PolicyError(f"checkpoint of version {version.version} is missing or damaged")
    try:
        return empty.load(state)
    except PolicyError as error:
        raise PolicyError(f"checkpoint of version {version.version} cannot be loaded: {error}") from error


def earlier_checkpoint(
    store: Store, empty: Policy, version: Version, *, warn: bool = False
) -> tuple[Version, Policy] | None:
    """Return the newest other loadable version of the recipe that has learned no more, and its policy."""
    for earlier in versions.list_kept_upto(store, version.recipe, version.examples_seq):
        if earlier.version != version.version:
            try:
                return earlier, load_checkpoint(store, empty, earlier)
            except PolicyError as error:
                logger.log(logging.WARNING if warn else logging.DEBUG, "%s: trying an earlier one", error)
    return None


def resume_point(store: Store, empty: Policy, version: Version) -> tuple[Policy, int | None]:
    """Return the policy that a replay of a version starts from, and the last example that it has learned.

    That is an earlier checkpoint, if the policy resumes from it exactly; else the empty policy, and None.
    """
    checkpoint = earlier_checkpoint(store, empty, version, warn=True) if empty.resumes_exactly else None
    return (empty, None) if checkpoint is None else (checkpoint[1], checkpoint[0].examples_seq)


MAX_QUEUED = 8
"""Calls that may wait or run at once; further ones are refused."""

CACHED_POLICIES = 2
"""Restored policies to keep: decisions are verified in order, each by a version and perhaps a canary."""

Result = TypeVar("Result")


class BusyError(Exception):
    """Too many calls to policies of earlier versions are queued already."""


class PolicyHistory:
    """Runs functions of the policies of earlier versions in one thread: to restore one may take minutes.

    Args:
        store: The log.
        rule: How rewards are computed, to relearn policies.
    """

    def __init__(self, store: Store, rule: RewardRule) -> None:
        self._store = store
        self._rule = rule
        self._thread = ThreadPoolExecutor(1, "policy-history")
        self._counting = threading.Lock()
        self._calls = 0
        self._cache: dict[int, Policy] = {}  # by version, the most recently used last

    def submit(self, of: Sequence[Version], function: Callable[..., Result]) -> "Future[Result]":
        """Call a function with the policies of one version or two, once they are restored.

        Args:
            of: The versions.
            function: Takes their policies, in this order.

        Returns:
            A future of its result, which raises PolicyError if a policy cannot be restored.

        Raises:
            BusyError: Too many calls are queued already.
        """
        with self._counting:
            if self._calls >= MAX_QUEUED:
                raise BusyError(f"{self._calls} calls to policies of earlier versions are already queued")
            self._calls += 1
        future = self._thread.submit(self._call, of, function)
        future.add_done_callback(self._count_done)
        return future

    def close(self) -> None:
        """Stop after the call that is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _count_done(self, _future: "Future[Result]") -> None:
        with self._counting:
            self._calls -= 1

    def _call(self, of: Sequence[Version], function: Callable[..., Result]) -> Result:
        return function(*[self._policy(version) for version in of])

    def _policy(self, version: Version) -> Policy:
        policy = self._cache.pop(version.version, None)
        if policy is None:
            policy = restore_policy(self._store, version, self._rule, arm_sets.list_defined(self._store))
        self._cache[version.version] = policy
        for older in list(self._cache)[:-CACHED_POLICIES]:
            del self._cache[older]
        return policy
