"""What the log keeps, what it refuses, and what it says of each item."""

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.feedback.errors import ConflictError, StoreError, TooMuchFeedbackError
from armwise.feedback.events import (
    LABELS,
    Context,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mask,
    Mode,
    Observation,
    ObservationSource,
    Status,
    Tick,
)
from armwise.feedback.log import Operation, operations
from armwise.feedback.log import tables as t
from armwise.feedback.log.append import FeedbackStatus, Receipt
from armwise.feedback.log.facts import Fact, decision_row
from armwise.feedback.log.store import Store
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, take_epoch
from tests.feedback.conftest import Turn, decision, execution, value

T = TypeVar("T")


def test_a_decision_is_read_back_as_it_was_written(store: Store) -> None:
    store.append([decision("d1", digest="abc"), execution("d1")])
    found = store.record("d1")
    assert found is not None
    assert found.decision == decision("d1", digest="abc")
    assert found.execution == execution("d1")
    assert found.feedback == ()
    assert found.example_seq is None


def test_a_value_beyond_its_limits_is_named_and_no_other(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.append([decision("d1"), execution("d1"), value("d1")])
    assert caplog.messages == []
    beyond = replace(execution("d2"), stages=({"arms": ("a", "b"), "probability": 1e300},))
    store.append([decision("d2"), beyond])
    (said,) = caplog.messages
    assert "executions.stages of decision 'd2'" in said


finite = st.floats(-1e6, 1e6)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=200)
ids = count()


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    question=texts,
    features=st.dictionaries(texts, finite, max_size=5),
    embedding=st.lists(finite, max_size=4),
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=5),
    masked=st.dictionaries(texts, st.sampled_from(Mask), max_size=2),
)
@pytest.mark.slow
def test_any_decision_survives_the_database(
    store: Store,
    question: str,
    features: dict[str, float],
    embedding: list[float],
    weights: list[float],
    masked: dict[str, str],
) -> None:
    arms = tuple(f"arm {i}" for i in range(len(weights)))
    p = tuple(w / sum(weights) for w in weights)
    context = Context(question, features, tuple(embedding), dict.fromkeys(arms, features))
    fact = Decision(f"d{next(ids)}", context, arms, p, arms[0], "vowpal", 7, masked=masked)
    assert ("masked" in cast("dict[str, object]", decision_row(fact, 1, 0.0)["features"])) == bool(masked)
    store.append([fact])
    found = store.record(fact.id)
    assert found is not None
    assert found.decision == fact


def test_the_newest_decisions_are_those_of_the_traffic(store: Store) -> None:
    store.append([decision("a"), decision("b")])
    store.append([replace(decision(f"label-{n}"), policy=LABELS) for n in range(3)])
    assert [one.id for one in store.newest(5)] == ["b", "a"]
    assert [one.id for one in store.newest(1)] == ["b"]


def test_a_decision_id_cannot_be_used_twice(store: Store) -> None:
    store.append([decision("d1")])
    again = decision("d1")
    with pytest.raises(ConflictError, match="decision id 'd1' is already taken") as raised:
        store.append([decision("d2"), again])
    assert raised.value.fact is again
    assert store.record("d2") is None, "nothing of a refused batch is kept"


def test_a_record_has_feedback_on_decision_and_episode_in_order(store: Store) -> None:
    store.append([replace(decision("d1"), episode_id="talk"), decision("d2")])
    on_episode = replace(value("talk", key="2"), decision_id=None, episode_id="talk")
    items = [value("d1", key="9"), on_episode, value("d1", "thumb", key="1")]
    for item in (*items[:2], value("d2"), items[2]):
        store.append([item])
    found = store.record("d1")
    assert found is not None
    assert list(found.feedback) == items


