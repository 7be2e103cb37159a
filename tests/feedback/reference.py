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
from typing import Any

from armwise.feedback.events import (
    LABELS,
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule

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
    turns: tuple[Any, ...] = ()


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

    def said_of(decision: Decision) -> list[Placed]:
        own = about["decision", decision.id]
        if decision.episode_id is not None:
            own = sorted(own + about["episode", decision.episode_id], key=lambda each: each.seq)
        return own

    joined = []
    for one in log:
        if isinstance(one.fact, Decision) and one.fact.mode is Mode.EXPLORE:
            if one.fact.draw_id == one.fact.id:
                turns = [
                    (each.fact, each.seq, said_of(each.fact))
                    for each in log
                    if isinstance(each.fact, Decision)
                    and each.fact.mode is Mode.CONTINUED
                    and each.fact.draw_id == one.fact.id
                ]
                joined += _join_conversation((one.fact, one.seq, said_of(one.fact)), turns, times, rule)
            else:
                joined += [(*each, ()) for each in _join(one.fact, one.seq, said_of(one.fact), times, rule)]
    joined.sort(key=lambda each: each[0])
    return [
        Learned(n, name, metrics, order[0], turns)
        for n, (order, name, metrics, turns) in enumerate(joined, start=1)
    ]


Join = tuple[tuple[int, bool, float, int], str, Mapping[str, float]]
"""Position that joins it, whether by being about it, closing, own position; decision; metrics."""

Turn = tuple[Decision, int, Sequence[Placed]]
"""A decision, its position, and all that the log says of it."""


def _join_conversation(
    draw: Turn, turns: Sequence[Turn], times: Sequence[float], rule: RewardRule
) -> list[tuple[tuple[int, bool, float, int], str, Mapping[str, float], tuple[str, ...]]]:
    """Return how the draw of a conversation is joined, if it is: at its end, with the means of its turns."""
    decision, seq, _ = draw
    members, closing = [draw], closing_of(decision, seq, times, rule)
    for turn in turns:
        if turn[1] > seq and times[turn[1] - 1] <= closing:
            members.append(turn)
            closing = max(closing, closing_of(turn[0], turn[1], times, rule))
    end = bisect_right(times, closing) + 1
    if end > len(times):
        return []
    states = [(one.id, state_at(end - 1, one, at, about, rule)) for one, at, about in members]
    of_draw = states[0][1]
    if of_draw.status is not Status.OK:
        return [((end, False, closing, seq), decision.id, {}, ())] if _teaches(of_draw, rule) else []
    counted = [(name, state) for name, state in states if state.status is Status.OK and state.active]
    metrics = _means([state.metrics for _, state in counted])
    if not counted or not (metrics or rule.default is not None):
        return []
    names = tuple(name for name, _ in counted)
    return [((end, False, closing, seq), decision.id, metrics, () if names == (decision.id,) else names)]


def _means(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the turns that have it."""
    values = {name: [turn[name] for turn in turns if name in turn] for turn in turns for name in turn}
    return {name: fsum(found) / len(found) for name, found in values.items()}


def _join(
    decision: Decision, seq: int, own: Sequence[Placed], times: Sequence[float], rule: RewardRule
) -> list[Join]:
    """Return how a decision is joined, if it is; `own` is all that the log says of it."""
    closing = closing_of(decision, seq, times, rule)
    end = bisect_right(times, closing) + 1  # the first position that is later; beyond the log for none
    corrected = decision.policy != LABELS and rule.correction_s > 0.0
    for one in [] if corrected else own:
        if seq < one.seq < end and not one.more:
            state = state_at(one.seq, decision, seq, own, rule)
            if _teaches(state, rule) and _complete(state, decision, rule):
                return [((one.seq, True, 0.0, seq), decision.id, state.metrics)]
    if corrected and (found := _join_corrected(decision, seq, own, times, rule, min(end, len(times) + 1))):
        return [found]
    if end > len(times):
        return []
    state = state_at(end - 1, decision, seq, own, rule)
    worth = bool(state.metrics) or rule.default is not None or state.status is not Status.OK
    return (
        [((end, False, closing, seq), decision.id, state.metrics)] if _teaches(state, rule) and worth else []
    )


def _join_corrected(
    decision: Decision, seq: int, own: Sequence[Placed], times: Sequence[float], rule: RewardRule, end: int
) -> Join | None:
    """Return how a decision is joined once its rating can be corrected no more, if that is before `end`.

    A correction time begins with feedback that completes the decision while none runs, were it answered. It
    is over at the first fact later than that, and the answer may come even later.
    """
    done = next((one.seq for one in own if isinstance(one.fact, Execution) and one.seq > seq), end)
    answer = [Placed(0, Execution(decision.id, None, Status.OK, Cost()))]
    runs_until = 0
    for one in own:
        if not isinstance(one.fact, Feedback) or one.more or one.seq < runs_until:
            continue
        answered = answer + [each for each in own if not isinstance(each.fact, Execution)]
        state = state_at(one.seq, decision, -1, answered, rule)
        if not (_teaches(state, rule) and _complete(state, decision, rule)):
            continue
        over = times[one.seq - 1] + rule.correction_s
        runs_until = bisect_right(times, over) + 1
        ready = max(runs_until, done)
        if ready >= end:
            return None
        state = state_at(ready - (ready > done), decision, seq, own, rule)
        if _teaches(state, rule) and _complete(state, decision, rule):
            order = (ready, True, 0.0, seq) if done > runs_until else (ready, False, over, seq)
            return order, decision.id, state.metrics
    return None


def state_at(upto: int, decision: Decision, seq: int, own: Sequence[Placed], rule: RewardRule) -> State:
    """Return what all facts up to a position say of a decision, itself at `seq`."""
    facts = [(one.seq, one.fact) for one in own if one.seq <= upto]
    status = [fact.status for at, fact in facts if isinstance(fact, Execution) and at > seq]
    deadline = deadline_of(decision, rule)
    said = [fact for _, fact in facts if isinstance(fact, Feedback) and fact.received_at <= deadline]
    shown = any(item.kind is FeedbackKind.ACTIVATION for item in said)
    taken_back = {item.id for item in said if item.kind is FeedbackKind.RETRACTION}
    values: dict[str, list[float]] = {}
    for item in said:
        of_it = item.decision_id is not None or item.received_at >= decision.decided_at
        if (
            item.kind is FeedbackKind.VALUE
            and of_it
            and item.id not in taken_back
            and item.metric in rule.metrics
        ):
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
    if decision.policy == LABELS:
        return bool(state.metrics) or state.status is not Status.OK
    if rule.default is not None or rule.failed is not None or rule.complete is Complete.DEADLINE:
        return False
    return bool(state.metrics) and (rule.complete is Complete.ANY or set(state.metrics) == set(rule.metrics))
