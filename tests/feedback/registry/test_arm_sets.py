"""The live arms: what was said last holds, and a name stands for one arm."""

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import ConflictError
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import arm_sets as armsets
from armwise.feedback.registry.arm_sets import (
    Arms,
    ArmSet,
    at_start,
    bring,
    brought_by,
    defined,
    live,
    started,
    without_versions,
)
from armwise.feedback.training_log import take_epoch


def arm(kind: str, host: str = "Arms", **params: Any) -> dict[str, Any]:
    return {"kind": kind, "params": params, "host": host}


def replace(store: Store, arms: Arms, configured: Arms) -> ArmSet:
    def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return (one["kind"], one["params"]) == (other["kind"], other["params"])

    return armsets.replace(store, arms, configured, same)


CONFIGURED = {"none": arm("none"), "bm25": arm("bm25", k1=1.2)}
CHOSEN = {"none": arm("none"), "near": arm("dense", backbone="minilm")}
OWN = {"none": arm("none"), "deep": arm("deep")}


def test_a_first_start_makes_the_configured_arms_live(store: Store) -> None:
    first = started(store, CONFIGURED)
    assert first.arms == CONFIGURED
    assert live(store) == first
    assert live(store, after=first.seq) is None


def test_starting_again_changes_nothing(store: Store) -> None:
    assert started(store, CONFIGURED) == started(store, CONFIGURED)


def test_a_replica_that_is_restarted_takes_up_what_replaced_the_configured_arms(store: Store) -> None:
    started(store, CONFIGURED)
    replaced = replace(store, CHOSEN, CONFIGURED)
    assert started(store, CONFIGURED) == live(store) == replaced
    assert replaced.arms == CHOSEN


def test_a_configuration_that_was_edited_since_wins(store: Store) -> None:
    first = started(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    edited = {"bm25": arm("bm25", k1=2.0)}
    again = started(store, edited)
    assert again.arms == edited
    assert again.seq > first.seq


def test_a_name_that_stood_for_another_arm_is_refused(store: Store) -> None:
    started(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    other = {"bm25": arm("bm25", k1=0.9)}
    for arms in (other, other | {"new": arm("none")}, {"new": arm("none")} | other):
        with pytest.raises(
            ConflictError,
            match=r"arm 'bm25' was defined as .*\"k1\": 1.2.* before: give this one another name",
        ):
            replace(store, arms, CONFIGURED)
    assert live(store).arms == CHOSEN


def test_an_arm_may_come_back_and_may_move_to_another_host(store: Store) -> None:
    started(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    moved = {"bm25": arm("bm25", host="Lexical", k1=1.2)}
    assert replace(store, moved, CONFIGURED).arms == moved


def test_what_the_configuration_redefined_is_the_arm_that_a_name_stands_for(store: Store) -> None:
    started(store, CONFIGURED)
    edited = {"bm25": arm("bm25", k1=2.0)}
    started(store, edited)
    assert replace(store, {**CHOSEN, **edited}, edited).arms == {**CHOSEN, **edited}


def test_what_a_start_would_find_is_told_without_a_row(store: Store) -> None:
    assert at_start(store, CONFIGURED) == CONFIGURED
    assert defined(store) == {}
    started(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    assert at_start(store, CONFIGURED) == CHOSEN
    edited = {"bm25": arm("bm25", k1=2.0)}
    assert at_start(store, edited) == edited


def test_every_arm_that_was_ever_live_stays_defined(store: Store) -> None:
    started(store, CONFIGURED)
    replace(store, CHOSEN, CONFIGURED)
    assert defined(store) == {**CONFIGURED, **CHOSEN}


def test_sets_that_were_live_are_listed_from_the_oldest_on(store: Store) -> None:
    assert armsets.every(store) == []
    sets = [started(store, CONFIGURED), replace(store, CHOSEN, CONFIGURED), replace(store, OWN, CONFIGURED)]
    assert armsets.every(store) == sets


def versions(store: Store, *brought: Arms | None) -> None:
    """Publish versions that bring arms or none, numbered from 1."""
    row = {"recipe": "r", "join": "j", "policy": {}, "examples_seq": 0, "applied_seq": 0, "digest": "d"}
    epoch = take_epoch(store, "test", 0.0)
    with store.writing() as connection:
        for arms in brought:
            connection.execute(sa.insert(t.versions).values(**row, epoch=epoch, created_at=0.0, arms=arms))


def brought(store: Store, version: int) -> int | None:
    with store.writing() as connection:
        return bring(connection, version, lambda one, other: one == other)


def test_a_version_brings_its_arms_and_one_without_brings_back_those_from_before(store: Store) -> None:
    versions(store, OWN, None, {"deep": arm("deep")})
    assert brought(store, 2) is None, "no set is there"
    assert [brought_by(store, number) for number in (1, 2)] == [OWN, None]
    first = started(store, CONFIGURED)
    chosen = replace(store, CHOSEN, CONFIGURED)
    assert brought(store, 2) == chosen.seq, "nothing changes"
    assert brought(store, 1) == first.seq + 2
    assert live(store) == ArmSet(first.seq + 2, OWN, 1)
    assert brought_by(store, 2) == CHOSEN, "what was live before any version's"
    assert without_versions(store, CONFIGURED) == chosen
    assert brought(store, 3) == first.seq + 3
    assert without_versions(store, CONFIGURED) == chosen, "of two versions in a row"
    assert brought(store, 2) == first.seq + 4
    assert live(store) == ArmSet(first.seq + 4, CHOSEN)
    assert started(store, CONFIGURED).seq == first.seq + 4, "the configuration is the same"
    assert without_versions(store, CHOSEN) == ArmSet(0, CHOSEN), "another one replaces it"


def test_a_version_that_brings_another_arm_of_a_known_name_is_refused(store: Store) -> None:
    versions(store, {"bm25": arm("bm25", k1=9.0)})
    before = started(store, CONFIGURED)
    with pytest.raises(ConflictError, match="arm 'bm25' was defined as"):
        brought(store, 1)
    assert live(store) == before


def test_a_name_of_a_set_that_is_not_the_newest_is_taken_too(store: Store) -> None:
    versions(store, {"bm25": arm("bm25", k1=9.0)})
    started(store, {"bm25": arm("bm25")})
    before = started(store, {"other": arm("none")})
    with pytest.raises(ConflictError, match="arm 'bm25' was defined as"):
        brought(store, 1)
    assert live(store) == before


def test_the_order_of_configured_arms_makes_no_other_set(store: Store) -> None:
    arms = {"one": arm("none"), "two": arm("bm25")}
    first = started(store, arms)
    assert started(store, dict(reversed(arms.items()))) == first
