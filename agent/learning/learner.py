"""The learner: turn the training log into a policy, and publish versions of it.

The state of a policy is a function of the training log and of its recipe. A checkpoint only saves time: if a
policy does not resume exactly from it, the training log is replayed from its start.

Versions only move forward: a learner that replays examples publishes once it is past the published versions,
and the first version of a recipe has learned the entire training log.

Candidates are versions of recipes other than the active one. Publishing one takes no epoch, so the live
learner goes on. A learner that continues a candidate after its promotion gets the same versions as one that
had the recipe from the start.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from armwise.agent.learning.guard import GuardKeeper
from armwise.agent.learning.recipe import Recipe
from armwise.agent.learning.restore import load_checkpoint, resume_point
from armwise.agent.learning.router_scores import MOST, score_unscored
from armwise.agent.learning.training import learn
from armwise.agent.policies import Policy, PolicyError, list_restarts
from armwise.arms.base import Progress
from armwise.arms.models import Backbone
from armwise.feedback.budget import Budget, Pacer, Price
from armwise.feedback.drift import Change, DriftSpec, Watch
from armwise.feedback.errors import LogGapError
from armwise.feedback.events import Example
from armwise.feedback.guard import GuardSpec
from armwise.feedback.log import Store, erasures
from armwise.feedback.registry import Version, guards, prices, versions
from armwise.feedback.reward import TokenPrices
from armwise.feedback.training_log import (
    Joiner,
    Position,
    StartingPoint,
    lag,
    newest_epoch,
    read_position,
    router_contexts,
)

logger = logging.getLogger(__name__)

BATCH = 5000
"""Most examples learned in one step."""

SPENDING_BATCH = 5000
"""Requests whose costs are read in one step."""

REPORT_EVERY = 1000
"""Examples between two progress reports of a candidate."""

PUBLISH_S = 5.0
"""Seconds after which a learner that is behind publishes and logs its progress."""


class Learner:
    """The only writer of the training log and of the versions learned live; fenced by an epoch in the log.

    Args:
        store: The log.
        recipe: The policy, the reward and the starting point.
        arms: Names of the arms that the policy may choose among.
        epoch: The right to write, from `take_epoch`.
        clock: Seconds since the epoch.
        timer: Monotonic seconds.
        drift: How drift is detected; None: drift is not watched.
        budget: The limit on costs whose price the learner maintains.
        backbones: Encoders by name, for the router of the recipe.
        keep_texts_days: Age in days at which texts are erased, some in each step; None: never.
        token_prices: Current prices of tokens, for the budget.
        guard: The guard whose classes it watches; None: the classes of earlier guards are free.

    Attributes:
        recipe: The recipe that it learns.
        behind: Whether the last step left examples to learn.

    Raises:
        PolicyError: The policy cannot be built.
    """

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        arms: Sequence[str],
        epoch: int,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        drift: DriftSpec | None = None,
        budget: Budget | None = None,
        backbones: Mapping[str, Backbone] | None = None,
        keep_texts_days: float | None = None,
        token_prices: TokenPrices | None = None,
        guard: GuardSpec | None = None,
    ) -> None:
        self._keep_texts_days = keep_texts_days
        self.recipe = recipe
        self._backbones = backbones or {}
        self._store = store
        self._rule = recipe.reward
        self._clock = clock
        self._timer = timer
        self._epoch = epoch
        self._joiner = Joiner(store, recipe.reward, epoch)
        self._policy = recipe.build(arms)
        self._known: int | None = None  # position of the last example learned
        self._version: Version | None = None
        self._loadable_upto = -1  # examples learned by the newest version that can be loaded
        self._reported_at = timer()  # when it last published or logged its progress
        self.behind = False
        self._resume()
        self._prices = (
            None if budget is None else PriceKeeper(store, budget, epoch, clock, token_prices or {})
        )
        self._watch: Watch | None = None
        if drift is not None:
            self._watch = Watch(store, self._rule, recipe.digest, epoch, self.learned, clock)
        freed = guards.lift(store, epoch, None if guard is None else guard.name(self._rule.join), clock())
        if freed:
            logger.warning(
                "%d class(es) that had gone back are free again, as the guard, or a setting of `reward` that "
                "its ratings depend on, was changed or removed",
                freed,
            )
        self._guard: GuardKeeper | None = None
        if guard is not None:
            self._guard = GuardKeeper(store, self._rule, guard, epoch, self.learned, clock)

    @property
    def learned(self) -> int:
        """Position in the training log of the last example learned."""
        if self._known is not None:
            return self._known
        return self.recipe.start.after if self.recipe.start else 0

    def _resume(self) -> None:
        """Continue from the newest version of this recipe, if its policy resumes exactly."""
        self._version = versions.latest(self._store, self.recipe.digest)
        if self._version is None:
            return
        self._loadable_upto = self._version.examples_seq
        try:
            saved = load_checkpoint(self._store, self._policy, self._version)
        except PolicyError as error:
            # No replica can load it either, so it is published again.
            logger.warning("%s: replaying the log", error)
            self._loadable_upto -= 1
            self._policy, self._known = resume_point(self._store, self._policy, self._version)
            return
        if saved.resumes_exactly:
            self._policy, self._known = saved, self._version.examples_seq

    def step(self) -> Version | None:
        """Join new facts and learn a batch of examples; return the version if one is published.

        A version is published when all examples are learned. While more are left, one is published every few
        seconds, except for the first of its recipe.

        Raises:
            SupersededError: Another learner has taken the epoch.
            RebuiltError: The training log was rebuilt; start a new learner.
            LogGapError: Rows of the log are missing.
            LogUnavailableError: Try again later, with a new learner; the log has everything.
        """
        if self._prices:
            self._prices.step()
        if self._keep_texts_days is not None:
            erasures.erase_older(self._store, self._keep_texts_days, self._clock())
        erasures.forget_subjects(self._store, self._clock())
        position = self._joiner.advance(self._clock())
        n_learned = max(self.learned, self._loadable_upto)
        if n_learned > position.examples_seq and not self._joiner.left:
            raise LogGapError(
                f"{n_learned} examples were learned before, but the whole log has only "
                f"{position.examples_seq}: "
                "run `armwise log rebuild` to learn from those"
            )
        upto = min(position.examples_seq, self.learned + BATCH)
        if upto > self.learned or (upto == self.learned and self._known is None):
            self._score_unscored(upto)
            learn(self._store, self.recipe, self._policy, self._known, upto, self._watch_examples)
            self._known = upto
        if self._watch:
            self._watch.report()
        if self._guard:
            self._guard.report()
        learning = self._joiner.left > 0 or upto < position.examples_seq
        self.behind = learning
        if learning:
            if self._timer() < self._reported_at + PUBLISH_S:
                return None
            self._log_progress(position)
        if self.learned <= self._loadable_upto or (learning and self._version is None):
            return None
        self._version = self._publish()
        self._loadable_upto = self.learned
        self._reported_at = self._timer()
        return self._version

    def _watch_examples(self, examples: Iterator[Example]) -> Iterator[Example]:
        """Yield examples and watch for drift; raise an alarm at each one that the policy restarts at."""
        n_restarts = len(list_restarts(self._policy))
        for example in self._watch.over(examples) if self._watch else examples:
            if self._guard:
                self._guard.see(example)
            yield example
            for restart in list_restarts(self._policy)[n_restarts:]:
                logger.warning(
                    "example %d: the policy restarts from its latest %d rewards, because %s now earns %.3g "
                    "and earned %.3g before",
                    *(example.seq, restart.kept, restart.arm, restart.after, restart.before),
                )
                if self._watch:
                    change = Change(
                        f"restart, reward of {restart.arm}", restart.before, restart.after, example.seq
                    )
                    self._watch.add(change, example, "policy")
            n_restarts = len(list_restarts(self._policy))

    def _score_unscored(self, upto: int) -> None:
        """Compute missing scores of the recipe's router on the decisions of the next examples."""
        if self.recipe.router is not None:
            decisions = router_contexts.list_unscored(
                self._store, self.recipe.router, join=self._rule.join, after=self.learned, upto=upto
            )
            score_unscored(self._store, self.recipe.router, decisions, self._backbones)

    def _log_progress(self, position: Position) -> None:
        facts = position.log_seq + self._joiner.left
        logger.info(
            "learning: %d of %d examples, from %d of %d facts",
            *(self.learned, position.examples_seq, position.log_seq, facts),
        )
        self._reported_at = self._timer()

    def _publish(self) -> Version:
        draft, state = draft_version(
            self._store, self.recipe, self._policy, self.learned, self._version, self._epoch, self._clock
        )
        return replace(draft, version=versions.publish(self._store, draft, state))


