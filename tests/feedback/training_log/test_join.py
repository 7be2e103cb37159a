"""What is learned from which facts: the rules of docs/reference/feedback-semantics.md."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from armwise.feedback.events import Feedback, FeedbackKind, Mode, Status
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from armwise.feedback.training_log.join import Joined
from tests.feedback.fact_log import DecisionFact, Executed, FactLog, FeedbackFact, JoinedFact, TickFact

GRACE_S = 2.0
"""Seconds after its deadline in which a decision is open, as the document has it."""

WAIT_S = 60.0
DEADLINE = 100.0 + WAIT_S
CLOSING = DEADLINE + GRACE_S
"""Of a decision that was made at 100."""

AFTER = TickFact(0, CLOSING + 0.5)
"""Time that closes it."""

FAILURES = [Status.ARM_FAILED, Status.FELL_BACK]
NEVER = [Status.LLM_FAILED, Status.LLM_TIMEOUT, Status.CANCELLED]


def rule(
    complete: Complete | None = None,
    default: float | None = None,
    failed: float | None = None,
    wait_time: str = "PT1M",
    correction_time: str = "PT0S",
    **aggregations: Aggregation,
) -> RewardRule:
    metrics = {name: Metric(aggregation=how) for name, how in aggregations.items()}
    at_deadline = default is not None or failed is not None
    return RewardRule(
        correction_time=correction_time,
        metrics=metrics or {"right": Metric(), "thumb": Metric()},
        complete=complete or (Complete.DEADLINE if at_deadline else Complete.ANY),
        default=default,
        failed=failed,
        wait_time=wait_time,
    )


AT_DEADLINE = rule(Complete.DEADLINE)


def decided(
    name: str = "d1", at: float = 100.0, logged_at: float | None = None, **fields: object
) -> DecisionFact:
    return DecisionFact(0, name, at, at if logged_at is None else logged_at, **fields)  # type: ignore[arg-type]


def executed(name: str = "d1", status: Status = Status.OK, at: float = 101.0) -> Executed:
    return Executed(0, name, at, status)


def said(
    number: float = 1.0,
    at: float = 105.0,
    metric: str = "right",
    *,
    on: str = "d1",
    key: str = "",
    more: bool = False,
) -> FeedbackFact:
    """A value, under a key of its own unless told otherwise; on an episode where its name begins with e."""
    about = (None, on) if on.startswith("e") else (on, None)
    key = key or f"{on}:{metric}:{number}:{at}"
    return FeedbackFact(0, Feedback(key, about[0], metric, number, at, episode_id=about[1]), more)


def retracted(key: str, at: float = 105.0, *, on: str = "d1") -> FeedbackFact:
    value = said(at=at, on=on, key=key)
    return replace(value, feedback=replace(value.feedback, value=None, kind=FeedbackKind.RETRACTION))


def shown(at: float = 105.0, name: str = "d1") -> FeedbackFact:
    return FeedbackFact(0, Feedback(name, name, received_at=at, kind=FeedbackKind.ACTIVATION))


@cache
def fact_log() -> FactLog:
    return FactLog()


def joined(how: RewardRule, *facts: JoinedFact) -> list[Joined]:
    """Return what facts make ready, joined at once; one by one, they must give the same."""
    log = fact_log()
    log.fill(facts)
    found = log.join(how, [len(facts)])
    log.fill(facts)
    assert log.join(how, [1] * len(facts)) == found
    return found


def learned(how: RewardRule, *facts: JoinedFact) -> list[tuple[int, str, dict[str, float]]]:
    """Return what facts teach: the position that made it ready, the decision, its metrics."""
    return [(one.by, one.decision_id, dict(one.metrics)) for one in joined(how, *facts)]


# -- corrections --------------------------------------------------------------------------------------

CORRECTABLE = rule(correction_time="PT5S", right=Aggregation.LAST)

A_TURN = (decided(), executed())

BACK = (said(1.0, 105.0, key="k"), retracted("k", 108.0))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([said(1.0, 105.0), TickFact(0, 110.0)], []),
        ([said(1.0, 105.0), TickFact(0, 110.1)], [(4, 1.0)]),
        ([said(1.0, 105.0), said(0.0, 110.0), TickFact(0, 111.0)], [(5, 0.0)]),
        ([said(1.0, 105.0), said(0.0, 110.1), TickFact(0, 200.0)], [(4, 1.0)]),
        ([said(1.0, 105.0), said(0.5, 108.0), said(0.0, 112.0), TickFact(0, 200.0)], [(5, 0.5)]),
        ([said(1.0, 105.0, key="k"), retracted("k", 108.0), TickFact(0, 150.0)], []),
        (
            [said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 109.0), TickFact(0, 111.0)],
            [(6, 0.0)],
        ),
        ([said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 120.0), TickFact(0, 125.0)], []),
        (
            [said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 120.0), TickFact(0, 126.0)],
            [(6, 0.0)],
        ),
        ([said(1.0, 105.0, key="k"), retracted("k", 110.5), TickFact(0, 200.0)], [(4, 1.0)]),
        (
            [*BACK, said(1.0, 112.0, "gone"), said(0.0, 114.0), TickFact(0, 118.0), TickFact(0, 120.0)],
            [(8, 0.0)],
        ),
        ([said(1.0, 159.0), TickFact(0, CLOSING + 0.5)], [(4, 1.0)]),
        ([said(1.0, 159.0), said(0.0, 160.5), TickFact(0, 170.0)], [(5, 1.0)]),
    ],
    ids=[
        "not yet",
        "over",
        "changed",
        "changed too late",
        "changed twice, and the second time too late",
        "taken back",
        "taken back and given again",
        "given again later, which can be corrected as well",
        "given again later",
        "taken back too late",
        "taken back, and another metric begins no time for corrections",
        "the wait time is over before",
        "a correction after the wait time",
    ],
)
def test_a_rating_is_learned_as_it_is_once_it_can_be_corrected_no_more(
    facts: list[JoinedFact], expected: list[tuple[int, float]]
) -> None:
    found = learned(CORRECTABLE, *A_TURN, *facts)
    assert found == [(seq, "d1", {"right": value}) for seq, value in expected]


def test_the_time_for_corrections_begins_with_the_last_metric_where_all_are_waited_for() -> None:
    how = rule(Complete.ALL, correction_time="PT5S")
    facts = [said(at=105.0), said(at=109.0, metric="thumb"), TickFact(0, 111.0), said(0.0, 113.5)]
    found = learned(how, *A_TURN, *facts, TickFact(0, 114.5))
    assert found == [(7, "d1", {"right": 0.0, "thumb": 1.0})]


def test_a_rating_that_precedes_the_answer_is_learned_with_it_or_when_it_can_be_corrected_no_more() -> None:
    early = [decided(), said(at=101.0)]
    assert learned(CORRECTABLE, *early, executed(at=120.0)) == [(3, "d1", {"right": 1.0})]
    soon = [executed(at=102.0), TickFact(0, 106.0), TickFact(0, 107.0)]
    assert learned(CORRECTABLE, *early, *soon) == [(5, "d1", {"right": 1.0})]


def test_the_clock_of_a_slow_machine_leaves_as_much_time_for_corrections() -> None:
    facts = [TickFact(0, 120.0), said(1.0, 105.0), said(0.0, 109.0), TickFact(0, 124.0), said(0.5, 113.0)]
    assert learned(CORRECTABLE, *A_TURN, *facts, TickFact(0, 126.0)) == [(8, "d1", {"right": 0.5})]


def test_labels_are_learned_at_once() -> None:
    found = learned(CORRECTABLE, decided(past=True), executed(), said(at=100.0))
    assert found == [(3, "d1", {"right": 1.0})]


# -- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Aggregation.FIRST, 0.25),
        (Aggregation.LAST, 0.5),
        (Aggregation.MEAN, 0.5),
        (Aggregation.SUM, 1.5),
    ],
)
def test_several_values_are_aggregated_in_the_order_of_the_log(how: Aggregation, expected: float) -> None:
    values = [said(0.25, at=130.0), said(0.75, at=110.0), said(0.5, at=120.0)]
    found = learned(rule(Complete.DEADLINE, right=how), decided(), executed(), *values, AFTER)
    assert found == [(6, "d1", {"right": expected})]


def test_a_value_that_is_early_counts_once_its_decision_is_there() -> None:
    assert learned(rule(), said(), decided(), executed()) == [(3, "d1", {"right": 1.0})]


def test_a_value_waits_for_how_the_decision_went() -> None:
    assert learned(rule(), decided(), said(), executed()) == [(3, "d1", {"right": 1.0})]


def test_a_value_counts_until_the_deadline_and_not_after_it() -> None:
    start = [decided(), executed(), said(0.25, at=DEADLINE), said(0.75, at=DEADLINE + 0.001)]
    assert learned(AT_DEADLINE, *start, AFTER) == [(5, "d1", {"right": 0.25})]
    assert learned(rule(), decided(), executed(), said(at=DEADLINE + 0.001), AFTER) == []


def test_a_value_that_was_received_in_time_counts_until_its_decision_is_closed() -> None:
    start = [decided(), executed()]
    value = said(at=DEADLINE)
    assert learned(AT_DEADLINE, *start, TickFact(0, CLOSING), value, AFTER) == [(5, "d1", {"right": 1.0})]
    assert learned(AT_DEADLINE, *start, AFTER, value) == []


def test_an_answer_that_takes_all_of_the_wait_time_is_learned_with_what_came_in_it() -> None:
    start = [decided(), said(at=DEADLINE), executed(at=DEADLINE)]
    assert learned(rule(), *start, AFTER) == [(3, "d1", {"right": 1.0})]
    assert learned(AT_DEADLINE, *start, AFTER) == [(4, "d1", {"right": 1.0})]


def test_without_feedback_the_default_is_taken_after_the_deadline_and_its_grace_and_not_at_them() -> None:
    start = [decided(), executed(), TickFact(0, DEADLINE), TickFact(0, CLOSING)]
    assert learned(rule(default=0.0), *start) == []
    assert learned(rule(default=0.0), *start, TickFact(0, CLOSING + 0.001)) == [(5, "d1", {})]
    assert learned(rule(default=0.0), *start, said(at=DEADLINE), AFTER) == [(6, "d1", {"right": 1.0})]


def test_values_that_are_sent_together_are_learned_together() -> None:
    both = {"right": 1.0, "thumb": 0.5}
    start = [decided(), executed()]
    thumb = said(0.5, metric="thumb")
    assert learned(rule(), *start, said(more=True), thumb) == [(4, "d1", both)]
    assert learned(rule(), *start, said(), thumb) == [(3, "d1", {"right": 1.0})]
    assert learned(rule(), said(more=True, at=99.0), said(0.5, 99.0, "thumb"), *start) == [(4, "d1", both)]


def test_values_of_a_metric_that_is_not_declared_teach_nothing() -> None:
    start = [decided(), executed(), said(metric="other")]
    assert learned(rule(), *start, AFTER) == []
    assert learned(rule(default=0.0), *start, AFTER) == [(4, "d1", {})]


def test_a_decision_is_learned_once_however_often_it_is_judged() -> None:
    found = learned(rule(), decided(), executed(), said(1.0), said(0.5), said(0.25), AFTER)
    assert found == [(3, "d1", {"right": 1.0})]


# -- taking back --------------------------------------------------------------------------------------


def test_a_value_that_is_taken_back_does_not_count() -> None:
    values = [said(0.25, key="a"), said(0.75, key="b"), retracted("b")]
    assert learned(AT_DEADLINE, decided(), executed(), *values, AFTER) == [(6, "d1", {"right": 0.25})]
    assert learned(AT_DEADLINE, decided(), executed(), said(key="a"), retracted("a"), AFTER) == []


def test_a_value_that_was_taken_back_before_it_came_does_not_count() -> None:
    values = [retracted("b"), said(0.25, key="a"), said(0.75, key="b")]
    assert learned(AT_DEADLINE, decided(), executed(), *values, AFTER) == [(6, "d1", {"right": 0.25})]
    assert learned(AT_DEADLINE, *values[::-1], decided(), executed(), AFTER) == [(6, "d1", {"right": 0.25})]


def test_a_key_that_was_taken_back_stays_so_and_another_key_counts() -> None:
    facts = [decided(deferred=True), executed(), said(key="a"), retracted("a"), shown()]
    assert learned(rule(), *facts) == []
    assert learned(rule(), *facts, said(0.5, key="b")) == [(6, "d1", {"right": 0.5})]


def test_what_was_learned_is_not_unlearned_when_a_value_is_taken_back() -> None:
    facts = [decided(), executed(), said(key="a"), retracted("a"), AFTER]
    assert learned(rule(), *facts) == [(3, "d1", {"right": 1.0})]


def test_taking_back_after_the_deadline_comes_too_late() -> None:
    facts = [decided(), executed(), said(key="a"), retracted("a", at=DEADLINE + 0.001), AFTER]
    assert learned(AT_DEADLINE, *facts) == [(5, "d1", {"right": 1.0})]


# -- episodes -----------------------------------------------------------------------------------------


def test_a_value_on_an_episode_counts_for_each_decision_that_was_made_before_it() -> None:
    turns = [
        fact
        for number, at in enumerate([100.0, 104.0, 107.0], start=1)
        for fact in (decided(f"d{number}", at, episode_id="e"), executed(f"d{number}"))
    ]
    other = [decided("other", episode_id="e2"), executed("other")]
    found = learned(rule(), *turns, *other, said(at=105.0, on="e"))
    assert found == [(9, "d1", {"right": 1.0}), (9, "d2", {"right": 1.0})]


def test_a_value_on_an_episode_counts_for_a_decision_of_the_same_moment() -> None:
    at_once, before = (
        [decided(episode_id="e"), executed(), said(at=at, on="e")] for at in (100.0, 100.0 - 0.001)
    )
    assert learned(rule(), *at_once) == [(3, "d1", {"right": 1.0})]
    assert learned(rule(), *before) == []


def test_a_value_on_an_episode_counts_until_the_deadline_of_each_decision() -> None:
    old, new = decided("d1", 100.0, episode_id="e"), decided("d2", 130.0, episode_id="e")
    facts = [old, executed("d1"), new, executed("d2"), said(at=DEADLINE + 0.001, on="e")]
    assert learned(rule(), *facts) == [(5, "d2", {"right": 1.0})]


def test_a_value_on_an_episode_counts_for_a_decision_that_is_committed_after_it() -> None:
    facts = [said(at=105.0, on="e"), decided(at=104.0, logged_at=105.0, episode_id="e"), executed()]
    assert learned(rule(), *facts) == [(3, "d1", {"right": 1.0})]


def test_values_on_a_decision_and_on_its_episode_are_values_of_one_metric() -> None:
    facts = [decided(episode_id="e"), executed(), said(0.25, on="e"), said(0.5), said(0.75, on="e"), AFTER]
    how = rule(Complete.DEADLINE, right=Aggregation.SUM)
    assert learned(how, *facts) == [(6, "d1", {"right": 1.5})]


def test_taking_back_on_an_episode_holds_for_decisions_that_are_made_later() -> None:
    facts = [retracted("k", at=99.0, on="e"), decided(episode_id="e"), executed(), said(on="e", key="k")]
    assert learned(rule(), *facts) == []


@pytest.mark.slow
def test_taking_back_takes_as_long_however_much_was_taken_back_before() -> None:
    items = [said(key=str(n)) for n in range(1000)] + [retracted(str(n)) for n in range(1000)]
    facts = [decided(deferred=True), executed(), *items]
    fact_log().fill(facts)
    began = time.process_time()
    assert fact_log().join(rule(), [len(facts)]) == []
    assert time.process_time() - began < 3.0


# -- how the decision went, and whether it was shown ---------------------------------------------------


def test_silence_is_the_default_or_is_dropped() -> None:
    assert learned(rule(default=0.0), decided(), executed(), AFTER) == [(3, "d1", {})]
    assert learned(rule(), decided(), executed(), AFTER) == []


@pytest.mark.parametrize("mode", [Mode.FORCED, Mode.GREEDY])
def test_what_was_not_drawn_from_the_policy_is_never_learned(mode: Mode) -> None:
    assert learned(rule(default=0.0, failed=0.0), decided(mode=mode), executed(), said(), AFTER) == []


@pytest.mark.parametrize("status", FAILURES)
def test_an_arm_that_failed_is_left_out_unless_that_is_declared(status: Status) -> None:
    facts = [decided(), executed(status=status), said(), AFTER]
    assert learned(rule(default=0.0), *facts) == []
    assert learned(rule(failed=0.0), *facts) == [(4, "d1", {})]


@pytest.mark.parametrize("status", FAILURES)
def test_what_is_said_of_another_arm_is_not_learned_of_the_one_that_failed(status: Status) -> None:
    assert learned(rule(failed=0.0), decided(), said(), executed(status=status), AFTER) == [(4, "d1", {})]


@pytest.mark.parametrize("status", NEVER)
def test_what_failed_by_no_fault_of_the_arm_is_never_learned(status: Status) -> None:
    assert learned(rule(default=0.0, failed=0.0), decided(), executed(status=status), said(), AFTER) == []


def test_a_decision_without_an_end_is_left_out_when_it_is_closed() -> None:
    facts = [decided(), said(), TickFact(0, CLOSING)]
    assert learned(rule(default=0.0), *facts, executed(), AFTER) == [(5, "d1", {"right": 1.0})]
    assert learned(rule(default=0.0), *facts, AFTER, executed()) == []


def test_a_deferred_decision_counts_once_it_is_activated() -> None:
    facts = [decided(deferred=True), executed(), said()]
    assert learned(rule(), *facts, shown()) == [(4, "d1", {"right": 1.0})]
    assert learned(rule(default=0.0), *facts, AFTER) == []
    assert learned(rule(), shown(), *facts) == [(4, "d1", {"right": 1.0})]


def test_activation_does_not_move_the_deadline_and_counts_until_it() -> None:
    facts = [decided(deferred=True), executed(), shown(at=DEADLINE), said(at=DEADLINE + 0.001), AFTER]
    assert learned(rule(default=0.0), *facts) == [(5, "d1", {})]
    late = [decided(deferred=True), executed(), said(), shown(at=DEADLINE + 0.001), AFTER]
    assert learned(rule(default=0.0), *late) == []


def test_a_failed_arm_whose_answer_was_deferred_counts_once_it_is_activated() -> None:
    facts = [decided(deferred=True), executed(status=Status.FELL_BACK)]
    assert learned(rule(failed=0.0), *facts, AFTER) == []
    assert learned(rule(failed=0.0), *facts, shown(), AFTER) == [(4, "d1", {})]


@pytest.mark.parametrize("complete", Complete)
def test_a_label_is_learned_once_and_whole_with_what_is_entered_with_it(complete: Complete) -> None:
    label = [decided(past=True, logged_at=9000.0), executed(), said(at=100.0, more=True)]
    later = said(0.5, at=100.5, metric="thumb")
    found = learned(rule(complete), *label, said(0.5, at=100.0, metric="thumb"), later, TickFact(0, 9999.0))
    assert found == [(4, "d1", {"right": 1.0, "thumb": 0.5})]
    alone = [decided(past=True), executed(), said(at=100.0)]
    assert learned(rule(complete), *alone, later, AFTER) == [(3, "d1", {"right": 1.0})]


# -- when ---------------------------------------------------------------------------------------------

FIRST, SECOND = said(1.0), said(0.5, metric="thumb")


@pytest.mark.parametrize(
    ("complete", "values", "expected"),
    [
        (Complete.ANY, [FIRST, SECOND], (3, {"right": 1.0})),
        (Complete.ALL, [FIRST, SECOND], (4, {"right": 1.0, "thumb": 0.5})),
        (Complete.DEADLINE, [FIRST, SECOND], (5, {"right": 1.0, "thumb": 0.5})),
        (Complete.ALL, [FIRST], (4, {"right": 1.0})),
        (Complete.DEADLINE, [FIRST], (4, {"right": 1.0})),
    ],
)
def test_complete_says_when_a_decision_is_learned(
    complete: Complete, values: list[FeedbackFact], expected: tuple[int, dict[str, float]]
) -> None:
    found = learned(rule(complete), decided(), executed(), *values, AFTER)
    assert found == [(expected[0], "d1", expected[1])]


@pytest.mark.parametrize("values", [[], [FIRST], [FIRST, SECOND]])
@pytest.mark.parametrize("status", [Status.OK, *FAILURES])
def test_where_silence_and_failures_have_a_value_all_are_learned_at_their_deadline(
    status: Status, values: list[FeedbackFact]
) -> None:
    how = rule(default=0.0, failed=0.0)
    facts = [decided(), executed(status=status), *values]
    assert learned(how, *facts, TickFact(0, CLOSING)) == []
    assert [(at, name) for at, name, _ in learned(how, *facts, AFTER)] == [(3 + len(values), "d1")]


SAID = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.25, 1.0]) for name in ("right", "thumb")})
"""Values of a decision; it has those of the metrics that are reported on it."""

TURN = st.fixed_dictionaries(
    {
        "gap_s": st.sampled_from([0.0, 1.0, 10.0, 45.0]),
        "delays": st.dictionaries(st.sampled_from(["right", "thumb"]), st.sampled_from([1.0, 30.0, 61.0])),
        "values": st.tuples(SAID, SAID),
        "silent": st.tuples(st.booleans(), st.booleans()),
        "failed": st.tuples(st.booleans(), st.booleans()),
    }
)
"""A decision in two worlds, which differ in what its reward is and in nothing else."""


@given(
    complete=st.sampled_from([None, *Complete]),
    default=st.sampled_from([None, 0.0, 0.5]),
    failed=st.sampled_from([None, 0.0]),
    turns=st.lists(TURN, min_size=2, max_size=8),
)
@pytest.mark.slow
def test_when_a_decision_is_learned_does_not_depend_on_the_value_of_its_reward(
    complete: Complete | None, default: float | None, failed: float | None, turns: list[dict[str, Any]]
) -> None:
    declared = {"default": default, "failed": failed, **({} if complete is None else {"complete": complete})}
    try:
        how = RewardRule.model_validate(
            {"metrics": {"right": {}, "thumb": {}}, "wait_time": "PT1M", **declared}
        )
    except ValueError:
        reject()
    one, other = ([name for _, name, _ in learned(how, *_world(how, turns, world))] for world in (0, 1))
    assert [name for name in one if name in other] == [name for name in other if name in one]


def _world(how: RewardRule, turns: list[dict[str, Any]], world: int) -> Iterator[JoinedFact]:
    """Yield the facts of one of two worlds; silence and failures differ where they have a value."""
    at, happens = 100.0, list[tuple[float, JoinedFact]]()
    for number, turn in enumerate(turns):
        at, name = at + turn["gap_s"], f"d{number}"
        status = Status.ARM_FAILED if how.failed is not None and turn["failed"][world] else Status.OK
        happens += [(at, decided(name, at)), (at, executed(name, status, at=at))]
        if how.default is None or not turn["silent"][world]:
            for metric, delay in turn["delays"].items():
                value = said(turn["values"][world][metric], at + delay, metric, on=name)
                happens.append((at + delay, value))
    yield from (fact for _, fact in sorted(happens, key=lambda each: each[0]))
    yield TickFact(0, at + 1000.0)


@pytest.mark.parametrize(
    "closes",
    [
        AFTER,
        decided("later", CLOSING + 0.5),
        executed("another", at=CLOSING + 0.5),
        said(at=CLOSING + 0.5, on="another"),
    ],
    ids=lambda fact: type(fact).__name__,
)
def test_any_fact_closes_what_its_time_is_past(closes: JoinedFact) -> None:
    assert learned(rule(default=0.0), decided(), executed(), closes) == [(3, "d1", {})]
    assert learned(rule(default=0.0), decided(), executed(), TickFact(0, CLOSING)) == []


def test_a_stamp_of_the_past_does_not_turn_time_back() -> None:
    start = [decided(), executed(), TickFact(0, CLOSING + 0.5), said(at=DEADLINE)]
    assert learned(rule(default=0.0), *start) == [(3, "d1", {})]


def test_a_decision_that_is_committed_late_is_open_for_its_grace() -> None:
    start = [TickFact(0, 500.0), decided(at=100.0, logged_at=500.0), executed()]
    assert learned(rule(), *start, said(at=DEADLINE)) == [(4, "d1", {"right": 1.0})]
    still_open = [*start, TickFact(0, 500.0 + GRACE_S), said(at=DEADLINE)]
    assert learned(rule(), *still_open) == [(5, "d1", {"right": 1.0})]
    assert learned(rule(), *start, TickFact(0, 500.0 + GRACE_S + 0.001), said(at=DEADLINE)) == []


def test_what_is_closed_at_once_is_learned_in_the_order_in_which_it_was_due() -> None:
    turns = [
        fact
        for name, at in (("d1", 103.0), ("d2", 101.0), ("d3", 101.0))
        for fact in (decided(name, at, logged_at=103.0), executed(name))
    ]
    found = learned(rule(default=0.0), *turns, TickFact(0, 1000.0))
    assert found == [(7, "d2", {}), (7, "d3", {}), (7, "d1", {})]


def test_what_is_due_is_closed_before_the_fact_that_is_later_is_looked_at() -> None:
    facts = [decided(), executed(), said(), decided("d2", 120.0, episode_id="e"), executed("d2")]
    facts += [said(0.5, 121.0, "thumb", on="d2"), said(at=CLOSING + 1.0, on="e")]
    both = {"right": 1.0, "thumb": 0.5}
    assert learned(rule(Complete.ALL), *facts) == [(7, "d1", {"right": 1.0}), (7, "d2", both)]


# -- the rule -----------------------------------------------------------------------------------------

JOINED = rule()
CHANGES = {
    "wait_time": rule(wait_time="PT2M"),
    "complete": rule(Complete.ALL),
    "aggregation": rule(right=Aggregation.SUM, thumb=Aggregation.LAST),
    "a metric": rule(right=Aggregation.LAST),
    "a default": rule(default=0.0),
    "failed": rule(failed=0.0),
}


def test_each_thing_that_decides_what_is_learned_is_a_join_of_its_own() -> None:
    joins = {name: how.join for name, how in CHANGES.items()} | {"": JOINED.join}
    assert len(set(joins.values())) == len(joins)


def test_weights_prices_and_ranges_do_not_join_anything_again() -> None:
    metrics = {name: Metric(weight=3.0, range=(-1, 1), optimize="min") for name in ("right", "thumb")}
    scored = JOINED.model_copy(update={"metrics": metrics, "cost_weight": 0.9, "clip": (-2.0, 2.0)})
    assert scored.join == JOINED.join
    assert rule(default=0.5, failed=0.5).join == rule(default=-1.0, failed=0.0).join


# -- conversations ------------------------------------------------------------------------------------


def kept(name: str = "d1", at: float = 100.0, **fields: object) -> DecisionFact:
    """A draw whose arm its conversation keeps."""
    return decided(name, at, episode_id="e", draw_id=name, **fields)


def continued(name: str, at: float, draw: str = "d1", **fields: object) -> DecisionFact:
    return decided(name, at, mode=Mode.CONTINUED, episode_id="e", draw_id=draw, **fields)


def closing_at(at: float) -> TickFact:
    """Time that closes a decision of then."""
    return TickFact(0, at + WAIT_S + GRACE_S + 0.5)


def joined_of(how: RewardRule, *facts: JoinedFact) -> list[tuple[str, dict[str, float], tuple[str, ...]]]:
    return [(one.decision_id, dict(one.metrics), one.turns) for one in joined(how, *facts)]


@pytest.mark.parametrize("complete", Complete)
def test_a_draw_has_the_means_of_its_turns(complete: Complete) -> None:
    turns: list[JoinedFact] = [kept(), executed(), said(1.0)]
    for name, number in (("d2", 0.5), ("d3", 0.0)):
        turns += [continued(name, 110.0), executed(name, at=111.0), said(number, 112.0, on=name)]
    turns += [said(0.25, 113.0, "thumb", on="d3")]
    found = joined_of(rule(complete), *turns, closing_at(110.0))
    assert found == [("d1", {"right": 0.5, "thumb": 0.25}, ("d1", "d2", "d3"))]


def test_a_turn_without_feedback_counts_in_the_cost_alone() -> None:
    turns = [kept(), executed(), continued("d2", 110.0), executed("d2"), said(0.25)]
    assert joined_of(rule(), *turns, closing_at(110.0)) == [("d1", {"right": 0.25}, ("d1", "d2"))]
    silent = joined_of(rule(default=0.0), *turns[:-1], closing_at(110.0))
    assert silent == [("d1", {}, ("d1", "d2"))]
    assert joined_of(rule(), *turns[:-1], closing_at(110.0)) == []


def test_a_draw_waits_for_the_deadline_of_its_last_turn() -> None:
    last = 155.0
    start = [kept(), executed(), said(1.0), continued("d2", last), executed("d2", at=last)]
    open_still = TickFact(0, last + WAIT_S + GRACE_S)
    late = [AFTER, said(0.0, last + WAIT_S, on="d2"), open_still]
    assert joined_of(rule(), *start, *late) == []
    assert joined_of(rule(), *start, *late, closing_at(last)) == [("d1", {"right": 0.5}, ("d1", "d2"))]


def test_each_turn_counts_until_its_own_deadline() -> None:
    start = [kept(), executed(), continued("d2", 150.0), executed("d2", at=151.0)]
    values = [said(1.0, DEADLINE + 0.5), said(0.5, DEADLINE + 0.5, on="d2")]
    assert joined_of(rule(), *start, *values, closing_at(150.0)) == [("d1", {"right": 0.5}, ("d1", "d2"))]


def test_feedback_on_the_episode_is_feedback_on_each_of_its_turns_until_then() -> None:
    start = [kept(), executed(), said(0.0, 101.0), continued("d2", 110.0), executed("d2", at=111.0)]
    later = [
        said(1.0, 112.0, on="e"),
        continued("d3", 120.0),
        executed("d3", at=121.0),
        said(0.25, 122.0, on="d3"),
    ]
    found = joined_of(rule(right=Aggregation.MEAN), *start, *later, closing_at(120.0))
    assert found == [("d1", {"right": (0.5 + 1.0 + 0.25) / 3}, ("d1", "d2", "d3"))]


@pytest.mark.parametrize("status", [*FAILURES, *NEVER])
def test_a_turn_that_failed_does_not_count(status: Status) -> None:
    turns = [
        kept(),
        executed(),
        said(1.0),
        continued("d2", 110.0),
        executed("d2", status),
        said(0.0, on="d2"),
    ]
    assert joined_of(rule(failed=-1.0), *turns, closing_at(110.0)) == [("d1", {"right": 1.0}, ())]


def test_a_turn_that_was_not_shown_or_did_not_end_does_not_count() -> None:
    turns = [kept(), executed(), said(1.0), continued("d2", 110.0, deferred=True), executed("d2")]
    turns += [said(0.0, on="d2"), continued("d3", 110.0), said(0.0, on="d3")]
    assert joined_of(rule(), *turns, closing_at(110.0)) == [("d1", {"right": 1.0}, ())]
    found = joined_of(rule(), *turns, shown(name="d2"), closing_at(110.0))
    assert found == [("d1", {"right": 0.5}, ("d1", "d2"))]


@pytest.mark.parametrize(("late_s", "turns"), [(0.0, ("d1", "d2")), (0.5, ())])
def test_a_turn_after_its_draw_was_closed_counts_for_nothing(late_s: float, turns: tuple[str, ...]) -> None:
    at = CLOSING + late_s
    facts = [
        kept(),
        executed(),
        said(1.0),
        continued("d2", at),
        executed("d2", at=at),
        said(1.0, at, on="d2"),
    ]
    assert joined_of(rule(), *facts, closing_at(at)) == [("d1", {"right": 1.0}, turns)]


@pytest.mark.parametrize(("failed", "learns"), [(None, []), (-1.0, [("d1", {}, ())])])
def test_turns_of_a_draw_that_failed_count_for_nothing(
    failed: float | None, learns: list[tuple[str, dict[str, float], tuple[str, ...]]]
) -> None:
    facts = [kept(), continued("d2", 105.0), executed("d2"), executed(status=Status.ARM_FAILED)]
    facts += [said(1.0, on="d2"), continued("d3", 110.0), executed("d3"), said(1.0, on="d3")]
    assert joined_of(rule(failed=failed), *facts, closing_at(110.0)) == learns


def test_two_draws_of_an_episode_have_their_own_turns() -> None:
    facts: list[JoinedFact] = [kept("d1"), executed("d1"), kept("d2", 101.0), executed("d2")]
    facts += [continued("d3", 102.0, "d2"), executed("d3"), said(1.0, on="d3"), said(0.0, on="d1")]
    assert joined_of(rule(), *facts, closing_at(102.0)) == [
        ("d1", {"right": 0.0}, ()),
        ("d2", {"right": 1.0}, ("d2", "d3")),
    ]


def test_a_turn_continues_only_a_draw_that_is_kept() -> None:
    facts = [decided(episode_id="e"), executed(), continued("d2", 105.0), executed("d2"), said(0.0, on="d2")]
    assert joined_of(rule(), *facts, closing_at(105.0)) == []
    assert joined_of(rule(), *facts, said(), closing_at(105.0)) == [("d1", {"right": 1.0}, ())]
