"""Alarms: each is one row however often the log is read, and each asks for labels until some are entered."""

from dataclasses import replace

import numpy as np
import pytest

from armwise.feedback.drift import monitor
from armwise.feedback.drift.alarms import (
    Alarm,
    Alarms,
    Watch,
    newest_alarms,
    raise_alarms,
    read_alarms,
    record_warm_start,
)
from armwise.feedback.errors import SupersededError
from armwise.feedback.events import Decision, Execution, Feedback
from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.registry import Version, active_policy, promotions, versions
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, StartingPoint, read_examples, take_epoch
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(correction_time="PT0S", metrics={"right": Metric()}, cost_weight=0.0)
FALL = Alarm("recipe", "reward of a", "adwin", 0.75, 0.25, 300, 1000.0)
TURNS = 400
"""Of a log in which the arm begins to fail half-way."""


def rows(store: Store) -> list[tuple[str, int]]:
    with store.reading() as connection:
        found = operations.read_all(connection, Operation.ALARM)
    return [(row.document["subject"], row.document["example_seq"]) for row in found]


def test_without_an_alarm_no_warm_start_is_open(store: Store) -> None:
    assert read_alarms(store) == Alarms(0, None, False)
    record_warm_start(store, 10, 5.0)
    assert read_alarms(store) == Alarms(0, None, False)


