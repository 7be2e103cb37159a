"""Versions: numbered facts, with bytes that are a cache."""

from dataclasses import replace

import pytest

from feedback.joins import SupersededError, take_epoch
from feedback.store import Store
from feedback.versions import KEPT_CHECKPOINTS, Version, checkpoint, digest_of, latest, publish


def draft(store: Store, state: bytes = b"state", recipe: str = "r") -> Version:
    """A version that was not published yet, of a learner that has just taken over."""
    return Version(
        version=0,
        parent=None,
        recipe=recipe,
        policy={"kind": "uniform", "params": {}},
        examples_seq=3,
        applied_seq=5,
        digest=digest_of(state),
        epoch=take_epoch(store, "test", 1.0),
        created_at=2.0,
    )


def test_a_published_version_is_read_back_as_it_was_with_its_number(store: Store) -> None:
    version = draft(store)
    number = publish(store, version, b"state")
    assert latest(store) == replace(version, version=number)
    assert checkpoint(store, number) == b"state"


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


def test_old_bytes_are_pruned_and_their_rows_stay(store: Store) -> None:
    version = draft(store)
    numbers = [publish(store, version, b"%d" % i) for i in range(KEPT_CHECKPOINTS + 3)]
    kept = [number for number in numbers if checkpoint(store, number) is not None]
    assert kept == numbers[3:]
    assert store.counts()["versions"] == len(numbers)


def test_a_superseded_learner_publishes_nothing(store: Store) -> None:
    version = draft(store)
    take_epoch(store, "another", 3.0)
    with pytest.raises(SupersededError, match="epoch 1 was superseded by epoch 2"):
        publish(store, version, b"state")
    assert latest(store) is None
    assert store.counts()["versions"] == 0


def test_a_digest_is_that_of_sha_256() -> None:
    assert digest_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
