"""Switches: the newest one of each arm counts."""

import sqlalchemy as sa

from armwise.feedback.log import Operation, Store, operations
from armwise.feedback.log import tables as t
from armwise.feedback.registry.arm_sets import LiveArms, history, list_disabled, replace, start, switch
from armwise.feedback.registry.versions import publish
from tests.feedback.registry.test_versions import draft


def test_the_newest_switch_of_each_arm_counts(store: Store) -> None:
    assert list_disabled(store) == frozenset()
    switch(store, "bm25", False, 1.0)
    switch(store, "dense", False, 2.0)
    assert list_disabled(store) == {"bm25", "dense"}
    switch(store, "bm25", True, 3.0)
    assert list_disabled(store) == {"dense"}
    switch(store, "bm25", False, 2.5)
    assert list_disabled(store) == {"bm25", "dense"}, "the order is that of the log, not of the clocks"


def test_switching_twice_the_same_way_changes_nothing(store: Store) -> None:
    switch(store, "bm25", False, 1.0)
    switch(store, "bm25", False, 2.0)
    switch(store, "dense", True, 3.0)
    assert list_disabled(store) == {"bm25"}


def test_the_history_has_every_change_of_what_could_be_drawn(store: Store) -> None:
    """Sets and switches in the order of time; what changes nothing is left out."""
    spec = {"kind": "none"}
    start(store, {"a": spec, "b": spec})
    switch(store, "b", False, 10.0)
    switch(store, "b", False, 11.0)
    switch(store, "gone", False, 12.0)
    replace(store, ["a", "b", "c"], {})
    switch(store, "b", True, 30.0)
    replace(store, ["b", "c"], {})
    version = publish(store, draft(store), b"state")
    with store.writing() as connection:
        sets = operations.read_all(connection, Operation.ARM_SET)
        for row, at, of_version in zip(sets, (1.0, 21.0, 41.0), (None, None, version), strict=True):
            its = sa.update(t.operations).where(t.operations.c.seq == row.seq)
            connection.execute(its.values(at=at, version=of_version))
    assert history(store) == [
        LiveArms(1.0, frozenset("ab"), ("a", "b"), (), False, None),
        LiveArms(10.0, frozenset("a"), (), ("b",), True, None),
        LiveArms(21.0, frozenset("ac"), ("c",), (), False, None),
        LiveArms(30.0, frozenset("abc"), ("b",), (), True, None),
        LiveArms(41.0, frozenset("bc"), (), ("a",), False, version),
    ]
