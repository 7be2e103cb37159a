"""Which decisions still wait for feedback, as the facts come in."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from feedback.dataset import LogSource
from feedback.events import Context, Cost, Decision, Execution, Feedback, Mode, Status, Tick
from feedback.log import Store
from feedback.reward import Metric, RewardRule
from feedback.training_log.epochs import take_epoch
from feedback.training_log.joiner import Joiner

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
    return LogSource(store, rule).settled(since)


def test_a_decision_waits_until_it_is_learned(store: Store) -> None:
    three = [fact for n in (1, 2, 3) for fact in (asked(n, 10.0 * n), ended(n))]
    assert waiting(store, [*three, said(1, 40.0), said(3, 40.0)]) == 20.0
    assert waiting(store, [said(2, 50.0)]) == inf


def test_a_decision_before_the_window_keeps_nobody_waiting(store: Store) -> None:
    facts = [asked(1, 10.0), ended(1), asked(2, 20.0), ended(2), said(2, 25.0)]
    assert waiting(store, facts) == 10.0
    assert waiting(store, [], since=15.0) == inf


def test_one_that_is_never_judged_is_waited_for_until_its_deadline(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0), ended(1), Tick(110.0)]) == 10.0
    assert waiting(store, [Tick(200.0)]) == inf


def test_what_is_answered_still_is_waited_for(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0)]) == 10.0


@pytest.mark.parametrize(("failed", "until"), [(None, inf), (-1.0, inf)])
def test_a_failed_arm_is_not_waited_for(store: Store, failed: float | None, until: float) -> None:
    rule = RULE.model_copy(update={"failed": failed})
    assert waiting(store, [asked(1, 10.0), ended(1, Status.ARM_FAILED)], rule) == until


def test_what_no_policy_drew_is_not_waited_for(store: Store) -> None:
    assert waiting(store, [asked(1, 10.0, Mode.FORCED), ended(1)]) == inf


def test_what_was_learned_after_a_log_was_read_was_waiting_there(store: Store) -> None:
    facts = [fact for n in (1, 2) for fact in (asked(n, 10.0 * n), ended(n))]
    waiting(store, [*facts, said(1, 30.0)])
    source = LogSource(store, RULE)
    assert len(list(source.examples())) == 1
    assert waiting(store, [said(2, 40.0)]) == inf
    assert source.settled() == 20.0
