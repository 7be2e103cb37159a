"""A warm start, from labels to a verdict, as one run that is on record with all that went into it.

    labels since the last run --> portfolio, router   proposed
           |                          |
           '--> the log --> candidate --> evaluation --> the gate --> promoted | held

The labels are decisions of the run: only recipes whose start names it learn them. So a run that fails, at
whatever step, leaves what is served as it was. The candidate has the policy and the reward that are
followed now, and learns the labels of all runs that came to a verdict, held ones too: evidence adds up.
While an alarm of drift is open, what was known before that, labels and traffic, is left behind.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from agent.config import AppConfig
from agent.evaluation import EvaluationFailedError, EvaluationRequest, run_evaluation, verdict_on
from agent.jobs import this_process
from agent.learning import Recipe, publish_candidate
from agent.warmstart.insert_labels import Beside, Entering
from agent.warmstart.insert_labels import run as enter_labels
from agent.warmstart.journal import BEAT_S, Journal, Step
from agent.warmstart.label_sources import Gathering, Lot
from agent.warmstart.proposals import forget_older, propose_portfolio, propose_router
from agent.warmstart.snapshot import RunSnapshot, warm_start_spec
from arms.base import Progress
from feedback.errors import ChangedMeanwhileError
from feedback.log import Store
from feedback.registry import ActivePolicy, Run, Version, active_policy, promotions
from feedback.registry import runs as registry_runs
from feedback.training_log import StartingPoint


class RunFailedError(Exception):
    """A run has failed; the message names it and the step. What is served is as it was."""


def foreseen(config: AppConfig, tell: Progress, clock: Callable[[], float] = time.time) -> list[Lot]:
    """Return what a run would gather now, and do nothing. Raises what `Gathering.lots` raises."""
    with closing(Store(config.database_url, config.reward.join, clock)) as store:
        now = RunSnapshot.of(config, store)
        return Gathering(now.config, now.spec, store, now.before, clock).lots(tell)


def warm_start(
    config: AppConfig,
    trigger: registry_runs.Trigger,
    console: Console,
    tell: Progress,
    clock: Callable[[], float] = time.time,
) -> Run:
    """Do a run now, in this process, and return what is on record of it.

    Args:
        config: Names the log, and what is to be done.
        trigger: What it is started by.
        console: Where each step is told of.
        tell: Told of the progress of steps that take long.
        clock: Seconds since the epoch.

    Raises:
        ConfigError: No warm start is configured.
        UnderWayError: Another run is under way; this one was not begun.
        RunFailedError: It has failed; what is served is as it was.
        StoreError: It could not be begun.
    """
    warm_start_spec(config)
    with closing(Store(config.database_url, config.reward.join, clock)) as store:
        worker = this_process()
        mine = registry_runs.claim(store, Recipe.configured(config).digest, trigger, worker, clock())
        return _done(config, store, mine, console, tell, clock, BEAT_S)


def carry_out(config: AppConfig, number: int, console: Console, tell: Progress) -> Run:
    """Do a run that another process has taken, which says that its worker is alive; else as `warm_start`."""
    with closing(Store(config.database_url, config.reward.join)) as store:
        mine = registry_runs.find(store, number)
        assert mine is not None
        return _done(config, store, mine, console, tell, time.time, None)


def _done(
    config: AppConfig,
    store: Store,
    mine: Run,
    console: Console,
    tell: Progress,
    clock: Callable[[], float],
    beat_s: float | None,
) -> Run:
    def told(step: Step) -> None:
        console.print(f"{step.name:<10}{step.said}", markup=False, highlight=False, soft_wrap=True)

    journal = Journal(store, mine, told, clock, beat_s)
    try:
        with journal:
            now = RunSnapshot.of(config, store)  # once no other run can change it
            journal.ends(_Work(now, store, mine.seq, journal, console, tell, clock).do())
    except Exception as error:
        if journal.promoted:
            raise
        raise RunFailedError(f"run {mine.seq} failed, what is served is as it was: {error}") from error
    found = registry_runs.find(store, mine.seq)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class _Work:
    """A run under way."""

    now: RunSnapshot
    store: Store
    run: int
    journal: Journal
    console: Console
    tell: Progress
    clock: Callable[[], float]

    def do(self) -> registry_runs.State:
        """Do all steps; return how the run ends."""
        now, journal, spec = self.now, self.journal, self.now.spec
        journal.inputs = now.inputs()
        lots = self._gather()
        fresh = any(lot.new for lot in lots)
        if not fresh and now.judged(now.candidate()):
            return registry_runs.State.NOTHING_NEW  # nor an alarm, nor traffic to judge a held candidate by
        home = now.config.home_path
        router = None
        if spec.portfolio is not None and fresh:
            with journal.step("portfolio") as step:
                folder = home / "runs" / str(self.run)
                propose_portfolio(spec.portfolio, now.config, lots, folder, step, self.console)
        if spec.router is not None and fresh:
            with journal.step("router") as step:
                folder = home / "routers" / str(self.run)
                router = propose_router(spec.router, now.config, lots, folder, step, self.console, self.tell)
        configured = None if now.config.router is None else now.config.router.path
        for kind in ("runs", "routers"):
            forget_older(home / kind, self.run, configured)
        labels = self._enter([lot for lot in lots if lot.new and lot.metrics])
        version = self._learn(now.candidate(self.run if labels else None))
        verdict = self._evaluate(version, router)
        return self._decide(version, verdict)

    def _gather(self) -> list[Lot]:
        now, journal = self.now, self.journal
        with journal.step("gather") as step:
            gathering = Gathering(now.config, now.spec, self.store, now.before, self.clock)
            lots = gathering.lots(self.tell)
            journal.inputs["lots"] = [lot.document() for lot in lots]
            fresh = [lot.source for lot in lots if lot.new]
            step.said = f"new labels of {', '.join(fresh)}" if fresh else "no new labels"
            if now.alarm is not None:
                step.said += f"; after the alarm at example {now.alarm.example_seq:,}, {now.alarm.subject}"
            if fresh:
                for lot in lots:
                    gathering.fetch(lot, self.console, self.tell)
        return lots

    def _enter(self, lots: Sequence[Lot]) -> int:
        """Enter labels as those of this run; return how many."""
        now, journal = self.now, self.journal
        beside = Beside(runs=now.runs, others=now.after == 0)
        with journal.step("enter") as step:
            for lot in lots:
                settings = Entering(
                    config=now.config,
                    outcomes=lot.path,
                    metrics=dict(lot.metrics),
                    run=self.run,
                    beside=beside,
                )
                new = enter_labels(settings, self.console, self.tell)
                step.found[lot.source] = step.found.get(lot.source, 0) + new
            labels: int = sum(step.found.values())
            journal.inputs["labels"] = labels
            step.said = f"{labels:,} labels that no candidate has learned before"
        return labels

    def _learn(self, recipe: Recipe) -> Version | None:
        """Publish a candidate; None where it would be nothing new."""
        now, journal = self.now, self.journal
        with journal.step("learn") as step:
            journal.inputs["recipe"] = recipe.digest
            if now.judged(recipe):
                step.said = "no candidate: it would be what is followed, or was judged by the same traffic"
                return None
            arms = list(now.config.actions)
            version = publish_candidate(self.store, recipe, arms, self.clock, self.tell)
            journal.candidate = version.version
            start = recipe.start or StartingPoint()
            step.found = {"version": version.version, "recipe": recipe.digest, "start": start.document()}
            runs = f"runs {', '.join(map(str, start.runs))}" if start.runs else "no run"
            step.said = (
                f"version {version.version} is the candidate, {recipe.policy.kind}: it has learned labels of "
                f"{runs}, and the training log from {start.after + 1:,} to {version.examples_seq:,}"
            )
        return version

    def _evaluate(self, version: Version | None, router: str | None) -> dict[str, Any] | None:
        """Return the verdict on the candidate; None where there is none, or nothing to judge it by."""
        name = None if version is None else f"recipe:{version.version}"
        if (name is None and router is None) or self.now.traffic == 0:
            return None
        with self.journal.step("evaluate") as step:
            said = []
            if name is not None:
                self.journal.evaluation, step.found[name] = self._judged(name)
                said.append(f"evaluation {self.journal.evaluation}: {name} {step.found[name]['verdict']}")
            if router is not None:  # a proposal: whether it can be judged decides nothing
                try:
                    number, step.found[router] = self._judged(router)
                    said.append(f"evaluation {number}: {router} {step.found[router]['verdict']}")
                except EvaluationFailedError as error:
                    said.append(f"{router} is not judged: {error}")
            step.said = "; ".join(said)
        return None if name is None else step.found[name]

    def _judged(self, name: str) -> tuple[int, dict[str, Any]]:
        """Return the evaluation of a candidate and its verdict. Raises EvaluationFailedError."""
        request = EvaluationRequest(candidates=(name,), gate=True).model_dump(mode="json")
        worker = f"{this_process()}:run-{self.run}"
        found = run_evaluation(self.store, self.now.config, request, worker, self.tell, self.clock)
        return found.number, verdict_on(found.report, name)

    def _decide(self, version: Version | None, verdict: dict[str, Any] | None) -> registry_runs.State:
        """Promote the candidate, or hold it, and say why."""
        now, journal = self.now, self.journal
        configured = Recipe.configured(now.config).digest
        with journal.step("decide") as step:
            reasons = self._reasons(version, verdict, active_policy(self.store, configured))
            if version is not None and not reasons:
                reason = f"warm start {self.run}: the gate lets it through"
                said = promotions.Promotion(
                    0,
                    version.version,
                    promotions.Action.PROMOTE,
                    reason,
                    self.clock(),
                    evaluation=journal.evaluation,
                )
                step.said = f"promoted: version {version.version}, and what is learned after it"
                try:
                    journal.promote(configured, said, now.said.seq)
                except ChangedMeanwhileError:
                    reasons = ["What is served was changed while it was judged."]
                else:
                    return registry_runs.State.PROMOTED
            step.found = {"reasons": reasons}
            step.said = "held: " + " ".join(reasons)
        return registry_runs.State.HELD

    def _reasons(
        self, version: Version | None, verdict: dict[str, Any] | None, said: ActivePolicy
    ) -> list[str]:
        """Return why a candidate is held, one sentence each; none where it may be promoted."""
        if version is None:
            return ["There is no candidate."]
        if verdict is None:
            return ["The log holds no decision of the traffic to judge it by."]
        if not verdict["promote"]:
            return list(verdict["reasons"])
        if self.now.spec.promote == "never":
            return ["`warm_start.promote` is never: an operator promotes it."]
        if said.pin is not None:
            return [f"Version {said.pin.version} is pinned by an operator."]
        if said.canary is not None:
            return [f"Version {said.canary.version} has a share of the traffic, which a promotion would end."]
        return []
