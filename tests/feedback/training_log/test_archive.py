"""The archive: everything reads on from it, a crash at any point loses nothing, and damage is noticed."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyarrow import parquet

from armwise.feedback import archived
from armwise.feedback.decisions import Selection
from armwise.feedback.errors import LogGapError, StoreError
from armwise.feedback.events import Decision
from armwise.feedback.log import Store, erasures
from armwise.feedback.log import tables as t
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.sources import read_log
from armwise.feedback.texts import by_pseudonym, pseudonym
from armwise.feedback.training_log import Joiner, Refold, archive, read_examples, take_epoch
from tests.feedback.conftest import decision, execution, value

RULE = RewardRule(metrics={"right": Metric()})
TURNS = 25


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "SEGMENT", 10)
    monkeypatch.setattr(archive, "AT_ONCE", 3)
    monkeypatch.setattr(archive, "LEAST", 1)
    monkeypatch.setattr(archived, "GROUP", 4)
    archived._data.cache_clear()  # noqa: SLF001
    archived._group.cache_clear()  # noqa: SLF001


def one(i: int) -> Decision:
    found = decision(f"d{i}", at=100.0 + i)
    return replace(found, context=replace(found.context, features={f"w={i}": 1.0, "n": float(i)}))


@pytest.fixture
def filled(store: Store) -> Store:
    for i in range(TURNS):
        store.append([one(i), execution(f"d{i}"), value(f"d{i}", at=100.0 + i)])
    Joiner(store, RULE, take_epoch(store, "test", 500.0)).advance(500.0)
    return store


def bare(decision: Decision) -> Decision:
    """The decision as it is learned from."""
    context = decision.context
    arms = {arm: by_pseudonym(features) for arm, features in context.arms.items()}
    return replace(decision, context=replace(context, features=by_pseudonym(context.features), arms=arms))


def everything(store: Store) -> Any:
    """What replay, rebuild and verification read of a log, with pseudonyms for names of features."""
    examples = [replace(one, decision=bare(one.decision)) for one in read_examples(store, RULE.join)]
    chosen = len(read_log(store, RULE, Selection(features={"n": 3.0})))
    refold = Refold(store, RULE)
    list(refold.examples(lambda *_: None))
    found = (store.record(f"d{i}") for i in range(TURNS))
    records = [replace(one, decision=bare(one.decision)) for one in found if one is not None]
    return examples, chosen, refold.digests, records


def moved(store: Store) -> list[bool]:
    features = sa.cast(t.decisions.c.features, sa.Text)
    with store.reading() as connection:
        return [
            "archived" in text for text in connection.scalars(sa.select(features).order_by(t.decisions.c.seq))
        ]


@pytest.mark.slow
def test_everything_reads_on_from_the_archive(filled: Store, tmp_path: Path) -> None:
    before = everything(filled)
    segments = list(archive.archive(filled, str(tmp_path / "old"), filled.log_seq(), 20))
    assert [one.decisions for one in segments] == [10, 10]
    assert moved(filled) == [True] * 20 + [False] * 5
    assert everything(filled) == before
    for segment in segments:
        data = Path(segment.url.removeprefix("file://")).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (segment.sha256, segment.bytes)
    assert (tmp_path / "old" / archive.MANIFEST).read_text().count("\n") == 2
    assert [one.decisions for one in archive.archive(filled, str(tmp_path / "old"), filled.log_seq())] == [5]
    assert everything(filled) == before
    assert list(archive.archive(filled, str(tmp_path / "old"), filled.log_seq())) == []


@pytest.mark.slow
def test_only_what_is_old_is_moved_and_an_erasure_reaches_it(filled: Store, tmp_path: Path) -> None:
    upto = archive.position_before(filled, 107.0)
    list(archive.archive(filled, str(tmp_path), upto))
    assert moved(filled) == [True] * 7 + [False] * 18
    digests = everything(filled)[2]
    while erasures.erase_older(filled, 1.0, 500.0 + erasures.DAY_S):
        pass
    found = filled.record("d3")
    assert found is not None
    assert (found.decision.context.question, found.decision.context.features[pseudonym("n")]) == ("", 3.0)
    assert everything(filled)[2] == digests
    files = "".join(str(parquet.read_table(path).to_pydict()) for path in tmp_path.glob("*.parquet"))
    assert [text for text in ("what is", "w=3", "steps") if text in files] == []
    assert pseudonym("w=3") in files


def test_a_time_is_after_all_decisions_that_were_committed_before_it(store: Store) -> None:
    assert archive.position_before(store, 100.0) == 0
    store.append([one(0), decision("twin", at=100.0)])
    store.append([one(7)])
    found = [archive.position_before(store, at) for at in (100.0, 100.5, 107.0, 107.5)]
    assert found == [0, 2, 2, 3]


def test_the_progress_is_that_of_the_rows_of_a_file(filled: Store, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    list(archive.archive(filled, f"{tmp_path}/", filled.log_seq(), 10, lambda *step: seen.append(step)))
    assert seen == [("moving features", first, 10) for first in (0, 3, 6, 9)]


def test_features_that_are_shorter_than_a_reference_stay(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "LEAST", 400)
    filled.append([replace(one(99), context=replace(one(99).context, embedding=(0.123,) * 200))])
    assert [part.decisions for part in archive.archive(filled, str(tmp_path), filled.log_seq())] == [1]
    assert moved(filled) == [False] * TURNS + [True]


class CrashError(Exception):
    """The process is gone."""


@pytest.mark.parametrize("store_url", ["sqlite"])
@pytest.mark.parametrize("survived", range(14))
def test_a_crash_at_any_point_loses_nothing(
    store_url: str, survived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(f"{store_url}:///{tmp_path / 'log.db'}")
    for i in range(TURNS):
        store.append([one(i), execution(f"d{i}"), value(f"d{i}", at=100.0 + i)])
    Joiner(store, RULE, take_epoch(store, "test", 500.0)).advance(500.0)
    before, steps, places = everything(store), 0, (archive._put, archive._refer, archived.read_file)  # noqa: SLF001

    def sabotaged(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps > survived:
                raise CrashError
            return call(*args)

        return step

    with monkeypatch.context() as patch:
        for module, name, place in zip(
            (archive, archive, archive.archived), ("_put", "_refer", "read_file"), places, strict=True
        ):
            patch.setattr(module, name, sabotaged(place))
        with pytest.raises(
            CrashError
        ):  # two files: written and read back, the manifest, and four pieces of rows
            list(archive.archive(store, str(tmp_path / "old"), store.log_seq(), 20))
    assert everything(store) == before
    list(archive.archive(store, str(tmp_path / "old"), store.log_seq()))
    assert all(moved(store))
    assert everything(store) == before
    lines = (tmp_path / "old" / archive.MANIFEST).read_text().splitlines()
    assert len(lines) == len({*lines}) >= 3, "one for each file"
    assert not [*tmp_path.glob("old/*.unfinished")]
    store.close()


@pytest.mark.slow
def test_a_file_that_is_not_read_back_as_it_was_written_moves_nothing(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(filled)
    monkeypatch.setattr(archived, "read_file", lambda _: b"another")
    with pytest.raises(StoreError, match="is not read back as it was written: nothing was moved"):
        list(archive.archive(filled, str(tmp_path), filled.log_seq()))
    assert not any(moved(filled))
    assert everything(filled) == before
    assert not (tmp_path / archive.MANIFEST).exists()


def test_damage_and_loss_are_noticed(filled: Store, tmp_path: Path) -> None:
    (segment,) = archive.archive(filled, str(tmp_path), filled.log_seq(), 10)
    file = Path(segment.url.removeprefix("file://"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"?")
    with pytest.raises(LogGapError, match="is damaged"):
        filled.record("d3")
    file.unlink()
    with pytest.raises(LogGapError, match="is missing"):
        filled.record("d3")
    file.write_bytes(data)
    assert filled.record("d3") is not None


@pytest.mark.parametrize(
    "address",
    ["http://host/a", "file::http://host", "s3://key:secret@bucket/a", "ftp://host/a", "memory://a?b"],
)
def test_an_archive_has_a_plain_address(filled: Store, address: str) -> None:
    with pytest.raises(StoreError, match="a path or a URL of"):
        list(archive.archive(filled, address, 100))


def test_a_row_that_refers_elsewhere_is_refused(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        store.append([one(0)])
        for url in ("http://host/x.parquet", "file:///etc/passwd", "file:///a/../b.parquet"):
            with store.writing() as connection:
                connection.execute(sa.update(t.decisions).values(features={archived.MOVED: [url, 0]}))
            with pytest.raises(LogGapError, match="names no file of an archive"):
                store.record("d0")


@pytest.mark.slow
def test_another_file_system_takes_the_archive(filled: Store) -> None:
    before = everything(filled)
    list(archive.archive(filled, "memory://old", filled.log_seq()))
    assert all(moved(filled))
    assert everything(filled) == before


@pytest.mark.parametrize(
    "reference",
    [
        None,
        7,
        [],
        ["file:///x"],
        ["file:///x", "0"],
        [3, 0],
        ["file:///x", -1],
        ["file:///x", 0, 0],
        {"url": "file:///x"},
        ["http://a.example/000000000000-000000000009-" + "0" * 32 + ".parquet", 0],
        ["simplecache::file:///000000000000-000000000009-" + "0" * 32 + ".parquet", 0],
        ["file:///etc/passwd", 0],
        ["file:///proc/self/environ#000000000000-000000000009-" + "0" * 32 + ".parquet", 0],
    ],
    ids=str,
)
def test_a_reference_that_a_row_forges_is_refused_and_is_no_traceback(reference: object) -> None:
    with pytest.raises(LogGapError):
        archived.resolved({"archived": reference})


def forged(folder: Path, content: bytes) -> str:
    """Store a file of any content under a name that fits it."""
    name = f"{0:012}-{9:012}-{hashlib.sha256(content).hexdigest()[:32]}.parquet"
    (folder / name).write_bytes(content)
    return (folder / name).as_uri()


def parquet_of(rows: list[Any], column: str = "features", group: int = 4) -> bytes:
    file = pa.BufferOutputStream()
    parquet.write_table(pa.table({column: rows}), file, row_group_size=group, compression="zstd")
    return bytes(file.getvalue())


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (b"", 0),
        (b"PAR1" + b"\xff" * 100 + b"PAR1", 0),
        (parquet_of(["{}"] * 4)[:-9], 0),
        (parquet_of(["{}"] * 4, column="other"), 0),
        (parquet_of(["{}"] * 2), 3),
        (parquet_of(["{}"] * 4), 4),
        (parquet_of(["{}"] * 4), 4 * 10**9),
        (parquet_of(["{"] * 4), 0),
        (parquet_of(["[" * 5000] * 4), 0),
        (parquet_of([None] * 4), 0),
        (parquet_of([1] * 4), 0),
        (parquet_of(["{}"] * 400, group=400), 0),
        (parquet_of(["[]"] * 4), 0),
    ],
    ids=range(13),
)
def test_a_file_that_fits_its_name_and_is_no_archive_is_refused(
    tmp_path: Path, content: bytes, row: int
) -> None:
    with pytest.raises(LogGapError, match=r"archive|holds no features"):
        archived.resolved({"archived": [forged(tmp_path, content), row]})


def test_a_group_that_unpacks_to_more_than_fits_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = parquet_of(["{}" + " " * 10_000_000] * 4)
    assert len(bomb) < 100_000
    monkeypatch.setattr(archived, "MOST_GROUP_BYTES", 1 << 20)
    with pytest.raises(LogGapError, match="too large"):
        archived.resolved({"archived": [forged(tmp_path, bomb), 0]})
    repeated = parquet_of(["{}" + " " * 400_000] * 4)  # once in the file, and four times in memory
    with pytest.raises(LogGapError, match="too large"):
        archived.resolved({"archived": [forged(tmp_path, repeated), 0]})
    assert archived.resolved({"archived": [forged(tmp_path, parquet_of(['{"n": 1}'] * 4)), 3]}) == {"n": 1}


def test_a_file_has_50_000_decisions_in_groups_of_1_000_and_short_features_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    assert (archive.SEGMENT, archive.AT_ONCE, archive.LEAST) == (50_000, 1000, 400)
    assert (archived.GROUP, archived.MOST_GROUP_BYTES) == (1000, 2**30)
