"""A clock that was set back: rows beside the facts are never stamped before the newest fact."""

import sqlalchemy as sa

from armwise.feedback.events import Tick
from armwise.feedback.log import Operation, Store, erasures, operations, row_time
from armwise.feedback.log import tables as t
from armwise.feedback.registry import KeySettings, arm_sets, keys

NOON = 1_700_000_000.0

BEHIND = NOON - 600.0
"""What the clock says that was set back by ten minutes."""


def at_noon(store: Store) -> Store:
    store.append([Tick(NOON)])
    return store


def times(store: Store, kind: Operation) -> list[float]:
    with store.reading() as connection:
        return [row.at for row in operations.read_all(connection, kind)]


def test_a_key_that_is_made_behind_the_log_has_the_time_of_the_log(store: Store) -> None:
    made, _ = keys.create(at_noon(store), KeySettings("app", ("decide",)), BEHIND)
    assert made.created_at == NOON
    assert [one.created_at for one in keys.read(store)] == [NOON]


def test_a_key_can_be_disabled_behind_the_log_and_never_before_it_was_made(store: Store) -> None:
    made, _ = keys.create(at_noon(store), KeySettings("app", ("decide",)), NOON + 5.0)
    for _ in range(2):
        disabled = keys.disable(store, made.public_id, BEHIND)
        assert disabled is not None
        assert disabled.disabled_at == NOON + 5.0
    assert times(store, Operation.DISABLED_KEY) == [NOON + 5.0]


def test_a_clock_that_is_right_is_taken_at_its_word(store: Store) -> None:
    made, _ = keys.create(at_noon(store), KeySettings("app", ("decide",)), NOON + 1.0)
    disabled = keys.disable(store, made.public_id, NOON + 2.0)
    assert disabled is not None
    assert (made.created_at, disabled.disabled_at) == (NOON + 1.0, NOON + 2.0)


def test_a_log_without_facts_takes_any_time(store: Store) -> None:
    made, _ = keys.create(store, KeySettings("app", ("decide",)), BEHIND)
    assert made.created_at == BEHIND
    with store.writing() as connection:
        assert row_time(connection, 1.0) == 1.0


def test_switches_arms_and_erasures_are_not_stamped_behind_the_log(store: Store) -> None:
    arm_sets.switch(at_noon(store), "bm25", enabled=False, now=BEHIND)
    assert times(store, Operation.SWITCH) == [NOON]
    assert erasures.erase_episode(store, "e", "cli", BEHIND).at == NOON
    assert erasures.erase_user(store, "default", "u", "cli", BEHIND).at == NOON


def test_arms_are_not_stamped_behind_a_log_whose_clock_is_ahead(store: Store) -> None:
    with store.writing() as connection:
        connection.execute(sa.update(t.log).values(at=4e9))
    arm_sets.start(store, {"bm25": {"kind": "bm25"}})
    assert times(store, Operation.ARM_SET) == [4e9]
