"""Learning as a task: which recipe is learned, by which learner, and until when."""

import logging
import threading

from armwise.agent import wings
from armwise.agent.config import AppConfig
from armwise.agent.jobs import this_process
from armwise.agent.learning import (
    DIGEST_CHARS,
    Learner,
    Recipe,
    active_recipe,
    list_known_arms,
    live_arms,
)
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import RebuiltError, SupersededError
from armwise.feedback.log import ChangeWatch, Store
from armwise.feedback.registry import active_policy
from armwise.feedback.training_log import create_rewards_view, lag, take_epoch

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""Seconds between two looks of a superseded learner at whether another one reads the log."""


class Learning:
    """Learns from the log, and writes the summary for the console. Implements `armwise.agent.jobs.Task`.

    It takes an epoch of the log when it begins, and a new one after a rebuild. Once another learner has taken
    one, it leaves the log alone until nobody has read it for a minute.

    Args:
        store: The log.
        config: The configuration, with absolute paths.
        clock: Seconds since the epoch.
    """

    def __init__(self, store: Store, config: AppConfig, clock: SteadyClock) -> None:
        self._store, self._config, self._clock = store, config, clock
        self._changes, self._successor = ChangeWatch(store), lag.SuccessorCheck(store)
        self._summarizer = wings.load(wings.SUMMARIZER)(store, config, clock)
        self._learner: Learner | None = None
        self._epoch: int | None = None
        self._superseded, self._look_at = False, 0.0
        self._promoted = "", 0  # the recipe of the promotion, and the arms that it was checked for

    def due(self, now: float) -> bool:
        """Return whether there may be something to learn or to summarize, and nobody else does."""
        if self._superseded and not self._is_abandoned(now):
            return False
        return self._learner is None or self._changes.is_due() or self._summarizer.is_due()

    def run(self, stop: threading.Event) -> None:
        """Learn all that there is."""
        try:
            behind = True
            while behind and not stop.is_set():
                learner = self._find_learner()
                learner.step()
                self._summarizer.step()
                behind = learner.behind
        except SupersededError as error:
            logger.warning("the learner stopped: %s", error)
            self._superseded = True
        except RebuiltError:
            self._learner = self._epoch = None
            raise
        except Exception:
            self._learner = None  # its policy may have learned unpublished examples
            raise

    def _is_abandoned(self, now: float) -> bool:
        """Return whether the learner that took over has stopped; then this one begins again."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        try:
            self._successor.check()
        except SupersededError as error:
            logger.warning("learning begins again: %s", error)
            self._superseded, self._learner, self._epoch = False, None, None
        return not self._superseded

    def _find_learner(self) -> Learner:
        """Return the running learner, or a new one if another recipe is active now."""
        store, config, running = self._store, self._config, self._learner
        if self._epoch is None:
            self._epoch = take_epoch(store, this_process(), self._clock())
        active = active_policy(store, Recipe.from_config(config).digest)
        promoted = active.recipe, live_arms(store, config).seq
        if running is not None and promoted == self._promoted:
            return running
        recipe, self._promoted = active_recipe(store, config, active), promoted
        if running is not None and running.recipe == recipe:
            return running
        if running is not None:
            logger.info("learning continues with recipe %s", recipe.digest[:DIGEST_CHARS])
        create_rewards_view(store, recipe.reward)
        self._learner = Learner(
            store,
            recipe,
            list_known_arms(store, config),
            self._epoch,
            self._clock,
            drift=config.drift,
            budget=config.budget,
            guard=config.guard,
            token_prices=config.token_prices,
            backbones=config.backbones,
            keep_texts_days=config.privacy.keep_texts_days,
        )
        return self._learner
