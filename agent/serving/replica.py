"""One process of the ingress: its decision points, and what they share."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from uuid import uuid4

from armwise.agent.access import Keyring, Quota
from armwise.agent.config import DEFAULT_POINT, AppConfig
from armwise.agent.serving.point import STOP_S, Backends, DecisionPoint, Gate, Service
from armwise.agent.serving.telemetry import Telemetry
from armwise.agent.turn import Places
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import LogUnavailableError, StoreError
from armwise.feedback.log import SERVING_S, open_log
from armwise.feedback.registry import usage


class Replica:
    """The state behind the HTTP surface. Start it inside a running event loop.

    Args:
        config: The whole configuration, settled.
        backends: What turns call; with the arms of the default decision point.
        clock: Seconds since the epoch.
        telemetry: Counts what the turns commit.
        gate: Decides whether a version may be promoted.
        choose_code: Returns the code that a failed turn is counted and logged under.
        deployments: Returns of each deployment of the service whether it is healthy, and how its replicas
            are; it blocks. None are known without it.

    Attributes:
        service: What the decision points share.

    Raises:
        LogUnavailableError: A log cannot be opened now.
    """

    def __init__(
        self,
        config: AppConfig,
        backends: Backends,
        *,
        clock: SteadyClock,
        telemetry: Telemetry,
        gate: Gate,
        choose_code: Callable[[Exception], str],
        deployments: Callable[[], Mapping[str, tuple[bool, str]]] = dict,
    ) -> None:
        points, redact, limits = config.by_point, config.privacy.redactor(), config.limits
        stores = {
            name: open_log(
                point_config.database_url,
                point_config.reward,
                clock,
                point_config.limits.feedback_items,
                redact,
                answer_s=SERVING_S,
            )
            for name, point_config in points.items()
        }
        store = stores[DEFAULT_POINT]
        keyring = Keyring(config.keys, clock)
        keyring.refresh(store)  # before the first request, which would find the service open
        self.service = Service(
            config=config,
            store=store,
            clock=clock,
            telemetry=telemetry,
            keyring=keyring,
            quota=Quota(usage.UsageLedger(store, uuid4().hex), clock),
            chats=Places(
                "places of the language model", config.chats, limits.chat_queue, limits.chat_queue_s
            ),
            gate=gate,
            deployments=deployments,
            redact=redact or str,
            choose_code=choose_code,
        )
        for name, point_config in points.items():
            here = backends if name == DEFAULT_POINT else backends.of(point_config.arms)
            self.service.points[name] = DecisionPoint(name, point_config, stores[name], here, self.service)
        self._poller: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()

    def check(self) -> None:
        """Raise what ended the refreshes, a warm-up or the loading, or that the clock jumped."""
        self.service.clock.check()
        if self._poller is not None and self._poller.done() and not self._poller.cancelled():
            self._poller.result()
        for point in self.service.points.values():
            point.check()

    async def start(self) -> None:
        """Start every decision point, and follow the keys."""
        self._poller = asyncio.create_task(self._poll(), name="key-poller")
        for point in self.service.points.values():
            point.start()

    async def stop(self) -> None:
        """Stop refreshing, and commit what is still queued."""
        with suppress(TimeoutError):  # a refresh goes on in its thread, and would open the log again
            await asyncio.wait_for(self._refreshing.acquire(), STOP_S)
        if self._poller is not None:
            self._poller.cancel()
        for point in reversed(self.service.points.values()):
            await point.stop()
        with suppress(StoreError):  # what keys have used since the last report is lost
            await self.service.quota.report()
        await self.service.quota.settled()
        for point in self.service.points.values():
            point.store.close()

    async def refresh(self) -> None:
        """Follow the keys of the log, and report what they have used. Raises LogUnavailableError."""
        async with self._refreshing:
            await asyncio.to_thread(self.service.keyring.refresh, self.service.store)
            await self.service.quota.report()

    async def _poll(self) -> None:
        while True:
            with suppress(LogUnavailableError):  # of which the default point warns
                await self.refresh()
            await asyncio.sleep(self.service.config.learning.poll_s)
