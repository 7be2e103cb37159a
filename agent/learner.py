"""The learner: fold the training log into a policy, and publish versions of it.

The state of a policy is a function of the training log and of its recipe,
nothing else. A checkpoint only saves time: where a policy does not resume
exactly from one, the log is replayed from its start.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agent.policies.catalog import PolicySpec
from agent.policy import Policy, PolicyError
from feedback.joins import Joiner, Position, SupersededError, read_examples
from feedback.reward import RewardRule
from feedback.store import LogUnavailableError, Store
from feedback.versions import Version, checkpoint, digest_of, latest, publish

logger = logging.getLogger(__name__)


def recipe_of(policy: PolicySpec, rule: RewardRule) -> str:
    """Return the digest of all that shapes a policy besides the training log."""
    document: dict[str, Any] = {
        "policy": policy.model_dump(mode="json"),
        "reward": rule.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def restore(empty: Policy, version: Version, state: bytes | None) -> Policy:
    """Return the policy of a version.

    Args:
        empty: A policy as the version's specification builds it.
        version: What was published.
        state: Its bytes; None when they were pruned.

    Raises:
        PolicyError: The bytes are missing or damaged, or the policy refuses them.
    """
    if state is None or digest_of(state) != version.digest:
        raise PolicyError(f"checkpoint of version {version.version} is missing or damaged")
    try:
        return empty.load(state)
    except PolicyError as error:
        raise PolicyError(f"checkpoint of version {version.version} cannot be loaded: {error}") from error


class Learner:
    """The only writer of versions; fenced by an epoch in the log.

    Args:
        store: The log.
        policy: An empty policy, as the specification builds it.
        spec: What built it.
        rule: How rewards are made.
        epoch: The right to write, from `take_epoch`.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        spec: PolicySpec,
        rule: RewardRule,
        epoch: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._spec = spec
        self._rule = rule
        self._clock = clock
        self._recipe = recipe_of(spec, rule)
        self._epoch = epoch
        self._joiner = Joiner(store, rule, epoch)
        self._policy = policy
        self._examples_seq = 0
        self._version: Version | None = None
        self._published: tuple[int, int] | None = None
        self._resume()

    def _resume(self) -> None:
        """Take up the newest version of this recipe, where its bytes are the same as a replay's."""
        self._version = latest(self._store, self._recipe)
        if self._version is None:
            return
        try:
            saved = restore(self._policy, self._version, checkpoint(self._store, self._version.version))
        except PolicyError as error:
            # No replica can serve it either: what the replay gives is published anew.
            logger.warning("%s: replaying the log", error)
            return
        self._published = (self._version.examples_seq, self._version.applied_seq)
        if saved.resumes_exactly:
            self._policy = saved
            self._examples_seq = self._version.examples_seq

    def step(self) -> Version | None:
        """Join what is new, learn it and publish; return the version if there is a new one.

        Raises:
            SupersededError: Another learner has taken over.
            LogUnavailableError: Try again later; nothing was lost.
        """
        position = self._joiner.advance(self._clock())
        for example in read_examples(self._store, self._examples_seq, position.examples_seq):
            reward = self._rule.reward(example.metrics, example.cost)
            if reward is not None:
                self._policy.learn(example.decision, reward)
            self._examples_seq = example.seq
        reached = (position.examples_seq, position.feedback_seq)
        if reached == self._published:
            return None
        self._version, self._published = self._publish(position), reached
        return self._version

    def _publish(self, position: Position) -> Version:
        state = self._policy.save()
        draft = Version(
            version=0,
            parent=None if self._version is None else self._version.version,
            recipe=self._recipe,
            policy=self._spec.model_dump(mode="json"),
            examples_seq=position.examples_seq,
            applied_seq=position.feedback_seq,
            digest=digest_of(state),
            epoch=self._epoch,
            created_at=self._clock(),
        )
        return replace(draft, version=publish(self._store, draft, state))


class LearnerThread:
    """Run a learner until it is stopped or superseded.

    A superseded one has its successor already: it ends in silence, as starting it again
    would take the right to write back.

    Args:
        make: Builds the learner, in the thread; called again after the log was away, for
            a learner of the same epoch.
        interval_s: Pause between two looks at the log.
    """

    def __init__(self, make: Callable[[], Learner], interval_s: float) -> None:
        self._make = make
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what the learner failed of, if it did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop after the step under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        learner: Learner | None = None
        while not self._stop.is_set():
            try:
                learner = learner or self._make()
                learner.step()
            except LogUnavailableError as error:
                logger.warning("the learner waits for the log: %s", error)
                learner = None  # its policy may have learned what was not published
            except SupersededError as error:
                logger.info("the learner stops: %s", error)
                return
            except Exception as error:
                logger.exception("the learner failed")
                self._failure = error
                return
            self._stop.wait(self._interval_s)
