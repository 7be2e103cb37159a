"""Epoch fencing: only the newest epoch of the log may write."""

from contextlib import closing
from pathlib import Path

import pytest

from armwise.feedback.errors import RebuiltError, SupersededError
from armwise.feedback.log import Store
from armwise.feedback.training_log import REBUILD, confirm_epoch, newest_epoch, take_epoch


def confirm(store: Store, epoch: int) -> None:
    with store.writing() as connection:
        confirm_epoch(connection, epoch)


def test_each_epoch_is_newer_than_all_before(store: Store) -> None:
    assert [take_epoch(store, name, 1.0) for name in ("a", "b", "c")] == [1, 2, 3]
    with store.reading() as connection:
        assert newest_epoch(connection) == (3, "c")


@pytest.mark.parametrize("reverse", ["ON", "OFF"])
def test_the_newest_epoch_is_the_highest_in_whatever_order_rows_come(tmp_path: Path, reverse: str) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        for name in ("a", "b", "c"):
            take_epoch(store, name, 1.0)
        with store.reading() as connection:
            connection.exec_driver_sql(f"PRAGMA reverse_unordered_selects = {reverse}")
            assert newest_epoch(connection) == (3, "c")


def test_only_the_newest_epoch_may_write(store: Store) -> None:
    old, new = take_epoch(store, "old", 2.0), take_epoch(store, "new", 1.0)
    confirm(store, new)
    with pytest.raises(SupersededError, match=f"epoch {old} was superseded by epoch {new} of new"):
        confirm(store, old)


def test_an_epoch_that_the_log_does_not_have_may_not_write(store: Store) -> None:
    """As of a learner that outlived a log that was restored from a backup."""
    newest = take_epoch(store, "newest", 1.0)
    with pytest.raises(SupersededError, match=f"epoch {newest + 1} was superseded by epoch {newest}"):
        confirm(store, newest + 1)


def test_a_rebuild_ends_the_epoch_before_it(store: Store) -> None:
    learner = take_epoch(store, "learner", 1.0)
    take_epoch(store, REBUILD, 2.0)
    with pytest.raises(RebuiltError, match=f"epoch {learner} ended with a rebuild"):
        confirm(store, learner)
