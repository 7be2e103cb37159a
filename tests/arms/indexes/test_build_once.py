"""What is built once is whole or absent, and nothing else in its folder is touched."""

import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from armwise.arms.indexes import build_once
from armwise.arms.indexes.build_once import IndexMismatchError, check, discard_damaged, folder, publish


class KilledError(KeyboardInterrupt):
    """What a test raises in place of a kill: no error that anything catches."""


def nothing(unfinished: Path) -> None:
    del unfinished


def fail(unfinished: Path) -> None:
    (unfinished / "half").touch()
    raise KilledError


def test_files_that_a_user_keeps_beside_it_are_left_alone(tmp_path: Path) -> None:
    for name in ("run.lock", "run.part", "run"):
        (tmp_path / name).write_text("mine")
    for target in (tmp_path / "run.r4", tmp_path / "run.ndcg"):
        assert publish(target, {}, nothing)
    assert {path.name for path in tmp_path.iterdir()} == {"run.lock", "run.part", "run", "run.r4", "run.ndcg"}
    assert {path.read_text() for path in tmp_path.iterdir() if path.is_file()} == {"mine"}


def test_what_was_left_of_one_is_not_taken_up_by_another(
    tmp_path: Path,
) -> None:
    with pytest.raises(KilledError):
        publish(tmp_path / "run.r4", {}, fail)
    publish(tmp_path / "run.ndcg", {"measure": "nDCG"}, nothing)
    assert [path.name for path in (tmp_path / "run.ndcg").iterdir()] == ["manifest.json"]
    check(tmp_path / "run.ndcg", {"measure": "nDCG"})


def test_a_builder_that_fails_leaves_its_work_and_no_lock(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        publish(tmp_path / "thing", {}, fail)
    assert [path.name for path in tmp_path.iterdir()] == [".thing.part"]
    assert publish(tmp_path / "thing", {}, lambda folder: (folder / "half").unlink())
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]
    assert not publish(tmp_path / "thing", {}, fail)


@pytest.mark.parametrize("first_fails", [False, True])
def test_who_waited_for_a_builder_goes_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_fails: bool
) -> None:
    """The first one takes its lock away while the second waits for just that lock."""
    target, lock = tmp_path / "thing", tmp_path / ".thing.lock"
    building, waiting = threading.Event(), threading.Event()
    alone: list[bool] = []

    class Watched(FileLock):
        """Signals when the second builder is about to wait for the lock."""

        def acquire(self, *args: Any, **options: Any) -> Any:
            if building.is_set():
                waiting.set()
            return super().acquire(*args, **options)

    def first(folder: Path) -> None:
        building.set()
        assert waiting.wait(timeout=10)
        (fail if first_fails else nothing)(folder)

    def second(folder: Path) -> None:
        with ThreadPoolExecutor(1) as stranger, pytest.raises(Timeout):
            stranger.submit(FileLock(lock).acquire, blocking=False).result()
        alone.append((folder / "half").exists())

    monkeypatch.setattr("filelock.FileLock", Watched)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(publish, target, {}, first)
        assert building.wait(timeout=10)
        other = pool.submit(publish, target, {}, second)
        assert isinstance(one.exception(), KilledError) is first_fails
        assert other.result() is first_fails
    assert alone == [True] * first_fails
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_every_damaged_index_is_removed_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c", "d"):
        publish(
            tmp_path / name, {"name": name}, lambda folder: (folder / "rows").write_text("whole") and None
        )
    for name in ("b", "c"):
        (tmp_path / name / "rows").write_text("wrong")  # of the same size
    (tmp_path / ".d.part").mkdir()
    (tmp_path / ".b.damaged").mkdir()  # of a process that was killed
    (tmp_path / ".b.damaged" / "rows").touch()
    (tmp_path / "file").write_text("mine")
    discard_damaged(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "d", ".d.part", "file"}
    removed = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert removed == ["removed index b", "removed index c"]
    discard_damaged(tmp_path / "missing")


def whole(unfinished: Path) -> None:
    (unfinished / "rows").write_text("whole")


def test_an_index_that_differs_is_built_again(
    tmp_path: Path,
) -> None:
    target, identity = tmp_path / "thing", {"corpus": "a"}
    assert build_once.build(target, identity, whole)
    assert not build_once.build(target, identity, fail)
    (target / "rows").write_text("cut")
    assert build_once.build(target, identity, whole)
    assert (target / "rows").read_text() == "whole"
    assert build_once.build(target, {"corpus": "b"}, whole)
    check(target, {"corpus": "b"})


def test_a_damaged_index_that_was_removed_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, found = tmp_path / "thing", build_once.manifest.problems
    build_once.build(target, {}, whole)
    (target / "rows").write_text("cut")

    def problems(folder: Path, *, contents: bool) -> list[str]:
        damaged = found(folder, contents=contents)
        if target.exists():
            shutil.rmtree(target)
        return damaged

    monkeypatch.setattr(build_once.manifest, "problems", problems)
    assert build_once.build(target, {}, whole)
    assert (target / "rows").read_text() == "whole"


def test_files_and_folders_are_synced_around_the_naming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    publish(tmp_path / "thing", {}, lambda folder: (folder / "rows").touch())
    unfinished = f"{tmp_path}/.thing.part"
    assert sorted(synced[:2]) == [f"{unfinished}/manifest.json", f"{unfinished}/rows"]
    assert synced[2:] == [unfinished, str(tmp_path)]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"corpus": "a", "k": 1}, ""),
        ({"corpus": "b", "k": 1}, "built with corpus 'a', but corpus 'b' is needed"),
        ({"corpus": "a", "k": 2}, "built with k 1, but k 2 is needed"),
        ({"corpus": "a"}, "built with k 1, but k None is needed"),
        ({"corpus": "a", "k": 1, "z": 0}, "built with z None, but z 0 is needed"),
    ],
)
def test_an_index_is_of_each_fact_of_its_identity(
    tmp_path: Path, wanted: dict[str, str | int], message: str
) -> None:
    publish(tmp_path / "thing", {"corpus": "a", "k": 1}, nothing)
    if not message:
        check(tmp_path / "thing", wanted)
        return
    with pytest.raises(IndexMismatchError, match=message):
        check(tmp_path / "thing", wanted)
    assert folder(tmp_path, "thing", wanted) != folder(tmp_path, "thing", {"corpus": "a", "k": 1})


def test_an_index_of_another_kind_has_its_own_folder(tmp_path: Path) -> None:
    identity = {"corpus": "a", "k": 1}
    assert folder(tmp_path, "bm25", identity) == folder(tmp_path, "bm25", {"k": 1, "corpus": "a"})
    others = [folder(tmp_path, "dense", identity), folder(tmp_path / "x", "bm25", identity)]
    assert len({folder(tmp_path, "bm25", identity), *others}) == 3
