"""Alarms: each is one row however often the log is read, and each asks for labels until some are entered."""

from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from feedback import monitor
from feedback import tables as t
from feedback.alarms import Alarm, Alarms, Watch, raise_alarms, standing_alarms, warm_started
from feedback.drift import DriftSpec
from feedback.errors import SupersededError
from feedback.events import Decision, Execution, Feedback
from feedback.joins import Joiner, read_examples, take_epoch
from feedback.reward import Metric, RewardRule
from feedback.store import Store
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.0)
FALL = Alarm("recipe", "reward of a", "adwin", 0.75, 0.25, 300, 1000.0)
TURNS = 400
"""Of a log in which the arm begins to fail half-way."""


def rows(store: Store) -> list[tuple[str, int]]:
    with store.reading() as connection:
        found = connection.execute(
            sa.select(t.alarms.c.subject, t.alarms.c.example_seq).order_by(t.alarms.c.seq)
        )
        return [(row.subject, row.example_seq) for row in found]


def test_without_an_alarm_nothing_is_asked_for(store: Store) -> None:
    assert standing_alarms(store) == Alarms(0, None, False)
    warm_started(store, 10, 5.0)
    assert standing_alarms(store) == Alarms(0, None, False)


def test_an_alarm_is_read_back_as_it_was_raised(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    assert raise_alarms(store, epoch, [FALL]) == 1
    assert standing_alarms(store) == Alarms(1, FALL, True)


def test_an_alarm_is_written_once_however_often_it_is_raised(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    other = replace(FALL, subject="reward of b")
    assert raise_alarms(store, epoch, [FALL]) == 1
    assert raise_alarms(store, epoch, [replace(FALL, at=2000.0), other]) == 1
    assert raise_alarms(store, epoch, [replace(FALL, recipe="another"), replace(FALL, example_seq=301)]) == 2
    assert raise_alarms(store, epoch, []) == 0
    assert standing_alarms(store).count == 4


def test_a_learner_that_was_superseded_raises_no_alarm(store: Store) -> None:
    epoch = take_epoch(store, "old", 0.0)
    take_epoch(store, "new", 0.0)
    with pytest.raises(SupersededError):
        raise_alarms(store, epoch, [FALL])
    assert rows(store) == []


def test_the_newest_alarm_is_the_one_that_was_seen_last_not_the_one_written_last(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    raise_alarms(store, epoch, [FALL])
    raise_alarms(store, epoch, [replace(FALL, recipe="relearned", at=10.0)])
    assert standing_alarms(store) == Alarms(2, FALL, True)


def test_labels_close_what_an_alarm_opened_and_the_next_alarm_opens_it_again(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    warm_started(store, 3, 500.0)
    raise_alarms(store, epoch, [FALL])
    assert standing_alarms(store).warm_start_open
    warm_started(store, 3, 1001.0)
    assert not standing_alarms(store).warm_start_open
    raise_alarms(store, epoch, [replace(FALL, example_seq=301, at=1002.0)])
    assert standing_alarms(store).warm_start_open


def test_an_alarm_raises_the_floor_for_as_long_as_it_is_set_to() -> None:
    spec = DriftSpec(raised_for="PT10M")
    assert Alarms().raised_until(spec) is None
    assert Alarms(1, FALL, True).raised_until(spec) == 1600.0


@pytest.fixture
def fallen(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A training log of one arm, right at first and wrong from half-way on, and a watch that is soon warm."""
    monkeypatch.setattr(monitor, "WARM", 50)
    right = np.random.default_rng(0).random(TURNS) < np.where(np.arange(TURNS) < TURNS // 2, 0.9, 0.1)
    facts: list[Decision | Execution | Feedback] = []
    for number, one in enumerate(right.tolist()):
        name = f"d-{number}"
        facts += (decision(name, at=100.0), execution(name), value(name, number=float(one), at=101.0))
    store.append(facts)
    Joiner(store, RULE, take_epoch(store, "joiner", 0.0)).advance(102.0)
    return store


def watch(store: Store, epoch: int, learned: int = 0, now: float = 110.0) -> Watch:
    return Watch(store, DriftSpec(), RULE, "recipe", epoch, learned, lambda: now)


def read(store: Store, watch: Watch, after: int, upto: int) -> None:
    assert [one.seq for one in watch.over(read_examples(store, RULE.join, after, upto))] == list(
        range(after + 1, upto + 1)
    )
    watch.report()


def test_a_fall_in_the_log_is_an_alarm(fallen: Store) -> None:
    read(fallen, watch(fallen, take_epoch(fallen, "learner", 0.0)), 0, TURNS)
    found = standing_alarms(fallen)
    assert found.count == 1
    assert found.newest is not None
    assert found.newest.subject == "reward of b"
    assert TURNS // 2 < found.newest.example_seq <= TURNS // 2 + 50
    assert found.newest.before > 0.6
    assert found.newest.after < 0.6
    assert found.newest.at == 110.0


@pytest.mark.parametrize("learned", [0, 150, 210, 300, TURNS])
def test_a_learner_that_takes_up_the_log_finds_the_same_alarms(fallen: Store, learned: int) -> None:
    """Also what the one before it found and, having died, did not write."""
    epoch = take_epoch(fallen, "learner", 0.0)
    read(fallen, watch(fallen, epoch), 0, TURNS)
    before = rows(fallen)
    read(fallen, watch(fallen, epoch, learned), learned, TURNS)
    assert rows(fallen) == before

    with fallen.writing() as connection:
        connection.execute(sa.delete(t.alarms))
    read(fallen, watch(fallen, epoch, learned), learned, TURNS)
    assert rows(fallen) == before


def test_an_alarm_of_an_old_log_is_as_old_as_its_decision(fallen: Store) -> None:
    """So it raises no floor now: what it tells of is over, or has been learned since."""
    read(fallen, watch(fallen, take_epoch(fallen, "learner", 0.0), now=1e6), 0, TURNS)
    newest = standing_alarms(fallen).newest
    assert newest is not None
    assert newest.at == decision("d", at=100.0).deadline


def test_what_is_worth_nothing_is_not_looked_at(fallen: Store) -> None:
    worthless = RULE.model_copy(update={"metrics": {"thumb": Metric()}})
    found = Watch(fallen, DriftSpec(), worthless, "recipe", take_epoch(fallen, "learner", 0.0))
    assert len(list(found.over(read_examples(fallen, RULE.join)))) == TURNS
    found.report()
    assert rows(fallen) == []


def test_what_is_looked_at_again_begins_with_the_block_of_the_next_example(
    fallen: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def spied(_store: Store, _rule: RewardRule, _start: object, after: int, upto: int) -> list[object]:
        asked.append((after, upto))
        return []

    monkeypatch.setattr("feedback.alarms.lessons", spied)
    block = monitor.BLOCK
    for learned in (0, block - 1, block, block + 1):
        Watch(fallen, DriftSpec(), RULE, "recipe", 1, learned)
    assert asked == [(0, 0), (0, block - 1), (block, block), (block, block + 1)]