def test_the_same_feedback_twice_is_one_fact(store: Store, turn: Turn) -> None:
    turn("d1")
    first, twin = store.append([value("d1"), value("d1")])
    (again,) = store.append([value("d1", at=130.0)])
    assert first.status is FeedbackStatus.STORED
    assert twin.status is again.status is FeedbackStatus.DUPLICATE
    assert first.seq == twin.seq == again.seq
    assert store.counts()["feedback"] == 1


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


def test_a_decision_that_is_not_learned_is_counted_under_one_reason(url: str) -> None:
    rule = RewardRule(correction_time="PT0S", metrics={"right": Metric()})
    store = Store(url, rule.join)
    assert store.count_unlearned() == {}
    for name in ("learned", "quiet", "quiet too"):
        store.append([decision(name), execution(name)])
    store.append([decision("forced", mode=Mode.FORCED), execution("forced")])
    store.append([decision("forced and failed", mode=Mode.FORCED)])
    store.append([execution("forced and failed", Status.LLM_FAILED)])
    store.append([decision("greedy", mode=Mode.GREEDY), execution("greedy")])
    store.append([decision("failed"), execution("failed", Status.LLM_FAILED)])
    store.append([decision("running"), value("learned")])
    Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(110.0)
    assert store.count_unlearned() == {
        "forced": 2,
        "no reward": 2,
        "greedy": 1,
        "llm failed": 1,
        "not finished": 1,
    }
    store.close()


def test_the_index_the_cache_and_the_models_of_an_execution_are_kept(store: Store) -> None:
    tokens = {"default": (30, 4, 0, 0.002), "large": (100, 20, 64)}
    done = replace(execution("d1"), index_version="a1-b2", cached=True, tokens_by_model=tokens)
    done = replace(done, finish_reason="length", marks=("msg_1", "call_1", "msg_1"))
    store.append([decision("d1"), done, decision("d2"), execution("d2")])
    first, second = store.record("d1"), store.record("d2")
    assert first is not None
    assert second is not None
    assert first.execution == done
    assert second.execution == execution("d2")


def test_a_probe_leaves_nothing_and_takes_no_position(store: Store) -> None:
    store.append([decision("d1")])
    before = store.counts()
    store.probe()
    assert store.counts() == before
    (receipt,) = store.append([decision("d2")])
    assert receipt.seq == 2


# -- laws ----------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """A fact at its position."""

    seq: int
    at: float
    what: str
    logged_at: float | None = None


def placed(store: Store) -> list[Placed]:
    """Return what the tables hold, by position."""
    d, e, f, k = t.decisions.c, t.executions.c, t.feedback.c, t.ticks.c
    queries = (
        sa.select(d.seq, d.decided_at, "decision " + d.id, d.logged_at),
        sa.select(e.seq, e.finished_at, "execution " + e.decision_id),
        sa.select(f.seq, f.received_at, "feedback " + f.id),
        sa.select(k.seq, k.at, sa.literal("tick")),
    )
    with store.reading() as connection:
        return sorted(Placed(*row) for query in queries for row in connection.execute(query))


def name_of(fact: Fact) -> str:
    match fact:
        case Decision():
            return f"decision {fact.id}"
        case Execution():
            return f"execution {fact.decision_id}"
        case Feedback():
            return f"feedback {fact.id}"
        case Tick():
            return "tick"


stamps = st.integers(0, 1000).map(float)
few = st.sampled_from("abcd")
anything = st.one_of(
    st.builds(lambda name, at: decision(name, at=at), few, stamps),
    st.builds(lambda name, at: replace(execution(name), finished_at=at), few, stamps),
    st.builds(
        lambda name, number, at: value(name, number=number, at=at),
        few,
        st.sampled_from([0.0, 1.0, float("nan")]),
        stamps,
    ),
    st.builds(Tick, stamps),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batches=st.lists(st.lists(anything, min_size=1, max_size=5), max_size=6), again=st.booleans())
