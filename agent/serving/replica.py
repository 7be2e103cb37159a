"""What one ingress replica holds: the loop, the log, and the version it serves.

A replica decides on a read-only copy of the policy. It looks for a newer
version, for what an operator said, and for arms that were switched, several
times a second.

More than 300 lines, as it is the one place where all that a replica holds comes together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from agent.config import AppConfig, ConfigError
from agent.learning import PolicyHistory
from agent.policies import describe
from agent.routers import saved
from agent.serving.arm_health import ArmHealth
from agent.serving.arms import Arms, arm_infos, documents, same_document
from agent.serving.messages import ArmInfo, Serving
from agent.serving.probe import Embeddings
from agent.serving.router_scores import router_scorer
from agent.serving.telemetry import CountedLog, Telemetry
from agent.serving.turn import TurnLoop
from agent.serving.version_watcher import ServedVersion, ServingState, VersionWatcher
from arms.base import ArmError
from arms.llm import Generator
from feedback.clock import SteadyClock
from feedback.drift import Alarms, read_alarms
from feedback.errors import LogUnavailableError
from feedback.log import GroupCommit, Store
from feedback.registry import ActivePolicy, ArmSet, Version, arm_sets

logger = logging.getLogger(__name__)

REBUILD_S = 30.0
"""Pause before arms that could not be built are tried again."""

STOP_S = 5.0
"""How long a look that is under way is waited for at the end."""


class Embedders(Protocol):
    """Every encoder, wherever it runs."""

    async def embed(self, question: str, backbones: frozenset[str]) -> Embeddings:
        """Return a unit vector of shape (dim,) for each backbone. Raises ArmError."""
        ...


class Gate(Protocol):
    """Says whether a version may be promoted."""

    async def __call__(self, version: int, since: float, *, force: bool) -> Mapping[str, Any]:
        """Return whether to `promote` it, with `reasons`, and the number of the `evaluation` behind that.

        Args:
            version: One that was published.
            since: When the last word on what is served was said, seconds since the epoch; 0 for none.
            force: Whether only a verdict that is there counts.

        Raises:
            UndecidedError: Ask again later.
            QueueFullError: Too many evaluations wait already.
        """
        ...


class Replica:
    """The state behind the HTTP surface. Start it inside a running event loop.

    Args:
        config: The whole configuration, settled.
        store: The log; `stop` closes it.
        arms: Runs any arm.
        embedders: Embeds with any backbone.
        generator: The language model.
        reach: Returns once all of these can be called.
        gate: Decides whether a version may be promoted.
        telemetry: Counts what the turns commit.
        clock: Seconds since the epoch; the one that the store was opened with.
    """

    def __init__(
        self,
        config: AppConfig,
        store: Store,
        arms: Arms,
        embedders: Embedders,
        generator: Generator,
        *,
        gate: Gate,
        telemetry: Telemetry,
        clock: SteadyClock,
        reach: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.store = store
        self.gate = gate
        self.telemetry = telemetry
        self.log = GroupCommit(store)
        self.lookout = VersionWatcher(self.store, config)
        self.served: ServedVersion | None = None
        self.said = ActivePolicy(self.lookout.configured.digest)  # by operators, as of the last look
        self.past = PolicyHistory(self.store, config.reward)
        self.under_way = set[str]()  # decisions that are being made and carried out
        self._configured = config.arms
        self._arms = arms
        self.arm_set = 0  # position of the live one; 0 before the log was read
        self._started = False
        self._off: frozenset[str] = frozenset()
        self.alarms = Alarms()
        self._unbuilt = 0  # the last arm set that could not be built, and when to try again
        self._again_at = 0.0
        self._building: asyncio.Task[None] | None = None
        self._embedders = embedders
        self.advisor = router_scorer(config, arms.vectors)
        self._reach = reach
        self._reaching: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()
        self.loop = TurnLoop(
            arms=arm_infos(config.arms),
            serving=Serving(self.lookout.empty, 0),
            embed=embedders.embed,
            search=arms.search,
            generator=generator,
            log=CountedLog(self.log, telemetry),
            features=config.features,
            floor=config.floor,
            salt=config.salt,
            wait_s=config.reward.wait_s,
            fallback=config.fallback,
            word_budget=config.answering.word_budget,
            arm_timeout_s=config.limits.arm_timeout_s,
            llm_timeout_s=config.limits.llm_timeout_s,
            clock=self.clock,
            advisor=self.advisor,
            standing=ArmHealth(config.limits.arm_failures, config.limits.arm_rest_s, config.limits.arm_caps),
        )

    @property
    def ready(self) -> bool:
        """Whether everything behind it was reached, and a version is served and still being looked after."""
        reached = self._reaching is not None and self._reaching.done() and not self._failure()
        return reached and self.served is not None and self._poller is not None and not self._poller.done()

    @property
    def version(self) -> Version | None:
        """The version that is served; None before there is one."""
        return None if self.served is None else self.served.version

    def check(self) -> None:
        """Raise what stopped the search for versions or for what is behind, or that the clock jumped."""
        self.clock.check()
        if failure := self._failure():
            raise failure

    def _failure(self) -> BaseException | None:
        ended = [
            task for task in (self._poller, self._reaching) if task and task.done() and not task.cancelled()
        ]
        return next((error for task in ended if (error := task.exception())), None)

    async def start(self) -> None:
        """Begin to look for versions, and for what is behind."""
        self._poller = asyncio.create_task(self._poll(), name="version-poller")
        self._reaching = asyncio.create_task(self._look_behind(), name="reach")

    async def stop(self) -> None:
        """Stop looking, and commit what is still waiting."""
        with suppress(TimeoutError):  # a look goes on in its thread, and would open the log again
            await asyncio.wait_for(self._refreshing.acquire(), STOP_S)
        for task in (self._poller, self._reaching, self._building):
            if task is not None:
                task.cancel()
        self.past.close()
        await asyncio.to_thread(self.log.close)
        self.store.close()

    async def _look_behind(self) -> None:
        """Wait for the hosts, and look at one question: an encoder that does not fit is found here."""
        if self._reach is not None:
            await self._reach()
        seen = self.config.features.embedding
        if seen is not None:
            vectors = await self._embedders.embed("Is anybody there?", frozenset({seen.backbone}))
            describe("Is anybody there?", self.config.features, embedding=vectors[seen.backbone])
        if self.advisor is not None:
            await self.advisor.rehearse(self._embedders.embed)

    async def _poll(self) -> None:
        while True:
            try:
                if self.log.trouble:
                    await asyncio.to_thread(self.log.check)
                await self.refresh()
            except LogUnavailableError as error:
                logger.warning("still serving version %d: %s", self.loop.serving.version, error)
            await asyncio.sleep(self.config.learning.poll_s)

    async def refresh(self) -> None:
        """Serve the newest version of the recipe that is followed, or the one chosen, and the live arms."""
        # A look that began before an arm was switched must not have the last word.
        async with self._refreshing:
            seen, arms, self._off = await asyncio.to_thread(self._look)
            self.served, self.said = seen.served, seen.said
            if self.served is not None:
                number = self.served.version.version
                self.loop.serving = Serving(self.served.policy, number, seen.canary)
            if arms is not None:
                await self._follow(arms)
            self.loop.arms = self._switched(self.loop.arms)
            await self._heed()

    async def _heed(self) -> None:
        """Raise the floor for a while after an alarm."""
        floor, drift, join = self.config.floor, self.config.drift, self.config.reward.join
        if drift is not None:
            self.alarms = await asyncio.to_thread(read_alarms, self.store, join, self.said)
            until = self.alarms.raised_until(drift)
            if until is not None and self.clock() < until:
                floor = max(floor, drift.floor)
        self.loop.floor = floor

    def _look(self) -> tuple[ServingState, ArmSet | None, frozenset[str]]:
        if self._started:
            arms = arm_sets.live(self.store, self.arm_set)
        else:
            arms = arm_sets.started(self.store, documents(self._configured))
            self._started = True
        off = arm_sets.disabled(self.store)
        return self.lookout.look(self.served), arms, off

    def _switched(self, arms: Mapping[str, ArmInfo]) -> Mapping[str, ArmInfo]:
        """Return the arms as they are switched on and off."""
        if {name for name, info in arms.items() if not info.enabled} == self._off & arms.keys():
            return arms
        return {name: replace(info, enabled=name not in self._off) for name, info in arms.items()}

    async def _follow(self, found: ArmSet) -> None:
        """See to it that an arm set is served; one that could not be is tried again after a while."""
        now = asyncio.get_running_loop().time()
        if found.seq == self._unbuilt and now < self._again_at:
            return
        if not self.arm_set and found.seq != self._unbuilt:
            await self._build(found)  # nothing is served yet that would have to go on
        elif self._building is None or self._building.done():
            self._building = asyncio.create_task(self._build(found), name="arm-builder")

    async def _build(self, found: ArmSet) -> None:
        """Have the arms of a set built, which may take minutes, and serve it."""
        try:
            config = self.config.with_arms(found.arms)
            if config.arms != self.config.arms:
                await self._arms.load(config.arms)
            self._adopt(config, found.seq)
        except (ConfigError, ArmError) as error:
            if found.seq != self._unbuilt:
                logger.warning("still serving the arms before set %d: %s", found.seq, error)
            self._unbuilt = found.seq
            self._again_at = asyncio.get_running_loop().time() + REBUILD_S

    def _adopt(self, config: AppConfig, seq: int) -> None:
        """Serve the arms of a configuration, unless newer ones are served."""
        if seq <= self.arm_set:
            return
        self._arms.know(config.arms)
        if self.advisor is not None:
            saved.warn_of_unknown(self.advisor.about, config.actions)
        self.config, self.arm_set = config, seq
        self.loop.former = {**self.loop.former, **self.loop.arms}
        self.loop.arms = self._switched(arm_infos(config.arms))

    async def replace_arms(self, arms: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the live arms, here and in every replica at its next look.

        Args:
            arms: Every arm that is live from now on, as the configuration writes them.

        Raises:
            ConfigError: They are described wrongly, do not fit the rest of the configuration,
                or are code that the configuration file does not name.
            ArmError: One of them cannot be built; nothing has changed.
            ConflictError: A name stood for another arm before; nothing has changed.
        """
        own = {spec.kind for spec in self._configured.values()}
        for name, document in arms.items():
            if ":" in document["kind"] and document["kind"] not in own:
                raise ConfigError(
                    f"arm {name!r}: {document['kind']!r} is code of your own; only an arm of the "
                    "configuration file can bring it in"
                )
        config = self.config.with_arms(arms)
        await self._arms.load(config.arms)
        found = await asyncio.to_thread(
            arm_sets.replace, self.store, documents(config.arms), documents(self._configured), same_document
        )
        self._adopt(config, found.seq)
        await self.refresh()

    async def switch(self, arm: str, enabled: bool) -> None:
        """Switch an arm on or off, here at once and in every replica at its next look."""
        await asyncio.to_thread(arm_sets.switch, self.store, arm, enabled, self.clock())
        await self.refresh()
