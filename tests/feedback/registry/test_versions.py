"""Versions: numbered facts, with bytes that are a cache."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from armwise.feedback.errors import SupersededError
from armwise.feedback.log import Store, chain
from armwise.feedback.log import tables as t
from armwise.feedback.registry.versions import (
    Version,
    checkpoint,
    counts,
    digest_state,
    find,
    is_kept,
    latest,
    list_heads,
    list_kept,
    list_kept_upto,
    page,
    publish,
    recipes,
    restore_state,
)
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, take_epoch
from tests.feedback.conftest import decision, execution
from tests.postgres import Server

KEPT_CHECKPOINTS = 20
"""Newest versions that all keep their checkpoints."""


def draft(store: Store, state: bytes = b"state", recipe: str = "r") -> Version:
    """A version that was not published yet, of a learner that has just taken over."""
    return Version(
        version=0,
        parent=None,
        recipe=recipe,
        join="j",
        policy={"kind": "uniform", "params": {}},
        examples_seq=3,
        applied_seq=5,
        digest=digest_state(state),
        epoch=take_epoch(store, "test", 1.0),
        created_at=2.0,
    )


def test_a_published_version_is_read_back_as_it_was_with_its_number(store: Store) -> None:
    version = draft(store)
    number = publish(store, version, b"state")
    assert latest(store) == replace(version, version=number)
    assert checkpoint(store, number) == b"state"


def test_a_version_has_the_head_that_the_join_had_read(store: Store) -> None:
    rule, heads = RewardRule(metrics={"right": Metric()}), []
    for number in range(3):
        heads.append(chain.fold_all(store))
        epoch = take_epoch(store, "test", 1.0)
        Joiner(store, rule, epoch).advance(0.0)
        publish(store, replace(draft(store), join=rule.join), b"state")
        store.append([decision(f"d{number}"), execution(f"d{number}")])
    assert list_heads(store) == {f"version {number}": head for number, head in enumerate(heads, 1)}
    assert [head.seq for head in heads] == [0, 2, 4]


def test_a_version_is_written_while_an_append_holds_the_head(postgres: Server) -> None:
    store = Store(postgres.fresh())
    store.append([decision("d1")])
    version = draft(store)
    with store.engine.begin() as appending:
        appending.execute(sa.select(t.log.c.seq).with_for_update())
        publish(store, version, b"state")
    assert list_heads(store) == {"version 1": chain.LogHead(0, t.NO_FACTS)}
    store.close()


def test_numbers_rise_and_the_newest_is_found(store: Store) -> None:
    version = draft(store)
    numbers = [publish(store, version, b"state") for _ in range(3)]
    assert numbers == sorted(set(numbers))
    found = latest(store)
    assert found is not None
    assert found.version == numbers[-1]
    assert latest(store, after=numbers[-1]) is None
    again = latest(store, after=numbers[0])
    assert again is not None
    assert again.version == numbers[-1]


def test_an_empty_log_has_no_version(store: Store) -> None:
    assert latest(store) is None
    assert checkpoint(store, 1) is None


def test_versions_of_another_recipe_are_not_taken_for_ours(store: Store) -> None:
    version = draft(store)
    ours = publish(store, version, b"state")
    publish(store, replace(version, recipe="other"), b"other")
    found = latest(store, "r")
    assert found is not None
    assert found.version == ours
    assert latest(store, "none") is None


def bytes_kept(store: Store) -> list[int]:
    with store.reading() as connection:
        v = t.versions.c
        return list(connection.scalars(sa.select(v.version).where(v.state.is_not(None)).order_by(v.version)))


def test_old_bytes_are_thinned_out_and_their_rows_stay(store: Store) -> None:
    version = draft(store)
    numbers = [publish(store, version, b"%d" % i) for i in range(KEPT_CHECKPOINTS + 15)]
    newest = numbers[-KEPT_CHECKPOINTS:]
    assert bytes_kept(store) == [number for number in numbers if number in newest or number % 2 == 0]
    assert store.counts()["versions"] == len(numbers)


@given(newest=st.integers(1, 600))
def test_what_is_kept_at_any_time_is_what_never_was_pruned(newest: int) -> None:
    kept: set[int] = set()
    for number in range(1, newest + 1):
        kept = {version for version in (*kept, number) if is_kept(version, number)}
    assert kept == {version for version in range(1, newest + 1) if is_kept(version, newest)}


def test_bytes_kept_grow_with_the_logarithm_of_the_versions() -> None:
    kept = [sum(is_kept(v, newest) for v in range(1, newest + 1)) for newest in (1_000, 10_000, 100_000)]
    steps = [after - before for before, after in pairwise(kept)]
    assert all(step <= 10 * (math.log2(10) + 1) for step in steps)


def test_bytes_that_are_put_back_are_there_whether_they_were_changed_or_gone(store: Store) -> None:
    version = draft(store)
    changed, gone = (publish(store, version, b"state") for _ in range(2))
    with store.writing() as connection:
        connection.execute(
            sa.update(t.versions).where(t.versions.c.version == changed).values(state=b"other")
        )
        connection.execute(sa.update(t.versions).where(t.versions.c.version == gone).values(state=None))
        for number in (changed, gone):
            restore_state(connection, number, b"state")
    assert [checkpoint(store, number) for number in (changed, gone)] == [b"state", b"state"]


def test_what_a_replay_can_begin_from_is_found_nearest_first(store: Store) -> None:
    version = draft(store)
    first, second, third, late = (
        publish(store, replace(version, examples_seq=learned), b"state") for learned in (10, 20, 30, 15)
    )
    publish(store, replace(version, recipe="other", examples_seq=20), b"state")
    assert [one.version for one in list_kept_upto(store, "r", 29)] == [second, late, first]
    with store.writing() as connection:
        connection.execute(sa.update(t.versions).where(t.versions.c.version == second).values(state=None))
    assert [one.version for one in list_kept_upto(store, "r", 30)] == [third, late, first]


def test_bytes_that_ought_to_be_there_are_known_though_they_are_gone(store: Store) -> None:
    version = draft(store)
    numbers = [publish(store, version, b"state") for _ in range(KEPT_CHECKPOINTS + 4)]
    with store.writing() as connection:
        connection.execute(
            sa.update(t.versions).where(t.versions.c.version == numbers[-1]).values(state=None)
        )
    assert [one.version for one in list_kept(store, "r")] == [2, 4, *numbers[4:]]
    assert list_kept(store, "other") == []
    assert counts(store) == {"r": len(numbers)}


def test_lists_of_versions_leave_the_bytes_out(store: Store) -> None:
    number = publish(store, draft(store), b"state")
    executed: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *call: executed.append(call[2]))
    listed = [
        *(latest(store), latest(store, "r"), find(store, number), list_kept(store, "r")[0]),
        *(list_kept_upto(store, "r", 9)[0], page(store, 1)[0][0], recipes(store, 1)[0].newest),
    ]
    assert {one.version for one in listed if one} == {number}
    read = [sql.replace("state IS NOT NULL", "") for sql in executed]
    assert [sql for sql in read if "state" in sql] == []
    assert len(read) >= len(listed)


def test_a_superseded_learner_publishes_nothing(store: Store) -> None:
    version = draft(store)
    take_epoch(store, "another", 3.0)
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        publish(store, version, b"state")
    assert latest(store) is None
    assert store.counts()["versions"] == 0


def test_a_digest_is_that_of_sha_256() -> None:
    assert digest_state(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_versions_are_folded_into_recipes_by_the_newest_of_each(store: Store) -> None:
    """A recipe is listed once, with its newest version and their number, and pages go on before a version."""
    drafts = {name: draft(store, recipe=name) for name in ("a", "b", "c")}
    epoch = take_epoch(store, "test", 1.0)
    for name in ("a", "b", "a", "c", "a", "b"):
        publish(store, replace(drafts[name], epoch=epoch), b"state")
    listed = [(one.newest.recipe, one.newest.version, one.count) for one in recipes(store, 9)]
    assert listed == [("b", 6, 2), ("a", 5, 3), ("c", 4, 1)]
    first = recipes(store, 2)
    assert [one.newest.recipe for one in first] == ["b", "a"]
    assert [one.newest.recipe for one in recipes(store, 2, first[-1].newest.version)] == ["c"]
    (alone,) = recipes(store, 9, recipe="a")
    assert (alone.newest, alone.count) == (latest(store, "a"), 3)
    assert recipes(store, 9, recipe="nowhere") == []


def test_a_page_holds_the_versions_of_one_recipe(store: Store) -> None:
    """The pages of a recipe leave out the versions of others and reach its first version."""
    drafts = {name: draft(store, recipe=name) for name in ("a", "b")}
    epoch = take_epoch(store, "test", 1.0)
    for name in ("a", "b", "a", "b", "a"):
        publish(store, replace(drafts[name], epoch=epoch), b"state")
    assert [version.version for version, _ in page(store, 2, recipe="a")] == [5, 3]
    assert [version.version for version, _ in page(store, 2, 3, "a")] == [1]
    assert [version.version for version, _ in page(store, 9)] == [5, 4, 3, 2, 1]