@pytest.mark.slow
def test_positions_are_without_gaps_whatever_is_refused_or_said_twice(
    store: Store, batches: list[list[Fact]], again: bool
) -> None:
    if not again:
        with store.writing() as connection:  # or else what was said in the example before is said again
            for table in (t.decisions, t.executions, t.feedback, t.ticks):
                connection.execute(sa.delete(table))
            connection.execute(sa.update(t.log).values(seq=0, at=0.0))
    receipts: list[tuple[Fact, Receipt]] = []
    for batch in batches:
        before = placed(store)
        try:
            receipts += zip(batch, store.append(batch), strict=True)
        except StoreError:
            assert placed(store) == before
    found = placed(store)
    assert [fact.seq for fact in found] == list(range(1, len(found) + 1))
    for fact, receipt in receipts:
        if receipt.seq or not isinstance(fact, Execution):
            assert found[receipt.seq - 1].what == name_of(fact)
    at = list(accumulate((fact.at for fact in found), max, initial=0.0))
    assert [fact.logged_at for fact in found if fact.logged_at is not None] == [
        at[fact.seq] for fact in found if fact.logged_at is not None
    ]
    with store.reading() as connection:
        assert connection.execute(sa.select(t.log.c.seq, t.log.c.at)).one() == (len(found), at[-1])


# -- several at once -----------------------------------------------------------------------------

WRITERS = 3
"""Threads on each of two stores, as two processes would have them."""


def by_many(url: str, work: Callable[[Store, int], T]) -> list[T]:
    """Let threads on two stores do the same at once, and return what each came to."""
    stores = [Store(url), Store(url)]
    together = threading.Barrier(2 * WRITERS)

    def start(n: int) -> T:
        together.wait(30)
        return work(stores[n % 2], n)

    try:
        with ThreadPoolExecutor(2 * WRITERS) as pool:
            return list(pool.map(start, range(2 * WRITERS)))
    finally:
        for store in stores:
            store.close()


def test_feedback_that_many_send_at_once_is_one_fact_at_one_position_for_all(url: str, store: Store) -> None:
    store.append([decision(f"d{i}") for i in range(12)])

    def send(store: Store, n: int) -> dict[str, Receipt]:
        items = [value(f"d{(i + n) % 12}") for i in range(12)]
        return {item.id: store.append([item])[0] for item in items}

    received = by_many(url, send)
    assert store.counts()["feedback"] == 12
    for key in received[0]:
        assert len({receipts[key].seq for receipts in received}) == 1
        statuses = sorted(str(receipts[key].status) for receipts in received)
        assert statuses == [*["duplicate"] * (2 * WRITERS - 1), "stored"]


def test_of_many_that_use_an_id_for_a_decision_at_once_one_wins(url: str, store: Store) -> None:
    def decide(store: Store, n: int) -> list[str]:
        won = []
        for i in range(12):
            with suppress(ConflictError):
                store.append([decision(f"d{i}", digest=f"of {n}")])
                won.append(f"d{i} of {n}")
        return won

    won = [name for names in by_many(url, decide) for name in names]
    assert len(won) == 12
    with store.reading() as connection:
        kept = connection.execute(sa.select(t.decisions.c.id, t.decisions.c.request_digest))
        assert {f"{name} {digest}" for name, digest in kept} == set(won)


@pytest.mark.slow
def test_a_reader_never_sees_a_position_appear_below_one_that_it_has_seen(url: str, store: Store) -> None:
    done = threading.Event()

    def look(reader: Store) -> int:
        seen = 0
        while not done.is_set():
            seqs = [fact.seq for fact in placed(reader)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert len(seqs) >= seen
            seen = len(seqs)
        return seen

    def write(writer: Store, n: int) -> None:
        for i in range(15):
            writer.append([decision(f"{n}-{i}"), value(f"{n}-{i}"), Tick(1.0)])

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look, store)
        try:
            by_many(url, write)
        finally:
            done.set()
        reader.result()
    assert store.log_seq() == 2 * WRITERS * 15 * 3


