"""What is learned from which facts: the rules of docs/reference/feedback-semantics.md."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from armwise.feedback.events import (
    LABELS,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from armwise.feedback.training_log.join import Joined
from tests.feedback.conftest import decision, execution
from tests.feedback.fact_log import Sent, join

GRACE_S = 2.0
"""Seconds after its deadline in which a decision is open, as the document has it."""

WAIT_S = 60.0
DEADLINE = 100.0 + WAIT_S
CLOSING = DEADLINE + GRACE_S
"""Of a decision that was made at 100."""

AFTER = Tick(CLOSING + 0.5)
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


def decided(name: str = "d1", at: float = 100.0, *, past: bool = False, **fields: Any) -> Decision:
    """A decision; one that is past was over before it was logged, like a label."""
    return replace(decision(name, at=at), policy=LABELS if past else "uniform", **fields)


def executed(name: str = "d1", status: Status = Status.OK, at: float = 101.0) -> Execution:
    return replace(execution(name, status), finished_at=at)


def said(
    number: float = 1.0, at: float = 105.0, metric: str = "right", *, on: str = "d1", key: str = ""
) -> Feedback:
    """A value, under a key of its own unless told otherwise; on an episode where its name begins with e."""
    about = (None, on) if on.startswith("e") else (on, None)
    key = key or f"{on}:{metric}:{number}:{at}"
    return Feedback(key, about[0], metric, number, at, episode_id=about[1])


def retracted(key: str, at: float = 105.0, *, on: str = "d1") -> Feedback:
    return replace(said(at=at, on=on, key=key), value=None, kind=FeedbackKind.RETRACTION)


def shown(at: float = 105.0, name: str = "d1") -> Feedback:
    return Feedback(name, name, received_at=at, kind=FeedbackKind.ACTIVATION)


def joined(how: RewardRule, *facts: Sent) -> list[Joined]:
    """Return what facts make ready, joined at once; one by one, they must give the same."""
    found = join(how, facts)
    assert join(how, facts, 1) == found
    return found


def learned(how: RewardRule, *facts: Sent) -> list[tuple[int, str, dict[str, float]]]:
    """Return what facts teach: the position that made it ready, the decision, its metrics."""
    return [(one.by, one.decision_id, dict(one.metrics)) for one in joined(how, *facts)]


# -- corrections --------------------------------------------------------------------------------------

CORRECTABLE = rule(correction_time="PT5S", right=Aggregation.LAST)

A_TURN = (decided(), executed())

BACK = (said(1.0, 105.0, key="k"), retracted("k", 108.0))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([said(1.0, 105.0), Tick(110.0)], []),
        ([said(1.0, 105.0), Tick(110.1)], [(4, 1.0)]),
        ([said(1.0, 105.0), said(0.0, 110.0), Tick(111.0)], [(5, 0.0)]),
        ([said(1.0, 105.0), said(0.0, 110.1), Tick(200.0)], [(4, 1.0)]),
        ([said(1.0, 105.0), said(0.5, 108.0), said(0.0, 112.0), Tick(200.0)], [(5, 0.5)]),
        ([said(1.0, 105.0, key="k"), retracted("k", 108.0), Tick(150.0)], []),
        (
            [said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 109.0), Tick(111.0)],
            [(6, 0.0)],
        ),
        ([said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 120.0), Tick(125.0)], []),
        (
            [said(1.0, 105.0, key="k"), retracted("k", 108.0), said(0.0, 120.0), Tick(126.0)],
            [(6, 0.0)],
        ),
        ([said(1.0, 105.0, key="k"), retracted("k", 110.5), Tick(200.0)], [(4, 1.0)]),
        (
            [*BACK, said(1.0, 112.0, "gone"), said(0.0, 114.0), Tick(118.0), Tick(120.0)],
            [(8, 0.0)],
        ),
        ([said(1.0, 159.0), Tick(CLOSING + 0.5)], [(4, 1.0)]),
        ([said(1.0, 159.0), said(0.0, 160.5), Tick(170.0)], [(5, 1.0)]),
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
    facts: list[Sent], expected: list[tuple[int, float]]
) -> None:
    found = learned(CORRECTABLE, *A_TURN, *facts)
    assert found == [(seq, "d1", {"right": value}) for seq, value in expected]


# -- the rules ----------------------------------------------------------------------------------------

TURN = [decided(), executed()]
LATE = DEADLINE + 0.001
FIRST, SECOND = said(1.0), said(0.5, metric="thumb")
BOTH = {"right": 1.0, "thumb": 0.5}
RIGHT: dict[str, float] = {"right": 1.0}
DEFERRED = [decided(deferred=True), executed()]
OPEN = [Tick(500.0), decided(at=100.0), executed()]
LABEL = [Tick(9000.0), decided(past=True), executed()]
CLOSED_BY = (
    AFTER,
    decided("later", CLOSING + 0.5),
    executed("another", at=CLOSING + 0.5),
    said(at=CLOSING + 0.5, on="another"),
)

Case = tuple[RewardRule, list[Sent], list[tuple[int, dict[str, float]]]]

CASES: dict[str, Case] = {
    "the time for corrections begins with the last metric where all are waited for": (
        rule(Complete.ALL, correction_time="PT5S"),
        [
            *(*TURN, said(at=105.0), said(at=109.0, metric="thumb"), Tick(111.0), said(0.0, 113.5)),
            Tick(114.5),
        ],
        [(7, {"right": 0.0, "thumb": 1.0})],
    ),
    "a rating before the answer is learned once it can be corrected no more": (
        CORRECTABLE,
        [decided(), said(at=101.0), executed(at=102.0), Tick(106.0), Tick(107.0)],
        [(5, RIGHT)],
    ),
    "an early value": (rule(), [said(), *TURN], [(3, RIGHT)]),
    "a value waits for how the decision went": (rule(), [decided(), said(), executed()], [(3, RIGHT)]),
    "values until the deadline and not after": (
        AT_DEADLINE, [*TURN, said(0.25, at=DEADLINE), said(0.75, at=LATE), AFTER], [(5, {"right": 0.25})],
    ),
    "a value after the deadline": (rule(), [*TURN, said(at=LATE), AFTER], []),
    "received in time, and committed before it is closed": (
        AT_DEADLINE, [*TURN, Tick(CLOSING), said(at=DEADLINE), AFTER], [(5, RIGHT)],
    ),
    "an answer that takes all of the wait time, learned at the deadline": (
        AT_DEADLINE, [decided(), said(at=DEADLINE), executed(at=DEADLINE), AFTER], [(4, RIGHT)],
    ),
    "the default after the grace": (
        rule(default=0.0), [*TURN, Tick(CLOSING), Tick(CLOSING + 0.001)], [(4, {})],
    ),
    "sent together": (rule(), [*TURN, (said(), SECOND)], [(4, BOTH)]),
    "sent one by one": (rule(), [*TURN, said(), SECOND], [(3, RIGHT)]),
    "a metric that is not declared": (rule(), [*TURN, said(metric="other"), AFTER], []),
    "taken back, and another counts": (
        AT_DEADLINE,
        [*TURN, said(0.25, key="a"), said(0.75, key="b"), retracted("b"), AFTER],
        [(6, {"right": 0.25})],
    ),
    "taken back": (AT_DEADLINE, [*TURN, said(key="a"), retracted("a"), AFTER], []),
    "taken back before it came": (
        AT_DEADLINE,
        [*TURN, retracted("b"), said(0.25, key="a"), said(0.75, key="b"), AFTER],
        [(6, {"right": 0.25})],
    ),
    "another key counts": (
        rule(),
        [*DEFERRED, said(key="a"), retracted("a"), shown(), said(0.5, key="b")],
        [(6, {"right": 0.5})],
    ),
    "what was learned is not unlearned": (
        rule(), [*TURN, said(key="a"), retracted("a"), AFTER], [(3, RIGHT)],
    ),
    "on an episode in the moment of the decision": (
        rule(), [decided(episode_id="e"), executed(), said(at=100.0, on="e")], [(3, RIGHT)],
    ),
    "on an episode before the decision": (
        rule(), [decided(episode_id="e"), executed(), said(at=99.999, on="e")], [],
    ),
    "on a decision and on its episode": (
        rule(Complete.DEADLINE, right=Aggregation.SUM),
        [decided(episode_id="e"), executed(), said(0.25, on="e"), said(0.5), said(0.75, on="e"), AFTER],
        [(6, {"right": 1.5})],
    ),
    "taken back on an episode before the decision": (
        rule(),
        [retracted("k", at=99.0, on="e"), decided(episode_id="e"), executed(), said(on="e", key="k")],
        [],
    ),
    "silence": (rule(), [*TURN, AFTER], []),
    "not ended when it is closed": (
        rule(default=0.0), [decided(), said(), Tick(CLOSING), AFTER, executed()], [],
    ),
    "a deferred decision that is shown": (rule(), [*DEFERRED, said(), shown()], [(4, RIGHT)]),
    "a deferred decision that is not shown": (rule(default=0.0), [*DEFERRED, said(), AFTER], []),
    "shown at the deadline, which does not move": (
        rule(default=0.0), [*DEFERRED, shown(at=DEADLINE), said(at=LATE), AFTER], [(5, {})],
    ),
    "shown after the deadline": (rule(default=0.0), [*DEFERRED, said(), shown(at=LATE), AFTER], []),
    "a deferred failure that is shown": (
        rule(failed=0.0),
        [decided(deferred=True), executed(status=Status.FELL_BACK), shown(), AFTER],
        [(4, {})],
    ),
    "a stamp of the past does not turn time back": (
        rule(default=0.0), [*TURN, Tick(CLOSING + 0.5), said(at=DEADLINE)], [(3, {})],
    ),
    "committed late, and open": (rule(), [*OPEN, said(at=DEADLINE)], [(4, RIGHT)]),
    "committed late, and closed after its grace": (
        rule(), [*OPEN, Tick(500.0 + GRACE_S + 0.001), said(at=DEADLINE)], [],
    ),
    **{
        f"{complete} of {len(values)} values": (rule(complete), [*TURN, *values, AFTER], [expected])
        for complete, values, expected in (
            (Complete.ANY, [FIRST, SECOND], (3, RIGHT)),
            (Complete.ALL, [FIRST, SECOND], (4, BOTH)),
            (Complete.DEADLINE, [FIRST, SECOND], (5, BOTH)),
            (Complete.ALL, [FIRST], (4, RIGHT)),
            (Complete.DEADLINE, [FIRST], (4, RIGHT)),
        )
    },
    **{
        f"the values by {how}": (
            rule(Complete.DEADLINE, right=how),
            [*TURN, said(0.25, at=130.0), said(0.75, at=110.0), said(0.5, at=120.0), AFTER],
            [(6, {"right": expected})],
        )
        for how, expected in zip(Aggregation, (0.25, 0.5, 0.5, 1.5), strict=True)
    },
    **{
        f"{mode} is never learned": (
            rule(default=0.0, failed=0.0), [decided(mode=mode), executed(), said(), AFTER], [],
        )
        for mode in (Mode.FORCED, Mode.GREEDY)
    },
    **{
        f"{status} is left out": (rule(default=0.0), [decided(), executed(status=status), said(), AFTER], [])
        for status in FAILURES
    },
    **{
        f"{status} has its value, whatever is said of another arm": (
            rule(failed=0.0), [decided(), said(), executed(status=status), AFTER], [(4, {})],
        )
        for status in FAILURES
    },
    **{
        f"{status} is never learned": (
            rule(default=0.0, failed=0.0), [decided(), executed(status=status), said(), AFTER], [],
        )
        for status in NEVER
    },
    **{
        f"a label is learned once and whole, complete by {complete}": (
            rule(complete),
            [
                *(*LABEL, (said(at=100.0), said(0.5, 100.0, "thumb"))),
                *(said(0.5, 100.5, "thumb"), Tick(9999.0)),
            ],
            [(5, BOTH)],
        )
        for complete in Complete
    },
    **{
        f"what comes after a label is left out, complete by {complete}": (
            rule(complete),
            [decided(past=True), executed(), said(at=100.0), said(0.5, 100.5, "thumb"), AFTER],
            [(3, RIGHT)],
        )
        for complete in Complete
    },
    **{
        f"closed by a {type(fact).__name__}": (rule(default=0.0), [*TURN, fact], [(3, {})])
        for fact in CLOSED_BY
    },
}  # fmt: skip
"""What facts teach of one decision: the position that made it ready, and its metrics."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_learned_of_a_decision(case: str) -> None:
    how, facts, expected = CASES[case]
    assert learned(how, *facts) == [(by, "d1", metrics) for by, metrics in expected]


