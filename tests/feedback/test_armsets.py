"""The live arms: what was said last holds, and a name stands for one arm."""

from typing import Any

import pytest

from feedback.armsets import live, replace, started
from feedback.store import ConflictError, Store


def arm(kind: str, host: str = "Arms", **params: Any) -> dict[str, Any]:
    return {"kind": kind, "params": params, "host": host}


CONFIGURED = {"none": arm("none"), "bm25": arm("bm25", k1=1.2)}
CHOSEN = {"none": arm("none"), "near": arm("dense", backbone="minilm")}


def test_a_first_start_makes_the_configured_arms_live(store: Store) -> None:
    first = started(store, CONFIGURED)
    assert first.arms == CONFIGURED
    assert live(store) == first


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
    with pytest.raises(
        ConflictError, match=r"arm 'bm25' was \{\"kind\": \"bm25\", \"params\": \{\"k1\": 1.2\}\}"
    ):
        replace(store, {"bm25": arm("bm25", k1=0.9)}, CONFIGURED)
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
