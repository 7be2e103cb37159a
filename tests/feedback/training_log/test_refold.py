"""The training log compared with a fold of the facts: what joiners made of any history, and damage."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogGapError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Aggregation, Complete, Metric, RewardRule
from armwise.feedback.training_log.joiner import Joiner, Position, read_position, take_epoch
from armwise.feedback.training_log.refold import find_difference, require_gapless
from tests.feedback.conftest import decision, execution, value
from tests.feedback.histories import History
from tests.feedback.training_log.test_model import traffic

RULES = (
    RewardRule(
        correction_time="PT0S",
        metrics={"right": Metric(), "thumb": Metric(aggregation=Aggregation.MEAN)},
        wait_time="PT10.1S",
        failed=0.0,
    ),
    RewardRule(
        correction_time="PT0S",
        metrics={"right": Metric()},
        wait_time="PT4S",
        complete=Complete.DEADLINE,
        default=0.0,
    ),
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


@pytest.mark.parametrize("chunk", [1, 64, 100_000])
@pytest.mark.parametrize("rule", RULES, ids=["any", "deadline"])
@pytest.mark.slow
def test_what_joiners_made_is_what_the_facts_give(
    store: Store, monkeypatch: pytest.MonkeyPatch, rule: RewardRule, chunk: int
) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", chunk)
    position, difference = find_difference(store, rule)
    assert difference == ""
    assert position.examples_seq > 80
    with store.reading() as connection:
        assert position == read_position(connection, rule.join)


# -- a small log ---------------------------------------------------------------------------------------


SMALL = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, wait_time="PT1M")


@pytest.fixture
def judged(url: str) -> Iterator[Store]:
    """Positions 1 to 9: three turns and their feedback, one after the other; all are joined."""
    with closing(Store(url)) as log:
        for name in ("d1", "d2", "d3"):
            log.append([decision(name), execution(name), value(name)])
        Joiner(log, SMALL, take_epoch(log, "test", 0.0)).advance(110.0)
        yield log


def write(store: Store, *statements: sa.Executable) -> None:
    with store.writing() as connection:
        for statement in statements:
            connection.execute(statement)


def row(seq: int, join: str = SMALL.join) -> dict[str, Any]:
    return {"join": join, "seq": seq, "decision_id": f"none-{seq}", "metrics": {}, "joined_by": 9}


def test_an_empty_log_has_no_difference(url: str) -> None:
    with closing(Store(url)) as log:
        require_gapless(log)
        assert find_difference(log, SMALL) == (Position(0, 0.0, 0), "")


X = t.examples


@pytest.mark.parametrize(
    ("damage", "first"),
    [
        ([sa.delete(X).where(X.c.seq == 2)], "row 2 of examples is missing, and the facts give {'seq': 2"),
        (
            [sa.update(X).where(X.c.seq.in_([2, 3])).values(metrics={"right": 0.5})],
            "row 2 of examples is {'seq': 2, 'decision_id': 'd2', 'metrics': {'right': 0.5}, 'joined_by': 6",
        ),
        ([sa.insert(X).values(row(0))], "there are 4 rows of examples, and the facts give 3"),
        ([sa.insert(X).values(row(4))], "there are 4 rows of examples, and the facts give 3"),
        (
            [sa.update(t.progress).values(log_at=99.5)],
            f"the join is recorded at {Position(9, 99.5, 3)}, and the facts give {Position(9, 105.0, 3)}",
        ),
        (
            [sa.update(t.progress).values(left_out=["r"])],
            f"the join is recorded at {Position(9, 105.0, 3, ('r',))}, and the facts give "
            f"{Position(9, 105.0, 3)}",
        ),
    ],
    ids=["missing", "changed", "before", "beyond", "position", "left out"],
)
def test_the_first_difference_is_named(judged: Store, damage: list[sa.Executable], first: str) -> None:
    write(judged, sa.insert(X).values(row(7, "another rule")))
    assert find_difference(judged, SMALL)[1] == ""
    write(judged, *damage)
    assert find_difference(judged, SMALL)[1].startswith(first)


def test_the_progress_is_told_in_facts(judged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 4)
    told: list[tuple[int, int]] = []
    find_difference(judged, SMALL, lambda done, of: told.append((done, of)))
    assert told == [(4, 9), (8, 9), (9, 9)]


def test_a_missing_fact_is_a_gap(judged: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.training_log.refold.CHUNK", 6)
    require_gapless(judged)
    write(judged, sa.delete(t.feedback).where(t.feedback.c.seq == 6))
    with pytest.raises(LogGapError, match="the log ends at position 9 but has 8 facts: rows are missing"):
        require_gapless(judged)
    with pytest.raises(LogGapError, match="the log ends at 6, but rows after 5 are missing"):
        find_difference(judged, SMALL)
    write(judged, sa.update(t.log).values(seq=8))
    with pytest.raises(LogGapError, match="the log ends at 8, but was read up to 9 before"):
        find_difference(judged, SMALL)
