"""What the log teaches, said plainly: each decision by itself, from all that the log says of it.

Written from docs/reference/feedback-semantics.md, not from the code under test. Nothing is carried from one
decision to the next, or from one position to the next: what holds at a position is found by looking at
all facts up to there again.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum

from feedback.events import LABELS, Decision, Execution, Feedback, Kind, Mode, Status, Tick
from feedback.reward import Aggregation, Complete, Metric, RewardRule

GRACE_S = 2.0

Fact = Decision | Execution | Feedback | Tick


@dataclass(frozen=True, slots=True)
class Placed:
    """A fact, its position, and whether the next one was sent together with it."""

    seq: int
    fact: Fact
    more: bool = False


@dataclass(frozen=True, slots=True)
class Learned:
    """One row of a training log."""

    seq: int
    decision_id: str
    metrics: Mapping[str, float]
    joined_by: int


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a decision at one position."""

    status: Status | None
    active: bool
    metrics: Mapping[str, float]


def stamp(fact: Fact) -> float:
    """Return when a fact happened, as it says itself."""
    match fact:
        case Decision():
            return fact.decided_at
        case Execution():
            return fact.finished_at
        case Feedback():
            return fact.received_at
        case Tick():
            return fact.at


def times_of(log: Sequence[Placed]) -> list[float]:
    """Return the time of the log at each of its positions: the latest stamp so far."""
    return list(accumulate((stamp(one.fact) for one in log), max))


def subject_of(fact: Fact) -> tuple[str, str | None]:
    """Return what a fact is about: a decision, an episode, or nothing but time."""
    match fact:
        case Decision():
            return "decision", fact.id
        case Feedback(decision_id=None):
            return "episode", fact.episode_id
        case Tick():
            return "time", None
    return "decision", fact.decision_id


def deadline_of(decision: Decision, rule: RewardRule) -> float:
    """Return until when what is received counts; a label is over when it is entered."""
    return decision.decided_at + (0.0 if decision.policy == LABELS else rule.wait_s)


def closing_of(decision: Decision, seq: int, times: Sequence[float], rule: RewardRule) -> float:
    """Return the time of the log that closes a decision once it is passed."""
    return max(deadline_of(decision, rule), times[seq - 1]) + GRACE_S


def training_log(log: Sequence[Placed], rule: RewardRule) -> list[Learned]:
    """Return what a log, whole from its start, teaches under a rule."""
    times = times_of(log)
    about: defaultdict[tuple[str, str | None], list[Placed]] = defaultdict(list)
    for one in log:
        about[subject_of(one.fact)].append(one)
    joined = []
    for one in log:
        if isinstance(one.fact, Decision) and one.fact.mode is Mode.EXPLORE:
            own = about["decision", one.fact.id]
            if one.fact.episode_id is not None:
                own = sorted(own + about["episode", one.fact.episode_id], key=lambda each: each.seq)
            joined += _join(one.fact, one.seq, own, times, rule)
    joined.sort(key=lambda each: each[0])
    return [Learned(n, name, metrics, order[0]) for n, (order, name, metrics) in enumerate(joined, start=1)]


Join = tuple[tuple[int, bool, float, int], str, Mapping[str, float]]
"""Position that joins it, whether by being about it, closing, own position; decision; metrics."""


def _join(
    decision: Decision, seq: int, own: Sequence[Placed], times: Sequence[float], rule: RewardRule
) -> list[Join]:
    """Return how a decision is joined, if it is; `own` is all that the log says of it."""
    closing = closing_of(decision, seq, times, rule)
    end = bisect_right(times, closing) + 1  # the first position that is later; beyond the log for none
    for one in own:
        if seq < one.seq < end and not one.more:
            state = state_at(one.seq, decision, seq, own, rule)
            if _teaches(state, rule) and (state.status is not Status.OK or _complete(state, decision, rule)):
                return [((one.seq, True, 0.0, seq), decision.id, state.metrics)]
    if end > len(times):
        return []
    state = state_at(end - 1, decision, seq, own, rule)
    worth = bool(state.metrics) or rule.default is not None or state.status is not Status.OK
    return (
        [((end, False, closing, seq), decision.id, state.metrics)] if _teaches(state, rule) and worth else []
    )


def state_at(upto: int, decision: Decision, seq: int, own: Sequence[Placed], rule: RewardRule) -> State:
    """Return what all facts up to a position say of a decision, itself at `seq`."""
    facts = [(one.seq, one.fact) for one in own if one.seq <= upto]
    status = [fact.status for at, fact in facts if isinstance(fact, Execution) and at > seq]
    deadline = deadline_of(decision, rule)
    said = [fact for _, fact in facts if isinstance(fact, Feedback) and fact.received_at <= deadline]
    shown = any(item.kind is Kind.ACTIVATION for item in said)
    taken_back = {item.id for item in said if item.kind is Kind.RETRACTION}
    values: dict[str, list[float]] = {}
    for item in said:
        of_it = item.decision_id is not None or item.received_at >= decision.decided_at
        if item.kind is Kind.VALUE and of_it and item.id not in taken_back and item.metric in rule.metrics:
            assert item.value is not None
            values.setdefault(item.metric, []).append(item.value)
    counted = status[:1] == [Status.OK]
    metrics = {name: _one_of(found, rule.metrics[name]) for name, found in values.items() if counted}
    return State(status[0] if status else None, shown or not decision.deferred, metrics)


def _one_of(values: Sequence[float], metric: Metric) -> float:
    """Return what several values count for, which are in the order of the log."""
    return {
        Aggregation.FIRST: values[0],
        Aggregation.LAST: values[-1],
        Aggregation.MEAN: fsum(values) / len(values),
        Aggregation.SUM: fsum(values),
    }[metric.aggregation]


def _teaches(state: State, rule: RewardRule) -> bool:
    """Whether something can be learned of it, once it is complete or closed."""
    failed = state.status in (Status.ARM_FAILED, Status.FELL_BACK) and rule.failed is not None
    return state.active and (state.status is Status.OK or failed)


def _complete(state: State, decision: Decision, rule: RewardRule) -> bool:
    """Whether it is learned before its window ends."""
    if decision.policy == LABELS or rule.complete is Complete.ANY:
        return bool(state.metrics)
    return rule.complete is Complete.ALL and bool(state.metrics) and set(state.metrics) == set(rule.metrics)
