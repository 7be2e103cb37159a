"""Which decisions of a log are settled: by their age, whatever came of them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from armwise.feedback.decisions import concatenate
from armwise.feedback.events import (
    LABELS,
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.log_columns import read_decisions
from armwise.feedback.logged_draws import EmptyLogError
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import Joiner, take_epoch
from armwise.feedback.training_log.position import read_position
from armwise.feedback.training_log.settled import (
    PAGE,
    TOGETHER,
    Settled,
    find_settled,
    find_settled_together,
    read,
)
from tests.feedback.examples import log_of, read_log

WAIT_S, GRACE_S = 100.0, 2.0
RULE = RewardRule(correction_time="PT0S", metrics={"click": Metric()}, cost_weight=0.0, wait_time="PT100S")
SILENT = RULE.model_copy(update={"default": 0.0})


def asked(number: int, at: float, policy: str = "uniform", **fields: Any) -> list[Any]:
    """A decision that was answered."""
    known = {"mode": Mode.EXPLORE, "decided_at": at, "deadline": at + WAIT_S, **fields}
    decision = Decision(f"d-{number}", Context("?"), ("a", "b"), (0.5, 0.5), "a", policy, 1, **known)
    return [decision, Execution(f"d-{number}", "a", Status.OK, Cost(), finished_at=at)]


def clicked(number: int, at: float, value: float | None = 1.0, key: str = "") -> Feedback:
    return Feedback(key or f"f-{number}", f"d-{number}", "click", value, at)


def looked(store: Store, facts: Sequence[Any], rule: RewardRule = RULE) -> Settled:
    store.append(facts)
    joiner = Joiner(store, rule, take_epoch(store, "test", 0.0))
    joiner.advance(0.0)
    while joiner.left:
        joiner.advance(0.0)
    return read(store, rule, counted=True)


def test_a_decision_is_settled_once_its_wait_time_and_its_grace_are_over(store: Store) -> None:
    facts = [*asked(1, 10.0), *asked(2, 20.0), *asked(3, 30.0)]
    assert looked(store, facts) == Settled(10.0, 0, 3)
    assert looked(store, [Tick(110.0 + GRACE_S)]) == Settled(10.0, 0, 3)
    assert looked(store, [Tick(110.0 + GRACE_S + 0.5)]) == Settled(20.0, 2, 2)
    whole = looked(store, [Tick(130.0 + GRACE_S + 0.5)])
    assert whole == Settled(position=9)
    assert whole.is_whole


def test_what_was_learned_already_is_open_as_long_as_what_still_waits(store: Store) -> None:
    facts = [*asked(1, 10.0), *asked(2, 20.0), clicked(1, 12.0)]
    assert looked(store, facts) == Settled(10.0, 0, 2)
    assert looked(store, [clicked(2, 30.0)]) == Settled(10.0, 0, 2), "of two, both may be quick by chance"


def test_many_decisions_are_settled_together_once_none_of_them_waits_and_stay_so(store: Store) -> None:
    facts = [fact for number in range(TOGETHER) for fact in asked(number, 10.0)]
    values = [clicked(number, 11.0) for number in range(TOGETHER)]
    assert looked(store, [*facts, *values[1:]]) == Settled(10.0, 0, TOGETHER)
    assert looked(store, values[:1]).is_whole
    later = looked(store, asked(TOGETHER, 20.0))
    assert later == Settled(20.0, 3 * TOGETHER, 1)
    assert looked(store, [clicked(TOGETHER, 21.0)]).is_whole


def test_one_in_a_hundred_that_waits_holds_up_nothing(store: Store) -> None:
    facts = [fact for number in range(99) for fact in asked(number, 10.0)]
    values = [clicked(number, 11.0) for number in range(1, 99)]
    assert looked(store, [*facts, *values]) == Settled(10.0, 0, 99), "one of 99 is more"
    assert looked(store, [*asked(99, 12.0), clicked(99, 13.0)]).is_whole
    assert looked(store, [clicked(0, 14.0)]).is_whole


def test_decisions_that_are_further_apart_are_not_settled_together(store: Store) -> None:
    """Of as many, the first is past its time when the last is learned."""
    apart = WAIT_S / (TOGETHER - 2)
    facts = [fact for n in range(TOGETHER) for fact in (*asked(n, n * apart), clicked(n, n * apart + 0.5))]
    assert not looked(store, facts).is_whole


def test_a_restart_counts_the_decision_that_was_read_last(store: Store) -> None:
    decisions = [asked(number, 10.0) for number in range(TOGETHER)]
    values = [clicked(number, 11.0) for number in range(TOGETHER)]
    first = [fact for decision in decisions[:-1] for fact in decision]
    assert not looked(store, [*first, *values[:-1], decisions[-1][0]]).is_whole
    assert looked(store, [decisions[-1][1], values[-1]]).is_whole, "one less is too few"


def test_decisions_that_are_past_their_time_are_not_counted_with_later_ones(store: Store) -> None:
    times = [10.0] * (TOGETHER // 2 + 1) + [60.0] * (TOGETHER // 2 + 1)
    facts = [fact for number, at in enumerate(times) for fact in asked(number, at)]
    values = [clicked(number, 61.0) for number in range(len(times))]
    assert looked(store, [*facts, *values[:-1]]) == Settled(60.0, len(facts) - 2, 1), (
        "of the rest, none waits"
    )
    assert looked(store, [Tick(112.5), values[-1]]).before == 60.0, "each half is too few"


def test_a_draw_that_was_settled_with_many_stays_so_as_a_turn_continues_it(store: Store) -> None:
    facts = [*asked(0, 10.0, draw_id="d-0", episode_id="e")]
    for number in range(1, 100):
        facts += [*asked(number, 10.0), clicked(number, 11.0)]
    assert looked(store, facts).is_whole, "of a hundred, one may get another turn"
    turn = asked(100, 50.0, draw_id="d-0", episode_id="e", mode=Mode.CONTINUED)
    assert looked(store, turn).is_whole


def test_time_is_written_down_once_the_last_decision_is_settled_although_it_was_learned(store: Store) -> None:
    looked(store, [*asked(1, 10.0), clicked(1, 12.0)])
    for learner in range(2):
        joiner = Joiner(store, RULE, take_epoch(store, f"learner {learner}", 0.0))
        assert joiner.advance(10.0 + WAIT_S + GRACE_S).log_at == (12.0 if learner == 0 else 113.0)
        assert joiner.advance(113.0).log_at == 113.0
        assert joiner.advance(999.0).log_at == 113.0, "nothing changes any more"
    assert read(store, RULE).is_whole


def test_a_turn_that_can_get_feedback_keeps_its_draw_open(store: Store) -> None:
    draw = asked(1, 10.0, draw_id="d-1", episode_id="e")
    turn = asked(2, 100.0, draw_id="d-1", episode_id="e", mode=Mode.CONTINUED)
    later = asked(3, 105.0)
    assert looked(store, [*draw, *turn, *later, Tick(150.0)]) == Settled(10.0, 0, 2)
    assert looked(store, [Tick(203.0)]).before == 105.0


def test_labels_and_decisions_that_nothing_drew_keep_nothing_open(store: Store) -> None:
    facts = [*asked(1, 10.0, policy=LABELS), *asked(2, 20.0, mode=Mode.FORCED)]
    assert looked(store, facts).is_whole
    assert looked(store, asked(3, 30.0)).before == 30.0


def test_a_decision_that_is_committed_late_is_open_although_its_deadline_is_over(store: Store) -> None:
    assert looked(store, [Tick(500.0), *asked(1, 10.0), Tick(501.0)]).before == 10.0
    assert looked(store, [Tick(503.0)]).is_whole


@pytest.mark.parametrize("rule", [RULE, SILENT])
def test_what_is_read_of_a_log_is_what_is_settled(store: Store, rule: RewardRule) -> None:
    """Of two decisions of each age one was clicked: neither counts before both may."""
    facts = [
        fact
        for number in range(0, 20, 2)
        for fact in (
            *(*asked(number, 10.0 * number), *asked(number + 1, 10.0 * number)),
            clicked(number, 10.0 * number + 1.0),
        )
    ]
    looked(store, [*facts, Tick(195.0)], rule)
    source = LogSource(store, rule)
    assert (source.settled.before, source.settled.n_open) == (100.0, 10)
    log = log_of(source, rule)
    log = log.where(log.at < source.settled.before)
    assert log.at.max() < 100.0
    decisions = concatenate([*read_decisions(store, rule, 0.0, 1000.0)])
    assert decisions.settled.tolist() == [number < 10 for number in range(20)]
    n = int((~np.isnan(decisions.reward) & decisions.settled).sum())
    assert len(log) == n


delays = st.one_of(st.none(), st.sampled_from([1.0, 40.0, 99.0, 150.0]))


@settings(max_examples=25)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from([0.0, 5.0, 60.0]), delays, st.booleans()), min_size=1, max_size=9
    ),
    looks=st.lists(st.sampled_from([0.0, 30.0, 101.0, 103.0, 170.0, 400.0]), min_size=1, max_size=3),
    silent=st.booleans(),
)
@pytest.mark.slow
def test_an_estimate_of_what_is_settled_stays_as_it_is(
    turns: list[tuple[float, float | None, bool]], looks: list[float], silent: bool
) -> None:
    """What counts at one look counts at each later one with the same reward; nothing is put among it."""
    rule = SILENT if silent else RULE
    at, happens = 0.0, list[tuple[float, list[Any]]]()
    for number, (gap, delay, taken_back) in enumerate(turns):
        at += gap
        happens.append((at, asked(number, at)))
        if delay is not None:
            happens.append((at + delay, [clicked(number, at + delay)]))
        if delay is not None and taken_back:
            gone = replace(clicked(number, at + delay + 1.0, None), kind=FeedbackKind.RETRACTION)
            happens.append((at + delay + 1.0, [gone]))
    happens += [(at + look, [Tick(at + look)]) for look in looks]
    found, until = list[tuple[float, float]](), -inf
    with closing(Store("sqlite://")) as store:
        for at, facts in sorted(happens, key=lambda each: each[0]):
            now = looked(store, facts, rule)
            before, found = found, rewarded(store, rule, now)
            assert [each for each in found if each[0] < until] == [each for each in before if each[0] < until]
            until = min(now.before, at)


def rewarded(store: Store, rule: RewardRule, now: Settled) -> list[tuple[float, float]]:
    """Return when the settled decisions were made, and what they earned."""
    try:
        log = read_log(store, rule)
    except EmptyLogError:
        return []
    rows = zip(log.at.tolist(), log.reward.tolist(), strict=True)
    return sorted(row for row in rows if row[0] < now.before)


def test_what_is_open_is_found_without_reading_the_decisions_before_it(tmp_path: Path) -> None:
    """Half of the decisions never get feedback, so that the log is never nearly all closed at once."""
    steps = list[int]()
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        for thousand in range(2):
            numbers = range(1000 * thousand, 1000 * (thousand + 1))
            looked(store, [fact for n in numbers for fact in asked(n, 10.0 * n)])
            with store.reading() as connection:
                driver: Any = connection.connection.driver_connection
                done = list[None]()
                driver.set_progress_handler(lambda done=done: done.append(None), 100)
                find_settled(connection, RULE)
                driver.set_progress_handler(None, 0)
                steps.append(len(done))
            assert read(store, RULE, counted=True).n_open == 11
    assert steps[1] == pytest.approx(steps[0], rel=0.2, abs=3)


@settings(max_examples=20, deadline=None)
@given(
    late=st.lists(st.integers(0, 219), max_size=6),
    sizes=st.lists(st.integers(1, 120), min_size=2, max_size=4),
)
def test_decisions_are_settled_together_up_to_the_last_at_which_hardly_any_waits(
    late: list[int], sizes: list[int]
) -> None:
    """As if all were counted one by one after each step."""
    settled = n = 0
    with closing(Store("sqlite://")) as store:
        for size in sizes:
            numbers = range(n, n + size)
            n += size
            facts = [fact for number in numbers for fact in asked(number, 10.0)]
            looked(store, [*facts, *(clicked(number, 11.0) for number in numbers if number not in late)])
            positions = decided_positions(store)
            counted = range(max(0, settled - 2 * TOGETHER), n)
            for end in counted[TOGETHER - 1 :]:
                waiting = sum(number in late for number in range(counted.start, end + 1))
                if 100 * waiting <= end + 1 - counted.start:
                    settled = max(settled, end + 1)
            found = read(store, RULE)
            assert found.position == (positions[settled] - 1 if settled < n else store.log_seq()), (
                f"{settled} of {n}"
            )


def decided_positions(store: Store) -> list[int]:
    with store.reading() as connection:
        return [*connection.scalars(sa.select(t.decisions.c.seq).order_by(t.decisions.c.seq))]


def test_a_step_does_not_read_all_that_waits(tmp_path: Path) -> None:
    """A step of the join takes as long with four times as many open decisions without feedback."""
    steps = list[int]()
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        for first, last in ((0, 1000), (1000, 4000)):
            looked(store, [fact for number in range(first, last) for fact in asked(number, 10.0)])
            with store.reading() as connection:
                driver: Any = connection.connection.driver_connection
                done = list[None]()
                driver.set_progress_handler(lambda done=done: done.append(None), 100)
                find_settled_together(connection, RULE, read_position(connection, RULE.join))
                driver.set_progress_handler(None, 0)
                steps.append(len(done))
    assert steps[1] == pytest.approx(steps[0], rel=0.2, abs=3)


def test_one_step_settles_more_decisions_than_it_reads_at_once() -> None:
    with closing(Store("sqlite://")) as store:
        numbers = range(2 * PAGE + 50)
        facts = [fact for number in numbers for fact in asked(number, 10.0)]
        store.append([*facts, *(clicked(number, 11.0) for number in numbers)])
        Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(0.0)
        assert read(store, RULE).is_whole
