"""One process of the ingress: its decision points and their shared resources."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from armwise.agent.access import Keyring, Quota
from armwise.agent.config import DEFAULT_POINT, AppConfig
from armwise.agent.serving.point import STOP_S, Backends, DecisionPoint, Gate, Service
from armwise.agent.serving.telemetry import Telemetry
from armwise.agent.turn import Places
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import LogUnavailableError, StoreError
from armwise.feedback.log import SERVING_S, ChangeWatch, open_log
from armwise.feedback.registry import usage

REPORT_S = 0.5
"""Most seconds between two reports of the usage of keys: others know of a request within twice that."""


class Replica:
    """The state behind the HTTP surface. Start it inside a running event loop.

    Args:
        config: The configuration, with defaults resolved.
        backends: Encoders, language models, and the arms of the default decision point.
        clock: Seconds since the epoch.
        telemetry: Metrics of the replica.
        gate: Decides whether a version may be promoted.
        choose_code: Returns the code under which a failed turn is counted and logged.
        deployments: Returns whether each deployment is healthy, and the state of its replicas; blocks. None:
            all parts run in one process.

    Attributes:
        service: The resources that the decision points share.

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
        deployments: Callable[[], Mapping[str, tuple[bool, str]]] | None = None,
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
        keyring.refresh(store)  # before the first request: without keys the service would be open
        self.service = Service(
            config=config,
            store=store,
            clock=clock,
            telemetry=telemetry,
            keyring=keyring,
            quota=Quota(usage.UsageLedger(store), clock),
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
        self.service.quota.outage = self.service.points[DEFAULT_POINT].outage
        self._models = backends.generators.values()
        self._poller: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()

    def check(self) -> None:
        """Raise the exception that ended a background task, or an error if the clock has jumped."""
        self.service.clock.check()
        if self._poller is not None and self._poller.done() and not self._poller.cancelled():
            self._poller.result()
        for point in self.service.points.values():
            point.check()

    async def start(self) -> None:
        """Start every decision point, and the refreshes of the keys."""
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
        for model in self._models:
            await model.close()
        with suppress(StoreError):  # the usage of keys since the last report is lost
            await self.service.quota.report()
        await self.service.quota.settled()
        for point in self.service.points.values():
            point.store.close()

    async def refresh(self) -> None:
        """Read the keys from the log, and report their usage. Raises LogUnavailableError."""
        async with self._refreshing:
            await asyncio.to_thread(self.service.keyring.refresh, self.service.store)
            await self.service.quota.report()

    async def _poll(self) -> None:
        changes = ChangeWatch(self.service.store, longest_s=REPORT_S)
        while True:
            with suppress(LogUnavailableError):  # the default point warns of it
                if changes.is_due():
                    await self.refresh()
            await asyncio.sleep(self.service.config.learning.poll_s)