def test_feedback_beyond_the_limit_is_refused_by_every_writer_of_the_log(url: str) -> None:
    one, other = (Store(url, most_feedback=3) for _ in range(2))
    one.append([decision("d"), execution("d"), value("d", key="1"), value("d", key="2")])
    other.append([value("d", key="3"), value("d", key="3")])
    with pytest.raises(
        TooMuchFeedbackError, match="d already has 3 values of feedback, which is the maximum"
    ) as told:
        one.append([value("e"), value("d", key="4")])
    assert getattr(told.value.fact, "id", None) == "4"
    assert one.append([value("e"), value("d", key="1")])[1].status is FeedbackStatus.DUPLICATE
    back = [replace(value("d", key=str(n)), kind=FeedbackKind.RETRACTION, value=None) for n in range(4)]
    other.append(back[:3])
    with pytest.raises(TooMuchFeedbackError, match="d already has 3 retractions"):
        other.append(back[3:])
    talk = [replace(value("d", key=f"t{n}"), decision_id=None, episode_id="talk") for n in range(4)]
    other.append(talk[:2])
    with pytest.raises(TooMuchFeedbackError, match="episode talk already has 3 values"):
        one.append(talk[2:])
    one.append(talk[2:3])
    one.append([replace(value("d", key="d"), kind=FeedbackKind.ACTIVATION, metric="", value=None)])
    with pytest.raises(TooMuchFeedbackError):
        other.append([value("f", key=f"f{n}") for n in range(4)])
    assert other.record("d").feedback[-1].kind is FeedbackKind.ACTIVATION  # type: ignore[union-attr]
    one.close()
    other.close()


def test_a_row_says_whether_feedback_on_the_same_thing_follows(store: Store) -> None:
    def on(episode: str, key: str) -> Fact:
        return replace(value(episode, key=key), decision_id=None, episode_id=episode)

    store.append(
        [
            *(on("talk", "1"), on("talk", "2"), on("other", "3")),
            *(value("d1", key="4"), value("d1", key="5"), value("d2", key="6")),
            *(decision("d3"), value("d2", key="7")),
        ]
    )
    store.append([value("d2", key="8")])
    with store.reading() as connection:
        found = connection.scalars(sa.select(t.feedback.c.more).order_by(t.feedback.c.seq)).all()
    assert found == [True, False, False, True, False, False, False, False]


def test_no_commit_reads_more_of_a_longer_log(tmp_path: Path) -> None:
    taken = list[int]()
    for n in (20, 4000):
        store = Store(f"sqlite:///{tmp_path / str(n)}", most_feedback=10)
        talk = [replace(decision(f"d{i}"), episode_id="talk") for i in range(n)]
        on_talk = replace(value("talk"), decision_id=None, episode_id="talk")
        store.append([*talk, *(execution(one.id) for one in talk), *(value(one.id) for one in talk), on_talk])
        steps = count()
        store.engine.dispose()
        sa.event.listen(
            store.engine,
            "connect",
            lambda driver, _, steps=steps: driver.set_progress_handler(lambda: next(steps) < 0, 100),
        )
        again = replace(on_talk, id="again")
        store.append([decision("new"), execution("new"), execution("d1"), value("d2", key="2"), again])
        taken.append(next(steps))
        store.close()
    assert taken[1] <= 1.5 * taken[0]


def test_all_feedback_is_read_in_order_whatever_the_size_of_a_piece(store: Store) -> None:
    items = [value(f"d{n}", at=100.0 - n) for n in range(5)]
    for item in items:
        store.append([Tick(1.0), item])
    assert [list(store.feedback(chunk)) for chunk in (1, 2, 5, 9)] == [items] * 4


def test_the_newest_decisions_have_features_where_these_are_wanted(store: Store) -> None:
    store.append([decision("d1")])
    assert store.newest(1, features=True) == [decision("d1")]
    (bare,) = store.newest(1)
    assert (bare.context.features, bare.context.embedding, bare.context.arms) == ({}, (), {})


