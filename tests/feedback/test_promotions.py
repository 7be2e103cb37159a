"""Promotions: the newest word on a recipe counts, every word is kept, and so are the bytes it is about."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from feedback.joins import take_epoch
from feedback.promotions import Action, Promotion, in_force, newest, record
from feedback.store import Store
from feedback.versions import KEPT_CHECKPOINTS, Version, checkpoint, digest_of, find, is_kept, page, publish


def published(store: Store, recipe: str = "ours", state: bytes = b"state") -> Version:
    """A version of a learner that has just taken over."""
    draft = Version(
        version=0,
        parent=None,
        recipe=recipe,
        join="j",
        policy={"kind": "uniform", "params": {}},
        examples_seq=3,
        applied_seq=5,
        digest=digest_of(state),
        epoch=take_epoch(store, "test", 1.0),
        created_at=2.0,
    )
    return replace(draft, version=publish(store, draft, state))


def test_nothing_is_in_force_before_somebody_has_spoken(store: Store) -> None:
    published(store)
    assert in_force(store, "ours") is None
    assert newest(store, 5) == []


def test_the_newest_word_is_in_force_in_the_order_of_the_log_and_not_of_clocks(store: Store) -> None:
    first, second = published(store), published(store)
    record(store, second, Action.ROLLBACK, "worse answers", 9.0)
    record(store, first, Action.ROLLBACK, "worse still", 8.0)
    said = in_force(store, "ours")
    assert said == Promotion(2, first.version, Action.ROLLBACK, "worse still", 8.0)
    assert said.pins
    record(store, second, Action.PROMOTE, "mended", 7.0)
    said = in_force(store, "ours")
    assert said == Promotion(3, second.version, Action.PROMOTE, "mended", 7.0)
    assert not said.pins


def test_a_word_on_one_recipe_does_not_bind_another(store: Store) -> None:
    ours, other = published(store), published(store, "other")
    record(store, ours, Action.ROLLBACK, "why not", 1.0)
    record(store, other, Action.PROMOTE, "why not", 2.0)
    said = in_force(store, "ours")
    assert said is not None
    assert (said.version, said.pins) == (ours.version, True)
    assert in_force(store, "none") is None


def test_every_word_is_kept_and_told_newest_first(store: Store) -> None:
    version = published(store)
    for reason in ("a", "b", "c"):
        record(store, version, Action.ROLLBACK, reason, 1.0)
    assert [said.reason for said in newest(store, 5)] == ["c", "b", "a"]
    assert [said.reason for said in newest(store, 2)] == ["c", "b"]


def test_a_version_that_was_never_published_cannot_be_chosen(store: Store) -> None:
    missing = replace(published(store), version=77)
    with pytest.raises(IntegrityError):
        record(store, missing, Action.ROLLBACK, "a slip", 1.0)
    assert newest(store, 5) == []


def test_the_bytes_of_a_version_that_was_chosen_are_not_pruned(store: Store) -> None:
    chosen, _, other = (published(store) for _ in range(3))
    record(store, chosen, Action.ROLLBACK, "better", 1.0)
    newest = [published(store) for _ in range(KEPT_CHECKPOINTS)][-1].version
    assert not is_kept(chosen.version, newest)
    assert not is_kept(other.version, newest)
    assert checkpoint(store, chosen.version) == b"state"
    assert checkpoint(store, other.version) is None


def test_bytes_that_were_pruned_are_put_back_with_the_word_and_only_if_they_are_its_own(store: Store) -> None:
    pruned, *_ = [published(store) for _ in range(KEPT_CHECKPOINTS + 1)]
    assert checkpoint(store, pruned.version) is None
    record(store, pruned, Action.ROLLBACK, "better", 1.0, b"another state")
    assert checkpoint(store, pruned.version) is None
    record(store, pruned, Action.ROLLBACK, "better", 1.0, b"state")
    assert checkpoint(store, pruned.version) == b"state"


def test_a_version_is_found_by_its_number(store: Store) -> None:
    version = published(store)
    assert find(store, version.version) == version
    assert find(store, version.version + 1) is None


@given(total=st.integers(0, 9), limit=st.integers(1, 4))
def test_pages_hold_every_version_once_newest_first(total: int, limit: int) -> None:
    store = Store("sqlite://")
    expected = [published(store) for _ in range(total)][::-1]
    seen: list[Version] = []
    while rows := page(store, limit, seen[-1].version if seen else None):
        assert len(rows) <= limit
        seen += [version for version, _ in rows]
    assert seen == expected


def test_a_page_says_whose_bytes_are_kept(store: Store) -> None:
    newest = [published(store) for _ in range(KEPT_CHECKPOINTS + 2)][-1].version
    kept = {version.version: kept for version, kept in page(store, 100)}
    assert kept == {number: is_kept(number, newest) for number in kept}
    assert set(kept.values()) == {True, False}
