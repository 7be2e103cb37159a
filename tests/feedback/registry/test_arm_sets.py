"""The live arms: what was said last holds."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import arm_sets as armsets
from armwise.feedback.registry.arm_sets import (
    ArmSet,
    at_start,
    bring,
    find_brought,
    list_defined,
    live,
    replace,
    start,
    without_versions,
)
from armwise.feedback.training_log import take_epoch


def arm(kind: str, **params: Any) -> dict[str, Any]:
    return {"kind": kind, "params": params}


CONFIGURED = {"none": arm("none"), "bm25": arm("bm25", k1=1.2), "part": {**arm("bm25"), "action": False}}
LIVE = ("none", "bm25")
CHOSEN = ("none", "near")
OWN = ("none", "deep")


def test_a_first_start_makes_the_configured_arms_live(store: Store) -> None:
    first = start(store, CONFIGURED)
    assert first.arms == LIVE
    assert live(store) == first
    assert live(store, after=first.seq) is None


def test_starting_again_changes_nothing(store: Store) -> None:
    assert start(store, CONFIGURED) == start(store, CONFIGURED)


def test_a_replica_that_is_restarted_takes_up_what_replaced_the_configured_arms(store: Store) -> None:
    start(store, CONFIGURED)
    replaced = replace(store, CHOSEN, CONFIGURED)
    assert start(store, CONFIGURED) == live(store) == replaced
    assert replaced.arms == CHOSEN


def test_a_configuration_that_was_edited_since_wins(store: Store) -> None:
    first = start(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    edited = {"bm25": arm("bm25", k1=2.0)}
    again = start(store, edited)
    assert again.arms == ("bm25",)
    assert again.seq > first.seq


def test_what_a_start_would_find_is_told_without_a_row(store: Store) -> None:
    assert at_start(store, CONFIGURED) == LIVE
    assert list_defined(store) == []
    start(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    assert at_start(store, CONFIGURED) == CHOSEN
    edited = {"bm25": arm("bm25", k1=2.0)}
    assert at_start(store, edited) == ("bm25",)


def test_every_arm_that_was_ever_live_stays_defined(store: Store) -> None:
    start(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    assert list_defined(store) == ["none", "bm25", "near"]


def test_sets_that_were_live_are_listed_from_the_oldest_on(store: Store) -> None:
    assert armsets.every(store) == []
    sets = [start(store, CONFIGURED), replace(store, CHOSEN, CONFIGURED), replace(store, OWN, CONFIGURED)]
    assert armsets.every(store) == sets


def versions(store: Store, *brought: Sequence[str] | None) -> None:
    """Publish versions that bring arms or none, numbered from 1."""
    row = {"recipe": "r", "join": "j", "policy": {}, "examples_seq": 0, "applied_seq": 0, "digest": "d"}
    row |= {"logged_seq": 0, "chain": t.NO_FACTS}
    epoch = take_epoch(store, "test", 0.0)
    with store.writing() as connection:
        for arms in brought:
            connection.execute(sa.insert(t.versions).values(**row, epoch=epoch, created_at=0.0, arms=arms))


def brought(store: Store, version: int) -> int | None:
    with store.writing() as connection:
        return bring(connection, version)


def test_a_version_brings_its_arms_and_one_without_brings_back_those_from_before(store: Store) -> None:
    versions(store, OWN, None, ["deep"])
    assert brought(store, 2) is None, "no set is there"
    assert [find_brought(store, number) for number in (1, 2)] == [OWN, None]
    first = start(store, CONFIGURED)
    chosen = replace(store, CHOSEN, CONFIGURED)
    assert brought(store, 2) == chosen.seq, "nothing changes"
    assert brought(store, 1) == first.seq + 2
    assert live(store) == ArmSet(first.seq + 2, OWN, 1)
    assert find_brought(store, 2) == CHOSEN, "what was live before any version's"
    assert without_versions(store, CONFIGURED) == chosen
    assert brought(store, 3) == first.seq + 3
    assert without_versions(store, CONFIGURED) == chosen, "of two versions in a row"
    assert brought(store, 2) == first.seq + 4
    assert live(store) == ArmSet(first.seq + 4, CHOSEN)
    assert start(store, CONFIGURED).seq == first.seq + 4, "the configuration is the same"
    edited = {"bm25": arm("bm25", k1=2.0)}
    assert without_versions(store, edited) == ArmSet(0, ("bm25",)), "another one replaces it"


def test_the_order_of_configured_arms_makes_no_other_set(store: Store) -> None:
    arms = {"one": arm("none"), "two": arm("bm25")}
    first = start(store, arms)
    assert start(store, dict(reversed(arms.items()))) == first
