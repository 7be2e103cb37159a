"""The training log folded again: what a joiner made of any history, and what damage is mended to."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogGapError, SupersededError
from armwise.feedback.events import Example, Status, Tick
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from armwise.feedback.training_log.join import Joiner, Position, read_examples, read_position, take_epoch
from armwise.feedback.training_log.refold import Refold
from tests.feedback.conftest import decision, execution, value
from tests.feedback.histories import History
from tests.feedback.training_log.test_model import traffic

RULES = (
    RewardRule(
        metrics={"right": Metric(), "thumb": Metric(aggregation=Aggregation.MEAN)},
        wait_time="PT10.1S",
        failed=0.0,
    ),
    RewardRule(metrics={"right": Metric()}, wait_time="PT4S", complete=Complete.DEADLINE, default=0.0),
)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a random history that joiners of two rules have read, stopped and killed again and again."""
    path = tmp_path_factory.mktemp("history") / "log.db"
    with closing(History(f"sqlite:///{path}", RULES, batch=100, thorough=False)) as history:
        history.run(traffic(np.random.default_rng(5), 250))
    return path


@pytest.fixture
def store(joined: Path, tmp_path: Path) -> Iterator[Store]:
    """A copy of it."""
    path = shutil.copy(joined, tmp_path)
    with closing(Store(f"sqlite:///{path}")) as copy:
        yield copy


def rows(store: Store) -> list[tuple[Any, ...]]:
    """Return both training logs, and how far they are."""
    with store.reading() as connection:
        examples = sa.select(t.examples).order_by(t.examples.c.join, t.examples.c.seq)
        progress = sa.select(t.progress).order_by(t.progress.c.join)
        return [*map(tuple, connection.execute(examples)), *map(tuple, connection.execute(progress))]


