"""The log over decisions: shares of the arms, and what changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.console.changes import list_changes
from armwise.agent.console.course import count_until, list_shares, read_marks
from armwise.feedback.drift import Alarm
from armwise.feedback.events import Mode
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.registry import LiveArms, arm_sets
from armwise.feedback.registry.promotions import Action, Promotion
from armwise.feedback.training_log.summary import LogSums, add_up
from tests.agent.evaluation.logged import BEGIN, RULE, World, fill

WORLD = World({"a": 0.3, "b": 0.5, "c": 0.8}, greedy=0.9, forced=0.1, masked=0.15, rated=0.8)

SPECS: dict[str, dict[str, Any]] = {arm: {"kind": "none"} for arm in "abc"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


@pytest.mark.parametrize(
    ("n", "stretches"), [(0, 0), (1, 1), (100, 4), pytest.param(1000, 13, marks=pytest.mark.slow)]
)
def test_every_decision_stands_once_in_the_shares(store: Store, n: int, stretches: int) -> None:
    """Stretches adjoin, none is empty, and shares leave forced decisions out."""
    made = fill(store, WORLD, n, seed=4)
    sums = add_up(store, LogSums())
    found = list_shares(sums)
    assert count_until(sums, sums.log_seq) == n
    assert abs(len(found) - stretches) <= 1
    edges = [0, *(end for (_, end), _ in found)]
    assert [begin for (begin, _), _ in found] == edges[:-1]
    assert edges[-1] == n
    for (begin, end), shares in found:
        drawn = [one.drawn for one in made[begin:end] if one.mode is Mode.EXPLORE]
        assert shares == {arm: pytest.approx(drawn.count(arm) / len(drawn)) for arm in set(drawn)}


CHANGES = list_changes(
    [
        LiveArms(5.0, frozenset("a"), (), ("b",), True, None),
        LiveArms(4.0, frozenset("ab"), ("a", "b"), (), False, 7),
    ],
    [
        Promotion(1, 7, Action.PROMOTE, "the gate lets it through", 4.0),
        Promotion(2, 8, Action.PROMOTE, "", 6.0, forced=True),
        Promotion(3, 7, Action.ROLLBACK, "answers were worse", 8.0),
        Promotion(4, 9, Action.CANARY, "a try", 9.0, share=0.05),
        Promotion(5, 9, Action.CANARY, "", 10.0),
        Promotion(6, 10, Action.PROMOTE, "a first start", 3.0, forced=True, automatic=True),
        Promotion(7, 11, Action.CANARY, "held", 11.0, share=0.06, automatic=True),
    ],
    [Alarm("r", "reward of a", "adwin", 0.75, 0.5, 100, 7.0)],
)


def test_what_changed_stands_in_order_with_its_reason() -> None:
    """Arms that a version brought are part of its promotion."""
    assert CHANGES == [
        (3.0, "Promotion of version 10, because: a first start"),
        (4.0, "Promotion of version 7, because: the gate lets it through"),
        (5.0, "Switch: b can no longer be drawn."),
        (6.0, "Promotion of version 8 without the gate's consent"),
        (7.0, "Drift alarm: reward of a was 0.75 and is 0.5."),
        (8.0, "Rollback to version 7, because: answers were worse"),
        (9.0, "Canary: version 9 has 5% of the traffic, because: a try"),
        (10.0, "End of the canary of version 9"),
        (11.0, "Canary: version 11, by itself, has 6% of the traffic, because: held"),
    ]


def test_the_newest_changes_stand_at_the_decisions_where_they_happened(store: Store) -> None:
    """Twelve of them at most; a time before the log is its begin, and one after it its end."""
    arm_sets.start(store, SPECS)
    fill(store, World({"a": 0.5, "b": 0.5, "c": 0.5}), 400, seed=1)
    for i in range(14):
        arm_sets.switch(store, "b", i % 2 == 1, BEGIN + 10.0 * (i + 1))
    with store.writing() as connection:
        connection.exec_driver_sql(f"UPDATE operations SET at = {BEGIN} - 1000 WHERE kind = 'arm_set'")
        for i, row in enumerate(operations.read_all(connection, Operation.SWITCH), start=1):
            connection.exec_driver_sql(f"UPDATE operations SET at = {BEGIN + 10.0 * i} WHERE seq = {row.seq}")
    sums = add_up(store, LogSums())
    marks = read_marks(store, RULE, sums)
    assert [one.at for one in marks] == [BEGIN + 10.0 * (i + 1) for i in range(2, 14)]
    for one in marks:
        assert abs(one.decision - (one.at - BEGIN) / 0.5) <= 8, one
    assert [count_until(sums, position) for position in (0, 10**9)] == [0, 400]


def test_decisions_are_counted_in_proportion_within_a_stretch() -> None:
    sums = LogSums(log_seq=24, width=16, course=[{"a": (6, 6), "b": (2, 0)}, {"a": (4, 4)}])
    assert [count_until(sums, position) for position in (0, 8, 16, 20, 24, 99)] == [0, 4, 8, 10, 12, 12]
