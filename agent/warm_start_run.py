"""A warm start, from labels to a verdict, as one run that is on record with all that went into it.

    labels since the last run --> portfolio, router   proposed
           |                          |
           '--> the log --> candidate --> evaluation --> the gate --> promoted | held

The labels are decisions of the run: only recipes whose start names it learn them. So a run that fails, at
whatever step, leaves what is served as it was. The candidate has the policy and the reward that are
followed now, and learns the labels of all runs that came to a verdict, held ones too: evidence adds up.
While an alarm of drift is open, what was known before that, labels and traffic, is left behind.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from agent.candidate import publish_candidate
from agent.config import AppConfig
from agent.entering import Beside, Entering
from agent.entering import run as enter_labels
from agent.evaluation_request import EvaluationRequest
from agent.gathering import Gathering, Lot
from agent.journal import Journal, Step
from agent.outset import Outset, require
from agent.proposals import propose_portfolio, propose_router
from agent.recipe import Recipe
from agent.verdicts import answered, verdict_on
from arms.corpus import Progress
from feedback.alarms import warm_started
from feedback.lessons import Start
from feedback.promotions import Action, InForce, Promotion, in_force, record
from feedback.runs import Run, State, Trigger, find, take
from feedback.store import Store
from feedback.versions import Version


class RunFailedError(Exception):
    """A run has failed; the message names it and the step. What is served is as it was."""


def foreseen(config: AppConfig, tell: Progress, clock: Callable[[], float] = time.time) -> list[Lot]:
    """Return what a run would gather now, and do nothing. Raises what `Gathering.lots` raises."""
    with closing(Store(config.database_url, config.reward.join, clock)) as store:
        now = Outset.of(config, store)
        return Gathering(now.config, now.spec, store, now.before, clock).lots(tell)


def warm_start(
    config: AppConfig,
    trigger: Trigger,
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
    require(config)
    with closing(Store(config.database_url, config.reward.join, clock)) as store:
        mine = take(store, trigger, f"{socket.gethostname()}:{os.getpid()}", clock())

        def told(step: Step) -> None:
            console.print(f"{step.name:<10}{step.said}", markup=False, highlight=False, soft_wrap=True)

        try:
            with Journal(store, mine, told, clock) as journal:
                now = Outset.of(config, store)  # once no other run can change it
                journal.ends(_Work(now, store, mine.seq, journal, console, tell, clock).do())
        except Exception as error:
            raise RunFailedError(f"run {mine.seq} failed, what is served is as it was: {error}") from error
        found = find(store, mine.seq)
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class _Work:
    """A run under way."""

    now: Outset
    store: Store
    run: int
    journal: Journal
    console: Console
    tell: Progress
    clock: Callable[[], float]

    def do(self) -> State:
        """Do all steps; return how the run ends."""
        now, journal, spec = self.now, self.journal, self.now.spec
        journal.inputs = now.inputs()
        lots = self._gather()
        fresh = any(lot.new for lot in lots)
        if not fresh and now.judged(now.candidate()):
            return State.NOTHING_NEW  # nor an alarm, nor traffic to judge a held candidate by
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
        labels = self._enter([lot for lot in lots if lot.new and lot.metrics])
        version = self._learn(now.candidate(self.run if labels else None))
        verdict = self._evaluate(version, router)
        return self._decide(version, verdict, labels)

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
            start = recipe.start or Start()
            step.found = {"version": version.version, "recipe": recipe.digest, "start": start.document()}
            runs = f"runs {', '.join(map(str, start.runs))}" if start.runs else "no run"
            step.said = (
                f"version {version.version} is the candidate, {recipe.policy.kind}: it has learned labels of "
                f"{runs}, and the training log from {start.after + 1:,} to {version.examples_seq:,}"
            )
        return version

    def _evaluate(self, version: Version | None, router: str | None) -> dict[str, Any] | None:
        """Return the verdict on the candidate; None where there is none, or nothing to judge it by."""
        now, journal = self.now, self.journal
        name = None if version is None else f"recipe:{version.version}"
        candidates = tuple(one for one in (name, router) if one is not None)
        if not candidates or now.traffic == 0:
            return None
        with journal.step("evaluate") as step:
            request = EvaluationRequest(candidates=candidates, gate=True).model_dump(mode="json")
            worker = f"{socket.gethostname()}:{os.getpid()}:run-{self.run}"
            found = answered(self.store, now.config, request, worker, self.tell, self.clock)
            journal.evaluation = found.number
            step.found = {one: verdict_on(found.report, one) for one in candidates}
            step.said = f"evaluation {found.number}: " + "; ".join(
                f"{one} {verdict['verdict']}" for one, verdict in step.found.items()
            )
        return None if name is None else step.found[name]

    def _decide(self, version: Version | None, verdict: dict[str, Any] | None, labels: int) -> State:
        """Promote the candidate, or hold it, and say why."""
        now, journal = self.now, self.journal
        configured = Recipe.configured(now.config).digest
        with journal.step("decide") as step:
            reasons = self._reasons(version, verdict, in_force(self.store, configured))
            if reasons or version is None:
                step.found = {"reasons": reasons}
                step.said = "held: " + " ".join(reasons)
                return State.HELD
            journal.keep()  # whoever has lost the run must not promote
            reason = f"warm start {self.run}: the gate lets it through"
            said = Promotion(
                0, version.version, Action.PROMOTE, reason, self.clock(), evaluation=journal.evaluation
            )
            record(self.store, configured, said)
            if labels:
                warm_started(self.store, labels, self.clock())  # which is what an alarm asks for
            step.said = f"promoted: version {version.version}, and what is learned after it"
        return State.PROMOTED

    def _reasons(self, version: Version | None, verdict: dict[str, Any] | None, said: InForce) -> list[str]:
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
        if said != self.now.said:
            return ["What is served was changed while it was judged."]
        return []


__all__ = ["RunFailedError", "foreseen", "warm_start"]
