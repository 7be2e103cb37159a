"""The state of the service in a replica: its log, its live arms, the version that it serves and its turns.

It decides with a read-only copy of the policy. Several times a second it polls the log for a newer version,
a promotion, new arms and switches of arms.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from armwise.agent.access import Keyring, Quota
from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.config import AppConfig
from armwise.agent.policies import Exploration, describe
from armwise.agent.serving.arms import ArmRegistry, LoggedArms, arm_infos
from armwise.agent.serving.outage import LogOutage
from armwise.agent.serving.router_scores import Scorers
from armwise.agent.serving.telemetry import CountedRecall, Telemetry
from armwise.agent.serving.versions import ReplicaState, Versions
from armwise.agent.turn import (
    AnswerWriter,
    ArmHealth,
    Canary,
    CountedLog,
    Decider,
    LanguageModel,
    Places,
    Searcher,
    Serving,
    TurnLoop,
    TurnStep,
    Workers,
    llm_key,
    wire_steps,
)
from armwise.arms.llm import Generator, catalog
from armwise.arms.retrievers import ArmGraph
from armwise.feedback.clock import SteadyClock
from armwise.feedback.errors import LogUnavailableError, StoreError, SupersededError
from armwise.feedback.events import AnsweredTurn, Cost, Decision, KeptDraw
from armwise.feedback.log import SERVING_S, ChangeWatch, GroupCommit, conversations, open_log
from armwise.feedback.registry import arm_sets, usage
from armwise.feedback.training_log import lag

if TYPE_CHECKING:
    from armwise.arms.deployments import Embedders, HostedArms

logger = logging.getLogger(__name__)

LEARNING_S = 5.0
"""Seconds between two checks that a learner reads the log, and that its newest rows are within limits."""

REPORT_S = 1.0
"""Most seconds between two reports of the usage of keys: others know of a request within twice that."""

STOP_S = 5.0
"""Seconds that `stop` waits for a refresh under way."""

WARM_UP = "Warm-up question?"

POLL_S = 0.25
"""Seconds between two refreshes of a replica."""

CHAT_QUEUE = 8
"""Requests that may wait for a place of the language model."""

CHAT_QUEUE_S = 10.0
"""Seconds that they wait."""

FEEDBACK_ITEMS = 1000
"""Most values of feedback on a decision or an episode, with retractions; more get 409."""


async def _reach_at_once() -> None:
    """Return at once: everything is in this process."""


@dataclass(frozen=True, slots=True)
class Backends:
    """The arms, encoders and language models that turns call, in this process or on other hosts.

    Attributes:
        arms: Builds and runs arms.
        embedders: Embeds with any backbone.
        generators: The language models by name.
        reach: Returns once all of these can be called.
    """

    arms: "HostedArms"
    embedders: "Embedders"
    generators: Mapping[str, Generator]
    reach: Callable[[], Awaitable[None]] = _reach_at_once


Gate = Callable[..., Awaitable[Mapping[str, Any]]]
"""Decides whether a version may be promoted: see `armwise.agent.evaluation.verdict`."""


def name_models(config: AppConfig, generators: Mapping[str, Generator]) -> dict[str, LanguageModel]:
    """Return the language models of a configuration by name, with their prices and options.

    Args:
        config: The configuration.
        generators: The generators by the same names.
    """
    models = dict[str, LanguageModel]()
    for name, spec in config.models.items():
        prices, options = catalog.find_prices(spec), catalog.list_options(spec)
        abilities = prices, options, spec.protocol, catalog.list_inputs(spec)
        models[name] = LanguageModel(generators[name], *abilities)
    return models


def _caps(config: AppConfig) -> dict[str, int]:
    """Return the most concurrent searches by arm, and the most answers by language model."""
    of_models = {
        llm_key(name): spec.concurrency
        for name, spec in config.models.items()
        if isinstance(spec, catalog.EndpointSpec) and spec.concurrency is not None
    }
    return {**config.limits.arm_caps, **of_models}


class Replica:
    """The state behind the HTTP surface. Start it inside a running event loop.

    Args:
        config: The configuration, with defaults resolved.
        backends: Arms, encoders and language models.
        clock: Seconds since the epoch, shared with the log.
        telemetry: Metrics of the replica.
        gate: Decides whether a version may be promoted.
        choose_code: Returns the code under which a failed turn is counted and logged.
        deployments: Returns whether each deployment is healthy, and the state of its replicas; blocks. None:
            all parts run in one process.

    Attributes:
        store: The log, which has the keys and their usage, too.
        keyring: The valid keys, as of the last refresh.
        quota: Usage and limits of the keys.
        chats: Places of the language model.
        redact: Redacts a question before it is used; the log redacts other texts.
        under_way: Key that each turn under way was asked with, by the id of its decision.
        versions: Versions of its policy; `versions.version` decides.
        log: Commits facts in groups.
        outage: Whether the log is away, and questions are answered without it.
        turns: Answers questions.
        decider: Draws arms.
        arms: The live arms.
        passages: Returns passages of the corpus by their ids.
        models: Language models by name.
        health: Circuit breakers and places of arms and models.
        workers: Work of steps in the background.
        sources_away: Sources that could not be read at the start, or cannot be asked; a line for each.
        unread: Warning that facts wait while no learner reads them; None if one does.

    Raises:
        LogUnavailableError: The log cannot be opened now.
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
        self.clock, self.telemetry, self.gate = clock, telemetry, gate
        self.choose_code, self.deployments = choose_code, deployments
        redact = config.privacy.redactor()
        self.redact = redact or str
        self.store = store = open_log(
            config.database_url, config.reward, clock, FEEDBACK_ITEMS, redact, answer_s=SERVING_S
        )
        self.keyring = Keyring(config.keys, clock)
        self.keyring.refresh(store)  # before the first request: without keys the service would be open
        self.chats = Places("places of the language model", config.chats, CHAT_QUEUE, CHAT_QUEUE_S)
        self.under_way: dict[str, str | None] = {}
        self.log = GroupCommit(store)
        self.outage = LogOutage(self.log, config.log_away == "answer", clock)
        self.quota = Quota(usage.UsageLedger(store), clock)
        self.quota.outage = self.outage
        arms, embedders = backends.arms, backends.embedders
        self._scorers = Scorers(store, config, arms.vectors, embedders.embed)
        self.versions = Versions(store, config, self._scorers)
        self.models = name_models(config, backends.generators)
        self.health = ArmHealth(caps=_caps(config))
        troubles = [trouble for each in config.corpus_sources if (trouble := each.find_trouble()) is not None]
        away = {trouble.name for trouble in troubles if trouble.read_at is None}
        read = [each.prefix for each in config.corpus_sources if each.folder.name not in away]
        graph = ArmGraph(config.arms)
        self.health.away = graph.describe_away(read)
        proxies = [f"arm {name!r}: {why}" for name, why in graph.describe_bad_proxies().items()]
        self.sources_away = [*map(str, troubles), *proxies]
        infos = arm_infos(config)
        self.health.loading = frozenset(
            arm for arm, info in infos.items() if info.backbones & embedders.loading
        )
        self.decider = Decider(
            serving=Serving(self.versions.empty, 0, scorer=self._scorers.configured),
            steps=(),
            salt=self.salt,
            wait_s=config.reward.wait_s,
            clock=clock,
            health=self.health,
        )
        self.turns = TurnLoop(
            arms=infos,
            decider=self.decider,
            searcher=Searcher(
                run=arms.search,
                embed=embedders.embed,
                health=self.health,
                models=self.models,
                recall=CountedRecall(arms.recall, telemetry, lambda arm: self.turns.known[arm].cached),
                find_passages=arms.passages,
                restricted=True,  # until the corpus is read
                timeout_s=config.limits.arm_timeout_s,
            ),
            writer=AnswerWriter(
                models=self.models,
                health=self.health,
                templates=config.templates,
                timeout_s=config.limits.llm_timeout_s,
                on_refusal=self._note_refusal,
            ),
            log=self.outage.limit_commits(
                CountedLog(self.log, telemetry.count_decision, telemetry.count_execution)
            ),
            keeps_answers=self.outage.answers,
            features=config.features,
            fallback=config.fallback,
            charge=self._charge,
        )
        self._refusing: dict[str, str] = {}  # why, by language model
        configured = self._scorers.configured
        router = None if configured is None else configured.about
        self.arms = ArmRegistry(config, store, arms, self.turns, router, self._switch)
        self.workers = Workers()
        self.decider.steps = self.turns.writer.steps = self._wire_steps(config)
        self.passages = arms.passages
        self.unread: str | None = None
        self._backends = backends
        self._tasks = dict[str, asyncio.Task[None]]()
        self._refreshing, self._refreshing_keys = asyncio.Lock(), asyncio.Lock()

    @property
    def config(self) -> AppConfig:
        """The configuration, with the live arms."""
        return self.arms.config

    def _wire_steps(self, config: AppConfig) -> tuple[TurnStep, ...]:
        return wire_steps(
            config.build_steps(),
            budget=config.budget,
            clock=self.clock,
            commit=self.log.append,
            explores=config.explores,
            find_draw=self.find_draw,
            find_previous=self.find_previous,
            find_turns=self.find_turns,
            get_alarm=lambda: self.alarm_at,
            get_price=lambda: self.versions.state.price,
            get_raised=lambda: self.raised,
            get_returned=lambda: self.versions.state.returned,
            guard=config.guard,
            health=self.health,
            is_newest=self.is_newest,
            models=self.models,
            observations=config.observations,
            places=self.chats,
            prices_caches=config.prices_caches,
            reward=config.reward,
            salt=self.salt,
            sticky=config.sticky,
            tap=config.tap,
            telemetry=self.telemetry,
            turns=self.turns,
            workers=self.workers,
        )

    def find_step(self, name: str) -> Any:
        """Return the step of a name; None: the service does without."""
        return next((step for step in self.decider.steps if step.name == name), None)

    @property
    def salt(self) -> str:
        """Secret of the log that enters the hashes of draws."""
        return self.store.draw_secret.salt

    @property
    def canaries(self) -> Sequence[Canary]:
        """The candidates that take part in draws."""
        step = self.find_step("canary")
        return () if step is None else step.list_active(self.decider.serving)

    def compute_floor(self, n_arms: int) -> float:
        """Return the least probability of each of so many eligible arms now."""
        step = self.find_step("floor")
        return 0.0 if step is None else step.compute_least(n_arms)

    @property
    def alarm_at(self) -> float | None:
        """When drift was last detected, seconds since the epoch."""
        newest = self.versions.state.alarms.newest
        return None if newest is None else newest.at

    @property
    def raised(self) -> Exploration | None:
        """What the exploration floor is raised to, for a while after an alarm."""
        drift, until = self.config.drift, self.versions.state.alarms.raised_until
        if drift is None or until is None or self.clock() >= until:
            return None
        return Exploration(drift.exploration)

    async def find_draw(self, episode: str) -> KeptDraw | None:
        """Return the newest draw of a conversation whose arm may be kept. Raises LogUnavailableError."""
        return await self.outage.ask(
            partial(asyncio.to_thread, conversations.find_kept_draw, self.store, episode)
        )

    async def find_turns(self, episode: str) -> list[AnsweredTurn]:
        """Return the first turn of a conversation and its newest ones. Raises LogUnavailableError."""
        find = partial(asyncio.to_thread, conversations.list_answered_turns, self.store, episode)
        return await self.outage.ask(find)

    async def find_previous(self, decision: Decision) -> conversations.EarlierTurn | None:
        """Return the turn before a decision in its conversation. Raises StoreError."""
        return await asyncio.to_thread(conversations.previous_turn, self.store, decision)

    async def is_newest(self, decision: Decision) -> bool:
        """Return whether a decision is the newest of its conversation. Raises StoreError."""
        return await asyncio.to_thread(conversations.is_newest, self.store, decision)

    def _note_refusal(self, model: str, why: str) -> None:
        """Record which language models refuse the service, where that changes."""
        if why == self._refusing.get(model, ""):
            return
        if why:
            self._refusing[model] = why
        else:
            del self._refusing[model]
        if not self._refusing:
            clear(Work.MODELS)
            return
        reasons = "; ".join(f"{name!r}: {said}" for name, said in sorted(self._refusing.items()))
        record(WorkFailure(Work.MODELS, reasons, 1, self.clock()))

    def _charge(self, decision_id: str, cost: Cost) -> None:
        self.quota.charge(decision_id, cost)
        self.telemetry.add_key_cost(self.under_way.get(decision_id), cost.usd)

    @property
    def decides(self) -> bool:
        """Whether all hosts were reached, and a version is served and refreshed."""
        reached, polls = self._has_ended("reach"), not self._has_ended("versions")
        return reached and polls and self.versions.served is not None and not self._failure()

    @property
    def ready(self) -> bool:
        """Whether it decides among all live arms: every encoder is loaded."""
        return self.decides and self._has_ended("encoders")

    def _has_ended(self, name: str) -> bool:
        return name in self._tasks and self._tasks[name].done()

    def check(self) -> None:
        """Raise the exception that ended a background task, or an error if the clock has jumped."""
        self.clock.check()
        if failure := self._failure():
            raise failure

    def _failure(self) -> BaseException | None:
        ended = [task for task in self._tasks.values() if task.done() and not task.cancelled()]
        return next((error for task in ended if (error := task.exception())), None)

    def start(self) -> None:
        """Start to refresh, to reach the hosts and to load encoders."""
        work = {
            "keys": self._poll_keys,
            "versions": self._poll,
            "learner": self._watch_learner,
            "reach": self._warm_up,
            "encoders": self._load,
        }
        self._tasks = {name: asyncio.create_task(do(), name=name) for name, do in work.items()}

    async def stop(self) -> None:
        """Stop refreshing, and commit what is still queued."""
        for lock in (self._refreshing_keys, self._refreshing):
            with suppress(TimeoutError):  # a refresh goes on in its thread, and would open the log again
                await asyncio.wait_for(lock.acquire(), STOP_S)
        for task in self._tasks.values():
            task.cancel()
        await self.workers.stop()
        self.arms.stop()
        self.versions.history.close()
        await asyncio.to_thread(self.log.close)
        for model in self._backends.generators.values():
            await model.close()
        with suppress(StoreError):  # the usage of keys since the last report is lost
            await self.quota.report()
        await self.quota.finish_exchange()
        self.store.close()

    async def _warm_up(self) -> None:
        """Wait for the hosts, and describe one question, which fails if an encoder's dimension differs."""
        backends, features = self._backends, self.config.features
        await backends.reach()
        self.turns.searcher.restricted = await backends.arms.is_restricted()
        if features.embedding is not None:
            backbone = features.embedding.backbone
            vectors = await backends.embedders.embed(WARM_UP, frozenset({backbone}))
            describe(WARM_UP, features, embedding=vectors[backbone])
        await self._scorers.warm_up()

    async def _load(self) -> None:
        """Load the remaining encoders once the service decides, and unmask their arms."""
        await asyncio.wait([self._tasks["reach"]])
        await self._backends.embedders.load(self._backends.embedders.loading)
        self.health.loading = frozenset()

    async def refresh_keys(self) -> None:
        """Read the keys from the log, and report their usage. Raises LogUnavailableError."""
        async with self._refreshing_keys:
            await asyncio.to_thread(self.keyring.refresh, self.store)
            await self.quota.report()

    async def _poll_keys(self) -> None:
        changes = ChangeWatch(self.store, longest_s=REPORT_S)
        while True:
            with suppress(LogUnavailableError):  # `_poll` warns of it
                if changes.is_due():
                    await self.refresh_keys()
            await asyncio.sleep(POLL_S)

    async def _poll(self) -> None:
        changes = ChangeWatch(self.store)
        while True:
            try:
                if self.log.trouble:
                    await asyncio.to_thread(self.log.check)
                if changes.is_due():
                    await self.refresh()
            except LogUnavailableError as error:
                logger.warning("version %d stays in service: %s", self.decider.serving.version, error)
            await asyncio.sleep(POLL_S)

    async def _watch_learner(self) -> None:
        """Note, every few seconds, whether a learner reads the log."""
        learning = lag.SuccessorCheck(self.store)
        while True:
            try:
                await asyncio.to_thread(learning.check)
                self.unread = None
            except SupersededError as error:
                self.unread = str(error)
            await asyncio.sleep(LEARNING_S)

    async def refresh(self) -> None:
        """Serve the newest version of the active recipe, or the pinned one, and the live arms.

        Policy, router and arms of a version that brings them are replaced together, once all of them are
        loaded and built.
        """
        # A refresh that began before an arm was switched must not overwrite the switch.
        async with self._refreshing:
            state, logged = await asyncio.to_thread(self._read)
            await self.versions.follow(state)
            newer = 0 if logged.newer is None else logged.newer.seq
            arm_set, follows = self.versions.active.arm_set, self.versions.state.follows
            if self.arms.seq and newer <= arm_set and not follows:
                logged = replace(logged, newer=None)  # the arms of a version that cannot be served here
            await self.arms.follow(logged)
            self._switch()

    def _read(self) -> tuple[ReplicaState, LoggedArms]:
        logged = self.arms.read()  # first, so that a promotion that brought them is read as well
        return self.versions.read(self.versions.state.served), logged

    def _switch(self) -> None:
        """Serve the version read last, unless its arms are still being built; atomic in the event loop."""
        versions = self.versions
        served, canaries = versions.state.served, versions.state.canaries
        building = versions.state.follows and versions.active.arm_set > self.arms.seq
        if served is None or (versions.served is not None and building):
            return
        versions.served = served
        self.decider.serving = Serving(served.policy, served.version.version, canaries, served.scorer)

    async def replace_arms(self, names: Collection[str]) -> None:
        """Make these the live arms here, and in every replica at its next refresh; see `ArmRegistry`."""
        await self.arms.replace(names)
        await self.refresh()

    async def switch(self, arm: str, enabled: bool) -> None:
        """Switch an arm on or off here at once, and in every replica at its next refresh."""
        await asyncio.to_thread(arm_sets.switch, self.store, arm, enabled, self.clock())
        await self.refresh()
