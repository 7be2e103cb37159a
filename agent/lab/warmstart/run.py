"""A warm start, from labels to a verdict, as a run that the log stores with its inputs.

    labels since the last run --> portfolio, router
           |                          |
           '--> the log ---------> candidate --> evaluation --> the gate --> promoted | held

The labels are decisions of the run: only recipes whose starting point names it learn them. So a run that
fails at any step leaves the served policy unchanged. The candidate has the active policy and reward, and
learns the labels of all runs that ended with a verdict, including held ones. It brings the router, and the
arms if they are to go live: one promotion puts all three in service. While a drift alarm is open, the labels
and the traffic before it are left out.

Traffic cannot judge the first candidate, as there is too little. With `warm_start.first: promote`, a service
does a first run by itself as soon as its arms are built. That run promotes its candidate without the gate,
unless by its end the log has as much evidence as the gate needs. So does a command on a log without
traffic:

    warm_start(config, Trigger.COMMAND, console, on_progress)     or `armwise lab warm-start -c CONFIG`
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from armwise.agent.config import AppConfig, ConfigError, WarmStartSpec
from armwise.agent.evaluation import EvaluationFailedError, EvaluationRequest, run_evaluation, verdict_on
from armwise.agent.jobs import RunFailedError, this_process
from armwise.agent.lab.warmstart.canary import first_share
from armwise.agent.lab.warmstart.journal import HEARTBEAT_S, Journal, Step
from armwise.agent.lab.warmstart.label_sources import LabelSources, Lot
from armwise.agent.lab.warmstart.labels import InsertSettings, OtherLabels, insert_labels
from armwise.agent.lab.warmstart.proposals import (
    KEPT,
    explain_no_gain,
    propose_portfolio,
    propose_router,
    remove_older,
)
from armwise.agent.learning import (
    DIGEST_CHARS,
    Recipe,
    active_recipe,
    digest_configuration,
    keep_router,
    publish_candidate,
    score_by_searching,
)
from armwise.agent.routers import TooLittleError
from armwise.arms.base import Progress
from armwise.arms.lab.jobs import digest_of_document
from armwise.arms.lab.synthesis import NoQuestionsError
from armwise.arms.suggestions import select_names
from armwise.feedback.drift import Alarm, read_alarms
from armwise.feedback.errors import ChangedMeanwhileError
from armwise.feedback.log import Store
from armwise.feedback.ope import gate
from armwise.feedback.registry import ActivePolicy, Run, Version, active_policy, arm_sets, promotions, routers
from armwise.feedback.registry import runs as registry_runs
from armwise.feedback.registry import versions as registry_versions
from armwise.feedback.training_log import StartingPoint, read_position, traffic

HOW_IT_ENDED = {
    registry_runs.RunState.PROMOTED: "and was promoted",
    registry_runs.RunState.HELD: "and was held back; its page under Warm starts in the console says why",
    registry_runs.RunState.NOTHING_NEW: "with nothing new to learn from",
}
"""Ends of a run that did not fail."""


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """State of the log and the configuration when a run begins.

    It determines the recipe of a candidate, and whether that would be new.

    Attributes:
        config: The configuration with defaults resolved and the live arms.
        spec: The configured warm start.
        live: The active recipe.
        active: The promotions that hold under the configuration.
        alarm: The newest alarm, if it is still open: labels close it.
        log_seq: Newest position of the log.
        examples: Newest position of the training log.
        traffic: Number of decisions of the traffic in the training log.
        before: Runs for the configured recipe that ended with a verdict, in order.
        file_arms: The arms of the configuration file, as the log stores them.
        brought: Names of the live arms, if a version brought them.
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
    file_arms: arm_sets.Declared
    brought: list[str] | None

    @classmethod
    def take(cls, config: AppConfig, store: Store) -> "RunSnapshot":
        """Read the log.

        Raises:
            ConfigError: No warm start is configured.
            LogUnavailableError: Try again later.
        """
        file_arms, newest = config.arm_documents, arm_sets.live(store)
        live = arm_sets.at_start(store, file_arms)
        is_brought = newest is not None and newest.version is not None and newest.arms == live
        brought = list(live) if is_brought else None
        config = config.with_arms(live).resolve_places()
        spec, join = warm_start_spec(config), config.reward.join
        configured = Recipe.from_config(config).digest
        active = active_policy(store, configured)
        alarms = read_alarms(store, join, active)
        with store.reading() as connection:
            examples = read_position(connection, join).examples_seq
        alarm = alarms.newest if alarms.warm_start_open else None
        return cls(
            config,
            spec,
            active_recipe(store, config, active),
            active,
            alarm if alarm is not None and alarm.example_seq <= examples else None,
            store.log_seq(),
            examples,
            traffic.decisions_of_traffic(store, join),
            tuple(registry_runs.list_judged(store, configured)),
            file_arms,
            brought,
        )

    def with_pool(self) -> AppConfig:
        """Return the configuration with the arms that are labelled: the live arms and the pool.

        Raises:
            ConfigError: A pattern of the pool matches no arm of the configuration.
        """
        patterns = () if self.spec.portfolio is None else self.spec.portfolio.pool
        if not patterns:
            return self.config
        pool = select_names(self.config.arms, patterns, "warm_start.portfolio.pool: no arm", ConfigError)
        return self.config.with_arms({*arm_sets.actions(self.file_arms), *self.config.actions, *pool})

    @property
    def after(self) -> int:
        """Position of the training log after which a candidate learns."""
        before = 0 if self.live.start is None else self.live.start.after
        return before if self.alarm is None else max(before, self.alarm.example_seq)

    @property
    def runs(self) -> tuple[int, ...]:
        """Earlier runs whose labels a candidate learns."""
        recent_runs = (run for run in self.before if run.inputs["examples"] >= self.after)
        return tuple(run.seq for run in recent_runs if run.inputs["labels"])

    @property
    def router(self) -> str | None:
        """Digest of a candidate's router if the run trains none: the last run's, or else the active one."""
        plan = self.spec.router
        if plan is not None and plan.live and self.before and (last := self.before[-1].inputs.get("router")):
            return str(last)
        return self.live.router

    def candidate(
        self, run: int | None = None, router: str | None = None, brought: list[str] | None = None
    ) -> Recipe:
        """Return the recipe of a candidate.

        Args:
            run: A further run whose labels it learns.
            router: Digest of its router; None: `self.router`.
            brought: Arms that become live with it; None: the live arms.
        """
        start = StartingPoint(self.runs if run is None else (*self.runs, run), self.after)
        return replace(
            self.live,
            policy=self.spec.policy or self.live.policy,
            start=None if start == StartingPoint() else start,
            router=router or self.router,
            arms=brought or self.brought,
        )

    def was_judged(self, recipe: Recipe) -> bool:
        """Return whether a recipe is active, or was judged by the same traffic and settings before."""
        now = {**self.inputs(), "recipe": recipe.digest}
        compared = {name: now[name] for name in ("recipe", "traffic", "configuration", "arms")}
        return recipe == self.live or any(
            compared == {name: run.inputs.get(name) for name in compared} for run in self.before
        )

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of a run, as the log stores them; labels are added as they are gathered."""
        config = self.config
        live = self.live.start
        return {
            "configuration": digest_configuration(config),
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
    """Return the configured warm start. Raises ConfigError if there is none."""
    if config.warm_start is None:
        raise ConfigError("warm_start is not configured: see examples/warm_start.yaml")
    return config.warm_start


def preview_lots(
    config: AppConfig, on_progress: Progress, clock: Callable[[], float] = time.time
) -> list[Lot]:
    """Return the labels that a run would gather now; raises as `LabelSources.lots`."""
    with closing(Store(config.database_url, config.reward.join, clock, create=False)) as store:
        now = RunSnapshot.take(config, store)
        return LabelSources(now.with_pool(), now.spec, store, now.before, clock).lots(on_progress)


def warm_start(
    config: AppConfig,
    trigger: registry_runs.Trigger,
    console: Console,
    on_progress: Progress,
    clock: Callable[[], float] = time.time,
) -> Run:
    """Do a run now, in this process, and return its row of the log.

    Args:
        config: Configuration with the log and the warm start.
        trigger: Why it runs.
        console: Prints each step.
        on_progress: Called with the progress of long steps.
        clock: Seconds since the epoch.

    Raises:
        ConfigError: No warm start is configured.
        UnderWayError: Another run is under way; this one was not started.
        RunFailedError: The run has failed; the served policy is unchanged.
        StoreError: The run could not be started.
    """
    warm_start_spec(config)
    redact = config.privacy.redactor()
    with closing(Store(config.database_url, config.reward.join, clock, redact=redact)) as store:
        worker = this_process()
        mine = registry_runs.claim(store, Recipe.from_config(config).digest, trigger, worker, clock())
        return _do(config, store, mine, console, on_progress, clock, HEARTBEAT_S)


def carry_out(config: AppConfig, number: int, console: Console, on_progress: Progress) -> Run:
    """Do a run that another process has claimed and renews the lease of; otherwise like `warm_start`.

    The progress of long steps is reported for a first run alone, which somebody may be waiting for.
    """
    with closing(Store(config.database_url, config.reward.join)) as store:
        mine = registry_runs.find(store, number)
        assert mine is not None
        shown = on_progress if is_first(store, mine) else lambda *_: None
        run = _do(config, store, mine, console, shown, time.time, None)
    ended = (
        HOW_IT_ENDED[run.status] if run.too_little is None else f"with nothing to learn yet: {run.too_little}"
    )
    console.print(f"warm start {run.seq} finished {ended}", markup=False, highlight=False)
    return run


def _do(
    config: AppConfig,
    store: Store,
    mine: Run,
    console: Console,
    on_progress: Progress,
    clock: Callable[[], float],
    heartbeat_s: float | None,
) -> Run:
    def show(step: Step) -> None:
        console.print(f"{step.name:<10}{step.said}", markup=False, highlight=False, soft_wrap=True)

    journal = Journal(store, mine, show, clock, heartbeat_s)
    try:
        with journal:
            now = RunSnapshot.take(config, store)  # read when no other run can change it
            first = is_first(store, mine)
            journal.ends(_Steps(now, store, mine.seq, first, journal, console, on_progress, clock).do())
    except Exception as error:
        if journal.promoted:
            raise
        raise RunFailedError(f"run {mine.seq} failed, what is served is as it was: {error}") from error
    run = registry_runs.find(store, mine.seq)
    assert run is not None
    return run


@contextmanager
def _accept_too_little(step: Step) -> Iterator[None]:
    """End a step well if its labels say too little to learn from."""
    try:
        yield
    except (TooLittleError, NoQuestionsError) as error:
        step.said = f"nothing to learn yet: {error}"
        step.found = {registry_runs.TOO_LITTLE: str(error)}


def is_first(store: Store, run: Run) -> bool:
    """Return whether a run is that of a first start, or repeats one that was killed or has failed."""
    return registry_runs.read_attempts(store, run)[-1].trigger is registry_runs.Trigger.FIRST


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a run; of a first start if `is_first`."""

    now: RunSnapshot
    store: Store
    run: int
    is_first: bool
    journal: Journal
    console: Console
    on_progress: Progress
    clock: Callable[[], float]

    def do(self) -> registry_runs.RunState:
        """Do all steps; return the state that the run ends with."""
        now, journal, spec = self.now, self.journal, self.now.spec
        journal.inputs = now.inputs()
        pool = now.with_pool()
        lots = self._gather(pool)
        fresh = any(lot.new for lot in lots)
        if not fresh and now.was_judged(now.candidate()):
            return (
                registry_runs.RunState.NOTHING_NEW
            )  # without labels, an alarm or traffic that could change the verdict
        home, config = now.config.home_path, now.config
        router, trained, brought, gainless = None, None, None, ""
        if spec.portfolio is not None and fresh:
            with journal.step("portfolio") as step, _accept_too_little(step):
                folder = home / "runs" / str(self.run)
                live = list(now.config.actions)
                chosen = propose_portfolio(spec.portfolio, pool, live, lots, folder, step, self.console)
                if chosen is not None:
                    config, brought = chosen, list(chosen.actions)
        if spec.router is not None and fresh and len(config.actions) > 1:
            with journal.step("router") as step, _accept_too_little(step):
                folder = home / "routers" / str(self.run)
                router = propose_router(
                    spec.router, config, lots, folder, step, self.console, self.on_progress
                )
                if spec.router.live:
                    gainless = explain_no_gain(step.found["held_out"])
                    trained = step.found["router"] = keep_router(self.store, folder, self.clock())
        configured = None if now.config.router is None else now.config.router.path
        for kind in ("runs", "routers"):
            remove_older(home / kind, self.run, configured)
        routers.prune(self.store, KEPT)
        if brought is not None:  # labels of all arms, of those that may be replaced as well
            config = now.config.with_arms({*brought, *now.config.actions})
        labels = self._enter([lot for lot in lots if lot.new and lot.metrics], config)
        recipe = now.candidate(self.run if labels else None, trained, brought)
        journal.inputs["router"] = recipe.router
        if not labels and now.was_judged(recipe) and journal.found_too_little:
            return registry_runs.RunState.NOTHING_NEW
        version = self._learn(recipe)
        verdict = self._evaluate(version, router)
        unjudged = self._explain_unjudged(verdict)
        return self._decide(version, None if unjudged else verdict, unjudged, gainless)

    def _explain_unjudged(self, verdict: Mapping[str, Any] | None) -> str:
        """Return why the gate does not decide about the candidate of a first start; empty: it decides."""
        if self.now.spec.first != "promote" or not (self.is_first or not traffic.exists(self.store)):
            return ""
        decisions = traffic.count_logged_decisions(self.store)
        if decisions == 0:
            return "nothing was served before"
        if verdict is not None and gate.can_decide(self.now.config.judging_gate, verdict.get("figures")):
            return ""
        why = "None has settled with ratings." if verdict is None else " ".join(verdict["reasons"])
        return f"a first start, after {decisions:,} decisions. The gate cannot decide yet. {why}"

    def _gather(self, pool: AppConfig) -> list[Lot]:
        now, journal = self.now, self.journal
        with journal.step("gather") as step:
            sources = LabelSources(pool, now.spec, self.store, now.before, self.clock)
            lots = sources.lots(self.on_progress)
            journal.inputs["lots"] = [lot.document() for lot in lots]
            fresh = [lot.source for lot in lots if lot.new]
            step.said = f"new labels from {', '.join(fresh)}" if fresh else "no new labels"
            if now.alarm is not None:
                step.said += f"; after the alarm at example {now.alarm.example_seq:,}, {now.alarm.subject}"
            usable = list[Lot]()
            for lot in lots if fresh else ():
                with _accept_too_little(step):
                    sources.fetch(lot, self.console, self.on_progress)
                    usable.append(lot)
            if fresh:
                journal.inputs["lots"] = [lot.document() for lot in usable]
        return usable if fresh else lots

    def _enter(self, lots: Sequence[Lot], config: AppConfig) -> int:
        """Insert labels of the arms of a configuration for this run; return their number."""
        now, journal = self.now, self.journal
        beside = OtherLabels(runs=now.runs, after=now.after)
        with journal.step("enter") as step:
            for lot in lots:
                settings = InsertSettings(
                    config=config,
                    outcomes=lot.path,
                    metrics=dict(lot.metrics),
                    run=self.run,
                    beside=beside,
                )
                new = insert_labels(settings, self.console, self.on_progress)
                step.found[lot.source] = step.found.get(lot.source, 0) + new
            labels: int = sum(step.found.values())
            journal.inputs["labels"] = labels
            step.said = f"{labels:,} new labels"
        return labels

    def _learn(self, recipe: Recipe) -> Version | None:
        """Publish a candidate; return None if it would not be new."""
        now, journal = self.now, self.journal
        with journal.step("learn") as step:
            journal.inputs["recipe"] = recipe.digest
            if now.was_judged(recipe):
                step.said = "no candidate: it would be what is followed, or was judged by the same traffic"
                return None
            recipe.require_servable(self.store, now.config)
            arms, searched = list(now.config.actions), ""
            if recipe.router is not None and now.spec.router is not None:
                config = now.config if recipe.arms is None else now.config.with_arms(recipe.arms)
                searched = score_by_searching(self.store, recipe.router, config, self.on_progress)
            version = publish_candidate(
                self.store, recipe, arms, self.clock, self.on_progress, now.config.backbones
            )
            journal.candidate = version.version
            start = recipe.start or StartingPoint()
            step.found = {"version": version.version, "recipe": recipe.digest, "start": start.document()}
            learned = [f"the labels of warm start {', '.join(map(str, start.runs))}"] if start.runs else []
            if (examples := version.examples_seq - start.after) > 0:
                learned.append(f"{examples:,} decisions of traffic")
            step.said = (
                f"version {version.version} is the candidate ({recipe.policy.kind}). It has learned from "
            )
            step.said += " and ".join(learned) or "no labels or traffic yet"
            if recipe.router is not None:
                step.found["router"] = recipe.router
                step.said += f"; its router is {recipe.router[:DIGEST_CHARS]}" + (
                    searched and f": {searched}"
                )
            if recipe.arms is not None:
                step.found["arms"] = list(recipe.arms)
                step.said += f"; its arms are {', '.join(recipe.arms)}"
        return version

    def _evaluate(self, version: Version | None, router: str | None) -> dict[str, Any] | None:
        """Return the verdict on the candidate; None: no candidate, or no traffic."""
        name = None if version is None else f"recipe:{version.version}"
        learned = traffic.decisions_of_traffic(self.store, self.now.config.reward.join)
        if (name is None and router is None) or learned == 0:
            return None
        with self.journal.step("evaluate") as step:
            results, verdict = [], None
            for each in filter(None, (name, router)):  # a router is a proposal, which decides nothing
                try:
                    number, judged = self._judge(each)
                    step.found[each] = judged
                    results.append(f"evaluation {number}: {each} {judged['verdict']}")
                    self.journal.evaluation = number if each == name else self.journal.evaluation
                except EvaluationFailedError as error:
                    judged = {"promote": False, "reasons": [str(error)]}
                    results.append(f"{each} is not judged: {error}")
                verdict = judged if each == name else verdict
            step.said = "; ".join(results)
        return verdict

    def _judge(self, name: str) -> tuple[int, dict[str, Any]]:
        """Return the evaluation of a candidate, and the verdict of the gate. Raises EvaluationFailedError."""
        request = EvaluationRequest(candidates=(name,), gate=True).model_dump(mode="json")
        worker = f"{this_process()}:run-{self.run}"
        evaluation = run_evaluation(
            self.store, self.now.config, request, worker, self.on_progress, self.clock
        )
        return evaluation.number, verdict_on(evaluation.report, name)

    def _decide(
        self, version: Version | None, verdict: dict[str, Any] | None, unjudged: str, gainless: str
    ) -> registry_runs.RunState:
        """Promote the candidate, or hold it and record why.

        Args:
            version: The candidate.
            verdict: What the gate says; None: it was not asked.
            unjudged: Why the candidate of a first start may be promoted without it; empty if not.
            gainless: Why its router is not worth serving; empty if it is. The gate may find more in the
                traffic.
        """
        now, journal = self.now, self.journal
        configured = Recipe.from_config(now.config).digest
        with journal.step("decide") as step:
            active = active_policy(self.store, configured)
            reasons = self._reasons(version, verdict, active, may_go_unjudged=bool(unjudged))
            if not reasons and verdict is None and gainless:
                reasons = [gainless, "What served before goes on."]
            if version is not None and not reasons:
                reason = f"warm start {self.run}: {unjudged or 'the gate lets it through'}"
                promotion = promotions.Promotion(
                    0,
                    version.version,
                    promotions.Action.PROMOTE,
                    reason,
                    self.clock(),
                    forced=verdict is None,
                    evaluation=journal.evaluation,
                    automatic=True,
                )
                if version.arms is not None:  # for a rollback, and for a start with this file
                    arm_sets.start(self.store, now.file_arms)
                step.said = f"promoted: version {version.version}, and what is learned after it"
                try:
                    journal.promote(configured, promotion, now.active.seq)
                except ChangedMeanwhileError:
                    reasons = ["What is served was changed while it was judged."]
                else:
                    return registry_runs.RunState.PROMOTED
            step.found = {"reasons": reasons}
            step.said = "held: " + " ".join(reasons)
            if version is not None and self._begin_canary(version, verdict):
                share = step.found["canary"] = self._first_share()
                step.said += f" It gets {share:.1%} of each decision in which it takes part, as a canary."
        return registry_runs.RunState.HELD

    def _first_share(self) -> float:
        return first_share(self.now.config.explores, len(self.now.config.actions))

    def _begin_canary(self, version: Version, verdict: dict[str, Any] | None) -> bool:
        """Begin a canary if a candidate is held only for lack of evidence; return whether it began."""
        configured = Recipe.from_config(self.now.config).digest
        active = active_policy(self.store, configured)
        if (
            self.now.spec.canary != "auto"
            or verdict is None
            or not verdict.get("undecided")
            or active.pin is not None
            or active.seq != self.now.active.seq
            or len(active.canaries) >= promotions.MOST_CANARIES
            or version.arms not in (None, list(self.now.config.actions))
            or any(self._find_recipe(canary.version) == version.recipe for canary in active.canaries)
        ):
            return False
        promotion = promotions.Promotion(
            0,
            version.version,
            promotions.Action.CANARY,
            f"canary: warm start {self.run} holds it for want of evidence",
            self.clock(),
            share=self._first_share(),
            evaluation=self.journal.evaluation,
            automatic=True,
        )
        try:
            promotions.record(self.store, configured, promotion, after=active.seq)
        except ChangedMeanwhileError:
            return False
        return True

    def _find_recipe(self, number: int) -> str | None:
        version = registry_versions.find(self.store, number)
        return None if version is None else version.recipe

    def _reasons(
        self,
        version: Version | None,
        verdict: dict[str, Any] | None,
        active: ActivePolicy,
        *,
        may_go_unjudged: bool,
    ) -> list[str]:
        """Return the reasons why a candidate is held, as sentences; empty: it may be promoted."""
        if version is None:
            return ["There is no candidate."]
        if verdict is None and not may_go_unjudged:
            return ["The log holds no decision of the traffic to judge it by."]
        if verdict is not None and not verdict["promote"]:
            return list(verdict["reasons"])
        if self.now.spec.promote == "never":
            return ["`warm_start.promote` is never: an operator promotes it."]
        if active.pin is not None:
            return [f"Version {active.pin.version} is pinned by an operator."]
        for canary in active.canaries:
            if not canary.automatic:
                return [f"Version {canary.version} has a share of the traffic, which a promotion would end."]
        return []
