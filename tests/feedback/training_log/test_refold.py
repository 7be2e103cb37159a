"""The training log folded again: what a joiner made of any history, and what damage is mended to."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from feedback.log import Store
from feedback.log import tables as t
from feedback.reward import Aggregation, Complete, Metric, RewardRule
from feedback.training_log.epochs import take_epoch
from feedback.training_log.joiner import position_of, read_examples
from feedback.training_log.refold import Refold
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
def test_what_joiners_made_is_what_the_facts_give(
    store: Store, monkeypatch: pytest.MonkeyPatch, rule: RewardRule, chunk: int
) -> None:
    monkeypatch.setattr("feedback.training_log.refold.CHUNK", chunk)
    refold = Refold(store, rule)
    examples = list(refold.examples())
    assert examples == list(read_examples(store, rule.join))
    assert len(examples) > 80
    assert (refold.sound, refold.first, refold.wrong) == (True, None, 0)
    ought, found = refold.digests
    assert ought == found
    with store.reading() as connection:
        assert refold.position == position_of(connection, rule.join)


@pytest.mark.parametrize("seed", range(8))
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
