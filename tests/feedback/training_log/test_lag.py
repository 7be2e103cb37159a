"""The lag: up to where the log is learned, and how old the first fact is that is not."""

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, SupersededError
from armwise.feedback.events import Mode, Observation, ObservationSource, Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Complete, Metric, RewardRule
from armwise.feedback.training_log.joiner import Joiner, take_epoch
from armwise.feedback.training_log.lag import (
    SuccessorCheck,
    count_undecided,
    find_applied,
    measure_lag,
)
from tests.feedback.conftest import Turn, decision, execution, value

ABANDONED_S = 60.0
"""Seconds without progress after which a learner counts as gone."""

RULE = RewardRule(
    correction_time="PT0S",
    metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))},
    wait_time="PT1M",
    complete=Complete.ANY,
)


def joined(store: Store, now: float = 110.0) -> int:
    """Join all that is there, and return the length of the training log."""
    return Joiner(store, RULE, take_epoch(store, "test", 0.0)).advance(now).examples_seq


def applied(store: Store, examples_seq: int | None) -> int:
    return measure_lag(store, RULE, examples_seq).applied_seq


def test_nothing_is_applied_before_there_is_a_version(store: Store, turn: Turn) -> None:
    assert measure_lag(store, RULE, None).facts == 0
    turn("d1")
    lag = measure_lag(store, RULE, None)
    assert (lag.log_seq, lag.applied_seq, lag.facts) == (2, 0, 2)


def test_what_taught_nothing_is_applied_once_it_was_looked_at(store: Store, turn: Turn) -> None:
    turn("d1")
    assert applied(store, 0) == 0, "not looked at"
    joined(store)
    assert applied(store, 0) == 2
    store.append([value("unknown")])
    joined(store)
    assert applied(store, 0) == 3


def test_what_teaches_is_applied_by_who_has_learned_it(store: Store, turn: Turn) -> None:
    turn("d1"), turn("d2")
    store.append([value("d1")])
    store.append([value("d1", "thumb"), value("d2"), value("d2", "thumb")])
    assert joined(store) == 2, "by the facts at 5 and 8: what is sent together is learned together"
    assert [applied(store, learned) for learned in (0, 1, 2)] == [4, 7, 8]


def test_a_rating_that_can_be_corrected_is_not_applied(store: Store, turn: Turn) -> None:
    how = RULE.model_copy(update={"correction_time": "PT5S"})
    found = []

    def look(now: float) -> None:
        learned = Joiner(store, how, take_epoch(store, "test", 0.0)).advance(now).examples_seq
        found.append((learned, measure_lag(store, how, learned).applied_seq, store.log_seq()))
        assert measure_lag(store, how, 0).applied_seq == 6, "nor by who has not learned it"

    turn("d1"), turn("d2", mode=Mode.FORCED)
    store.append([value("d2", at=104.0), value("d1"), value("d1", "thumb", at=106.0)])
    for now in (106.0, 111.0, 111.5):
        look(now)
    store.append([value("d1", number=0.0, key="late", at=112.0), value("nobody", at=112.5)])
    look(113.0)
    assert found == [(0, 6, 7), (0, 6, 7), (1, 8, 8), (1, 10, 10)], "one that is late, or unknown, is"


def test_a_rating_that_waits_for_others_is_applied_after_its_correction_time(
    store: Store, turn: Turn
) -> None:
    how = RULE.model_copy(update={"correction_time": "PT5S", "complete": Complete.ALL})
    turn("d1")
    found = []
    for item in (value("d1", at=104.0), value("nobody", at=120.0)):
        store.append([item])
        Joiner(store, how, take_epoch(store, "test", 0.0)).advance(item.received_at)
        found.append(measure_lag(store, how, 0).applied_seq)
    assert found == [2, 4]


def test_each_rule_is_applied_as_far_as_its_own_examples(store: Store, turn: Turn) -> None:
    turn("d1"), turn("d2")
    store.append([value("d1"), value("d1", "thumb"), value("d2")])
    any_ = RULE.model_copy(update={"complete": Complete.ANY})
    all_ = RULE.model_copy(update={"complete": Complete.ALL})
    for rule in (any_, all_):
        Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(110.0)
    assert [measure_lag(store, rule, 1).applied_seq for rule in (any_, all_)] == [6, 7]


@pytest.mark.parametrize("correction_time", ["PT0S", "PT5S"])
@pytest.mark.slow
def test_it_never_goes_back_and_ends_before_the_first_rating_that_is_not_learned(
    store: Store, correction_time: str
) -> None:
    how = RULE.model_copy(update={"correction_time": correction_time})
    rng = np.random.default_rng(3)
    before = [0] * 40
    for i in range(12):
        name = f"d{i}"
        store.append([decision(name, at=100.0 + 20 * i), execution(name)])
        if rng.random() < 0.6:
            store.append([value(name, at=101.0 + 20 * i)])
        for at in (102.0, 110.0):
            Joiner(store, how, take_epoch(store, "test", 0.0)).advance(at + 20 * i)
            with store.reading() as connection:
                now = [find_applied(connection, how, learned) for learned in range(40)]
            assert all(one <= other for one, other in zip(before, now, strict=True))
            before = now
    rated = sa.select(t.feedback.c.seq).join(t.examples, t.examples.c.decision_id == t.feedback.c.decision_id)
    with store.reading() as connection:
        by = connection.scalars(rated.order_by(t.examples.c.seq)).all()
    assert len(by) > 6
    for learned in range(len(by)):
        taught = [sum(position <= reached for position in by) for reached in range(store.log_seq() + 1)]
        assert before[learned] == max(at for at, n in enumerate(taught) if n <= learned)


