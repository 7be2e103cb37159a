"""The cache of searches: what is a hit, how large it gets, who shares it, and what happens when it breaks."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from armwise.arms import cache_file
from armwise.arms.base import Passage, Query, Retrieval, Usage
from armwise.arms.deployments import retrieval_cache
from armwise.arms.deployments.retrieval_cache import FILE, RetrievalCache, make_key
from armwise.arms.filters import Comparison

MIB = 1 << 20

LOOKUP_S = retrieval_cache.LOOKUP_S

QUERY = Query("Where is the sea?", groups=frozenset({"crew", "deck"}))

METADATA = {"page": 3, "share": 0.1, "open": True, "tags": ["a", "b"]}

FOUND = Retrieval(
    (Passage("p1", "Sea", "It is \u00fcber there.", 1 / 3, METADATA), Passage("p2", "", "", -0.0)),
    steps=3,
    tokens=40,
    usage=Usage(30, 10),
    index_version="a1-b2",
)

KEPT = Retrieval(FOUND.passages, steps=0, index_version="a1-b2", cached=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def key(name: str = "") -> bytes:
    found = make_key("arm", "a1", replace(QUERY, text=f"{QUERY.text} {name}"), 4)
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lookup take as long as it does on a busy machine."""
    monkeypatch.setattr(retrieval_cache, "LOOKUP_S", 30.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cache(folder: Path, clock: Clock) -> AsyncIterator[RetrievalCache]:
    cache = RetrievalCache(folder, MIB, clock=clock)
    yield cache
    cache.close()


async def kept(cache: RetrievalCache, name: str = "", found: Retrieval = FOUND) -> None:
    cache.put(key(name), found)
    await cache.flush()


# -- what is a hit -----------------------------------------------------------------------------------------


async def test_a_hit_is_what_was_found_and_costs_no_search(cache: RetrievalCache) -> None:
    assert await cache.get(key()) is None
    await kept(cache)
    assert await cache.get(key()) == KEPT
    assert await cache.get(key("?")) is None


async def test_a_score_of_numpy_comes_back_with_every_digit(cache: RetrievalCache) -> None:
    score: Any = np.float32(0.1)
    await kept(cache, found=Retrieval((Passage("p", "", "", score),)))
    found = await cache.get(key())
    assert found is not None
    assert found.passages[0].score == float(score)


@pytest.mark.parametrize(
    "other",
    [
        {"query": replace(QUERY, text="where is the sea?")},
        {"query": replace(QUERY, text="Where is the sea? ")},
        {"query": replace(QUERY, groups=frozenset({"crew"}))},
        {"query": replace(QUERY, groups=frozenset())},
        {"query": replace(QUERY, groups=frozenset({"crew,deck"}))},
        {"query": replace(QUERY, where=Comparison(type="eq", key="page", value=3))},
        {"query": replace(QUERY, where=Comparison(type="eq", key="page", value="3"))},
        {"k": 5},
        {"version": "a2"},
        {"searched": "other arm"},
    ],
)
def test_a_search_that_differs_in_anything_has_another_key(other: dict[str, Any]) -> None:
    same = {"searched": "arm", "version": "a1", "query": QUERY, "k": 4}
    assert make_key(**same) == make_key(
        **same | {"query": replace(QUERY, seed=7, embeddings={"x": np.ones(1)})}
    )  # type: ignore[arg-type]
    assert make_key(**same) != make_key(**same | other)  # type: ignore[arg-type]


def test_a_text_that_is_no_unicode_has_no_key() -> None:
    assert make_key("arm", "a1", Query("\ud800"), 4) is None


@pytest.mark.parametrize("bad", [Passage("p", "", "\ud800"), Passage("p", "", "", float("nan"))])
async def test_what_json_would_change_is_not_kept(cache: RetrievalCache, bad: Passage) -> None:
    for found in ((bad,), (*FOUND.passages, bad)):
        await kept(cache, found=Retrieval(found))
        assert await cache.get(key()) is None


async def test_an_entry_counts_for_its_time(folder: Path, clock: Clock) -> None:
    cache = RetrievalCache(folder, MIB, 60.0, clock)
    await kept(cache)
    assert await cache.get(key()) == KEPT, "at the second when it was made"
    clock.now += 59.0
    assert await cache.get(key()) == KEPT
    clock.now += 1.0
    assert await cache.get(key()) is None
    clock.now -= 100.0  # the clock was set back, before it was made
    assert await cache.get(key()) is None
    cache.close()


# -- its size ----------------------------------------------------------------------------------------------


async def test_a_flood_fills_the_file_to_its_size(folder: Path, cache: RetrievalCache, clock: Clock) -> None:
    large = Retrieval((Passage("p", "", "x" * 20_000),))
    await kept(cache, "used")
    for n in range(200):
        clock.now += 60.0
        await kept(cache, str(n), large)
        assert await cache.get(key("used")) == KEPT
    assert (folder / FILE).stat().st_size <= MIB
    found = [n for n in range(200) if await cache.get(key(str(n))) is not None]
    assert found == [*range(found[0], 200)]
    assert len(found) > 35


async def test_what_is_larger_than_the_file_is_not_kept(folder: Path) -> None:
    cache = RetrievalCache(folder, 16 * 4096)
    await kept(cache, "small")
    await kept(cache, "larger", Retrieval((Passage("p", "", "x" * 17 * 4096),)))
    assert await cache.get(key("small")) == KEPT, "nothing goes for what cannot be kept"
    await kept(cache, "large", Retrieval((Passage("p", "", "x" * 15 * 4096),)))
    assert await cache.get(key("large")) is None
    await kept(cache, "again")
    assert await cache.get(key("again")) == KEPT
    cache.close()


async def test_more_than_64_at_once_are_dropped(cache: RetrievalCache) -> None:
    for n in range(63):
        cache.put(key(str(n)), FOUND)
    settled = asyncio.create_task(cache.flush())
    await asyncio.sleep(0)  # the 64th in work
    cache.put(key("late"), FOUND)
    assert await cache.get(key("0")) is None  # at once: it waits for none of these
    await settled
    assert await cache.get(key("62")) == KEPT
    assert await cache.get(key("late")) is None


async def test_a_lookup_that_is_given_up_makes_room_for_others(cache: RetrievalCache) -> None:
    await kept(cache)
    for _ in range(65):
        lookup = asyncio.create_task(cache.get(key()))
        await asyncio.sleep(0)
        lookup.cancel()
        await asyncio.wait([lookup])
    assert await cache.get(key()) == KEPT


async def test_a_lookup_that_takes_longer_finds_nothing(
    cache: RetrievalCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_cache, "LOOKUP_S", 0.01)
    await kept(cache)
    assert LOOKUP_S == 0.1
    gate = threading.Event()
    cache._thread.submit(gate.wait, 30)  # noqa: SLF001 - a file that does not answer
    assert await cache.get(key()) is None
    gate.set()
    await cache.flush()


async def test_the_use_of_an_entry_is_noted_after_a_minute(
    folder: Path, cache: RetrievalCache, clock: Clock
) -> None:
    await kept(cache)
    noted = []
    for seconds in (59.9, 0.1, -60.0):  # at last, the clock is set back
        clock.now += seconds
        assert await cache.get(key()) == KEPT
        with closing(sqlite3.connect(folder / FILE)) as other:
            noted += other.execute("SELECT used - made FROM found").fetchone()
    assert noted == [0.0, 60.0, 0.0]


async def test_a_closed_cache_finds_and_keeps_nothing(folder: Path) -> None:
    threads = {*threading.enumerate()}
    cache = RetrievalCache(folder, MIB)
    await kept(cache)
    cache.close()
    assert {*threading.enumerate()} <= threads
    assert [path.name for path in folder.iterdir()] == [FILE], "its write-ahead log is gone"
    assert await cache.get(key()) is None
    await kept(cache, "later")


# -- who shares it -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_processes_share_a_file(folder: Path, cache: RetrievalCache) -> None:
    await kept(cache)
    code = f"""if True:
        import asyncio
        from pathlib import Path
        from armwise.arms.base import Passage, Retrieval
        from armwise.arms.deployments.retrieval_cache import RetrievalCache

        async def main():
            cache = RetrievalCache(Path({str(folder)!r}), {MIB})
            found = await cache.get(bytes.fromhex({key().hex()!r}))
            cache.put(bytes.fromhex({key("other").hex()!r}), Retrieval((Passage("p9", "", ""),)))
            await cache.flush()
            cache.close()
            return found.passages[0].text

        print(asyncio.run(main()))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == FOUND.passages[0].text
    found = await cache.get(key("other"))
    assert found is not None
    assert [one.id for one in found.passages] == ["p9"]


async def test_while_another_process_writes_nothing_is_kept(
    folder: Path, cache: RetrievalCache, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(retrieval_cache, "LOOKUP_S", 0.01)  # for which the other process is waited for
        await kept(cache)
    other = sqlite3.connect(folder / FILE, isolation_level=None)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.execute("BEGIN IMMEDIATE")
    await kept(cache, "meanwhile")
    clock.now += 60.0  # the use of the entry would be noted, if it could be
    assert await cache.get(key()) == KEPT
    other.execute("ROLLBACK")
    other.close()
    assert await cache.get(key("meanwhile")) is None
    await kept(cache, "later")
    assert await cache.get(key("later")) == KEPT


# -- when it breaks ----------------------------------------------------------------------------------------


async def broken(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """The one warning of a cache that finds nothing and keeps nothing."""
    cache = RetrievalCache(folder, MIB)
    assert await asyncio.gather(cache.get(key()), cache.get(key())) == [None, None]
    await kept(cache, "new")
    assert await cache.get(key("new")) is None
    cache.close()
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the retrieval cache {folder / FILE} is switched off: ")
    return record.getMessage().partition("switched off: ")[2]


async def test_a_file_that_is_no_cache_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / FILE).write_bytes(b"no database" * 1000)
    assert await broken(folder, caplog) == "file is not a database"


async def test_a_damaged_entry_is_not_served(
    folder: Path, cache: RetrievalCache, caplog: pytest.LogCaptureFixture
) -> None:
    await kept(cache)
    with sqlite3.connect(folder / FILE) as other:
        (value,) = other.execute("SELECT value FROM found").fetchone()
        other.execute("UPDATE found SET value = ?", (value.replace(b"there", b"where"),))
    other.close()
    assert await broken(folder, caplog) == "an entry is damaged"


async def test_an_entry_under_the_key_of_another_is_not_served(
    folder: Path, cache: RetrievalCache, caplog: pytest.LogCaptureFixture
) -> None:
    await kept(cache, "other")
    with sqlite3.connect(folder / FILE) as other:
        other.execute("UPDATE found SET key = ?", (key(),))
    other.close()
    assert await broken(folder, caplog) == "an entry is damaged"


@pytest.mark.parametrize("mode", [0o720, 0o702])
async def test_a_folder_that_others_may_write_to_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    folder.chmod(mode)
    assert await broken(folder, caplog) == "other users can write to its folder"


async def test_a_folder_of_another_user_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = folder.stat().st_uid + 1
    monkeypatch.setattr(cache_file, "os", SimpleNamespace(getuid=lambda: other))
    assert await broken(folder, caplog) == "other users can write to its folder"


async def test_a_folder_that_is_gone_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.rmdir()
    assert "No such file or directory" in await broken(folder, caplog)