def test_a_value_on_an_episode_counts_for_each_decision_that_was_made_before_it() -> None:
    turns = [
        fact
        for number, at in enumerate([100.0, 104.0, 107.0], start=1)
        for fact in (decided(f"d{number}", at, episode_id="e"), executed(f"d{number}"))
    ]
    other = [decided("other", episode_id="e2"), executed("other")]
    found = learned(rule(), *turns, *other, said(at=105.0, on="e"))
    assert found == [(9, "d1", {"right": 1.0}), (9, "d2", {"right": 1.0})]


def test_a_value_on_an_episode_counts_until_the_deadline_of_each_decision() -> None:
    old, new = decided("d1", 100.0, episode_id="e"), decided("d2", 130.0, episode_id="e")
    facts = [old, executed("d1"), new, executed("d2"), said(at=LATE, on="e")]
    assert learned(rule(), *facts) == [(5, "d2", {"right": 1.0})]


@pytest.mark.slow
def test_taking_back_takes_as_long_however_much_was_taken_back_before() -> None:
    items = [said(key=str(n)) for n in range(1000)] + [retracted(str(n)) for n in range(1000)]
    facts = [decided(deferred=True), executed(), *items]
    began = time.process_time()
    assert join(rule(), facts) == []
    assert time.process_time() - began < 10.0


