"""The file of an SQLite log: moved, replaced or copied while it is in use, and whether it may be created."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.log import Store
from armwise.feedback.log.group_commit import GroupCommit
from tests.feedback.conftest import decision


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    """A log in a file, with one decision."""
    with closing(Store(f"sqlite:///{file}")) as opened:
        opened.append([decision("first")])
        yield opened


def decisions_in(file: Path) -> list[str]:
    with closing(Store(f"sqlite:///{file}")) as opened:
        return sorted(found.id for found in opened.newest(10))


# -- moved, deleted or replaced while in use -------------------------------------------------------


def test_a_moved_log_refuses_facts_until_it_is_back(store: Store, file: Path) -> None:
    away = file.with_name("away.db")
    file.rename(away)
    with pytest.raises(LogUnavailableError, match=f"{file}: it was moved or deleted") as refused:
        store.append([decision("lost")])
    assert "put the file back" in refused.value.remedy
    assert not file.exists()
    away.rename(file)
    store.append([decision("second")])
    assert decisions_in(file) == ["first", "second"]


def test_a_deleted_log_refuses_probes_and_other_writes(store: Store, file: Path) -> None:
    file.unlink()
    with pytest.raises(LogUnavailableError, match="moved or deleted"):
        store.probe()
    with pytest.raises(LogUnavailableError, match="moved or deleted"), store.writing() as connection:
        connection.execute(sa.text("DELETE FROM decisions"))


def test_a_replaced_log_refuses_facts_and_the_other_stays_as_it_is(store: Store, file: Path) -> None:
    other = file.with_name("other.db")
    with closing(Store(f"sqlite:///{other}")) as another:
        another.append([decision("other")])
    for end in ("-wal", "-shm", ""):
        Path(f"{file}{end}").rename(file.with_name(f"away.db{end}"))
    other.rename(file)
    with pytest.raises(LogUnavailableError, match=f"{file}: another file has replaced it"):
        store.append([decision("lost")])
    store.engine.dispose()  # what connects anew finds the other file, and must not write there either
    with pytest.raises(LogUnavailableError, match="another file has replaced it"):
        store.append([decision("lost")])
    assert decisions_in(file) == ["other"]


def test_a_connection_made_after_a_move_creates_no_empty_log(store: Store, file: Path) -> None:
    file.unlink()
    store.engine.dispose()
    with pytest.raises(LogUnavailableError) as refused, store.reading():
        pass
    assert refused.value.remedy == f"{file} was moved or deleted while in use: put it back"
    assert not file.exists()


async def test_a_moved_log_is_trouble_of_the_group_commit(store: Store, file: Path) -> None:
    commits = GroupCommit(store)
    try:
        file.rename(file.with_name("away.db"))
        with pytest.raises(LogUnavailableError, match="moved or deleted"):
            await commits.append(decision("lost"))
        assert f"{file}: it was moved or deleted" in commits.trouble
        file.with_name("away.db").rename(file)
        await commits.append(decision("second"))
        assert commits.trouble == ""
    finally:
        commits.close()