def test_a_record_and_the_counts_are_of_the_training_log_of_the_store(url: str) -> None:
    rule = RewardRule(correction_time="PT0S", metrics={"right": Metric()})
    ours, theirs = Store(url, rule.join), Store(url, "another rule")
    ours.append([decision("d1"), execution("d1"), value("d1", number=0.5)])
    Joiner(ours, rule, take_epoch(ours, "test", 0.0)).advance(110.0)
    found, other = ours.record("d1"), theirs.record("d1")
    assert found is not None
    assert other is not None
    assert (found.seq, found.logged_at, found.propensity) == (1, 100.0, 0.75)
    assert (found.metrics, found.example_seq) == ({"right": 0.5}, 1)
    assert (other.metrics, other.example_seq) == (None, None)
    assert (ours.counts()["examples"], theirs.counts()["examples"]) == (1, 0)
    assert (ours.count_unlearned(), theirs.count_unlearned()) == ({}, {"no reward": 1})
    ours.close()
    theirs.close()


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, GeneratorExit, ValueError])
def test_what_is_interrupted_writes_nothing(store: Store, stopped_by: type[BaseException]) -> None:
    def stop(connection: sa.Connection) -> None:
        operations.record(connection, Operation.SWITCH, 1.0, {"enabled": False}, subject="a")
        raise stopped_by

    for _ in range(9):  # more than there are connections
        with pytest.raises(stopped_by), store.writing() as connection:
            stop(connection)
        with pytest.raises(stopped_by), store.reading():
            raise stopped_by
    with store.reading() as connection:
        assert operations.read_all(connection, Operation.SWITCH) == []


SAID = replace(value("d1", key="k"), content={"comment": "no"})


OTHERS = [
    (replace(SAID, decision_id="d2"), "on d2"),
    (replace(SAID, metric="thumb"), "thumb=1"),
    (replace(SAID, value=0.5), "right=0.5"),
    (replace(SAID, content={"comment": "yes"}), "yes"),
    (replace(SAID, decision_id=None, episode_id="e"), "on episode e"),
    (replace(SAID, kind=FeedbackKind.RETRACTION, value=None, metric="thumb"), "retraction"),
]
"""Feedback that differs from `SAID` in one part, and the words that name it."""


@pytest.mark.parametrize("together", [False, True], ids=["later", "in one commit"])
def test_a_feedback_id_means_one_thing_in_every_part(store: Store, *, together: bool) -> None:
    store.append([decision("d1"), decision("d2"), replace(decision("d3"), episode_id="e")])
    if not together:
        store.append([SAID])
    for other, words in OTHERS:
        with pytest.raises(ConflictError, match=f"'k' was used for .* on d1; it cannot also be .*{words}"):
            store.append([SAID, other] if together else [other])
    assert store.counts()["feedback"] == 1 - together


def test_who_sent_it_and_when_is_no_other_feedback(store: Store) -> None:
    store.append([SAID])
    same = replace(SAID, received_at=120.0, tags={"page": "2"}, key="another", source="judge")
    (receipt,) = store.append([same])
    assert receipt == Receipt(1, FeedbackStatus.DUPLICATE)


@pytest.mark.parametrize("together", [False, True], ids=["later", "in one commit"])
def test_an_observation_is_one_fact_for_each_decision_and_arm(store: Store, *, together: bool) -> None:
    one = Observation("d1", ObservationSource.SHADOW, "a", 0.5, observed_at=103.0)
    others = [
        replace(one, decision_id="d2"),
        replace(one, arm="b"),
    ]
    facts = [one, *others, replace(one, value=0.5)]
    receipts = store.append(facts) if together else [store.append([fact])[0] for fact in facts]
    assert receipts == [Receipt(1), Receipt(2), Receipt(3), Receipt()]
