"""The policies of versions that may have been replaced long ago: from their bytes, or learned again."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pydantic import ValidationError

from agent.policies.catalog import PolicySpec, build_policy
from agent.policy import Policy, PolicyError
from agent.rebuild import rebuilt
from feedback.armsets import defined
from feedback.reward import RewardRule
from feedback.store import Store
from feedback.versions import Version

WAITING = 8
"""Calls that may be under way or waiting at once; whoever comes then is sent away."""

Found = TypeVar("Found")


class BusyError(Exception):
    """Too many policies of the past are being looked for already."""


class Past:
    """Asks policies of the past in a thread of its own, one after another: to find one may take minutes.

    The one found last is kept, as decisions are verified in the order in which they were made.

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
        self._last: tuple[int, Policy] | None = None

    def ask(self, version: Version, question: Callable[[Policy], Found]) -> "Future[Found]":
        """Return what a function says of the policy of a version, once that is found.

        Returns:
            A future, which raises PolicyError where the policy cannot be had.

        Raises:
            BusyError: Too many are waiting already.
        """
        with self._counting:
            if self._calls >= WAITING:
                raise BusyError(f"{self._calls} policies of the past are being looked for already")
            self._calls += 1
        answer = self._thread.submit(self._answer, version, question)
        answer.add_done_callback(self._done)
        return answer

    def close(self) -> None:
        """Stop after the call that is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, _answer: "Future[Found]") -> None:
        with self._counting:
            self._calls -= 1

    def _answer(self, version: Version, question: Callable[[Policy], Found]) -> Found:
        if self._last is None or self._last[0] != version.version:
            arms = list(defined(self._store))
            self._last = version.version, policy_of(self._store, version, self._rule, arms)
        return question(self._last[1])


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
    try:
        spec = PolicySpec.model_validate(version.policy)
    except ValidationError as error:
        raise PolicyError(f"version {version.version} names no policy of ours: {error}") from None
    return rebuilt(store, build_policy(spec, arms), rule, version)
