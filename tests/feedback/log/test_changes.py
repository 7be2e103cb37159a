"""A log on SQLite says cheaply whether something was committed, by whichever process."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from armwise.feedback.log import ChangeWatch, Store
from tests.feedback.conftest import decision

APPEND = """
import sys
from armwise.feedback.log import Store
from tests.feedback.conftest import decision
Store(sys.argv[1]).append([decision("other")])
"""


class Counted:
    """A log with a number of commits, or without one."""

    def __init__(self, commits: int | None = 0) -> None:
        self.commits = commits

    def version(self) -> int | None:
        return self.commits


def watched(log: Counted, now: list[float]) -> Callable[[], bool]:
    return ChangeWatch(cast(Store, log), every_s=1.0, clock=lambda: now[0]).is_due


def test_a_log_is_due_at_first_after_each_commit_and_after_a_while() -> None:
    log, now = Counted(), [100.0]
    is_due = watched(log, now)
    assert [is_due(), is_due()] == [True, False]
    log.commits = 1
    assert [is_due(), is_due()] == [True, False]
    now[0] += 0.999
    assert not is_due()
    now[0] += 0.001
    assert [is_due(), is_due()] == [True, False]


def test_a_log_is_read_the_more_rarely_the_longer_nothing_was_committed() -> None:
    log, now = Counted(), [100.0]
    is_due, looks = watched(log, now), list[float]()
    while now[0] < 200.0:
        if is_due():
            looks.append(now[0] - 100.0)
        now[0] += 1 / 64
    pauses = [later - look for look, later in pairwise(looks)]
    late = [pause - min(max(1.0, look / 4), 10.0) for pause, look in zip(pauses, looks, strict=False)]
    assert all(0.0 <= each < 1 / 64 for each in late)
    assert (pauses[0], pauses[-1]) == (1.0, 10.0)
    log.commits = 1
    assert is_due(), "a commit is seen at once"
    now[0] += 1.0
    assert is_due(), "and what falls due soon after it as well"


def test_a_log_may_be_read_as_often_however_long_nothing_was_committed() -> None:
    now = [0.0]
    is_due = ChangeWatch(cast(Store, Counted()), longest_s=1.0, clock=lambda: now[0]).is_due
    for now[0] in (0.0, 100.0, 101.0):
        assert is_due()
    now[0] = 101.9
    assert not is_due()


def test_a_commit_puts_the_next_look_in_any_case_off() -> None:
    log, now = Counted(), [0.0]
    is_due = watched(log, now)
    is_due()
    now[0], log.commits = 0.9, 1
    assert is_due()
    now[0] = 1.5
    assert not is_due()


def test_a_log_that_counts_no_commits_is_always_due() -> None:
    is_due = watched(Counted(None), [0.0])
    assert [is_due(), is_due(), is_due()] == [True, True, True]


def test_a_commit_of_this_process_or_of_another_one_changes_the_version(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with closing(Store(url)) as store, closing(Store(url)) as beside:
        seen = [store.version()]
        assert store.version() == seen[-1], "nothing was committed"
        for append in (
            lambda: store.append([decision("a")]),
            lambda: beside.append([decision("b")]),
            lambda: subprocess.run([sys.executable, "-c", APPEND, url], check=True),
        ):
            append()
            seen.append(store.version())
        assert None not in seen
        assert len(set(seen)) == 4, "each commit is seen"
        with store.reading():
            pass
        assert store.version() == seen[-1], "reading changes nothing"


@pytest.mark.parametrize("state", ["gone", "closed"])
def test_a_lost_log_has_no_version_and_a_closed_one_opens_again(tmp_path: Path, state: str) -> None:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    if state == "gone":
        for path in tmp_path.iterdir():
            path.unlink()
        assert store.version() is None
    else:
        assert store.version() is not None
        store.close()
        assert store.version() is not None
    store.close()


def test_every_database_says_whether_it_counts(store: Store) -> None:
    counts = store.engine.dialect.name == "sqlite"
    assert (store.version() is not None) == counts
