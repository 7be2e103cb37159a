"""All parts of a service in one process, without Ray: `armwise serve --single-process`.

The parts are the same classes that `agent/app.py` deploys; what a handle of Ray Serve calls there is called
here. A task that fails is tried again while requests are answered; a replica that fails ends the process,
which a service manager starts again.
"""

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from armwise.agent.api.errors import ApiError
from armwise.agent.api.routes import create_app
from armwise.agent.background import Work
from armwise.agent.config import AppConfig
from armwise.agent.doctor import require_libraries
from armwise.agent.hosts import arms as hosted
from armwise.agent.hosts.jobs import JobsHost
from armwise.agent.hosts.listener import HttpServer, listening
from armwise.agent.hosts.port import HAND_OVER_S, open_port
from armwise.agent.hosts.replica import keep_what_is_loaded, open_replica
from armwise.agent.run_folder import HAND_OVER
from armwise.agent.serving import Backends, Replica
from armwise.agent.telemetry import begin
from armwise.arms.deployments import (
    AddressedGenerator,
    Embedders,
    LateGenerator,
    TracedGenerator,
)
from armwise.arms.llm import Generator, LlmSpec, writing

LOOK_S, FIRST_LOOK_S = 1.0, 0.05
"""Pause between two looks at whether all parts are well, and before the service is ready."""

DRAIN_S = 300
"""Most seconds that requests in progress delay the end."""

T = TypeVar("T")


def open_service(config: AppConfig, counters: Path) -> Replica:
    """Open what answers in this process.

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
    return open_replica(config, open_backends(config, counters), counters)


def open_backends(config: AppConfig, folder: Path | None = None) -> Backends:
    """Open the arms, encoders and language models of a configuration in this process.

    Args:
        config: The configuration, with absolute paths.
        folder: Folder for the retrievals of arms with `cache`; None: no caching.

    Raises:
        ArmError: An arm cannot be built, or an encoder cannot be loaded.
        GeneratorError: A language model cannot be loaded.
    """
    writers = open_generators(config)
    encoders = Embedders(config.backbones, {})
    here = hosted.open_here(config, None, encoders, writers[writing.DEFAULT], folder)
    return Backends(here, encoders, writers)


def open_generators(config: AppConfig) -> dict[str, Generator]:
    """Return the language models for all event loops of this process: an engine serves them all.

    One that is a placeholder for passages, which are quoted, is loaded with its first answer. Raises
    GeneratorError.
    """
    asked = {how.llm for how in map(config.find_answering, config.actions) if not how.quote}

    def open_generator(name: str, spec: LlmSpec) -> Generator:
        if not spec.hosted:
            return AddressedGenerator(spec)
        return TracedGenerator(spec) if name in asked else LateGenerator(spec)

    return {name: open_generator(name, spec) for name, spec in config.models.items()}


class Door:
    """What answers clients: that the service is starting, until `app` is another application."""

    app: ASGIApp = ApiError("not_ready", "the service is starting").response(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.app(scope, receive, send)


async def serve(
    config: AppConfig,
    folder: Path,
    address: tuple[str, int],
    *,
    prepare: Callable[[], int] = lambda: 0,
    ready: Callable[[], bool],
    replaces: Callable[[], bool] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM, of which a second one leaves requests behind; return an exit code.

    A replica that fails raises its error.

    Args:
        config: The configuration, with absolute paths.
        folder: The private folder of the run.
        address: Host and port.
        prepare: Called in a thread before anything is opened; returns 0, or the code to exit with.
        ready: Called in a thread once the service is ready; returns whether it stops then.
        replaces: Returns whether another process still has the port, which this one takes over when it is
            ready; None to listen at once, and to answer that the service is starting.
    """
    stop, door = StopRequest(), Door()
    for number in (signal.SIGINT, signal.SIGTERM, HAND_OVER):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)

    async def listen(*, shared: bool) -> None:
        sockets = open_port(*address, shared=shared)
        stop.server = await listeners.enter_async_context(listening(door, sockets, config.http, DRAIN_S))

    async with AsyncExitStack() as opened, AsyncExitStack() as listeners:  # requests finish first
        if replaces is None:
            await listen(shared=False)
        if code := await stop.unless(prepare):
            return code
        if (replica := await stop.unless(partial(open_service, config, folder / "metrics"))) is None:
            return 0
        door.app = app = create_app(replica)
        await opened.enter_async_context(app.router.lifespan_context(app))
        learner = JobsHost(config, [Work.LEARNER])  # it makes the version without which nothing is answered
        opened.callback(learner.stop)
        await stop.watch(FIRST_LOOK_S, replica.check, learner.check_health, until=lambda: replica.ready)
        if replaces is not None and not stop.signals:
            await listen(shared=replaces())
        keep_what_is_loaded()
        if await stop.unless(ready):
            return 0
        if not stop.signals:
            jobs = JobsHost(config, {*Work} - {Work.LEARNER})  # now: it loads what no answer needs
            opened.callback(jobs.stop)
            await stop.watch(LOOK_S, replica.check, learner.check_health, jobs.check_health)
        if HAND_OVER in stop.signals:  # no new connection comes here
            await asyncio.sleep(HAND_OVER_S)
    return 0


class StopRequest:
    """Whether the service stops, by its signals.

    Attributes:
        event: Set by the first of them.
        signals: All of them.
        server: Leaves its requests behind at the second; None until it listens.
    """

    def __init__(self) -> None:
        self.event, self.signals = asyncio.Event(), list[int]()
        self.server: HttpServer | None = None

    def __call__(self, number: int) -> None:
        """Handle a signal."""
        self.signals.append(number)
        self.event.set()
        if self.server is not None:
            self.server.force_exit = len(self.signals) > 1

    async def unless(self, function: Callable[[], T]) -> T | None:
        """Call a function in a thread; None where the service stops before it has returned.

        What is opened may wait for the log, for hours: the process ends without such a thread.
        """
        if self.event.is_set():
            return None
        returned = Future[T]()

        def run() -> None:
            try:
                returned.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                returned.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        stopped, called = asyncio.ensure_future(self.event.wait()), asyncio.wrap_future(returned)
        waited: set[asyncio.Future[Any]] = {stopped, called}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return called.result() if called.done() else None

    async def watch(
        self, pause_s: float, *checks: Callable[[], None], until: Callable[[], bool] = lambda: False
    ) -> None:
        """Make some checks, with pauses, until the service stops or a condition holds."""
        while not (self.event.is_set() or until()):
            for check in checks:
                check()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.event.wait(), pause_s)
