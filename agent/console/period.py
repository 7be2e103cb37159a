"""The report of a period: what was served, what it saved, how it was rated, and what changed.

The statements are those of `armwise prove` (`armwise.agent.proof.state`), over the decisions of the period.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import sqrt

import numpy as np

from armwise.agent.config import AppConfig
from armwise.agent.console.changes import list_changes, number_colours
from armwise.agent.proof import (
    About,
    LoggedTraffic,
    Statement,
    Statements,
    leave_costs_out,
    read_between,
    read_kept,
    state,
    state_kept_audit,
)
from armwise.arms.base import Progress
from armwise.feedback.clock import utc
from armwise.feedback.decisions import Decisions
from armwise.feedback.drift import newest_alarms
from armwise.feedback.events import UNRECOVERED
from armwise.feedback.guard import Returned
from armwise.feedback.log import Store, listing
from armwise.feedback.log_columns import any_elsewhere
from armwise.feedback.registry import arm_sets, digests, evaluations, guards, promotions, runs
from armwise.feedback.training_log import draws, settled

NEWEST = 200
"""Newest promotions, alarms and runs that are searched for those of the period."""

NEWEST_VERDICTS = 20
"""Newest evaluations that are searched for verdicts of the gate."""

MOST_STRETCHES = 40
"""Most stretches in the picture of shares."""


MOST_CLASSES = 20
"""Most classes of requests whose quality is stated."""

TOO_FEW = Statement(
    About.QUALITY,
    "",
    "Quality is not compared",
    "there are too few ratings of this class.",
    silence="too_early",
)


Events = tuple[tuple[float, str], ...]
"""Sentences, each with the time of what it is about, in order."""


class NothingServedError(ValueError):
    """No decision was made in the period; the message has the times of decisions in the log."""


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Counts and means of an arm.

    Attributes:
        name: Name of the arm.
        decisions: Number of decisions that drew it, or were forced to it.
        share: Share of the explored decisions, in [0, 1].
        usd: Mean dollars of its answers, if there are any.
        seconds: Mean seconds of its answers, if there are any.
        failed: Decisions in which the arm or the language model failed.
    """

    name: str
    decisions: int
    share: float
    usd: float | None
    seconds: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class Period:
    """A report of a period.

    Attributes:
        since: Begin, seconds since the epoch.
        until: End, seconds since the epoch.
        decisions: Number of decisions.
        explored: Those that the policy drew.
        rated: Those of these that are rated.
        n_open: Explored decisions that may still get feedback.
        without: Explored decisions without a recorded propensity, which comparisons leave out.
        wait_s: Seconds of the feedback window.
        spent_usd: Dollars charged.
        arms: Figures of each arm, the most drawn first.
        stretches: Begin and end of consecutive decisions, and the share of each arm in these, in [0, 1].
        statements: What can be said of savings and quality.
        changes: Changes, each with its time, in order.
        held: Candidates that the gate held, each with its time and reasons, in order.
        colours: Number of each arm's colour.
        classes: Quality by class of requests, with the number of decisions, the most frequent first.
        returned: Classes that the guard has sent back, if it goes by the same field.
        audited: What a judge said of all answers of the log; None: none was asked, or the log is in doubt.
    """

    since: float
    until: float
    decisions: int
    explored: int
    rated: int
    n_open: int
    without: int
    wait_s: float
    spent_usd: float
    arms: tuple[ArmFigures, ...]
    stretches: tuple[tuple[int, int, Mapping[str, float]], ...]
    statements: Statements
    changes: Events = ()
    held: Events = ()
    colours: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[tuple[str, int, Statement], ...] = ()
    returned: Returned = field(default_factory=Returned)
    audited: Statement | None = None


def read_period(
    store: Store, config: AppConfig, since: float, until: float, on_progress: Progress, by: str = ""
) -> Period:
    """Read a period from a log.

    Args:
        store: The log.
        config: The configuration.
        since: Begin, seconds since the epoch.
        until: End, exclusive.
        on_progress: Called with the progress.
        by: Field of the context whose texts are the classes; empty: quality is not stated by class.

    Raises:
        NothingServedError: No decision was made in the period.
        LogUnavailableError: Try again later.
    """
    before = settled.read(store, leave_costs_out(config.reward)).before
    traffic = read_between(store, config, before, on_progress, since, until)
    if traffic is None:
        raise NothingServedError(_nothing(store, since, until))
    live = [arms for arms in arm_sets.history(store) if arms.at < until]
    changes, held = read_events(store, config, since, until)
    receipt = read_kept(config)
    earlier = () if receipt is None else (receipt.figures.reference,)
    found = state(traffic, config.baseline, live=live[-1].arms if live else (), earlier=earlier)
    period = _build(
        traffic,
        found,
        (since, until),
        number_colours(store),
        changes=changes,
        held=held,
    )
    classes, returned = tuple(_state_classes(store, traffic, by, found.reference)), Returned()
    if config.guard is not None and config.guard.by == by:
        returned = guards.read_returned(store, config.guard.name(config.reward.join))
    audited = None if traffic.doubt else state_kept_audit(config)
    return replace(period, classes=classes, returned=returned, audited=audited)