def test_an_alarm_is_written_once_however_often_it_is_raised(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    other = replace(FALL, subject="reward of b")
    assert raise_alarms(store, epoch, [FALL]) == 1
    assert raise_alarms(store, epoch, [replace(FALL, at=2000.0), other]) == 1
    assert raise_alarms(store, epoch, [replace(FALL, recipe="another")]) == 1
    assert raise_alarms(store, epoch, [FALL, replace(FALL, example_seq=301)]) == 1
    assert raise_alarms(store, epoch, []) == 0
    assert read_alarms(store).count == 4


def test_a_learner_that_was_superseded_raises_no_alarm(store: Store) -> None:
    epoch = take_epoch(store, "old", 0.0)
    take_epoch(store, "new", 0.0)
    with pytest.raises(SupersededError):
        raise_alarms(store, epoch, [FALL])
    assert rows(store) == []


def test_the_newest_alarm_is_the_one_that_was_seen_last(store: Store) -> None:
    """Of those seen at the same time, the one written last."""
    epoch = take_epoch(store, "test", 0.0)
    raise_alarms(store, epoch, [FALL])
    raise_alarms(store, epoch, [replace(FALL, recipe="relearned", at=10.0)])
    assert read_alarms(store) == Alarms(2, FALL, True)
    later = replace(FALL, subject="reward of b")
    raise_alarms(store, epoch, [later])
    assert read_alarms(store).newest == later


def test_labels_close_what_an_alarm_opened_and_the_next_alarm_opens_it_again(store: Store) -> None:
    epoch = take_epoch(store, "test", 0.0)
    record_warm_start(store, 3, 500.0)
    raise_alarms(store, epoch, [FALL])
    assert read_alarms(store).warm_start_open
    record_warm_start(store, 3, 1001.0)
    assert not read_alarms(store).warm_start_open
    raise_alarms(store, epoch, [replace(FALL, example_seq=301, at=1002.0)])
    assert read_alarms(store).warm_start_open


def published(store: Store, recipe: str, join: str = RULE.join, after: int = 0) -> Version:
    """A version of a recipe that begins to learn after a position."""
    start = StartingPoint(after=after).document() if after else None
    epoch, digest = take_epoch(store, "test", 0.0), versions.digest_state(b"state")
    draft = Version(0, None, recipe, join, {}, after, 0, digest, epoch, 0.0, start)
    return replace(draft, version=versions.publish(store, draft, b"state"))


def test_an_alarm_is_of_the_training_log_that_its_recipe_has_learned(store: Store) -> None:
    for recipe, join in (("recipe", "one"), ("another", "one"), ("third", "other"), ("third", "other")):
        published(store, recipe, join)
    epoch = take_epoch(store, "test", 0.0)
    raise_alarms(store, epoch, [FALL])
    later = replace(FALL, recipe="third", at=2000.0)
    raise_alarms(store, epoch, [later])
    assert read_alarms(store) == Alarms(2, later, True)
    assert read_alarms(store, "one") == Alarms(1, FALL, True)
    assert read_alarms(store, "other") == Alarms(1, later, True)
    assert read_alarms(store, "third") == Alarms()


def test_what_another_recipe_saw_at_the_same_place_is_no_alarm(store: Store) -> None:
    for recipe, join in (("recipe", "one"), ("another", "one"), ("third", "other")):
        published(store, recipe, join)
    epoch = take_epoch(store, "test", 0.0)
    assert raise_alarms(store, epoch, [FALL], "one") == 1
    later = replace(FALL, recipe="another", example_seq=301)
    assert raise_alarms(store, epoch, [replace(FALL, recipe="another"), later], "one") == 1
    assert raise_alarms(store, epoch, [replace(FALL, recipe="third")], "other") == 1
    assert read_alarms(store, "one").count == 2


@pytest.mark.parametrize(("after", "still"), [(0, True), (299, True), (300, False), (301, False)])
def test_a_promoted_recipe_from_after_an_alarm_closes_it(store: Store, after: int, *, still: bool) -> None:
    live = published(store, "recipe")
    candidate = published(store, "candidate", after=after)
    raise_alarms(store, take_epoch(store, "test", 0.0), [FALL])
    assert read_alarms(store, RULE.join, active_policy(store, "ours")).warm_start_open
    for action, open_ in ((promotions.Action.CANARY, True), (promotions.Action.PROMOTE, still)):
        promotions.record(
            store, "ours", promotions.Promotion(0, candidate.version, action, "better", 1.0, share=0.1)
        )
        assert read_alarms(store, RULE.join, active_policy(store, "ours")).warm_start_open == open_
    promotions.record(
        store, "ours", promotions.Promotion(0, live.version, promotions.Action.PROMOTE, "it was better", 1.0)
    )
    assert read_alarms(store, RULE.join, active_policy(store, "ours")).warm_start_open


def test_an_alarm_raises_exploration_for_an_hour() -> None:
    assert Alarms().raised_until is None
    assert Alarms(1, FALL, True).raised_until == FALL.at + 3600.0


@pytest.fixture
def fallen(store: Store) -> Store:
    """A training log of one arm, right at first and wrong from half-way on."""
    right = np.random.default_rng(0).random(TURNS) < np.where(np.arange(TURNS) < TURNS // 2, 0.9, 0.1)
    facts: list[Decision | Execution | Feedback] = []
    for number, one in enumerate(right.tolist()):
        name = f"d-{number}"
        facts += (decision(name, at=100.0), execution(name), value(name, number=float(one), at=101.0))
    store.append(facts)
    Joiner(store, RULE, take_epoch(store, "joiner", 0.0)).advance(102.0)
    return store


def watch(store: Store, epoch: int, learned: int = 0, now: float = 110.0) -> Watch:
    return Watch(store, RULE, "recipe", epoch, learned, lambda: now)


def read(store: Store, watch: Watch, after: int, upto: int) -> None:
    assert [one.seq for one in watch.over(read_examples(store, RULE.join, after, upto))] == list(
        range(after + 1, upto + 1)
    )
    watch.report()


def test_a_fall_in_the_log_is_an_alarm(fallen: Store) -> None:
    read(fallen, watch(fallen, take_epoch(fallen, "learner", 0.0)), 0, TURNS)
    found = read_alarms(fallen)
    assert found.count == 1
    assert found.newest is not None
    assert found.newest.subject == "reward of b"
    assert TURNS // 2 < found.newest.example_seq <= TURNS // 2 + 50
    assert found.newest.before > 0.6
    assert found.newest.after < 0.6
    assert found.newest.at == 110.0


@pytest.mark.slow
def test_an_alarm_is_reported_once(fallen: Store) -> None:
    watching = watch(fallen, take_epoch(fallen, "learner", 0.0))
    read(fallen, watching, 0, TURNS)
    assert len(rows(fallen)) == 1
    take_epoch(fallen, "its successor", 0.0)
    watching.report()  # nothing to write, so nothing to be superseded in


@pytest.mark.parametrize("learned", [0, 150, 210, 300, TURNS])
@pytest.mark.slow
def test_a_learner_that_takes_up_the_log_finds_the_same_alarms(fallen: Store, learned: int) -> None:
    """Also what the one before it found and, having died, did not write."""
    epoch = take_epoch(fallen, "learner", 0.0)
    read(fallen, watch(fallen, epoch), 0, TURNS)
    before = rows(fallen)
    read(fallen, watch(fallen, epoch, learned), learned, TURNS)
    assert rows(fallen) == before

    with fallen.writing() as connection:
        operations.prune(connection, Operation.ALARM, "recipe", 0)
    read(fallen, watch(fallen, epoch, learned), learned, TURNS)
    assert rows(fallen) == before


@pytest.mark.parametrize("learned", [250, 350, TURNS])
@pytest.mark.slow
def test_a_recipe_that_is_promoted_raises_no_alarm_of_before_again(fallen: Store, learned: int) -> None:
    """Wherever it begins to learn: what is seen follows from the training log alone."""
    published(fallen, "recipe")
    read(fallen, watch(fallen, take_epoch(fallen, "learner", 0.0)), 0, learned)
    ((_, seen),) = before = rows(fallen)
    assert seen < learned
    published(fallen, "promoted", after=seen)
    epoch = take_epoch(fallen, "learner", 0.0)
    following = Watch(fallen, RULE, "promoted", epoch, learned, lambda: 500.0)
    read(fallen, following, learned, TURNS)
    assert rows(fallen) == before


@pytest.mark.slow
def test_an_alarm_of_an_old_log_is_as_old_as_its_decision(fallen: Store) -> None:
    """So it raises no floor now: the change is over, or has been learned since."""
    read(fallen, watch(fallen, take_epoch(fallen, "learner", 0.0), now=1e6), 0, TURNS)
    newest = read_alarms(fallen).newest
    assert newest is not None
    assert newest.at == decision("d", at=100.0).deadline


def test_what_is_worth_nothing_is_not_looked_at(fallen: Store) -> None:
    worthless = RULE.model_copy(update={"metrics": {"thumb": Metric()}})
    found = Watch(fallen, worthless, "recipe", take_epoch(fallen, "learner", 0.0))
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

    monkeypatch.setattr("armwise.feedback.drift.alarms.read_learned_examples", spied)
    block = monitor.BLOCK
    for learned in (0, block - 1, block, block + 1):
        Watch(fallen, RULE, "recipe", 1, learned)
    assert asked == [(0, 0), (0, block - 1), (block, block), (block, block + 1)]


def test_the_newest_alarms_are_listed_newest_first(store: Store) -> None:
    """As many as are wanted, of one training log or of any."""
    version = published(store, "mine")
    epoch = take_epoch(store, "a", 0.0)
    alarms = [replace(FALL, recipe="mine", example_seq=i, at=at) for i, at in enumerate((5.0, 9.0, 9.0))]
    raise_alarms(store, epoch, alarms, RULE.join)
    assert newest_alarms(store, 2, version.join) == [alarms[2], alarms[1]]
    assert newest_alarms(store, 9) == alarms[::-1]
    assert newest_alarms(store, 9, "another") == []
