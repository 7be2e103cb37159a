"""Switches: the newest one of each arm counts."""

import sqlalchemy as sa

from feedback.log import Store
from feedback.log import tables as t
from feedback.registry.arm_sets import disabled, switch


def test_nothing_is_switched_off_at_first(store: Store) -> None:
    assert disabled(store) == frozenset()


def test_the_newest_switch_of_each_arm_counts(store: Store) -> None:
    switch(store, "bm25", False, 1.0)
    switch(store, "dense", False, 2.0)
    assert disabled(store) == {"bm25", "dense"}
    switch(store, "bm25", True, 3.0)
    assert disabled(store) == {"dense"}
    switch(store, "bm25", False, 2.5)
    assert disabled(store) == {"bm25", "dense"}, "the order is that of the log, not of the clocks"


def test_switching_twice_the_same_way_changes_nothing(store: Store) -> None:
    switch(store, "bm25", False, 1.0)
    switch(store, "bm25", False, 2.0)
    switch(store, "dense", True, 3.0)
    assert disabled(store) == {"bm25"}


def test_every_switch_stays_on_record(store: Store) -> None:
    for at, enabled in enumerate([False, True, False]):
        switch(store, "bm25", enabled, float(at))
    with store.reading() as connection:
        rows = connection.execute(sa.select(t.switches).order_by(t.switches.c.seq)).all()
    assert [(row.arm, row.enabled, row.at) for row in rows] == [
        ("bm25", False, 0.0),
        ("bm25", True, 1.0),
        ("bm25", False, 2.0),
    ]