def read_events(store: Store, config: AppConfig, since: float, until: float) -> tuple[Events, Events]:
    """Return the changes and the held candidates of a period, whether anything was served in it or not.

    Args:
        store: The log.
        config: The configuration.
        since: Begin, seconds since the epoch.
        until: End, exclusive.

    Raises:
        LogUnavailableError: Try again later.
    """
    changes = list_changes(
        arm_sets.history(store)[1:],
        promotions.newest(store, NEWEST),
        newest_alarms(store, NEWEST, config.reward.join),
        guards.newest_falls(store, NEWEST),
        digests.list_failed(store, NEWEST, time.time()),
    )
    inside = tuple(change for change in changes if since <= change[0] < until)
    return inside, tuple(sorted(_list_held(store, since, until)))


def _state_classes(
    store: Store, traffic: LoggedTraffic, by: str, reference: str | None
) -> Iterator[tuple[str, int, Statement]]:
    """Yield the quality of the most frequent classes beside one reference; nothing of a log in doubt."""
    if not by or traffic.doubt:
        return
    decisions = traffic.decisions
    found = draws.read_classes(store, by, int(decisions.seq.min()), int(decisions.seq.max()))
    names = np.array([found.get(seq, "") for seq in decisions.seq.tolist()], dtype=np.object_)
    for name, n in Counter(names[names != ""].tolist()).most_common(MOST_CLASSES):
        some = replace(traffic, decisions=decisions.where(names == name))
        yield name, n, state(some, reference).find(About.QUALITY) or TOO_FEW


def _nothing(store: Store, since: float, until: float) -> str:
    if any_elsewhere(store, since, until):
        return (
            f"from {utc(since)} to {utc(until)} another system made every decision, or took part in it. "
            "Run `armwise replay` to see what policies would have earned on its decisions"
        )
    from_to = f"no decision was made from {utc(since)} to {utc(until)}"
    span = listing.span(store)
    if span is None:
        return f"{from_to}: the log holds none yet"
    return f"{from_to}: the log has some from {utc(span[0])} to {utc(span[1])}"


def _list_held(store: Store, since: float, until: float) -> Iterator[tuple[float, str]]:
    """Yield the candidates that the gate or a warm start held in a period, with times and reasons."""
    judged = set()
    for run in runs.page(store, NEWEST):
        judged.add(run.evaluation)
        if run.status is runs.RunState.HELD and since <= (run.finished_at or 0.0) < until:
            decided = [step["found"] for step in run.steps if step["name"] == "decide"]
            reasons = " ".join(reason for decision in decided for reason in decision.get("reasons", ()))
            yield run.finished_at or 0.0, f"Warm start {run.seq} was held: {reasons}"
    for evaluation in evaluations.page(store, NEWEST_VERDICTS):
        if evaluation.seq in judged or not evaluation.request.get("gate"):
            continue
        if evaluation.finished_at is None or not since <= evaluation.finished_at < until:
            continue
        for candidate in (evaluations.read_result(store, evaluation.seq) or {}).get("candidates", ()):
            if (verdict := candidate.get("verdict")) and verdict["verdict"] == "hold":
                reasons = " ".join(verdict["reasons"])
                yield evaluation.finished_at, f"The gate held {candidate['name']}: {reasons}"


# -- figures --------------------------------------------------------------------------------------


def _build(
    traffic: LoggedTraffic,
    statements: Statements,
    window: tuple[float, float],
    colours: Mapping[str, int],
    *,
    changes: Events = (),
    held: Events = (),
) -> Period:
    decisions = traffic.decisions.take(np.argsort(traffic.decisions.at, kind="stable"))
    explored = decisions.explored
    return Period(
        *window,
        len(decisions),
        int(explored.sum()),
        int((explored & ~np.isnan(decisions.reward)).sum()),
        int((explored & ~decisions.settled).sum()),
        int((explored & np.isnan(decisions.propensity)).sum()),
        traffic.rule.wait_s,
        float(np.nansum(decisions.usd)),
        _list_figures(decisions),
        _list_stretches(decisions),
        statements,
        changes,
        held,
        colours,
    )


def _list_figures(decisions: Decisions) -> tuple[ArmFigures, ...]:
    explored, failed = decisions.explored, decisions.draw.each(lambda key: key.status in UNRECOVERED)
    figures = []
    drawn = np.array([key.drawn for key in decisions.draw.values], dtype=np.object_)[decisions.draw.codes]
    for arm in sorted(set(drawn)):
        mine = drawn == arm
        usd, seconds = (values[mine & ~np.isnan(values)] for values in (decisions.usd, decisions.seconds))
        figures.append(
            ArmFigures(
                arm,
                int(mine.sum()),
                int((mine & explored).sum()) / max(1, int(explored.sum())),
                float(usd.mean()) if len(usd) else None,
                float(seconds.mean()) if seconds.any() else None,
                int((mine & failed).sum()),
            )
        )
    return tuple(sorted(figures, key=lambda one: (-one.decisions, one.name)))


def _list_stretches(decisions: Decisions) -> tuple[tuple[int, int, Mapping[str, float]], ...]:
    """Return the share of each arm in the explored decisions of stretches of about equal size, in order."""
    n, names = len(decisions), sorted({key.drawn for key in decisions.draw.values})
    drawn = np.array([names.index(key.drawn) for key in decisions.draw.values])[decisions.draw.codes]
    most = min(MOST_STRETCHES, max(1, round(sqrt(n) / 2.5)))
    stretches = []
    for begin, end in pairwise(np.linspace(0, n, most + 1).round().astype(int).tolist()):
        counts = np.bincount(drawn[begin:end], decisions.explored[begin:end], len(names))
        if total := counts.sum():
            shares = dict(zip(names, (counts / total).tolist(), strict=True))
            stretches.append((begin, end, shares))
    return tuple(stretches)
