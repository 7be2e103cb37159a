"""The file of an SQLite log: moved, replaced or copied while it is in use, and whether it may be created."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.feedback.errors import LogUnavailableError, NoLogError
from armwise.feedback.log import Store
from armwise.feedback.log.database import open_database
from armwise.feedback.log.schema import inspect_database
from armwise.feedback.log.sqlite import SQLite, lacks_wal
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


def test_reading_a_log_leaves_the_bytes_of_its_file(store: Store, file: Path) -> None:
    store.close()
    before = file.read_bytes()
    with closing(Store(f"sqlite:///{file}", create=False)) as reading:
        assert [found.id for found in reading.newest(10)] == ["first"]
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


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


# -- copied while in use -----------------------------------------------------------------------------


@pytest.mark.usefixtures("store")
def test_a_copy_of_a_log_in_use_without_its_wal_is_noticed(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copy(file, copy)
    assert lacks_wal(copy)
    shutil.copy(f"{file}-wal", f"{copy}-wal")
    assert not lacks_wal(copy)
    assert not lacks_wal(file)


def test_a_log_that_was_closed_can_be_copied_as_one_file(store: Store, file: Path) -> None:
    with closing(Store(f"sqlite:///{file}")):
        pass  # others still use it
    shutil.copy(file, file.with_name("in_use.db"))
    store.close()
    shutil.copy(file, file.with_name("closed.db"))
    assert lacks_wal(file.with_name("in_use.db"))
    assert not lacks_wal(file.with_name("closed.db"))
    assert decisions_in(file.with_name("closed.db")) == ["first"]


def test_a_backup_and_a_missing_file_lack_no_rows(store: Store, file: Path) -> None:
    store.backup(file.with_name("backup.db"))
    assert not lacks_wal(file.with_name("backup.db"))
    assert not lacks_wal(file.with_name("absent.db"))


def test_a_closed_log_is_read_by_who_may_not_write_it(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_read(_self: SQLite, _dialect: object, _record: object, arguments: Any, named: Any) -> None:
        arguments[0], named["uri"] = f"{file.as_uri()}?mode=ro", True

    store.close()
    monkeypatch.setattr(SQLite, "_locate", only_read)
    with closing(Store(f"sqlite:///{file}", create=False)) as reading:
        assert [found.id for found in reading.newest(10)] == ["first"]


def test_a_log_is_used_again_after_it_was_closed(store: Store, file: Path) -> None:
    store.close()
    store.append([decision("second")])
    assert decisions_in(file) == ["first", "second"]


# -- a log that is there already ---------------------------------------------------------------------


def test_an_empty_database_is_no_log_and_stays_empty(database_url: str) -> None:
    engine = open_database(database_url).engine
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
    with pytest.raises(NoLogError, match=re.escape(engine.url.render_as_string())):
        Store(database_url, create=False)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []
    engine.dispose()


def test_an_existing_log_is_opened_for_reading_and_writing(url: str) -> None:
    with closing(Store(url)) as made:
        made.append([decision("first")])
    with closing(Store(url, create=False)) as opened:
        opened.append([decision("second")])
        assert sorted(found.id for found in opened.newest(10)) == ["first", "second"]


def test_a_state_of_a_missing_database_is_read_without_making_it(tmp_path: Path) -> None:
    with pytest.raises(NoLogError, match="there is no log"):
        inspect_database(f"sqlite:///{tmp_path / 'folder' / 'log.db'}")
    assert [*tmp_path.iterdir()] == []


def test_a_path_with_signs_of_a_uri_is_that_file(tmp_path: Path) -> None:
    odd = tmp_path / "50% of #1" / "lög.db"
    with closing(Store(f"sqlite:///{odd}")) as made:
        made.append([decision("first")])
    assert odd.is_file()
    assert decisions_in(odd) == ["first"]
