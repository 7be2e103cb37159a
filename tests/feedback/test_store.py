"""What the log keeps, what it refuses, and what it says of each item."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.events import Context, Decision, Feedback, Mode, Status
from feedback.joins import Joiner, take_epoch
from feedback.reward import Metric, RewardRule
from feedback.store import ConflictError, FeedbackStatus, LogUnavailableError, Store, StoreError
from tests.feedback.conftest import Turn, decision, execution, value


def test_a_decision_is_read_back_as_it_was_written(store: Store) -> None:
    store.append([decision("d1", digest="abc"), execution("d1")])
    found = store.record("d1")
    assert found is not None
    assert found.decision == decision("d1", digest="abc")
    assert found.execution == execution("d1")
    assert found.feedback == ()
    assert found.example_seq is None


finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1, max_size=20).filter(lambda text: "\x00" not in text and text.isprintable())


@given(
    question=st.text(max_size=200).filter(
        lambda text: "\x00" not in text and text.encode("utf-8", "ignore").decode() == text
    ),
    features=st.dictionaries(names, finite, max_size=5),
    embedding=st.lists(finite, max_size=4),
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
)
def test_any_decision_survives_the_database(
    question: str, features: dict[str, float], embedding: list[float], weights: list[float]
) -> None:
    store = Store("sqlite://")
    arms = tuple(f"arm {i}" for i in range(len(weights)))
    p = tuple(w / sum(weights) for w in weights)
    fact = Decision(
        "d",
        Context(question, features, tuple(embedding), dict.fromkeys(arms, features)),
        arms,
        p,
        arms[0],
        "vowpal",
        7,
    )
    store.append([fact])
    found = store.record("d")
    assert found is not None
    assert found.decision == fact
    store.close()


def test_an_unknown_decision_has_no_record(store: Store) -> None:
    assert store.record("nobody") is None


def test_a_decision_id_cannot_be_used_twice(store: Store) -> None:
    store.append([decision("d1")])
    with pytest.raises(ConflictError, match="already taken"):
        store.append([decision("d2"), decision("d1")])
    assert store.record("d2") is None, "nothing of a refused batch is kept"


def test_a_second_execution_of_a_decision_changes_nothing(store: Store) -> None:
    store.append([decision("d1"), execution("d1", steps=1)])
    store.append([execution("d1", steps=3)])
    found = store.record("d1")
    assert found is not None
    assert found.execution == execution("d1", steps=1)


def test_feedback_gets_rising_positions(store: Store, turn: Turn) -> None:
    turn("d1")
    seqs = [store.append([value("d1", key=f"k{i}")])[0].seq for i in range(3)]
    assert seqs == sorted(set(seqs))
    assert store.log_seq() == seqs[-1]


def test_the_same_feedback_twice_is_one_fact(store: Store, turn: Turn) -> None:
    turn("d1")
    first, twin = store.append([value("d1"), value("d1")])
    (again,) = store.append([value("d1", at=130.0)])
    assert first.status is FeedbackStatus.ACCEPTED
    assert twin.status is again.status is FeedbackStatus.DUPLICATE
    assert first.seq == twin.seq == again.seq
    assert store.counts()["feedback"] == 1


def test_a_feedback_id_cannot_mean_two_things(store: Store, turn: Turn) -> None:
    turn("d1")
    store.append([value("d1", key="k")])
    with pytest.raises(ConflictError, match="'k' was used for right=1"):
        store.append([value("d1", number=0.0, key="k")])
    with pytest.raises(ConflictError, match="cannot also be"):
        store.append([value("d1", key="new"), value("d2", key="new")])
    assert store.counts()["feedback"] == 1


def test_feedback_ahead_of_its_decision_is_kept_as_pending(store: Store) -> None:
    (receipt,) = store.append([value("not yet")])
    assert receipt.status is FeedbackStatus.PENDING_DECISION
    assert receipt.seq == 1


def test_feedback_after_the_window_is_kept_and_called_late(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0, wait_s=60.0)
    on_time, late = store.append([value("d1", key="a", at=160.0), value("d1", key="b", at=160.1)])
    assert on_time.status is FeedbackStatus.ACCEPTED
    assert late.status is FeedbackStatus.LATE_NOT_LEARNED
    assert store.counts()["feedback"] == 2


def test_a_value_that_is_not_finite_never_reaches_the_log(store: Store) -> None:
    with pytest.raises(StoreError, match="value nan"):
        store.append([Feedback("k", "d", "right", float("nan"))])


def test_what_is_acknowledged_is_on_disk_in_wal_mode_with_full_sync(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    store.append([decision("d1")])
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    other = sqlite3.connect(tmp_path / "log.db")
    assert other.execute("SELECT count(*) FROM decisions").fetchone() == (1,)
    other.close()
    store.close()


def test_a_locked_database_is_an_error_worth_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedback.store.BUSY_S", 0.05)
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    blocker = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LogUnavailableError, match="locked"):
        store.append([decision("d1")])
    blocker.execute("ROLLBACK")
    blocker.close()
    store.append([decision("d1")])
    store.close()


def test_a_decision_that_is_not_learned_is_counted_under_one_reason(store: Store, turn: Turn) -> None:
    assert store.unlearned() == {}
    for name in ("learned", "quiet", "quiet too"):
        turn(name)
    turn("forced", mode=Mode.FORCED)
    turn("forced and failed", mode=Mode.FORCED, status=Status.LLM_FAILED)
    turn("greedy", mode=Mode.GREEDY)
    turn("failed", status=Status.LLM_FAILED)
    store.append([decision("running"), value("learned")])
    Joiner(store, RewardRule(metrics={"right": Metric()}), take_epoch(store, "test", 0.0)).advance(110.0)
    assert store.unlearned() == {
        "forced": 2,
        "not judged": 2,
        "greedy": 1,
        "llm failed": 1,
        "not finished": 1,
    }


def test_a_malformed_url_is_named() -> None:
    with pytest.raises(StoreError, match="'nonsense' is no database URL"):
        Store("nonsense")


def test_modes_and_costs_keep_their_types(store: Store) -> None:
    store.append([decision("d1", mode=Mode.FORCED), execution("d1")])
    found = store.record("d1")
    assert found is not None
    assert found.decision.mode is Mode.FORCED
    assert isinstance(found.execution.cost.steps, int) if found.execution else False