class PriceKeeper:
    """Folds the costs in the log into the price of a budget, continuing from its newest price.

    A new budget starts at the end of the log, with the initial price of its `Pacer`.

    Args:
        store: The log.
        budget: The budget.
        epoch: The right to write, from `take_epoch`.
        clock: Seconds since the epoch.
        tokens: Current prices of tokens, for the expected costs of arms.
    """

    def __init__(
        self, store: Store, budget: Budget, epoch: int, clock: Callable[[], float], tokens: TokenPrices
    ) -> None:
        self._store, self._budget, self._epoch, self._clock = store, budget, epoch, clock
        price = prices.latest(store, budget)
        self._pacer = Pacer(budget) if price is None else price.pacer(budget)
        self._seq = store.log_seq() if price is None else price.log_seq
        if price is not None:
            self._pacer.arms |= prices.reprice(store, budget, self._seq, tokens)

    def step(self) -> Price | None:
        """Read new costs; return the price if one is published.

        Raises:
            SupersededError: Another learner has taken the epoch.
            LogUnavailableError: Try again later, with a new instance.
        """
        spending = prices.read_spending(self._store, self._budget, self._seq, SPENDING_BATCH)
        if not spending:
            return None
        for seq, arm, spent in spending:
            self._pacer.note(arm, spent)
            self._seq = seq
        price, debt, arms = self._pacer.price, self._pacer.debt, dict(self._pacer.arms)
        new_price = Price(self._budget.name, self._seq, price, debt, arms, self._epoch, self._clock())
        prices.publish(self._store, new_price)
        return new_price


