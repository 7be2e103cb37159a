"""The training log: each decision once, in order, whatever the order of the facts."""

from collections.abc import Sequence

import numpy as np
import pytest
import sqlalchemy as sa

from feedback.events import Decision, Mode, Status
from feedback.joins import DANGLING_S, GRACE_S, Joiner, SupersededError, read_examples, take_epoch
from feedback.reward import Complete, Metric, RewardRule
from feedback.rows import load_decisions
from feedback.store import FeedbackStatus, Store
from tests.feedback.conftest import Turn, decision, execution, value


def rule(complete: Complete = Complete.ANY, default: float | None = None) -> RewardRule:
    return RewardRule(
        metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))},
        complete=complete,
        default=default,
        wait_time="PT1M",
    )


def joiner(store: Store, how: RewardRule | None = None, **options: int) -> Joiner:
    return Joiner(store, how or rule(), take_epoch(store, "test", 0.0), **options)


def learned(store: Store) -> list[tuple[int, str, dict[str, float]]]:
    return [(e.seq, e.decision.id, dict(e.metrics)) for e in read_examples(store)]


def test_examples_follow_the_order_of_feedback_not_of_decisions(store: Store, turn: Turn) -> None:
    turn("d1"), turn("d2"), turn("d3")
    store.append([value("d3"), value("d1")])
    position = joiner(store).advance(now=110.0)
    assert [(seq, name) for seq, name, _ in learned(store)] == [(1, "d3"), (2, "d1")]
    assert (position.feedback_seq, position.examples_seq) == (2, 2)


def test_an_example_carries_the_decision_and_the_cost_as_written(store: Store, turn: Turn) -> None:
    turn("d1")
    store.append([value("d1", number=0.5)])
    joiner(store).advance(now=110.0)
    (example,) = read_examples(store)
    assert example.decision == decision("d1")
    assert example.cost == execution("d1").cost
    assert example.metrics == {"right": 0.5}


def test_a_decision_is_learned_once_however_often_it_is_judged(store: Store, turn: Turn) -> None:
    turn("d1")
    join = joiner(store)
    store.append([value("d1")])
    join.advance(now=110.0)
    (late,) = store.append([value("d1", "thumb")])
    join.advance(now=111.0)
    join.advance(now=1000.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]
    assert late.status is FeedbackStatus.LATE_NOT_LEARNED


def test_with_all_a_decision_waits_for_every_metric(store: Store, turn: Turn) -> None:
    turn("d1")
    join = joiner(store, rule(Complete.ALL))
    store.append([value("d1")])
    join.advance(now=110.0)
    assert learned(store) == []
    store.append([value("d1", "thumb", -1.0)])
    join.advance(now=111.0)
    assert learned(store) == [(1, "d1", {"right": 1.0, "thumb": -1.0})]


