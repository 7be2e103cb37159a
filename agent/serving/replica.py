"""What one ingress replica holds: the turns, the log, the live arms and the version that it serves.

A replica decides with a read-only copy of the policy. Several times a second it reads from
the log whether there is a newer version, a promotion, other arms or an arm that was switched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakSet

from agent.access import Keyring, Quota
from agent.config import DEFAULT_POINT, AppConfig
from agent.learning import PolicyHistory
from agent.policies import describe
from agent.serving.arms import ArmRegistry, Arms, LoggedArms, arm_infos
from agent.serving.observe import Observer
from agent.serving.router_scores import RouterScorer, Scorers
from agent.serving.telemetry import CountedRecall, Telemetry
from agent.serving.version_watcher import ServedVersion, ServingState, VersionWatcher
from agent.turn import ArmHealth, CountedLog, Decider, Embeddings, Model, Places, Serving, TurnLoop, llm_key
from arms.base import ArmError
from arms.llm import Generator, catalog
from feedback.budget import Price
from feedback.clock import SteadyClock
from feedback.drift import Alarms, read_alarms
from feedback.errors import LogUnavailableError, StoreError
from feedback.events import Cost
from feedback.log import GroupCommit, Store
from feedback.registry import ActivePolicy, Version, arm_sets, prices, usage

logger = logging.getLogger(__name__)

STOP_S = 5.0
"""How long `stop` waits for a refresh that is under way."""

WARM_UP = "Warm-up question?"


class Embedders(Protocol):
    """Every encoder, wherever it runs."""

    @property
    def loading(self) -> frozenset[str]:
        """Those that arms wait for."""
        ...

    async def load(self, names: frozenset[str]) -> None:
        """Load encoders. Raises ArmError."""
        ...

    async def embed(self, question: str, backbones: frozenset[str]) -> Embeddings:
        """Return a unit vector of shape (dim,) for each backbone. Raises ArmError."""
        ...


class Gate(Protocol):
    """Decides whether a version may be promoted."""

    async def __call__(self, version: int, active: ActivePolicy, *, force: bool) -> Mapping[str, Any]:
        """Return whether to `promote` it, with `reasons` and the number of the `evaluation` behind them.

        Args:
            version: A published version.
            active: Active policy.
            force: Whether to use only a verdict that exists already.

        Raises:
            UndecidedError: Ask again later.
            QueueFullError: Too many evaluations are queued already.
        """
        ...


def models_of(config: AppConfig, generators: Mapping[str, Generator]) -> dict[str, Model]:
    """Return every language model of a configuration by name.

    Args:
        config: The configuration.
        generators: Language models by the same names.
    """
    return {
        name: Model(
            generators[name],
            spec.usd_of,
            catalog.options_of(spec),
            isinstance(spec, catalog.OpenAISpec) and spec.hedge_after is not None,
        )
        for name, spec in config.models.items()
    }


def _caps(config: AppConfig) -> dict[str, int]:
    """Return the most concurrent searches by arm, and the most answers by language model."""
    of_models = {
        llm_key(name): spec.concurrency
        for name, spec in config.models.items()
        if isinstance(spec, catalog.OpenAISpec) and spec.concurrency is not None
    }
    return {**config.limits.arm_caps, **of_models}


class Replica:
    """The state behind the HTTP surface. Start it inside a running event loop.

    Args:
        config: The whole configuration, settled.
        store: The log; `stop` closes it.
        arms: Builds and runs arms.
        embedders: Embeds with any backbone.
        generators: The language models by name.
        gate: Decides whether a version may be promoted.
        telemetry: Counts what the turns commit.
        clock: Seconds since the epoch; the one that the store was opened with.
        reach: Returns once arms, embedders and generator can be called.
        service: The replica of the default decision point, whose keys, limits and places this one shares;
            None where it is that replica.
        point: Name of the decision point.
        deployments: Returns of each deployment of the service whether it is healthy, and how its replicas
            are; it blocks. None are known without it.
        redact: Redacts a question before it is used; the log redacts other texts.

    Attributes:
        point: Name of the decision point.
        points: The replicas of all decision points by name, which share this process; this one is the first.
        turns: Answers questions.
        decider: Draws their arms.
        arms: The live arms.
        passages: Returns passages of the corpus by their ids.
        watcher: Finds the version to serve.
        served: The version that decides; None before there is one.
        active: The promotions that hold, as of the last refresh.
        history: Policies of earlier versions.
        alarms: Drift alarms, as of the last refresh.
        under_way: Decisions that are being made and carried out, and the key that each was asked with.
        chats: Places of the language model.
        observer: Observes finished turns in the background.
        keyring: The keys that hold, as of the last refresh.
        quota: Usage of the keys, and their limits.
        redact: Redacts a text.
    """

    def __init__(
        self,
        config: AppConfig,
        store: Store,
        arms: Arms,
        embedders: Embedders,
        generators: Mapping[str, Generator],
        *,
        gate: Gate,
        telemetry: Telemetry,
        clock: SteadyClock,
        reach: Callable[[], Awaitable[None]] | None = None,
        service: "Replica | None" = None,
        point: str = DEFAULT_POINT,
        deployments: Callable[[], Mapping[str, tuple[bool, str]]] = dict,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self.redact = redact or str
        self.clock = clock
        self.deployments = deployments
        self.store = store
        self.gate = gate
        self.point = point
        self.telemetry = telemetry if service is None else telemetry.at(point)
        self.log = GroupCommit(store)
        if service is None:
            self.keyring = Keyring(config.keys, clock)
            self.keyring.refresh(store)  # before the first request, which would find the service open
            self.quota = Quota(usage.Usage(store, uuid4().hex), clock)
            self.points = {point: self}
        else:
            self.keyring, self.quota = service.keyring, service.quota
            self.points = service.points
            self.points[point] = self
        self._scorers = Scorers(store, config, arms.vectors)
        self.watcher = VersionWatcher(store, config, self._scorers.of)
        self.served: ServedVersion | None = None
        self.active = ActivePolicy(self.watcher.configured.digest)
        self.history = PolicyHistory(store, config.reward)
        self.alarms = Alarms()
        self.under_way = dict[str, str | None]()
        self._found = ServingState(None, self.active)
        self._warm = WeakSet[RouterScorer]()
        self._cold = WeakSet[RouterScorer]()  # those that failed, which was logged
        limits = config.limits
        self.chats: Places = (
            Places("places of the language model", config.chats, limits.chat_queue, limits.chat_queue_s)
            if service is None
            else service.chats
        )
        self.decider = Decider(
            serving=Serving(self.watcher.empty, 0, scorer=self._scorers.configured),
            floor=config.floor,
            salt=store.draw_secret.salt(config.salt),
            wait_s=config.reward.wait_s,
            clock=clock,
            health=ArmHealth(limits.arm_failures, limits.arm_rest_s, _caps(config)),
        )
        infos = arm_infos(config)
        self.decider.health.loading = frozenset(
            name for name, info in infos.items() if info.backbones & embedders.loading
        )
        self.turns = TurnLoop(
            arms=infos,
            decider=self.decider,
            embed=embedders.embed,
            search=arms.search,
            recall=CountedRecall(arms.recall, self.telemetry, lambda arm: self.turns.known[arm].cached),
            models=models_of(config, generators),
            templates=config.templates,
            log=CountedLog(self.log, self.telemetry.decided, self.telemetry.finished),
            features=config.features,
            cost_weight=config.reward.cost_weight,
            fallback=config.fallback,
            arm_timeout_s=limits.arm_timeout_s,
            llm_timeout_s=limits.llm_timeout_s,
            restricted=True,  # until the corpus was read
            passages=arms.passages,
            charge=self._charge,
        )
        self.observer = Observer(config.observations, self.turns, self.log, self.chats, self.telemetry)
        self.turns.on_answer = self.observer.offer
        configured = self._scorers.configured
        router = None if configured is None else configured.about
        self.arms = ArmRegistry(config, store, arms, self.turns, router, self._switch)
        self.passages = arms.passages
        self._built = arms
        self._embedders = embedders
        self._reach = reach
        self._reaching: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[None] | None = None
        self._poller: asyncio.Task[None] | None = None
        self._refreshing = asyncio.Lock()

    @property
    def config(self) -> AppConfig:
        """The configuration, with the live arms."""
        return self.arms.config

    @property
    def scorer(self) -> RouterScorer | None:
        """The router of the served version, or the configured one; None where there is none."""
        return self._scorers.configured if self.served is None else self.served.scorer

    @property
    def is_service(self) -> bool:
        """Whether this is the replica of the default decision point, which starts and stops the others."""
        return self.point == DEFAULT_POINT

    @property
    def others(self) -> list["Replica"]:
        """The replicas of other decision points, where this one is of the default point."""
        return [one for one in self.points.values() if one is not self and self.is_service]

    @property
    def ranks(self) -> bool:
        """Whether the actions of this point come with the request."""
        return self.point in self.points[DEFAULT_POINT].config.ranking

    @property
    def in_flight(self) -> list[str | None]:
        """The key of each request in work in this process, at whichever point."""
        return [key for one in self.points.values() for key in one.under_way.values()]

    def booking(self, decision_id: str) -> str:
        """Return the name of a decision among the bookings of the quota, which all points share."""
        return f"{self.point}:{decision_id}"

    def _charge(self, decision_id: str, cost: Cost) -> None:
        self.quota.charge(self.booking(decision_id), cost)
        self.telemetry.charged(self.under_way.get(decision_id), cost.usd)

    @property
    def decides(self) -> bool:
        """Whether all hosts were reached, and a version is served and refreshed."""
        reached = self._reaching is not None and self._reaching.done() and not self._failure()
        return reached and self.served is not None and self._poller is not None and not self._poller.done()

    @property
    def ready(self) -> bool:
        """Whether it decides among all live arms: no encoder is being loaded any more."""
        return self.decides and self._loading is not None and self._loading.done()

    @property
    def version(self) -> Version | None:
        """The version that is served; None before there is one."""
        return None if self.served is None else self.served.version

    def check(self) -> None:
        """Raise what ended the refreshes, the warm-up or the loading, or that the clock jumped."""
        self.clock.check()
        if failure := self._failure():
            raise failure
        for other in self.others:
            other.check()

    def _failure(self) -> BaseException | None:
        ended = [
            task
            for task in (self._poller, self._reaching, self._loading)
            if task and task.done() and not task.cancelled()
        ]
        return next((error for task in ended if (error := task.exception())), None)

    async def start(self) -> None:
        """Start to refresh, to reach the hosts and to load encoders."""
        self._poller = asyncio.create_task(self._poll(), name="version-poller")
        self._reaching = asyncio.create_task(self._warm_up(), name="reach")
        self._loading = asyncio.create_task(self._load(self._reaching), name="encoder-loader")
        for other in self.others:
            await other.start()

    async def stop(self) -> None:
        """Stop refreshing, and commit what is still queued."""
        for other in self.others:
            await other.stop()
        with suppress(TimeoutError):  # a refresh goes on in its thread, and would open the log again
            await asyncio.wait_for(self._refreshing.acquire(), STOP_S)
        for task in (self._poller, self._reaching, self._loading):
            if task is not None:
                task.cancel()
        await self.observer.stop()
        self.arms.stop()
        self.history.close()
        await asyncio.to_thread(self.log.close)
        if self.is_service:
            with suppress(StoreError):  # what keys have used since the last report is lost
                await self.quota.report()
            await self.quota.settled()
        self.store.close()

    async def _warm_up(self) -> None:
        """Wait for the hosts, and describe one question: an encoder whose dimension differs fails here."""
        if self._reach is not None:
            await self._reach()
        if not self.is_service:
            await self._built.load(self.config.arms)
        self.turns.restricted = await self._built.restricted()
        features = self.config.features
        if features.embedding is not None:
            backbone = features.embedding.backbone
            vectors = await self._embedders.embed(WARM_UP, frozenset({backbone}))
            describe(WARM_UP, features, embedding=vectors[backbone])
        if self._scorers.configured is not None:
            await self._scorers.configured.warm_up(self._embedders.embed)
            self._warm.add(self._scorers.configured)

    async def _load(self, reached: asyncio.Task[None]) -> None:
        """Load the encoders of arms once decisions are made, and then draw these arms too."""
        await asyncio.wait([reached])
        await self._embedders.load(self._embedders.loading)
        self.decider.health.loading = frozenset()

    async def _poll(self) -> None:
        while True:
            try:
                if self.log.trouble:
                    await asyncio.to_thread(self.log.check)
                await self.refresh()
                if self.is_service:
                    await self.quota.report()
            except LogUnavailableError as error:
                logger.warning("still serving version %d: %s", self.decider.serving.version, error)
            await asyncio.sleep(self.config.learning.poll_s)

    async def refresh(self) -> None:
        """Serve the newest version of the active recipe, or the pinned one, and the live arms.

        Policy, router and arms of a version that brings them are replaced together, once all of them are
        loaded and built.
        """
        # A refresh that began before an arm was switched must not overwrite the switch.
        async with self._refreshing:
            state, logged, self.decider.price = await asyncio.to_thread(self._read)
            self.active = state.active
            if await self._warmed(state):
                self._found = state
            else:
                self._found = replace(self._found, active=state.active)
            newer = 0 if logged.newer is None else logged.newer.seq
            if self.arms.seq and newer <= self.active.arm_set and not self._found.follows:
                logged = replace(logged, newer=None)  # arms of a version that cannot be served here
            await self.arms.follow(logged)
            self._switch()
            await self._set_floor()

    def _switch(self) -> None:
        """Serve what was found, unless its arms are still being built. Nothing is awaited here."""
        found, canary = self._found.served, self._found.canary
        building = self._found.follows and self.active.arm_set > self.arms.seq
        if found is None or (self.served is not None and building):
            return
        self.served = found
        self.decider.serving = Serving(found.policy, found.version.version, canary, found.scorer)

    async def _warmed(self, state: ServingState) -> bool:
        """Return whether the routers of versions can score; one that cannot is logged once."""
        scorers = state.served and state.served.scorer, state.canary and state.canary.scorer
        for scorer in scorers:
            if isinstance(scorer, RouterScorer) and scorer not in (*self._warm, self._scorers.configured):
                try:
                    await scorer.warm_up(self._embedders.embed)
                except ArmError as error:
                    if scorer not in self._cold:
                        logger.warning("what is served stays: %s", error)
                        self._cold.add(scorer)
                    return False
                self._warm.add(scorer)
        return True

    def _read(self) -> tuple[ServingState, LoggedArms, Price | None]:
        if self.is_service:
            self.keyring.refresh(self.store)
        # The arms first: a promotion that brought them is then known as well.
        logged, budget = self.arms.read(), self.config.budget
        price = None if budget is None else prices.latest(self.store, budget)
        return self.watcher.refresh(self._found.served), logged, price

    async def _set_floor(self) -> None:
        """Raise the floor for a while after an alarm."""
        floor, drift, join = self.config.floor, self.config.drift, self.config.reward.join
        if drift is not None:
            self.alarms = await asyncio.to_thread(read_alarms, self.store, join, self.active)
            until = self.alarms.raised_until(drift)
            if until is not None and self.clock() < until:
                floor = max(floor, drift.floor)
        self.decider.floor = floor

    async def replace_arms(self, arms: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the live arms here and, with its next refresh, in every replica; see `ArmRegistry`."""
        await self.arms.replace(arms)
        await self.refresh()

    async def switch(self, arm: str, enabled: bool) -> None:
        """Switch an arm on or off here at once, and in every replica with its next refresh."""
        await asyncio.to_thread(arm_sets.switch, self.store, arm, enabled, self.clock())
        await self.refresh()