def publish_candidate(
    store: Store,
    recipe: Recipe,
    arms: Sequence[str],
    clock: Callable[[], float] = time.time,
    on_progress: Progress = lambda *_: None,
    backbones: Mapping[str, Backbone] | None = None,
) -> Version:
    """Train a recipe on the current training log, and publish a version of it.

    Args:
        store: The log.
        recipe: The policy, the reward and the starting point.
        arms: All arms that it may choose among; a policy that names another arm is refused.
        clock: Seconds since the epoch.
        on_progress: Called with the progress.
        backbones: Encoders by name, for the router of the recipe.

    Returns:
        The version; or the newest version of the recipe, if that has learned everything already.

    Raises:
        PolicyError: The policy cannot be built.
        ValueError: The recipe starts after the end of the training log; or, as a RouterError, its router
            cannot be used here.
        ModelNotFoundError: The model of an encoder cannot be found.
        LogGapError: Rows of the log are missing.
        RebuiltError: The training log was rebuilt meanwhile; call again.
        LogUnavailableError: Nothing was published; try again later.
    """
    policy = recipe.build(arms)
    start = recipe.start or StartingPoint()
    with store.reading() as connection:
        epoch, _ = newest_epoch(connection)
        joined = read_position(connection, recipe.reward.join).examples_seq
    if start.after > joined:
        raise ValueError(f"cannot start after example {start.after}: the training log has {joined}")
    if recipe.router is not None:  # all decisions joined above, and those that wait for feedback
        decisions = router_contexts.list_unscored(store, recipe.router, newest=MOST)
        score_unscored(store, recipe.router, decisions, backbones or {}, on_progress)
        if len(decisions) == MOST:
            router_contexts.leave_unscored(store, recipe.router, before=decisions[-1][0])
    newest = versions.latest(store, recipe.digest)
    if newest is not None and newest.examples_seq >= joined:
        return newest

    def report(examples: Iterator[Example]) -> Iterator[Example]:
        for done, example in enumerate(examples, 1):
            yield example
            if done % REPORT_EVERY == 0:
                on_progress("learning a candidate", example.seq, joined)

    learn(store, recipe, policy, None, joined, report)
    on_progress("learning a candidate", joined, joined)
    draft, state = draft_version(store, recipe, policy, joined, newest, epoch, clock)
    published = versions.find(store, versions.publish_beside(store, draft, state))
    assert published is not None
    return published


def draft_version(
    store: Store,
    recipe: Recipe,
    policy: Policy,
    learned: int,
    newest: Version | None,
    epoch: int,
    clock: Callable[[], float],
) -> tuple[Version, bytes]:
    """Return the version to publish of a policy that has learned up to an example, and its state."""
    state = policy.save()
    with store.reading() as connection:
        applied_seq = lag.find_applied(connection, recipe.reward, learned)
    parent = None if newest is None else newest.version
    return recipe.draft(state, learned, applied_seq, parent, epoch, clock()), state