def test_the_deadline_closes_what_is_incomplete_with_what_is_there(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    join = joiner(store, rule(Complete.ALL))
    store.append([value("d1")])
    join.advance(now=160.0)
    assert learned(store) == []
    join.advance(now=160.0 + GRACE_S)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


@pytest.mark.parametrize(("default", "expected"), [(None, []), (0.0, [(1, "d1", {})])])
def test_silence_is_the_default_or_is_dropped(
    store: Store, turn: Turn, default: float | None, expected: list[object]
) -> None:
    turn("d1", at=100.0)
    joiner(store, rule(default=default)).advance(now=200.0)
    assert learned(store) == expected


def test_feedback_after_the_deadline_is_not_aggregated(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    store.append([value("d1", at=120.0), value("d1", "thumb", 1.0, at=161.0)])
    joiner(store, rule(Complete.DEADLINE)).advance(now=200.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


@pytest.mark.parametrize("mode", [Mode.FORCED, Mode.GREEDY])
def test_what_was_not_drawn_from_the_policy_teaches_nothing(store: Store, turn: Turn, mode: Mode) -> None:
    turn("d1", mode=mode)
    store.append([value("d1")])
    joiner(store, rule(default=0.0)).advance(now=500.0)
    assert learned(store) == []


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_turn_that_failed_teaches_nothing(store: Store, turn: Turn, status: Status) -> None:
    turn("d1", status=status)
    store.append([value("d1")])
    joiner(store, rule(default=0.0)).advance(now=500.0)
    assert learned(store) == []


def test_feedback_ahead_of_its_decision_is_learned_when_that_appears(store: Store) -> None:
    join = joiner(store)
    store.append([value("d1")])
    join.advance(now=106.0)
    store.append([decision("d1")])
    join.advance(now=107.0)
    assert learned(store) == [], "its cost is not known yet"
    store.append([execution("d1")])
    join.advance(now=108.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


def test_a_restart_takes_up_what_was_waiting(store: Store) -> None:
    store.append([value("d1")])
    joiner(store).advance(now=106.0)
    store.append([decision("d1"), execution("d1")])
    joiner(store).advance(now=108.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


def test_only_the_newest_epoch_may_write(store: Store, turn: Turn) -> None:
    turn("d1")
    store.append([value("d1")])
    old, new = joiner(store), joiner(store)
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        old.advance(now=110.0)
    assert learned(store) == []
    new.advance(now=110.0)
    assert len(learned(store)) == 1


def test_small_batches_give_the_same_training_log_as_one_large(store: Store, turn: Turn) -> None:
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(50)]
    for name in names:
        turn(name)
    for name in rng.permutation(names):
        store.append([value(str(name))])
    expected = [str(name) for name in np.random.default_rng(0).permutation(names)]
    join = joiner(store, batch=7)
    while join.advance(now=110.0).feedback_seq < store.log_seq():
        pass
    assert [name for _, name, _ in learned(store)] == expected


def test_many_deadlines_at_one_moment_are_all_closed(store: Store, turn: Turn) -> None:
    for i in range(20):
        turn(f"d{i}", at=100.0)
    join = joiner(store, rule(default=0.0), batch=6)
    for _ in range(6):
        join.advance(now=500.0)
    assert len(learned(store)) == 20


def test_what_is_judged_and_due_in_one_pass_is_learned_once(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    store.append([value("d1")])
    joiner(store).advance(now=500.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


def test_a_backlog_puts_deadlines_off_and_takes_no_feedback_from_them(store: Store, turn: Turn) -> None:
    names = [f"d{i}" for i in range(5)]
    for name in names:
        turn(name, at=100.0)
        store.append([value(name)])
    join = joiner(store, rule(Complete.DEADLINE, default=0.0), batch=2)
    join.advance(now=500.0)
    assert learned(store) == [], "three values are not read yet"
    for _ in range(5):
        join.advance(now=500.0)
    assert learned(store) == [(seq, name, {"right": 1.0}) for seq, name in enumerate(names, start=1)]


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_decision_due_before_its_execution_is_closed_when_that_appears(
    store: Store, turn: Turn, *, restart: bool
) -> None:
    store.append([decision("slow", at=100.0)])
    turn("later", at=101.0)
    join = joiner(store, rule(default=0.0))
    join.advance(now=170.0)
    assert [name for _, name, _ in learned(store)] == ["later"]
    store.append([execution("slow")])
    if restart:
        join = joiner(store, rule(default=0.0))
    join.advance(now=5000.0 if restart else 171.0)
    assert [name for _, name, _ in learned(store)] == ["later", "slow"]


def test_a_decision_whose_execution_never_comes_is_given_up(store: Store) -> None:
    store.append([decision("lost", at=100.0)])
    join = joiner(store, rule(default=0.0))
    join.advance(now=170.0)
    join.advance(now=170.0 + DANGLING_S)
    store.append([execution("lost")])
    join.advance(now=171.0 + DANGLING_S)
    assert learned(store) == []


def test_a_decision_committed_after_its_deadline_is_closed_all_the_same(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    join = joiner(store, rule(default=0.0))
    join.advance(now=500.0)
    turn("d2", at=101.0)
    join.advance(now=501.0)
    assert [name for _, name, _ in learned(store)] == ["d1", "d2"]


def test_feedback_ahead_of_a_decision_that_is_due_already_waits_for_it(store: Store, turn: Turn) -> None:
    turn("d2", at=101.0)
    join = joiner(store, rule(Complete.DEADLINE))
    store.append([value("d1")])
    join.advance(now=500.0)
    turn("d1", at=100.0)
    join.advance(now=501.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


def test_the_join_takes_no_lock_while_there_is_nothing_to_write(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    store.append([value("d1"), value("unknown")])
    join = joiner(store)
    position = join.advance(now=500.0)
    writes: list[str] = []

    def noted(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(("SELECT", "BEGIN")) or "IMMEDIATE" in statement:
            writes.append(statement)

    sa.event.listen(store.engine, "before_cursor_execute", noted)
    assert [join.advance(now=501.0 + second) for second in range(100)] == [position] * 100
    assert writes == []
    turn("d2", at=100.0)
    store.append([value("d2")])
    join.advance(now=700.0)
    assert any("IMMEDIATE" in statement for statement in writes)


def test_what_is_learned_is_not_loaded_again(
    store: Store, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn("d1"), turn("d2")
    join = joiner(store)
    store.append([value("d1")])
    join.advance(now=110.0)
    loaded: list[str] = []

    def noted(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Decision]:
        loaded.extend(ids)
        return load_decisions(connection, ids)

    monkeypatch.setattr("feedback.joins.load_decisions", noted)
    store.append([value("d1", "thumb"), value("d2")])
    join.advance(now=111.0)
    assert loaded == ["d2"]


def test_the_training_log_is_read_in_pieces(store: Store, turn: Turn) -> None:
    for i in range(10):
        turn(f"d{i}")
        store.append([value(f"d{i}")])
    joiner(store).advance(now=110.0)
    whole = [e.seq for e in read_examples(store)]
    assert whole == list(range(1, 11))
    assert [e.seq for e in read_examples(store, after=3, upto=8, chunk=2)] == [4, 5, 6, 7, 8]
