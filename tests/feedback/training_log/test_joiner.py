"""The joiner: it reads the whole log in order, writes each example once, and notices what is missing.

What is learned of which facts is in test_join.py, and that nothing depends on when the joiner looked in
test_model.py.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import ConflictError, LogGapError, LogUnavailableError, SupersededError
from armwise.feedback.events import Feedback, FeedbackKind, Status, Tick
from armwise.feedback.log import Store, counting
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Complete, Metric, RewardRule
from armwise.feedback.training_log.joiner import Joiner, Position, read_examples, take_epoch
from tests.feedback.conftest import Turn, decision, execution, value

GRACE_S = 2.0
"""Seconds after its deadline in which a decision is open, as the document has it."""


def rule(complete: Complete = Complete.ANY, default: float | None = None) -> RewardRule:
    return RewardRule(
        correction_time="PT0S",
        metrics={"right": Metric(), "thumb": Metric(range=(-1, 1))},
        complete=complete if default is None else Complete.DEADLINE,
        default=default,
        wait_time="PT1M",
    )


def joiner(store: Store, how: RewardRule | None = None, **options: int) -> Joiner:
    return Joiner(store, how or rule(), take_epoch(store, "test", 0.0), **options)


def learned(store: Store, how: RewardRule | None = None) -> list[tuple[int, str, dict[str, float]]]:
    examples = read_examples(store, (how or rule()).join)
    return [(e.seq, e.decision.id, dict(e.metrics)) for e in examples]


def test_an_empty_log_is_at_its_start(store: Store) -> None:
    assert joiner(store).advance(now=1e9) == Position(0, 0.0, 0)


def test_examples_follow_the_order_of_what_made_them_ready(store: Store, turn: Turn) -> None:
    turn("d1"), turn("d2"), turn("d3")
    store.append([value("d3"), value("d1")])
    position = joiner(store).advance(now=110.0)
    assert [(seq, name) for seq, name, _ in learned(store)] == [(1, "d3"), (2, "d1")]
    assert position == Position(log_seq=8, log_at=105.0, examples_seq=2)


def test_an_example_carries_the_decision_and_the_cost_as_written(store: Store) -> None:
    tokens = {"default": (30, 4, 0), "large": (100, 20, 64)}
    done = replace(execution("d1"), index_version="a1", cached=True, tokens_by_model=tokens)
    done = replace(done, finish_reason="refusal")
    store.append([decision("d1"), done, value("d1", number=0.5)])
    joiner(store).advance(now=110.0)
    (example,) = read_examples(store, rule().join)
    assert (example.index_version, example.cached, example.tokens_by_model) == ("a1", True, tokens)
    assert example.finish_reason == "refusal"
    assert example.decision == decision("d1")
    assert example.cost == execution("d1").cost
    assert example.metrics == {"right": 0.5}
    assert not example.failed


def test_time_that_passed_is_written_down_once_something_waited_for_it(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    join = joiner(store, rule(default=0.0))
    closing = 160.0 + GRACE_S
    assert join.advance(now=closing) == Position(2, 101.0, 0)
    assert join.advance(now=closing + 0.5) == Position(3, closing + 0.5, 1)
    assert join.advance(now=closing + 99.0) == Position(3, closing + 0.5, 1), "nothing waits any more"
    assert learned(store, rule(default=0.0)) == [(1, "d1", {})]


def test_time_is_written_down_once_a_rating_can_be_corrected_no_more(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0), turn("d2", at=100.0)
    how = rule().model_copy(update={"correction_time": "PT5S"})
    join = joiner(store, how)
    store.append([value("d1", at=105.0)])
    assert join.advance(now=110.0) == Position(5, 105.0, 0)
    assert join.advance(now=110.5) == Position(6, 110.5, 1)
    assert join.advance(now=120.0) == Position(6, 110.5, 1), "nothing waits any more"
    store.append([Feedback("f", None, "right", 0.5, 121.0, episode_id="nobody's")])
    assert join.advance(now=140.0).log_seq == 7, "nor for what nobody made"


def test_each_rule_has_a_training_log_of_its_own(store: Store, turn: Turn) -> None:
    turn("d1"), turn("d2", at=101.0)
    for said in (value("d1"), value("d2", "thumb", 0.5), value("d2", at=150.0), value("other", at=900.0)):
        store.append([said])
    any_, all_ = rule(), rule(Complete.ALL)
    joiner(store, any_).advance(now=900.0)
    joiner(store, all_).advance(now=900.0)
    assert learned(store, any_) == [(1, "d1", {"right": 1.0}), (2, "d2", {"thumb": 0.5})]
    assert learned(store, all_) == [(1, "d2", {"thumb": 0.5, "right": 1.0}), (2, "d1", {"right": 1.0})]


def test_only_the_newest_epoch_may_write(store: Store, turn: Turn) -> None:
    turn("d1")
    store.append([value("d1")])
    old, new = joiner(store), joiner(store)
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        old.advance(now=110.0)
    assert learned(store) == []
    new.advance(now=110.0)
    assert len(learned(store)) == 1


def test_who_is_superseded_between_reading_and_writing_writes_nothing(store: Store, turn: Turn) -> None:
    turn("d1")
    store.append([value("d1")])
    old = joiner(store)
    write = old._write  # noqa: SLF001 - what is between reading and writing has no other name

    def late(*what: object) -> None:
        joiner(store).advance(now=110.0)
        write(*what)  # type: ignore[arg-type]

    old._write = late  # type: ignore[method-assign] # noqa: SLF001
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        old.advance(now=110.0)
    assert learned(store) == [(1, "d1", {"right": 1.0})]


def test_small_batches_give_the_same_training_log_as_one_large(store: Store, turn: Turn) -> None:
    rng = np.random.default_rng(0)
    names = [f"d{i}" for i in range(50)]
    for name in names:
        turn(name)
    shuffled = [str(name) for name in rng.permutation(names)]
    for name in shuffled:
        store.append([value(name)])
    join = joiner(store, batch=7)
    assert join.left == 0, "nothing is known before it looked"
    reached = [join.advance(now=110.0).log_seq]
    assert join.left == 143
    while reached[-1] < store.log_seq():
        reached.append(join.advance(now=110.0).log_seq)
    assert reached == [*range(7, 150, 7), 150]
    assert join.left == 0
    assert [name for _, name, _ in learned(store)] == shuffled


def test_a_restart_takes_up_what_is_open_until_this_very_moment(store: Store, turn: Turn) -> None:
    how = rule().model_copy(update={"wait_time": "PT60.1S"})
    deadline = 102.2 + 60.1
    closing = deadline + GRACE_S
    assert closing - GRACE_S - 60.1 > 102.2, "as sums are rounded"
    turn("d1", at=102.2, wait_s=60.1)
    store.append([Tick(closing)])
    joiner(store, how).advance(now=0.0)
    store.append([value("d1", at=deadline)])
    joiner(store, how).advance(now=0.0)
    assert learned(store, how) == [(1, "d1", {"right": 1.0})]


def test_a_restart_does_not_take_up_what_will_never_be_learned(store: Store, turn: Turn) -> None:
    turn("d1", status=Status.LLM_FAILED)
    joiner(store).advance(now=110.0)
    assert joiner(store).advance(now=500.0) == Position(3, 500.0, 0), "it is settled by its age like any"
    assert joiner(store).advance(now=900.0).log_seq == 3, "and time is written down for it once"


def test_a_step_that_fails_is_taken_again_as_a_whole(
    store: Store, turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn("d1"), turn("d2")
    join = joiner(store, rule(Complete.ALL))
    store.append([value("d1"), value("d2"), value("d2", "thumb")])
    with monkeypatch.context() as patch:
        patch.setattr(join, "_write", unavailable)
        with pytest.raises(LogUnavailableError):
            join.advance(now=110.0)
    store.append([value("d1", "thumb")])
    assert join.advance(now=110.0).examples_seq == 2
    assert [name for _, name, _ in learned(store, rule(Complete.ALL))] == ["d2", "d1"]


def unavailable(*_: object) -> None:
    raise LogUnavailableError("the disk is full")


def test_the_joiner_takes_no_lock_while_there_is_nothing_to_write(store: Store, turn: Turn) -> None:
    turn("d1", at=100.0)
    store.append([value("d1"), value("unknown")])
    join = joiner(store)
    position = join.advance(now=500.0)
    with store.writing():  # another writer would wait for this, and fail
        assert [join.advance(now=501.0 + second) for second in range(20)] == [position] * 20


def test_the_training_log_is_read_in_pieces(store: Store, turn: Turn) -> None:
    for i in range(10):
        turn(f"d{i}")
        store.append([value(f"d{i}")])
    joiner(store).advance(now=110.0)
    whole = [e.seq for e in read_examples(store, rule().join)]
    assert whole == list(range(1, 11))
    assert [e.seq for e in read_examples(store, rule().join, after=3, upto=8, chunk=2)] == [4, 5, 6, 7, 8]
    assert list(read_examples(store, "another rule")) == []


def test_a_piece_of_the_training_log_is_read_when_it_is_reached(judged: Store) -> None:
    joiner(judged).advance(now=110.0)
    examples = read_examples(judged, rule().join, chunk=2)
    read = [next(examples).metrics]
    with judged.writing() as connection:
        connection.execute(sa.update(t.examples).values(metrics={"right": 0.25}))
    read += [example.metrics for example in examples]
    assert read == [{"right": 1.0}, {"right": 1.0}, {"right": 0.25}]


def test_a_key_that_was_taken_back_is_not_refused(store: Store) -> None:
    back = replace(value("d1"), value=None, kind=FeedbackKind.RETRACTION)
    store.append([decision("d1")])
    statuses = [str(store.append([item])[0].status) for item in (back, value("d1"), back)]
    assert statuses == ["stored", "stored", "duplicate"]
    with pytest.raises(ConflictError, match=r"was used for right=1 on d1; it cannot also be right=0\.5"):
        store.append([value("d1", number=0.5)])


# -- a damaged log ------------------------------------------------------------------------------------


@pytest.fixture
def judged(store: Store, turn: Turn) -> Store:
    """Positions 1 to 9: three turns and their feedback, one after the other."""
    for name in ("d1", "d2", "d3"):
        turn(name)
        store.append([value(name)])
    return store


def lose(store: Store, table: sa.Table, seq: int) -> None:
    with store.writing() as connection:
        assert connection.execute(sa.delete(table).where(table.c.seq == seq)).rowcount == 1


@pytest.mark.parametrize(
    ("table", "seq"),
    [(t.decisions, 1), (t.decisions, 4), (t.executions, 5), (t.feedback, 6), (t.executions, 8)],
    ids=lambda given: getattr(given, "name", given),
)
@pytest.mark.parametrize("batch", [1, 2, 5000])
def test_a_fact_that_was_deleted_is_a_gap_whatever_it_was(
    judged: Store, table: sa.Table, seq: int, batch: int
) -> None:
    lose(judged, table, seq)
    join = joiner(judged, batch=batch)
    for _ in range((seq - 1) // batch):
        join.advance(now=110.0)
    with pytest.raises(LogGapError, match=gap(seq)):
        join.advance(now=110.0)
    n = len(learned(judged))
    assert n == (seq - 1) // 3 if batch == 1 else n <= (seq - 1) // 3, "nothing beyond it is learned"


def gap(seq: int) -> str:
    """Return the message about a missing position: by what follows, or by where the pass ends."""
    return rf"the log (continues at {seq + 1} after|ends at {seq}, but rows after) {seq - 1}"


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_a_log_that_became_shorter_is_noticed(judged: Store, *, restart: bool) -> None:
    join = joiner(judged)
    join.advance(now=110.0)
    for table in (t.decisions, t.executions, t.feedback):
        with judged.writing() as connection:
            connection.execute(sa.delete(table).where(table.c.seq > 5))
    with judged.writing() as connection:
        connection.execute(sa.update(t.log).values(seq=5))
    if restart:
        join = joiner(judged)
    with pytest.raises(LogGapError, match="the log ends at 5, but was read up to 9 before"):
        join.advance(now=111.0)


@pytest.mark.parametrize(
    ("table", "seq"), [(t.examples, 2), (t.decisions, 4), (t.executions, 5)], ids=lambda given: str(given)
)
def test_an_example_that_cannot_be_read_is_named_and_not_passed_over(
    judged: Store, table: sa.Table, seq: int
) -> None:
    joiner(judged).advance(now=110.0)
    lose(judged, table, seq)
    examples = read_examples(judged, rule().join, upto=3)
    assert next(examples).seq == 1
    with pytest.raises(LogGapError, match="training log continues at 3 after 1: rows or their facts"):
        next(examples)


@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
def test_a_training_log_that_ends_too_early_is_named(judged: Store, chunk: int) -> None:
    joiner(judged).advance(now=110.0)
    lose(judged, t.examples, 3)
    with pytest.raises(LogGapError, match="the training log ends at 2, not at 3: rows"):
        list(read_examples(judged, rule().join, upto=3, chunk=chunk))
    with pytest.raises(LogGapError, match="the training log ends at 2, not at 3: run `armwise log rebuild`"):
        joiner(judged).advance(now=110.0)


# -- one episode of many -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"complete": "all", "metrics": {"right": Metric(), "thumb": Metric()}}, {"default": 0.0}],
    ids=["any", "all", "deadline"],
)
def test_many_ratings_of_an_episode_of_many_decisions_take_as_long_as_their_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    looked_at = [0, 0]
    real, aggregate = counting.counts, RewardRule.aggregate

    def counts(item: Feedback, decided_at: float, deadline: float) -> bool:
        looked_at[0] += 1
        return real(item, decided_at, deadline)

    def aggregated(rule: RewardRule, feedback: list[Feedback]) -> dict[str, float]:
        looked_at[1] += len(feedback)
        return aggregate(rule, feedback)

    monkeypatch.setattr(counting, "counts", counts)
    monkeypatch.setattr(RewardRule, "aggregate", aggregated)
    rule = RewardRule(
        correction_time="PT0S", **{"metrics": {"right": Metric()}, "wait_time": "PT1M", **settings}
    )
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}", rule.join)) as store:
        names = [f"d{n}" for n in range(400)]
        store.append([replace(decision(name), episode_id="talk") for name in names])
        store.append([execution(name) for name in names])
        said = [replace(value("talk", key=str(n)), decision_id=None, episode_id="talk") for n in range(200)]
        for n in range(0, 200, 20):
            store.append(said[n : n + 20])
        store.append([Tick(200.0)])
        joined = Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(200.0)
        assert joined.examples_seq == 400
        assert max(looked_at) < 5 * joined.log_seq