def test_a_decision_that_time_closed_is_applied_with_the_tick(store: Store, turn: Turn) -> None:
    turn("d1")
    silent = RULE.model_copy(update={"default": 0.0})
    position = Joiner(store, silent, take_epoch(store, "test", 0.0)).advance(500.0)
    assert position.examples_seq == 1, "with the default, by a tick"
    assert [measure_lag(store, silent, learned).applied_seq for learned in (0, 1)] == [2, 3]


@pytest.mark.parametrize(
    ("fact", "at"),
    [
        (decision("d2", at=200.0), 200.0),
        (execution("d1"), 101.0),
        (value("d1", at=300.0), 300.0),
        (Observation("d1", ObservationSource.SHADOW, "b", 0.5, observed_at=350.0), 350.0),
        (Tick(400.0), 400.0),
    ],
    ids=["decision", "execution", "feedback", "observation", "tick"],
)
def test_the_age_is_that_of_the_first_fact_not_applied(store: Store, fact: object, at: float) -> None:
    store.append([decision("d1")])
    joined(store)
    assert measure_lag(store, RULE, 0).seconds(now=1000.0) == 0.0
    store.append([fact, value("unknown", at=900.0)])  # type: ignore[list-item]
    lag = measure_lag(store, RULE, 0)
    assert (lag.facts, lag.seconds(now=1000.0)) == (2, 1000.0 - at)


def test_a_fact_of_the_future_is_not_older_than_new(store: Store) -> None:
    store.append([decision("d1", at=100.0)])
    assert measure_lag(store, RULE, 0).seconds(now=90.0) == 0.0


def test_feedback_waits_for_its_decision_until_it_would_count_no_longer(store: Store, turn: Turn) -> None:
    store.append([value("d1", at=105.0), value("d2", at=106.0)])
    assert count_undecided(store, wait_s=60.0) == (2, 0)
    turn("d1")
    assert count_undecided(store, wait_s=60.0) == (1, 0)
    store.append([Tick(166.0)])
    assert count_undecided(store, wait_s=60.0) == (1, 0), "its decision may still come"
    store.append([Tick(166.5)])
    assert count_undecided(store, wait_s=60.0) == (0, 1), "d1 is there"


# -- the successor of a learner that was superseded ------------------------------------------------------


def test_a_successor_that_reads_nothing_of_what_waits_is_gone(store: Store) -> None:
    now = 0.0
    succession = SuccessorCheck(store, lambda: now)
    take_epoch(store, "another", 0.0)
    succession.check()
    store.append([Tick(100.0)])
    now = 1e6
    succession.check()
    now += ABANDONED_S
    succession.check()
    now += 1.0
    with pytest.raises(
        SupersededError,
        match=r"1 facts are waiting for epoch 1 of another, which has read none for 61 s: restart a learner$",
    ):
        succession.check()


def test_a_successor_that_is_behind_or_reads_by_another_rule_is_there(store: Store) -> None:
    now = 0.0
    succession = SuccessorCheck(store, lambda: now)
    others = RULE.model_copy(update={"wait_time": "PT7S"})
    joiner = Joiner(store, others, take_epoch(store, "another", 0.0), batch=1)
    for step in range(5):
        store.append([Tick(100.0), Tick(100.0)])
        joiner.advance(0.0)
        now = step * ABANDONED_S
        succession.check()
    take_epoch(store, "a third", 0.0)
    now += ABANDONED_S + 1.0
    succession.check()
    now += ABANDONED_S + 1.0
    with pytest.raises(SupersededError, match="of a third"):
        succession.check()


def test_a_successor_that_has_read_all_may_be_idle(store: Store) -> None:
    now = 0.0
    succession = SuccessorCheck(store, lambda: now)
    store.append([Tick(100.0)])
    joined(store)
    for _ in range(4):
        now += ABANDONED_S
        succession.check()


def test_time_in_which_nobody_reads_does_not_count(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    succession = SuccessorCheck(store, lambda: now)
    store.append([Tick(100.0)])
    succession.check()
    now = ABANDONED_S + 1.0
    with monkeypatch.context() as away:
        away.setattr(store, "reading", unavailable)
        succession.check()
    succession.check()
    now += ABANDONED_S + 1.0
    with pytest.raises(SupersededError, match="1 facts are waiting for epoch 0 of nobody"):
        succession.check()


def unavailable() -> None:
    raise LogUnavailableError("the connection is lost")
