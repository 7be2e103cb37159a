"""The live arms: what a turn reads of each, and the set that a replica serves."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from armwise.agent.background import Work, WorkFailure, clear, record
from armwise.agent.config import AppConfig, ConfigError
from armwise.agent.routers import saved
from armwise.agent.run_folder import Building
from armwise.agent.turn import ArmInfo, CheckedAnswering, TurnLoop
from armwise.arms.base import ArmError
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.llm import writing
from armwise.arms.profile import NO_PROFILES, Profiles
from armwise.arms.retrievers import ArmGraph, catalog
from armwise.feedback.log import Store
from armwise.feedback.registry import ArmSet, arm_sets

if TYPE_CHECKING:
    from armwise.arms.deployments import HostedArms

logger = logging.getLogger(__name__)

REBUILD_S, QUICK_S = 30.0, 0.1
"""Pause before a set of arms that could not be built is tried again, and how long a set is waited for."""


def arm_infos(config: AppConfig, profiles: Profiles = NO_PROFILES) -> dict[str, ArmInfo]:
    """Return the properties of each arm that a turn reads.

    Args:
        config: The arms.
        profiles: Profiles of their sources, if the policy reads similarities.
    """
    graph = ArmGraph(config.arms)
    return {
        name: ArmInfo(
            graph.embeddings(name),
            catalog.arm_features(name, spec, graph.estimate_usd(name)),
            filters=graph.filters(name),
            answering=how,
            **_abilities(config, how, checked),
            cached=spec.cache,
            searched=graph.search_digest(name),
            bound=graph.compute_bound(name),
            profiles=profiles.get(name),
            checked=checked,
            searches=spec.kind != "none",
            sources=_sources(config, graph, name),
        )
        for name, spec in config.actions.items()
        for checked in [_find_checked(config, graph, name)]
        for how in [config.find_answering(name)]
    }


def _sources(config: AppConfig, graph: ArmGraph, arm: str) -> tuple[str, ...]:
    """Return the names of the corpora that an arm searches; empty if it searches elsewhere."""
    if config.corpora:
        return tuple(sorted(graph.corpora(arm) or ()))
    searches = any(graph.resolve(part)[0].searches_corpus for part in graph.closure(arm))
    return config.corpus_names if searches else ()


def _find_checked(config: AppConfig, graph: ArmGraph, arm: str) -> CheckedAnswering | None:
    """Return how the answers of an arm are checked; None: they are sent as they are."""
    if (checked := graph.find_checks(arm)) is None:
        return None
    then = config.find_answering(checked.then)
    parts = checked.first, checked.then, then, checked.check, checked.threshold, checked.explore
    return CheckedAnswering(*parts)


def _abilities(config: AppConfig, how: writing.Answering, checked: CheckedAnswering | None) -> dict[str, Any]:
    """Return the protocols of the language models of an arm, and what every one of them can do."""
    names = [how.llm] if checked is None else [how.llm, checked.answering.llm]
    models = [config.models[name] for name in names]
    options, inputs = map(llm_catalog.list_options, models), map(llm_catalog.list_inputs, models)
    return {
        "protocols": tuple(model.protocol for model in models),
        "options": frozenset.intersection(*options),
        "inputs": frozenset.intersection(*inputs),
    }


@dataclass(frozen=True, slots=True)
class LoggedArms:
    """The state of the arms in the log.

    Attributes:
        newer: The live set, if it is newer than the served one.
        disabled: Arms that are switched off.
    """

    newer: ArmSet | None
    disabled: frozenset[str]


class ArmRegistry:
    """The arm set that a replica serves: follows the log, and builds a new set before serving it.

    Args:
        config: The arms of the configuration file, and all that arms are built from.
        store: The log.
        arms: Builds and runs the arms.
        turns: The turn loop, whose arms are replaced when a set is served.
        router: Metadata of the configured router.
        on_serve: Called as soon as a set is served.

    Attributes:
        config: The configuration with the live arms.
        seq: Position of the live set; 0 until the log is read.
    """

    def __init__(
        self,
        config: AppConfig,
        store: Store,
        arms: "HostedArms",
        turns: TurnLoop,
        router: saved.RouterFacts | None,
        on_serve: Callable[[], None] = lambda: None,
    ) -> None:
        self.config = config
        self.seq = 0
        self._wanted = 0  # position of the newest set
        self._on_serve = on_serve
        self._store, self._arms, self._turns, self._router = store, arms, turns, router
        self._file, self._configured = config, config.arm_documents
        self._started = False
        self._disabled: frozenset[str] = frozenset()
        self._unbuilt = 0  # the last set that could not be built, how often, and when to try again
        self._attempts = 0
        self._retry_at = 0.0
        self._building: asyncio.Task[None] | None = None

    def read(self) -> LoggedArms:
        """Read the state of the arms from the log; blocks. Raises LogUnavailableError."""
        if self._started:
            newer = arm_sets.live(self._store, self.seq)
        else:
            before = arm_sets.live(self._store)
            newer = arm_sets.start(self._store, self._configured)
            self._started = True
            if change := arm_sets.describe_change(before, newer):
                logger.warning("%s", change)
        return LoggedArms(newer, arm_sets.list_disabled(self._store))

    async def follow(self, logged: LoggedArms) -> None:
        """Serve the logged state; a set that could not be built is tried again after a pause."""
        self._disabled = logged.disabled
        arm_set, now = logged.newer, asyncio.get_running_loop().time()
        self._wanted = self.seq if arm_set is None else arm_set.seq
        if arm_set is not None and (arm_set.seq != self._unbuilt or now >= self._retry_at):
            if not self.seq and arm_set.seq != self._unbuilt:
                await self._build(arm_set)  # the first set: no requests to hold up
            elif self._building is None or self._building.done():
                self._building = asyncio.create_task(self._build(arm_set), name="arm-builder")
                await asyncio.wait({self._building}, timeout=QUICK_S)  # so that a promotion finds them
        self._turns.arms = self._apply_switches(self._turns.arms)

    async def replace(self, names: Collection[str]) -> None:
        """Make these the live arms, here and in every replica that follows the log.

        Args:
            names: Every arm that is live from now on.

        Raises:
            ConfigError: The configuration does not declare an arm, or they do not fit the rest of it.
            ArmError: An arm cannot be built; nothing has changed.
        """
        config = self.config.with_arms(names)
        await self._arms.load(config.arms)
        profiles = await self._read_profiles(config)
        arm_set = await asyncio.to_thread(
            arm_sets.replace, self._store, list(config.actions), self._configured
        )
        self._serve(config, arm_set.seq, profiles)

    async def _read_profiles(self, config: AppConfig) -> Profiles:
        """Return the profiles of all sources, if the policy reads similarities. Raises ArmError."""
        spec = config.features.similarity
        return NO_PROFILES if spec is None else await self._arms.profiles(config.arms, spec)

    def stand_ins(self) -> dict[str, str]:
        """Return the live part that answers, by the same model, for each arm that is still built."""
        if Building.read() is None:
            return {}
        graph, live = ArmGraph(self._file.arms), self.config.actions
        waiting = {
            name: self._file.find_answering(name).llm
            for name, spec in graph.specs.items()
            if spec.action and name not in live
        }
        parts = {
            name: [
                part
                for part in graph.closure(name)
                if part in live and self.config.find_answering(part).llm == llm
            ]
            for name, llm in waiting.items()
        }
        return {name: found[0] for name, found in parts.items() if found}

    def stop(self) -> None:
        """Cancel a build that is under way."""
        if self._building is not None:
            self._building.cancel()

    async def _build(self, arm_set: ArmSet) -> None:
        """Build the arms of a set, which may take minutes, and serve it."""
        try:
            config = self.config.with_arms(arm_set.arms)
            if config.arms != self.config.arms:
                await self._arms.load(config.arms)
            profiles = await self._read_profiles(config)
            if arm_set.seq == self._wanted:  # still the newest
                self._serve(config, arm_set.seq, profiles)
        except (ConfigError, ArmError) as error:
            if arm_set.seq != self._unbuilt:
                logger.warning(
                    "arm set %d cannot be served, so the earlier arms stay: %s", arm_set.seq, error
                )
                self._attempts = 0
            self._unbuilt, self._attempts = arm_set.seq, self._attempts + 1
            record(WorkFailure(Work.ARMS, str(error), self._attempts, time.time() + REBUILD_S))
            self._retry_at = asyncio.get_running_loop().time() + REBUILD_S

    def _serve(self, config: AppConfig, seq: int, profiles: Profiles) -> None:
        """Serve the arms of a configuration, unless a newer set is served already."""
        if seq <= self.seq:
            return
        self._arms.know(config.arms)
        if self._router is not None:
            saved.warn_of_unknown(self._router, config.actions)
        self.config, self.seq = config, seq
        clear(Work.ARMS)
        self._turns.former = {**self._turns.former, **self._turns.arms}
        self._turns.arms = self._apply_switches(arm_infos(config, profiles))
        self._on_serve()

    def _apply_switches(self, arms: Mapping[str, ArmInfo]) -> Mapping[str, ArmInfo]:
        """Return the arms with the switches of the log applied."""
        if {name for name, info in arms.items() if not info.enabled} == self._disabled & arms.keys():
            return arms
        return {name: replace(info, enabled=name not in self._disabled) for name, info in arms.items()}
