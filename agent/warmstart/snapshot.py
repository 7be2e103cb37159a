"""Snapshot of what a warm start begins from: the active recipe, earlier runs, the traffic.

It determines the recipe of a candidate, and whether that would be new.
"""

from dataclasses import dataclass, replace
from typing import Any

from agent.config import AppConfig, ConfigError, WarmStartSpec
from agent.learning import Recipe, active_recipe, configuration_of
from arms.jobs import digest_of_document
from feedback.drift import Alarm, read_alarms
from feedback.log import Store
from feedback.registry import ActivePolicy, Run, active_policy, arm_sets
from feedback.registry import runs as registry_runs
from feedback.training_log import StartingPoint, position_of
from feedback.training_log import traffic as training_log_traffic


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """State of the log and the configuration as a run begins.

    Attributes:
        config: Settled, with the live arms.
        spec: The configured warm start.
        live: The active recipe.
        active: The promotions that hold under the configuration.
        alarm: The newest alarm since which no labels were inserted; None for none.
        log_seq: Position of the log.
        examples: Position of the training log.
        traffic: Decisions of the traffic in the training log.
        before: Runs for the configured recipe that ended with a verdict, in order.
        file_arms: The arms of the configuration file, as the log keeps them.
        brought: The live arms, if a version brought them; None otherwise.
    """

    config: AppConfig
    spec: WarmStartSpec
    live: Recipe
    active: ActivePolicy
    alarm: Alarm | None
    log_seq: int
    examples: int
    traffic: int
    before: tuple[Run, ...]
    file_arms: arm_sets.Arms
    brought: arm_sets.Arms | None

    @classmethod
    def of(cls, config: AppConfig, store: Store) -> "RunSnapshot":
        """Read the log.

        Raises:
            ConfigError: No warm start is configured.
            LogUnavailableError: Try again later.
        """
        file_arms, newest = config.arm_documents, arm_sets.live(store)
        live = arm_sets.at_start(store, file_arms)
        brought = live if newest is not None and newest.version is not None and newest.arms == live else None
        config = config.with_arms(live).settled()
        spec, join = warm_start_spec(config), config.reward.join
        configured = Recipe.configured(config).digest
        active = active_policy(store, configured)
        alarms = read_alarms(store, join, active)
        with store.reading() as connection:
            examples = position_of(connection, join).examples_seq
        alarm = alarms.newest if alarms.warm_start_open else None
        return cls(
            config,
            spec,
            active_recipe(store, config, active),
            active,
            alarm if alarm is not None and alarm.example_seq <= examples else None,
            store.log_seq(),
            examples,
            training_log_traffic.decisions_of_traffic(store, join),
            tuple(registry_runs.judged(store, configured)),
            file_arms,
            brought,
        )

    @property
    def after(self) -> int:
        """Position of the training log before which a candidate learns nothing."""
        before = 0 if self.live.start is None else self.live.start.after
        return before if self.alarm is None else max(before, self.alarm.example_seq)

    @property
    def runs(self) -> tuple[int, ...]:
        """Earlier runs whose labels a candidate learns."""
        known = (run for run in self.before if run.inputs["examples"] >= self.after)
        return tuple(run.seq for run in known if run.inputs["labels"])

    @property
    def router(self) -> str | None:
        """Digest of the router of a candidate if none is trained: the last one, or the active one."""
        plan = self.spec.router
        if plan is not None and plan.live and self.before and (last := self.before[-1].inputs.get("router")):
            return str(last)
        return self.live.router

    def candidate(
        self, run: int | None = None, router: str | None = None, brought: arm_sets.Arms | None = None
    ) -> Recipe:
        """Return the recipe of a candidate.

        Args:
            run: A further run whose labels it learns; None for none.
            router: Digest of its router; None for `self.router`.
            brought: Arms that become live with it; None for those that are live.
        """
        also = None if self.live.start is None else self.live.start.also
        start = StartingPoint(self.runs if run is None else (*self.runs, run), self.after, also)
        return replace(
            self.live,
            policy=self.spec.policy or self.live.policy,
            start=None if start == StartingPoint() else start,
            router=router or self.router,
            arms=brought or self.brought,
        )

    def judged(self, recipe: Recipe) -> bool:
        """Whether a recipe is the active one, or was judged by the same traffic and settings before."""
        now = {**self.inputs(), "recipe": recipe.digest}
        compared = {name: now[name] for name in ("recipe", "traffic", "configuration", "arms")}
        return recipe == self.live or any(
            compared == {name: run.inputs.get(name) for name in compared} for run in self.before
        )

    def inputs(self) -> dict[str, Any]:
        """Return what a run depends on, as the log keeps it; its labels are added as they are gathered."""
        config = self.config
        live = self.live.start
        return {
            "configuration": configuration_of(config),
            "arms": digest_of_document(config.arm_documents),
            "join": config.reward.join,
            "log": self.log_seq,
            "examples": self.examples,
            "traffic": self.traffic,
            "live": {"recipe": self.live.digest, "start": None if live is None else live.document()},
            "alarm": None if self.alarm is None else self.alarm.example_seq,
            "lots": [],
            "labels": 0,
        }


def warm_start_spec(config: AppConfig) -> WarmStartSpec:
    """Return the configured warm start. Raises ConfigError where there is none."""
    if config.warm_start is None:
        raise ConfigError("warm_start is not configured: see examples/warm_start.yaml")
    return config.warm_start
