"""The process of the learner."""

import gc
import logging
import time
from functools import cached_property
from typing import Any

from armwise.agent import wings
from armwise.agent.background import Work, WorkFailure, clear, read_failures, record
from armwise.agent.config import AppConfig
from armwise.agent.jobs import this_process
from armwise.agent.learning import (
    DIGEST_CHARS,
    Learner,
    LearnerThread,
    Recipe,
    active_recipe,
    list_known_arms,
    live_arms,
)
from armwise.agent.telemetry import begin
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import describe_error
from armwise.feedback.log import ChangeWatch, Store, open_log
from armwise.feedback.registry import active_policy
from armwise.feedback.training_log import lag, take_epoch

logger = logging.getLogger(__name__)

INTERVAL_S = 0.25
"""Seconds between two steps of the learner."""


class LearnerHost:
    """The only learner of the log. It takes an epoch once; its replacement takes a newer one.

    Its failure stays in the log until it, or its replacement, has made a step.
    """

    def __init__(self, config: AppConfig, interval_s: float = INTERVAL_S) -> None:
        begin(config.telemetry)
        gc.freeze()  # loaded modules stay; collecting them repeatedly takes a tenth of a replay
        self._config = config
        self._clock = SteadyClock()
        self._on_record = False  # whether a failure of this process is in the log
        self._cleared = False  # whether the failure of an earlier process was removed
        self._promoted = "", 0  # the recipe of the promotion, and the arms that it was checked for
        self._thread = LearnerThread(self._learner, interval_s, self._is_due, lambda: self._summarizer.step())

    @cached_property
    def _store(self) -> Store:
        return open_log(self._config.database_url, self._config.reward, self._clock)

    @cached_property
    def _changes(self) -> ChangeWatch:
        return ChangeWatch(self._store)

    @cached_property
    def _summarizer(self) -> Any:
        return wings.load(wings.SUMMARIZER)(self._store, self._config, self._clock)

    def _is_due(self) -> bool:
        return self._changes.is_due() or self._summarizer.is_due()

    @cached_property
    def _epoch(self) -> int:
        return take_epoch(self._store, this_process(), self._clock())

    @cached_property
    def _succession(self) -> lag.SuccessorCheck:
        return lag.SuccessorCheck(self._store)

    def _learner(self, running: Learner | None = None) -> Learner:
        """Return the running learner, or a new one if another recipe is active now."""
        if running is not None and not self._cleared:  # the running learner has made a step
            clear(Work.LEARNER)
            self._cleared = True
        config = self._config
        active = active_policy(self._store, Recipe.from_config(config).digest)
        promoted = active.recipe, live_arms(self._store, config).seq
        if running is not None and promoted == self._promoted:
            return running
        recipe, self._promoted = active_recipe(self._store, config, active), promoted
        if running is not None and running.recipe == recipe:
            return running
        if running is not None:
            logger.info("learning continues with recipe %s", recipe.digest[:DIGEST_CHARS])
        return Learner(
            self._store,
            recipe,
            list_known_arms(self._store, config),
            self._epoch,
            self._clock,
            drift=config.drift,
            budget=config.budget,
            token_prices=config.token_prices,
            backbones=config.backbones,
            keep_texts_days=config.privacy.keep_texts_days,
        )

    def check_health(self) -> None:
        """Fail if learning has failed or the clock jumped, so that the process is replaced.

        A superseded learner fails once its successor has stopped.
        """
        self._clock.check()
        try:
            self._thread.check()
        except Exception as error:
            self._record(error)
            raise
        if self._thread.superseded:
            self._succession.check()

    def _record(self, error: Exception) -> None:
        """Record the failure of learning, once: the check fails until the process is replaced."""
        if self._on_record:
            return
        self._on_record = True
        before = next((one.attempts for one in read_failures() if one.work == Work.LEARNER), 0)
        record(WorkFailure(Work.LEARNER, describe_error(error), before + 1, time.time()))
