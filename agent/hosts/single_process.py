"""All parts of a service in one process, without Ray: `armwise serve --single-process`.

The parts are the same classes that `agent/app.py` deploys; what a handle of Ray Serve calls there is called
here. A learner or jobs that fail are opened again while requests are answered; a replica that fails ends the
process, which its parent starts again.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol

from armwise.agent.api import create_app
from armwise.agent.checks import require_libraries
from armwise.agent.config import AppConfig
from armwise.agent.hosts import arms as hosted
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.hosts.learner import LearnerHost
from armwise.agent.hosts.listener import listening
from armwise.agent.hosts.replica import keep_what_is_loaded, once_the_log_answers, open_cache, open_replica
from armwise.agent.serving import Backends, Replica
from armwise.agent.telemetry import begin
from armwise.arms.deployments import (
    AddressedGenerator,
    ArmHost,
    Embedders,
    LateGenerator,
    TracedGenerator,
    retrieval_cache,
)
from armwise.arms.llm import Generator, LlmSpec, writing
from armwise.arms.retrievers import ArmGraph

LOOK_S = 1.0
"""Pause between two looks at whether all parts are well."""

PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pauses before a part that has failed is opened again: the first, and the longest."""

logger = logging.getLogger(__name__)


class Checked(Protocol):
    """A part that says by an exception that it has failed."""

    def check_health(self) -> None:
        """Fail if it has to be replaced."""


class Reopened:
    """A part that is opened again, after a pause that doubles, when it cannot be opened or has failed.

    After a minute without a failure the pause is the first one again.

    Args:
        name: What it is, for the log.
        make: Opens it.
        clock: Monotonic seconds.
    """

    def __init__(
        self, name: str, make: Callable[[], Checked], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._make, self._clock = name, make, clock
        self._part: Checked | None = None
        self._pause_s, self._at = PAUSE_S, -inf  # of the next failure; when it is opened, or was

    def check(self) -> None:
        """Open it if that is due, or look whether it is well."""
        try:
            if self._part is not None:
                self._part.check_health()
                if self._clock() - self._at > LONGEST_PAUSE_S:
                    self._pause_s = PAUSE_S
            elif self._clock() >= self._at:
                self._part = self._make()
                self._at = self._clock()
        except Exception:
            self._part = None
            self._at = self._clock() + self._pause_s
            logger.exception("%s failed; it is opened again in %g s", self._name, self._pause_s)
            self._pause_s = min(2.0 * self._pause_s, LONGEST_PAUSE_S)


def open_parts(config: AppConfig, counters: Path) -> tuple[Replica, Reopened, Reopened]:
    """Open the parts of a service in this process; learner and jobs at their first check.

    Args:
        config: The configuration, with absolute paths.
        counters: Folder of the counters.

    Raises:
        ConfigError: A library that the configuration needs is not installed.
        ArmError: An arm cannot be built, or an encoder cannot be loaded.
        GeneratorError: A language model cannot be loaded.
    """
    require_libraries(config)
    begin(config.telemetry)
    backends = open_backends(config, open_cache(config.retrieval_cache, str(counters)))
    replica = once_the_log_answers(partial(open_replica, config, backends, str(counters)))
    learner = Reopened("the learner", partial(LearnerHost, config))
    return replica, learner, Reopened("what runs jobs", partial(JobsHost, config))


def open_backends(config: AppConfig, cache: retrieval_cache.RetrievalCache | None = None) -> Backends:
    """Open the arms, encoders and language models of a configuration in this process.

    Args:
        config: The configuration, with absolute paths.
        cache: Caches the retrievals of arms with `cache`; None: no caching.

    Raises:
        ArmError: An arm cannot be built, or an encoder cannot be loaded.
        GeneratorError: A language model cannot be loaded.
    """
    writers = open_generators(config)
    encoders = Embedders(config.backbones, {})
    placed = ArmGraph(config.arms).deployments()
    hosts = {
        host: ArmHost(
            hosted.read_settings(config),
            hosted.arms_on(host, config.arms, placed),
            partial(hosted.live_on, host, config),
            encoders,
            writers[writing.DEFAULT],
        )
        for host in placed
    }
    here = hosted.open_here(config, hosts, encoders, writers[writing.DEFAULT], cache)
    return Backends(here, encoders, writers)


def open_generators(config: AppConfig) -> dict[str, Generator]:
    """Return the language models for all event loops of this process: an engine serves them all.

    One that is a placeholder for passages, which are quoted, is loaded with its first answer. Raises
    GeneratorError.
    """
    asked = {how.llm for how in map(config.find_answering, config.actions) if not how.quote}
    return {name: _open_generator(spec, at_once=name in asked) for name, spec in config.models.items()}


def _open_generator(spec: LlmSpec, *, at_once: bool) -> Generator:
    if not spec.hosted:
        return AddressedGenerator(spec)
    return TracedGenerator(spec) if at_once else LateGenerator(spec)


async def serve(config: AppConfig, folder: Path) -> None:
    """Serve on a socket in a folder until SIGINT or SIGTERM; a replica that fails raises its error."""
    replica, learner, jobs = await asyncio.to_thread(open_parts, config, folder / "metrics")
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    app, settled = listening(create_app(replica), folder), False
    async with app.router.lifespan_context(app):
        while not stopping.is_set():
            replica.check()
            # jobs load much that no answer needs; the learner makes the version without which none is given
            for part in (learner, jobs) if replica.ready else (learner,):
                await asyncio.to_thread(part.check)  # what is opened may wait for the log
            if replica.ready and not settled:
                settled = True
                keep_what_is_loaded()
            await _pause(stopping)


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_S):
            await stopping.wait()
    except TimeoutError:
        return