@pytest.mark.parametrize("values", [[], [FIRST], [FIRST, SECOND]])
@pytest.mark.parametrize("status", [Status.OK, *FAILURES])
def test_where_silence_and_failures_have_a_value_all_are_learned_at_their_deadline(
    status: Status, values: list[Feedback]
) -> None:
    how = rule(default=0.0, failed=0.0)
    facts = [decided(), executed(status=status), *values]
    assert learned(how, *facts, Tick(CLOSING)) == []
    assert [(at, name) for at, name, _ in learned(how, *facts, AFTER)] == [(3 + len(values), "d1")]


SAID = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.25, 1.0]) for name in ("right", "thumb")})
"""Values of a decision; it has those of the metrics that are reported on it."""

IN_TWO_WORLDS = st.fixed_dictionaries(
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
    turns=st.lists(IN_TWO_WORLDS, min_size=2, max_size=8),
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


def _world(how: RewardRule, turns: list[dict[str, Any]], world: int) -> Iterator[Sent]:
    """Yield the facts of one of two worlds; silence and failures differ where they have a value."""
    at, happens = 100.0, list[tuple[float, Sent]]()
    for number, turn in enumerate(turns):
        at, name = at + turn["gap_s"], f"d{number}"
        status = Status.ARM_FAILED if how.failed is not None and turn["failed"][world] else Status.OK
        happens += [(at, decided(name, at)), (at, executed(name, status, at=at))]
        if how.default is None or not turn["silent"][world]:
            for metric, delay in turn["delays"].items():
                value = said(turn["values"][world][metric], at + delay, metric, on=name)
                happens.append((at + delay, value))
    yield from (fact for _, fact in sorted(happens, key=lambda each: each[0]))
    yield Tick(at + 1000.0)


def test_what_is_closed_at_once_is_learned_in_the_order_in_which_it_was_due() -> None:
    turns = [
        fact
        for name, at in (("d1", 103.0), ("d2", 101.0), ("d3", 101.0))
        for fact in (decided(name, at), executed(name))
    ]
    found = learned(rule(default=0.0), *turns, Tick(1000.0))
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


def kept(name: str = "d1", at: float = 100.0, **fields: Any) -> Decision:
    """A draw whose arm its conversation keeps."""
    return decided(name, at, episode_id="e", draw_id=name, **fields)


def continued(name: str, at: float, draw: str = "d1", **fields: Any) -> Decision:
    return decided(name, at, mode=Mode.CONTINUED, episode_id="e", draw_id=draw, **fields)


def closing_at(at: float) -> Tick:
    """Time that closes a decision of then."""
    return Tick(at + WAIT_S + GRACE_S + 0.5)


LAST = 155.0

WAITING = [
    *(kept(), executed(), said(1.0), continued("d2", LAST), executed("d2", at=LAST), AFTER),
    *(said(0.0, LAST + WAIT_S, on="d2"), Tick(LAST + WAIT_S + GRACE_S)),
]

SILENT = [kept(), executed(), continued("d2", 110.0), executed("d2")]

HIDDEN = [
    *(kept(), executed(), said(1.0), continued("d2", 110.0, deferred=True), executed("d2")),
    *(said(0.0, on="d2"), continued("d3", 110.0), said(0.0, on="d3")),
]

NOT_KEPT = [decided(episode_id="e"), executed(), continued("d2", 105.0), executed("d2"), said(0.0, on="d2")]

Talk = tuple[RewardRule, list[Sent], list[tuple[str, dict[str, float], tuple[str, ...]]]]

TALKS: dict[str, Talk] = {
    **{
        f"a draw has the means of its turns, complete by {complete}": (
            rule(complete),
            [
                *(kept(), executed(), said(1.0)),
                *(continued("d2", 110.0), executed("d2", at=111.0), said(0.5, 112.0, on="d2")),
                *(continued("d3", 110.0), executed("d3", at=111.0), said(0.0, 112.0, on="d3")),
                *(said(0.25, 113.0, "thumb", on="d3"), closing_at(110.0)),
            ],
            [("d1", {"right": 0.5, "thumb": 0.25}, ("d1", "d2", "d3"))],
        )
        for complete in Complete
    },
    "a turn without feedback counts in the cost alone": (
        rule(), [*SILENT, said(0.25), closing_at(110.0)], [("d1", {"right": 0.25}, ("d1", "d2"))],
    ),
    "silence has its value": (
        rule(default=0.0), [*SILENT, closing_at(110.0)], [("d1", {}, ("d1", "d2"))],
    ),
    "silence teaches nothing": (rule(), [*SILENT, closing_at(110.0)], []),
    "a draw waits for the deadline of its last turn": (rule(), WAITING, []),
    "and no longer": (rule(), [*WAITING, closing_at(LAST)], [("d1", {"right": 0.5}, ("d1", "d2"))]),
    "each turn counts until its own deadline": (
        rule(),
        [
            *(kept(), executed(), continued("d2", 150.0), executed("d2", at=151.0)),
            *(said(1.0, DEADLINE + 0.5), said(0.5, DEADLINE + 0.5, on="d2"), closing_at(150.0)),
        ],
        [("d1", {"right": 0.5}, ("d1", "d2"))],
    ),
    "feedback on the episode is on each of its turns until then": (
        rule(right=Aggregation.MEAN),
        [
            *(kept(), executed(), said(0.0, 101.0), continued("d2", 110.0), executed("d2", at=111.0)),
            *(said(1.0, 112.0, on="e"), continued("d3", 120.0), executed("d3", at=121.0)),
            *(said(0.25, 122.0, on="d3"), closing_at(120.0)),
        ],
        [("d1", {"right": (0.5 + 1.0 + 0.25) / 3}, ("d1", "d2", "d3"))],
    ),
    **{
        f"a turn with {status} does not count": (
            rule(failed=-1.0),
            [
                *(kept(), executed(), said(1.0), continued("d2", 110.0), executed("d2", status)),
                *(said(0.0, on="d2"), closing_at(110.0)),
            ],
            [("d1", {"right": 1.0}, ())],
        )
        for status in (*FAILURES, *NEVER)
    },
    "what was not shown, or did not end, does not count": (
        rule(), [*HIDDEN, closing_at(110.0)], [("d1", {"right": 1.0}, ())],
    ),
    "what was shown counts": (
        rule(), [*HIDDEN, shown(name="d2"), closing_at(110.0)], [("d1", {"right": 0.5}, ("d1", "d2"))],
    ),
    **{
        f"a turn {late_s} s after its draw was closed": (
            rule(),
            [
                *(kept(), executed(), said(1.0), continued("d2", CLOSING + late_s)),
                executed("d2", at=CLOSING + late_s),
                *(said(1.0, CLOSING + late_s, on="d2"), closing_at(CLOSING + late_s)),
            ],
            [("d1", {"right": 1.0}, turns)],
        )
        for late_s, turns in ((0.0, ("d1", "d2")), (0.5, ()))
    },
    **{
        f"turns of a draw that failed, which is worth {failed}": (
            rule(failed=failed),
            [
                *(kept(), continued("d2", 105.0), executed("d2"), executed(status=Status.ARM_FAILED)),
                *(said(1.0, on="d2"), continued("d3", 110.0), executed("d3"), said(1.0, on="d3")),
                closing_at(110.0),
            ],
            expected,
        )
        for failed, expected in ((None, []), (-1.0, [("d1", {}, ())]))
    },
    "two draws of an episode have their own turns": (
        rule(),
        [
            *(kept("d1"), executed("d1"), kept("d2", 101.0), executed("d2"), continued("d3", 102.0, "d2")),
            *(executed("d3"), said(1.0, on="d3"), said(0.0, on="d1"), closing_at(102.0)),
        ],
        [("d1", {"right": 0.0}, ()), ("d2", {"right": 1.0}, ("d2", "d3"))],
    ),
    "a turn continues only a draw that is kept": (rule(), [*NOT_KEPT, closing_at(105.0)], []),
    "which counts alone": (
        rule(), [*NOT_KEPT, said(), closing_at(105.0)], [("d1", {"right": 1.0}, ())],
    ),
}  # fmt: skip
"""What conversations teach: the draw, its metrics and the turns that count."""


@pytest.mark.parametrize("talk", TALKS)
def test_what_is_learned_of_a_conversation(talk: str) -> None:
    how, facts, expected = TALKS[talk]
    assert [(one.decision_id, dict(one.metrics), one.turns) for one in joined(how, *facts)] == expected