@pytest.mark.parametrize("chunk", [1, 64, 100_000])
@pytest.mark.parametrize("rule", RULES, ids=["any", "deadline"])
@pytest.mark.slow
def test_what_joiners_made_is_what_the_facts_give(
    store: Store, monkeypatch: pytest.MonkeyPatch, rule: RewardRule, chunk: int
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", chunk)
    refold = Refold(store, rule)
    examples = list(refold.examples())
    assert examples == list(read_examples(store, rule.join))
    assert len(examples) > 80
    assert (refold.sound, refold.first, refold.wrong) == (True, None, 0)
    ought, found = refold.digests
    assert ought == found
    with store.reading() as connection:
        assert refold.position == read_position(connection, rule.join)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.slow
def test_any_damage_is_mended_to_what_it_was(store: Store, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = RULES[seed % 2]
    sound, x = rows(store), t.examples.c
    n = sum(row[0] == rule.join for row in sound) - 1
    gone, changed, moved = (rng.choice(n, 9, replace=False) + 1 for _ in range(3))
    with store.writing() as connection:
        ours = x.join == rule.join
        connection.execute(sa.update(t.examples).where(ours, x.seq.in_(changed.tolist())).values(metrics={}))
        for here, there in zip(moved.tolist(), rng.permutation(moved).tolist(), strict=True):
            connection.execute(sa.update(t.examples).where(ours, x.seq == here).values(seq=-there))
        connection.execute(sa.update(t.examples).where(ours, x.seq < 0).values(seq=-x.seq))
        connection.execute(sa.delete(t.examples).where(ours, x.seq.in_(gone.tolist())))
        if seed > 3:
            connection.execute(sa.update(t.examples).where(ours).values(seq=-x.seq))
            connection.execute(sa.update(t.examples).where(ours).values(seq=n - x.seq - 5))
    refold = Refold(store, rule)
    assert len(list(refold.examples())) == n
    assert not refold.sound
    ought, found = refold.digests
    assert ought != found
    refold.repair(take_epoch(store, "repair", 0.0))
    with store.writing() as connection:
        refold.finish(connection)
    assert rows(store) == sound
    again = Refold(store, rule)
    assert len(list(again.examples())) == n
    assert again.sound
    assert again.digests == (ought, ought)


# -- a small log ---------------------------------------------------------------------------------------


SMALL = RewardRule(metrics={"right": Metric()}, wait_time="PT1M")


@pytest.fixture
def judged(url: str) -> Iterator[Store]:
    """Positions 1 to 9: three turns and their feedback, one after the other; all are joined."""
    with closing(Store(url)) as log:
        for name in ("d1", "d2", "d3"):
            log.append([decision(name), execution(name), value(name)])
        Joiner(log, SMALL, take_epoch(log, "test", 0.0)).advance(110.0)
        yield log


def folded(store: Store) -> Refold:
    refold = Refold(store, SMALL)
    assert [example.seq for example in refold.examples()] == [1, 2, 3]
    return refold


def write(store: Store, *statements: sa.Executable) -> None:
    with store.writing() as connection:
        for statement in statements:
            connection.execute(statement)


def row(seq: int, join: str = SMALL.join) -> dict[str, Any]:
    return {"join": join, "seq": seq, "decision_id": f"none-{seq}", "metrics": {}, "joined_by": 9}


def test_an_empty_log_is_sound(url: str) -> None:
    with closing(Store(url)) as log:
        refold = Refold(log, SMALL)
        assert refold.recorded == Position(0, 0.0, 0), "before it is read"
        assert list(refold.examples()) == []
        assert (refold.sound, refold.first, refold.surplus) == (True, None, 0)
        assert refold.position == refold.recorded == Position(0, 0.0, 0)


@pytest.mark.parametrize(
    ("damage", "wrong", "surplus", "first"),
    [
        (
            [sa.delete(t.examples).where(t.examples.c.seq == 2)],
            1,
            0,
            "row 2 is missing; expected 'd2' with {'right': 1.0} by fact 6",
        ),
        (
            [
                sa.update(t.examples)
                .where(t.examples.c.seq.in_([2, 3]))
                .values(metrics={"right": 0.5}, joined_by=7)
            ],
            2,
            0,
            "row 2 is 'd2' with {'right': 0.5} by fact 7; expected 'd2' with {'right': 1.0} by fact 6",
        ),
        ([sa.insert(t.examples).values(row(0))], 0, 1, "there are 1 rows besides the expected rows 1 to 3"),
        (
            [sa.insert(t.examples).values(row(seq)) for seq in (4, 5)],
            0,
            2,
            "there are 2 rows besides the expected rows 1 to 3",
        ),
        (
            [sa.update(t.progress).values(log_at=99.5)],
            0,
            0,
            f"the join is recorded at {Position(9, 99.5, 3)}; expected {Position(9, 105.0, 3)}",
        ),
        (
            [sa.delete(t.examples).where(t.examples.c.seq == 3), sa.insert(t.examples).values(row(4))],
            1,
            1,
            "row 3 is missing; expected 'd3' with {'right': 1.0} by fact 9",
        ),
        (
            [sa.insert(t.examples).values(row(4)), sa.update(t.progress).values(examples_seq=4)],
            0,
            1,
            "there are 1 rows besides the expected rows 1 to 3",
        ),
    ],
    ids=["missing", "changed", "before", "beyond", "position", "missing and beyond", "beyond and position"],
)
def test_damage_is_counted_its_first_place_described_and_then_mended(
    judged: Store, damage: list[sa.Executable], wrong: int, surplus: int, first: str
) -> None:
    write(judged, sa.insert(t.examples).values(row(7, "another rule")))
    before, sound = rows(judged), folded(judged)
    assert (sound.sound, sound.first, sound.wrong, sound.surplus) == (True, None, 0, 0)
    write(judged, *damage)
    refold = folded(judged)
    assert (refold.sound, refold.wrong, refold.surplus, refold.first) == (False, wrong, surplus, first)
    ought, found = refold.digests
    assert ought == sound.digests[0] != found
    refold.repair(take_epoch(judged, "repair", 0.0))
    with judged.writing() as connection:
        refold.finish(connection)
    assert rows(judged) == before
    assert folded(judged).digests == sound.digests


def test_rows_besides_the_expected_are_deleted_in_pieces(
    judged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 2)
    before = rows(judged)
    write(judged, *(sa.insert(t.examples).values(row(seq)) for seq in (-1, 0, 4, 5, 6)))
    refold = folded(judged)
    assert refold.surplus == 5
    there: list[int] = []

    def confirm(connection: sa.Connection, _epoch: int) -> None:
        there.append(int(connection.scalar(sa.select(sa.func.count()).select_from(t.examples)) or 0))

    monkeypatch.setattr("armwise.feedback.training_log.refold.confirm_epoch", confirm)
    refold.repair(take_epoch(judged, "repair", 0.0))
    assert there == [8, 6, 4], "in one transaction each"
    assert rows(judged) == before


def test_the_progress_is_told_in_facts(judged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 4)
    told: list[tuple[int, int]] = []
    list(Refold(judged, SMALL).examples(lambda done, of: told.append((done, of))))
    assert told == [(4, 9), (8, 9), (9, 9), (9, 9)]


def test_a_missing_fact_is_a_gap(judged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 6)
    write(judged, sa.delete(t.feedback).where(t.feedback.c.seq == 6))
    with pytest.raises(LogGapError, match="the log goes on after 6, and rows from 6 on are missing"):
        list(Refold(judged, SMALL).examples())
    write(judged, sa.update(t.log_head).values(seq=8))
    with pytest.raises(LogGapError, match="the log ends at 8, and was read up to 9 before"):
        list(Refold(judged, SMALL).examples())


def test_a_repair_that_was_superseded_writes_nothing(judged: Store) -> None:
    write(judged, sa.update(t.examples).values(metrics={}), sa.insert(t.examples).values(row(4)))
    damaged, refold = rows(judged), folded(judged)
    old = take_epoch(judged, "repair", 0.0)
    take_epoch(judged, "learner", 0.0)
    with pytest.raises(SupersededError, match=f"epoch {old} was superseded"):
        refold.repair(old)
    assert rows(judged) == damaged


def test_an_example_is_folded_with_the_decision_its_cost_and_whether_its_arm_failed(url: str) -> None:
    rule = SMALL.model_copy(update={"failed": 0.0})
    with closing(Store(url)) as log:
        log.append([decision("d1"), execution("d1", Status.ARM_FAILED), decision("d2"), execution("d2")])
        log.append([value("d2", number=0.5)])
        log.append([Tick(5000.0)])
        Joiner(log, rule, take_epoch(log, "test", 0.0)).advance(5000.0)
        assert list(Refold(log, rule).examples()) == [
            Example(1, decision("d1"), execution("d1").cost, {}, failed=True, by=6),
            Example(2, decision("d2"), execution("d2").cost, {"right": 0.5}, by=6),
        ]


def test_expected_examples_have_all_that_those_of_the_training_log_have(tmp_path: Path) -> None:
    rule = RewardRule(metrics={"right": Metric()}, failed=0.0)
    told = {"index_version": "i1", "cached": True, "tokens_by_model": {"m": (7, 5, 3)}}
    with closing(Store(f"sqlite:///{tmp_path / 'fresh.db'}")) as store:
        store.append([decision("a"), replace(execution("a", steps=3), **told), value("a")])  # type: ignore[arg-type]
        store.append([decision("b"), execution("b", Status.ARM_FAILED), value("b")])
        Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(5000.0)
        learned = list(read_examples(store, rule.join))
        expected = list(Refold(store, rule).examples())
    assert [(one.failed, one.tokens_by_model) for one in learned] == [(False, {"m": (7, 5, 3)}), (True, {})]
    assert expected == learned
