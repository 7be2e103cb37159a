"""The learner: fold the training log into a policy, and publish versions of it.

The state of a policy is a function of the training log and of its recipe,
nothing else. A checkpoint only saves time: where a policy does not resume
exactly from one, the log is replayed from its start.

What is published never steps back: a learner that replays what was published before is
silent until it is past that, and the first version of a recipe has learned all there is.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from agent.policies.catalog import PolicySpec
from agent.policy import Policy, PolicyError
from feedback.alarms import Watch
from feedback.drift import DriftSpec
from feedback.errors import LogGapError, LogUnavailableError, SupersededError
from feedback.events import Example
from feedback.joins import Joiner, Position, read_examples
from feedback.lag import applied_by
from feedback.reward import RewardRule
from feedback.store import Store
from feedback.versions import Version, checkpoint, digest_of, kept_upto, latest, publish

logger = logging.getLogger(__name__)

BATCH = 5000
"""Examples that are learned in one step."""

PUBLISH_S = 5.0
"""How long a learner that is behind goes on before it publishes, and tells how far it is."""

LONGEST_PAUSE_S = 10.0
"""How long the log is left alone at most, while it is away."""


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


def earlier(store: Store, empty: Policy, version: Version) -> tuple[Policy, int]:
    """Return a policy from which that of a version can be learned, and how many examples it knows.

    Args:
        store: The log.
        empty: A policy as the version's specification builds it.
        version: Its own bytes are not looked at.

    Returns:
        The policy of the nearest earlier version of the recipe whose bytes are sound, where that
        goes on from them exactly; else the empty one.
    """
    if empty.resumes_exactly:
        for one in kept_upto(store, version.recipe, version.examples_seq):
            if one.version != version.version:
                try:
                    return restore(empty, one, checkpoint(store, one.version)), one.examples_seq
                except PolicyError as error:
                    logger.warning("%s: going on from an earlier one", error)
    return empty, 0


def teach(policy: Policy, rule: RewardRule, examples: Iterable[Example]) -> None:
    """Let a policy learn examples, in order, as a rule rewards them."""
    for example in examples:
        reward = rule.reward_of(example)
        if reward is not None:
            policy.learn(example.decision, reward)


class Learner:
    """The only writer of versions; fenced by an epoch in the log.

    Args:
        store: The log.
        policy: An empty policy, as the specification builds it.
        spec: What built it.
        rule: How rewards are made.
        epoch: The right to write, from `take_epoch`.
        clock: Seconds since the epoch.
        timer: Seconds, never going back.
        drift: How a change of the world is noticed; None not to look for any.

    Attributes:
        learned: Examples that its policy has learned.
        behind: Whether the last step has left something to be learned.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        spec: PolicySpec,
        rule: RewardRule,
        epoch: int,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        drift: DriftSpec | None = None,
    ) -> None:
        self._store = store
        self._spec = spec
        self._rule = rule
        self._clock = clock
        self._timer = timer
        self._recipe = recipe_of(spec, rule)
        self._epoch = epoch
        self._joiner = Joiner(store, rule, epoch)
        self._policy = policy
        self.learned = 0
        self._version: Version | None = None
        self._published = -1  # examples that are learned in a version that can be served
        self._heard_at = timer()  # when it last published, or told how far it is
        self.behind = False
        self._resume()
        self._watch: Watch | None = None
        if drift is not None:
            self._watch = Watch(store, drift, rule, self._recipe, epoch, self.learned, clock)

    def _resume(self) -> None:
        """Take up the newest version of this recipe, where its bytes are the same as a replay's."""
        self._version = latest(self._store, self._recipe)
        if self._version is None:
            return
        self._published = self._version.examples_seq
        try:
            saved = restore(self._policy, self._version, checkpoint(self._store, self._version.version))
        except PolicyError as error:
            # No replica can serve it either: it is published anew.
            logger.warning("%s: replaying the log", error)
            self._published -= 1
            self._policy, self.learned = earlier(self._store, self._policy, self._version)
            return
        if saved.resumes_exactly:
            self._policy, self.learned = saved, self._version.examples_seq

    def step(self) -> Version | None:
        """Join and learn a batch of what is new; return the version if one is published.

        A version is published when something was learned and nothing is left to be learned. While
        there is more, one is published every few seconds, if it is not the first of its recipe.

        Raises:
            SupersededError: Another learner has taken over.
            RebuiltError: The training log was made anew: start again.
            LogGapError: Rows of the log are missing.
            LogUnavailableError: Try again later, with a new learner; nothing was lost.
        """
        position = self._joiner.advance(self._clock())
        known = max(self.learned, self._published)
        if known > position.examples_seq and not self._joiner.left:
            raise LogGapError(
                f"{known} examples were learned before, and the whole log gives {position.examples_seq}: "
                "`armwise rebuild` publishes what has learned these"
            )
        upto = min(position.examples_seq, self.learned + BATCH)
        if upto > self.learned:
            examples = read_examples(self._store, self._rule.join, self.learned, upto)
            teach(self._policy, self._rule, self._watch.over(examples) if self._watch else examples)
            self.learned = upto
        if self._watch:
            self._watch.report()
        self.behind = self._joiner.left > 0 or upto < position.examples_seq
        if self.behind:
            if self._timer() < self._heard_at + PUBLISH_S:
                return None
            self._tell(position)
        if self.learned <= self._published or (self.behind and self._version is None):
            return None
        self._version = self._publish()
        self._published = self.learned
        self._heard_at = self._timer()
        return self._version

    def _tell(self, position: Position) -> None:
        facts = position.log_seq + self._joiner.left
        logger.info(
            "learning: %d of %d examples, from %d of %d facts",
            *(self.learned, position.examples_seq, position.log_seq, facts),
        )
        self._heard_at = self._timer()

    def _publish(self) -> Version:
        state = self._policy.save()
        with self._store.reading() as connection:
            applied_seq = applied_by(connection, self._rule.join, self.learned)
        draft = Version(
            version=0,
            parent=None if self._version is None else self._version.version,
            recipe=self._recipe,
            join=self._rule.join,
            policy=self._spec.model_dump(mode="json"),
            examples_seq=self.learned,
            applied_seq=applied_seq,
            digest=digest_of(state),
            epoch=self._epoch,
            created_at=self._clock(),
        )
        return replace(draft, version=publish(self._store, draft, state))


class LearnerThread:
    """Run a learner until it is stopped or superseded.

    A superseded one has its successor already: it ends without a failure, as starting it again
    would take the right to write back.

    Args:
        make: Builds the learner, in the thread; called again after the log was away, for
            a learner of the same epoch.
        interval_s: Pause between two looks at the log, where nothing is left to be learned; it
            grows while the log is away.

    Attributes:
        superseded: Whether it has ended because another learner took over.
    """

    def __init__(self, make: Callable[[], Learner], interval_s: float) -> None:
        self._make = make
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self.superseded = False
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
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                learner = learner or self._make()
                learner.step()
                pause_s = 0.0 if learner.behind else self._interval_s
            except LogUnavailableError as error:
                pause_s = min(max(self._interval_s, 2 * pause_s), LONGEST_PAUSE_S)
                logger.warning("the learner waits %.3g s for the log: %s", pause_s, error)
                learner = None  # its policy may have learned what was not published
            except SupersededError as error:
                logger.warning("the learner stops: %s", error)
                self.superseded = True
                return
            except Exception as error:
                logger.exception("the learner failed")
                self._failure = error
                return
