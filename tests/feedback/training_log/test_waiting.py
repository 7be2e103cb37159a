"""Which decisions still wait for feedback, as the facts come in."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Mode, Status, Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import settled
from armwise.feedback.training_log.joiner import Joiner, take_epoch
from tests.feedback.conftest import decision, execution
from tests.steps import change

RULE = RewardRule(metrics={"thumb": Metric()}, wait_time="PT100S")


def asked(number: int, at: float, mode: Mode = Mode.EXPLORE) -> Decision:
    one = Context(f"question {number}")
    return Decision(
        f"d-{number}", one, ("a", "b"), (0.5, 0.5), "a", "uniform", 1, mode, decided_at=at, deadline=at + 100
    )


def ended(number: int, status: Status = Status.OK) -> Execution:
    return Execution(f"d-{number}", "a", status, Cost())


def said(number: int, at: float) -> Feedback:
    return Feedback(f"f-{number}", f"d-{number}", "thumb", 1.0, at)


def waiting(store: Store, facts: Sequence[Any], rule: RewardRule = RULE, since: float | None = None) -> float:
    store.append(facts)
    joiner = Joiner(store, rule, take_epoch(store, "test", 0.0))
    joiner.advance(0.0)
    return LogSource(store, rule).waiting(since, 0).settled


def test_a_decision_waits_until_it_is_learned(store: Store) -> None:
    three = [fact for n in (1, 2, 3) for fact in (asked(n, 10.0 * n), ended(n))]
    assert waiting(store, [*three, said(1, 40.0), said(3, 40.0)]) == 20.0
    assert waiting(store, [said(2, 50.0)]) == inf


def test_a_decision_before_the_window_keeps_nobody_waiting(store: Store) -> None:
    facts = [asked(1, 10.0), ended(1), asked(2, 20.0), ended(2), said(2, 25.0)]
    assert waiting(store, facts) == 10.0
    assert waiting(store, [], since=15.0) == inf


@pytest.mark.parametrize(("log_at", "until"), [(112.0, 10.0), (112.5, inf)])
def test_it_is_waited_for_until_its_grace_is_over(store: Store, log_at: float, until: float) -> None:
    assert waiting(store, [asked(1, 10.0), ended(1), Tick(log_at)]) == until


@pytest.mark.parametrize(("log_at", "until"), [(152.0, 10.0), (152.5, inf)])
def test_one_committed_late_is_waited_for_from_then(store: Store, log_at: float, until: float) -> None:
    store.append([Tick(150.0)])
    assert waiting(store, [asked(1, 10.0), ended(1), Tick(log_at)]) == until


def test_those_that_wait_are_returned_in_the_order_in_which_they_were_made(store: Store) -> None:
    facts = [
        fact for n, at in ((1, 30.0), (2, 10.0), (3, 20.0), (4, 20.0)) for fact in (asked(n, at), ended(n))
    ]
    waiting(store, facts)
    source = LogSource(store, RULE)
    found = source.waiting(None, 10)
    assert [one.decided_at for one in found.decisions] == [10.0, 20.0, 20.0, 30.0]
    assert found.decisions[0] == asked(2, 10.0)
    assert found.settled == inf
    assert source.waiting(20.0, 10).decisions == found.decisions[1:]
    assert [one.id for one in source.waiting(None, 3).decisions] == ["d-2", "d-3", "d-4"]
    assert source.waiting(None, 3).settled == 30.0


def test_only_decisions_in_which_a_canary_took_part_are_returned_where_it_is_named(store: Store) -> None:
    three = [change(asked(n, 10.0 * n), candidate=n % 2, share=0.1) for n in (1, 2, 3)]
    waiting(store, [fact for n, one in enumerate(three, 1) for fact in (one, ended(n))])
    source = LogSource(store, RULE)
    assert [one.id for one in source.waiting(None, 2, [1]).decisions] == ["d-1", "d-3"]
    assert source.waiting(None, 2, [1]).settled == inf, "another decision does not end its log"
    assert source.waiting(None, 2, [7]) == settled.WaitingDecisions()


def test_of_decisions_made_at_once_all_or_none_are_returned(store: Store) -> None:
    facts = [fact for n, at in ((1, 10.0), (2, 20.0), (3, 20.0)) for fact in (asked(n, at), ended(n))]
    waiting(store, facts)
    found = LogSource(store, RULE).waiting(None, 2)
    assert ([one.id for one in found.decisions], found.settled) == (["d-1"], 20.0)
    assert LogSource(store, RULE).waiting(None, 0) == settled.WaitingDecisions((), 10.0)


def test_one_that_was_learned_since_the_log_was_read_is_returned_as_well(store: Store) -> None:
    waiting(store, [asked(1, 10.0), ended(1), said(1, 15.0), asked(2, 20.0), ended(2)])
    source = LogSource(store, RULE)
    assert [one.id for one in source.waiting(None, 5).decisions] == ["d-2"]
    waiting(store, [said(2, 30.0)])
    assert [one.id for one in source.waiting(None, 5).decisions] == ["d-2"], "it waited there"
    assert LogSource(store, RULE).waiting(None, 5) == settled.WaitingDecisions()


def test_a_decision_at_the_beginning_of_the_window_is_waited_for(store: Store) -> None:
    facts = [asked(1, 10.0), ended(1), asked(2, 20.0), ended(2), asked(3, 30.0), ended(3)]
    assert waiting(store, facts, since=20.0) == 20.0


def test_what_another_rule_has_learned_is_waited_for(store: Store) -> None:
    other = RULE.model_copy(update={"wait_time": "PT90S"})
    waiting(store, [asked(1, 10.0), ended(1), said(1, 20.0)])
    store.append([asked(2, 30.0)])
    assert LogSource(store, RULE).waiting(None, 0).settled == 30.0
    assert LogSource(store, other).waiting(None, 0).settled == 10.0
    waiting(store, [], other)
    assert LogSource(store, other).waiting(None, 0).settled == 30.0


@pytest.mark.parametrize(("failed", "until"), [(None, inf), (-1.0, 10.0)])
@pytest.mark.parametrize("status", [Status.ARM_FAILED, Status.FELL_BACK])
def test_a_failure_that_will_be_learned_is_waited_for_until_it_is(
    store: Store, status: Status, failed: float | None, until: float
) -> None:
    rule = RULE.model_copy(update={"failed": failed})
    store.append([asked(1, 10.0), ended(1, status)])
    assert LogSource(store, rule).waiting(None, 0).settled == until


def test_a_label_is_not_waited_for(store: Store) -> None:
    assert waiting(store, [replace(asked(1, 10.0), policy=LABELS), ended(1)]) == inf


def test_what_is_answered_still_is_waited_for(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0)]) == 10.0


def test_what_no_policy_drew_is_not_waited_for(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0, Mode.FORCED), ended(1)]) == inf


def test_what_was_learned_after_a_log_was_read_was_waiting_there(store: Store) -> None:
    facts = [fact for n in (1, 2) for fact in (asked(n, 10.0 * n), ended(n))]
    waiting(store, [*facts, said(1, 30.0)])
    source = LogSource(store, RULE)
    assert len(list(source.examples())) == 1
    assert waiting(store, [said(2, 40.0)]) == inf
    assert source.waiting(None, 0).settled == 20.0


def test_what_another_rule_learned_later_was_not_waiting(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0), ended(1), said(1, 30.0)]) == inf
    row = {"join": "another", "seq": 2, "decision_id": "d-1", "metrics": {}, "joined_by": 3}
    with store.writing() as connection:
        connection.execute(sa.insert(t.examples), row)
    assert LogSource(store, RULE).waiting(None, 0).settled == inf


@pytest.mark.parametrize(("at", "waits"), [(212.0, True), (212.5, False)])
def test_a_draw_waits_as_long_as_a_turn_that_continues_it(store: Store, at: float, *, waits: bool) -> None:
    how = RewardRule(metrics={"right": Metric()}, wait_time="PT1M")
    drawn = replace(decision("d1"), episode_id="talk", draw_id="d1")
    turn = replace(decision("d2", at=150.0, mode=Mode.CONTINUED), episode_id="talk", draw_id="d1")
    store.append([drawn, execution("d1"), turn, execution("d2"), Tick(at)])
    Joiner(store, how, take_epoch(store, "test", 0.0)).advance(0.0)
    assert LogSource(store, how).waiting(None, 0).settled == (100.0 if waits else inf)
