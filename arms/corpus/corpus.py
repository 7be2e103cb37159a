"""A corpus: passages by position in one read-only file.

`ingest` reads a source into `passages.db.part` and renames the complete file to
`passages.db`. Each commit holds the passages and the number of records read, so that a
killed run resumes after its last commit. Positions are 0..n-1 in the order of the
source: they are the rows of every index over the corpus. `manifest.json` has the size and
digest of the file: one that was damaged later is read from its source again.
"""

import contextlib
import hashlib
import itertools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from armwise.arms import manifest as file_manifest
from armwise.arms.base import Passage, Progress, Query
from armwise.arms.corpus.chunking import CHUNKING, Chunking
from armwise.arms.corpus.permissions import Permissions, Permitted
from armwise.arms.corpus.readers import PassageSource, open_source
from armwise.arms.corpus.records import READ_AS_WINDOWS, CorpusError, CorpusRecord
from armwise.arms.filters import GROUPS, Metadata

BATCH_RECORDS = 10_000
"""Records between two commits: the most that a killed run repeats."""

BATCH_S = 5.0
"""Longest time between two commits in seconds: a document takes longer than a line."""

PUBLISHED = "passages.db"

UNFINISHED = "passages.db.part"

LOCK = "passages.lock"

LEFT_OUT = "left-out.txt"
"""File of a corpus that lists all that was left out of it, and all remarks."""

logger = logging.getLogger(__name__)

SCHEMA = """
    CREATE TABLE passages (
        position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL
    );
    CREATE TABLE metadata (position INTEGER PRIMARY KEY, fields BLOB NOT NULL);
    CREATE TABLE skipped (place TEXT NOT NULL, problem TEXT NOT NULL);
    CREATE TABLE manifest (
        name TEXT NOT NULL, source TEXT NOT NULL, fingerprint TEXT NOT NULL, created_at REAL NOT NULL,
        records INTEGER NOT NULL, done INTEGER NOT NULL, count INTEGER NOT NULL, digest TEXT NOT NULL,
        metadata TEXT NOT NULL, restricted INTEGER NOT NULL
    );
"""


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """Name, origin and size of a corpus.

    Attributes:
        name: Display name.
        source: An absolute path, or the name of a built-in source.
        fingerprint: Hash of the source's sizes and times, or of the interpreter.
        created_at: Start of the ingest, in seconds since the epoch, UTC.
        records: Number of records read: lines, files or names.
        done: Progress in the unit of `Source.total`.
        count: Number of passages.
        digest: Hash of ids, titles and texts in order, from which indexes are made.
        metadata: Hash of the metadata in order; empty if all passages lack metadata.
        restricted: Number of passages that are restricted to groups.
    """

    name: str
    source: str
    fingerprint: str
    created_at: float
    records: int = 0
    done: int = 0
    count: int = 0
    digest: str = ""
    metadata: str = ""
    restricted: int = 0


class Corpus:
    """Passages by position and by id. Read-only, thread-safe, picklable.

    Attributes:
        manifest: Name, origin and size.
        prefix: Prefix of the id of each passage, such as `docs/` if there are several corpora.
    """

    def __init__(self, target: Path, manifest: CorpusManifest, prefix: str = "") -> None:
        self.manifest, self.prefix = manifest, prefix
        self._target = target
        self._local = threading.local()
        self._permissions = Permissions(self._metadata, len(self))

    @classmethod
    def open(cls, target: Path, prefix: str = "") -> Self:
        """Open the corpus that `ingest` published in a folder. Raises CorpusError.

        It stays readable while a changed source is ingested again.
        """
        target = target.resolve()
        if not (target / PUBLISHED).is_file():
            if (target / UNFINISHED).exists():
                raise CorpusError(f"the corpus in {target} is unfinished: run ingest again to resume")
            raise CorpusError(f"no corpus in {target}: run ingest first")
        try:
            with contextlib.closing(_connect_read_only(target)) as database:
                return cls(target, _manifest(database), prefix)
        except sqlite3.DatabaseError as error:
            raise CorpusError(
                f"{target / PUBLISHED} is not a corpus ({error}): "
                "run `armwise serve --prepare-only` to read it again"
            ) from error

    @property
    def parts(self) -> "Mapping[str, Corpus]":
        """The corpora in it, by the prefix of their ids."""
        return {self.prefix: self}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its parts; empty for a single corpus without a name."""
        return tuple(prefix.removesuffix("/") for prefix in self.parts if prefix)

    def part(self, name: str | None) -> "Corpus":
        """Return the corpus that an arm names; None: the arm names none."""
        del name
        return self

    def start(self, prefix: str) -> int:
        """Return the position of the first passage of a part."""
        del prefix
        return 0

    @property
    def name(self) -> str:
        """Display name."""
        return self.manifest.name

    @property
    def digest(self) -> str:
        """Hash of ids, titles and texts in order."""
        return self.manifest.digest

    def __len__(self) -> int:
        return self.manifest.count

    def __iter__(self) -> Iterator[Passage]:
        """Yield every passage in order of position."""
        for row in self._database.execute(f"{self._select} ORDER BY position"):
            yield self._passage(*row)

    def passages(self, positions: Iterable[int]) -> list[Passage]:
        """Return the passages at these positions, in this order. Raises CorpusError."""
        execute, lookup = self._database.execute, f"{self._select} WHERE position = ?"
        passages = []
        for position in positions:
            # int: SQLite would compare a NumPy integer as bytes, and find nothing
            row = execute(lookup, (int(position),)).fetchone()
            if row is None:
                raise CorpusError(
                    f"position {position} is out of range: corpus {self.name!r} has {len(self)} passages"
                )
            passages.append(self._passage(*row))
        return passages

    @property
    def restricted(self) -> bool:
        """Whether a passage is restricted to groups."""
        return self.manifest.restricted > 0

    def find_permitted(self, query: Query) -> Permitted | None:
        """Return the passages that a query may find; None: all of them."""
        if query.where is None and not self.manifest.restricted:
            return None
        return self._permissions.select(query.where, query.groups)

    def ids(self) -> list[str]:
        """Return every id, in order of position."""
        rows = self._database.execute("SELECT id FROM passages ORDER BY position")
        return [self.prefix + name for (name,) in rows]

    def order(self) -> NDArray[np.intp]:
        """Return every position in order of the ids, shape (n_passages,), without a list of the ids."""
        # SQLite compares UTF-8 bytes, whose order is that of code points, as of Python's texts
        rows = self._database.execute("SELECT position FROM passages ORDER BY id")
        return np.fromiter((position for (position,) in rows), np.intp, len(self))

    def positions(self, ids: Sequence[str]) -> list[int]:
        """Return the positions of the passages with these ids, in this order. Raises CorpusError."""
        positions = self.find_positions(ids)
        for passage_id in ids:
            if passage_id not in positions:
                raise CorpusError(f"no passage {passage_id!r} in corpus {self.name!r}")
        return [positions[passage_id] for passage_id in ids]

    def find_positions(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the positions of the ids that are in the corpus."""
        execute, lookup = self._database.execute, "SELECT position FROM passages WHERE id = ?"
        bare_ids = {
            passage_id: passage_id[len(self.prefix) :]
            for passage_id in ids
            if passage_id.startswith(self.prefix)
        }
        rows = {passage_id: execute(lookup, (there,)).fetchone() for passage_id, there in bare_ids.items()}
        return {passage_id: row[0] for passage_id, row in rows.items() if row is not None}

    def list_skipped(self) -> list[str]:
        """Return the skipped records and the reasons, such as `corpus.jsonl:17: not JSON: ...`."""
        return [line for line in self._list_notes() if not line.endswith(f": {READ_AS_WINDOWS}")]

    def remarks(self) -> list[str]:
        """Return what is odd about records that are read, each as a place, a colon and a remark."""
        return [line for line in self._list_notes() if line.endswith(f": {READ_AS_WINDOWS}")]

    def find_list(self) -> Path | None:
        """Return the file that lists all that is left out, and all remarks; None: there is none."""
        file = self._target / LEFT_OUT
        return file if file.is_file() else None

    def _list_notes(self) -> list[str]:
        return [f"{self.prefix}{line}" for line in _read_notes(self._database)]

    @property
    def _select(self) -> str:
        """The query of passages; metadata are joined if the corpus has them."""
        if not self.manifest.metadata:
            return "SELECT id, title, text FROM passages"
        return "SELECT id, title, text, fields FROM passages LEFT JOIN metadata USING (position)"

    def _metadata(self) -> Iterator[tuple[int, Metadata]]:
        """Yield the position and the metadata of each passage that has metadata."""
        if self.manifest.metadata:
            for position, fields in self._database.execute("SELECT position, fields FROM metadata"):
                yield position, orjson.loads(fields)

    def _passage(self, id_: str, title: str, text: str, fields: bytes | None = None) -> Passage:
        metadata = {} if fields is None else orjson.loads(fields)
        return Passage(self.prefix + id_, title, text, metadata=metadata)

    def __reduce__(self) -> tuple[Callable[..., "Corpus"], tuple[Any, ...]]:
        return Corpus.open, (self._target, self.prefix)

    @property
    def _database(self) -> sqlite3.Connection:
        """The connection of the calling thread."""
        database: sqlite3.Connection | None = getattr(self._local, "database", None)
        if database is None:
            database = _connect_read_only(self._target)
            if _manifest(database) != self.manifest:
                raise CorpusError(f"corpus {self.name!r} was replaced by a newer version: open it again")
            self._local.database = database
        return database


def ingest(
    source: str | Path,
    target: Path,
    *,
    skip_bad: bool = True,
    compare: bool = False,
    prefix: str = "",
    chunking: Chunking = CHUNKING,
    progress: Progress | None = None,
) -> Corpus:
    """Read a source into a folder, unless the folder holds it already.

    A corpus that cannot be opened is read again, with a warning that names its file. A killed run is
    resumed after its last commit, unless the source has changed. A second process waits for the first.

    Args:
        source: A `.jsonl` or `.jsonl.gz` file, a BEIR folder, a folder of documents, one of
            them, `stdlib` or `language`.
        target: The folder of the corpus; created if missing.
        skip_bad: Whether to leave out unreadable records, and list them in `Corpus.list_skipped`; a file of
            another kind, such as a picture or a link to outside of a folder, is listed there in any case.
        compare: Whether to compare an existing corpus with its digest, too, which reads its file.
        prefix: Prefix of the ids, which are stored without it.
        chunking: How texts are cut into passages; a corpus that was cut otherwise is read again.
        progress: Called after every commit.

    Raises:
        CorpusError: The source is missing, has no readable records, or changed while it was read; or a record
            is unreadable and `skip_bad` is off. The folder keeps its former corpus.
    """
    from filelock import FileLock  # here: what only evaluates has no need of it

    reader = open_source(source, chunking)
    target.mkdir(parents=True, exist_ok=True)
    with FileLock(target / LOCK):
        fingerprint = reader.fingerprint()
        if faults := problems(target, contents=compare):
            logger.warning("reading corpus %s again: %s", target.name, ", ".join(faults))
        elif (target / PUBLISHED).exists():
            corpus = Corpus.open(target, prefix)
            if corpus.manifest.fingerprint == fingerprint and (skip_bad or not corpus.list_skipped()):
                return corpus
        with contextlib.closing(_continue_or_begin(target / UNFINISHED, reader, fingerprint)) as database:
            _fill(database, reader, skip_bad=skip_bad, progress=progress)
            if _manifest(database).count == 0:
                reasons = group_skipped(_read_notes(database))
                raise CorpusError("; ".join([f"{reader.place} has no passages", *reasons]))
            noted = _read_notes(database)
        if reader.fingerprint() != fingerprint:
            raise CorpusError(f"{reader.place} changed while it was being read: run ingest again")
        (target / LEFT_OUT).unlink(missing_ok=True)
        if noted:
            text = "".join(f"{line}\n" for line in noted)
            (target / LEFT_OUT).write_text(text, encoding="utf-8", errors="backslashreplace")
        _publish(target)
        return Corpus.open(target, prefix)


def problems(target: Path, *, contents: bool) -> list[str]:
    """Return the problems of the file of a corpus; empty if it is sound or missing.

    Args:
        target: The folder of the corpus.
        contents: Whether to compare the file with its digest, too.
    """
    if not (target / PUBLISHED).exists():
        missing = (target / file_manifest.MANIFEST).exists()
        return file_manifest.problems(target, contents=False) if missing else []
    try:
        Corpus.open(target)
    except CorpusError as error:
        return [str(error)]
    return file_manifest.problems(target, contents=True) if contents else []


def _fill(
    database: sqlite3.Connection, source: PassageSource, *, skip_bad: bool, progress: Progress | None
) -> None:
    """Write the records after the last commit, batch by batch."""
    manifest = _manifest(database)
    records = source.records(manifest.records)
    for first in records:
        manifest = _write(database, manifest, _batch(first, records), skip_bad=skip_bad)
        database.commit()
        if progress is not None:
            progress(f"reading {source.name}", manifest.done, source.total())


def _batch(first: CorpusRecord, others: Iterator[CorpusRecord]) -> Iterator[CorpusRecord]:
    """Yield the records until the next commit."""
    yield first
    end = time.monotonic() + BATCH_S
    for record in itertools.islice(others, BATCH_RECORDS - 1):
        yield record
        if time.monotonic() >= end:
            return


def _write(
    database: sqlite3.Connection, manifest: CorpusManifest, batch: Iterator[CorpusRecord], *, skip_bad: bool
) -> CorpusManifest:
    """Write a batch, uncommitted, and return the manifest after it. Raises CorpusError."""
    records, done, count, digest = manifest.records, manifest.done, manifest.count, manifest.digest
    metadata, restricted = manifest.metadata, manifest.restricted
    for record in batch:
        problem = record.problem
        for passage in record.passages:
            row = (count, passage.id, passage.title, passage.text)
            if database.execute("INSERT OR IGNORE INTO passages VALUES (?, ?, ?, ?)", row).rowcount:
                if passage.metadata:
                    fields = orjson.dumps(passage.metadata, option=orjson.OPT_SORT_KEYS)
                    database.execute("INSERT INTO metadata VALUES (?, ?)", (count, fields))
                    metadata = hashlib.blake2b(
                        b"%s %d %s" % (metadata.encode(), count, fields), digest_size=16
                    ).hexdigest()
                    restricted += GROUPS in passage.metadata
                count, digest = count + 1, extend_digest(digest, passage)
            else:
                problem = f"another passage has the id {passage.id!r}"
        if problem and not (skip_bad or record.left_out):
            raise CorpusError(f"{record.where}: {problem}; correct it, or skip such records")
        if problem:
            database.execute("INSERT INTO skipped VALUES (?, ?)", (record.where, problem))
        records, done = records + 1, record.done
    manifest = replace(
        manifest,
        records=records,
        done=done,
        count=count,
        digest=digest,
        metadata=metadata,
        restricted=restricted,
    )
    columns = "records = ?, done = ?, count = ?, digest = ?, metadata = ?, restricted = ?"
    database.execute(f"UPDATE manifest SET {columns}", astuple(manifest)[4:])
    return manifest


def extend_digest(digest: str, passage: Passage) -> str:
    """Return the digest of a corpus with a further passage; that of an empty corpus is ``""``.

    >>> extend_digest("", Passage("1", "a", "b")) == extend_digest("", Passage("1", "", "ab"))
    False
    """
    extended = orjson.dumps([digest, passage.id, passage.title, passage.text])
    return hashlib.blake2b(extended, digest_size=16).hexdigest()


def _continue_or_begin(path: Path, source: PassageSource, fingerprint: str) -> sqlite3.Connection:
    """Open the unfinished file of this source, or a new one."""
    if path.exists():
        database = sqlite3.connect(path)
        with contextlib.suppress(sqlite3.DatabaseError):  # damaged by a crash of the machine: start again
            whole = database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
            if whole and _manifest(database).fingerprint == fingerprint:
                return database
        database.close()
        path.unlink()
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript(f"BEGIN; {SCHEMA}")
    manifest = CorpusManifest(source.name, source.place, fingerprint, time.time())
    database.execute("INSERT INTO manifest VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", astuple(manifest))
    database.commit()
    return database


def _read_notes(database: sqlite3.Connection) -> list[str]:
    rows = database.execute("SELECT place, problem FROM skipped ORDER BY rowid")
    return [f"{place}: {problem}" for place, problem in rows]


def group_skipped(skipped: Iterable[str], most: int = 20) -> list[str]:
    """Return a line for each reason why records were skipped, with their number; the rest is counted.

    >>> group_skipped(["a.png: is a picture", "b:2: has 3 cells", "c.png: is a picture"])
    ['a.png and 1 more: is a picture', 'b:2: has 3 cells']
    >>> group_skipped(["a: is a link", "b: is empty", "c: is empty", "d: is a pipe"], most=1)
    ['a: is a link', 'and 3 more']

    Args:
        skipped: Records, each as a place, a colon and the reason.
        most: Lines, at most.
    """
    places: dict[str, list[str]] = {}
    for line in skipped:
        place, _, reason = line.partition(": ")
        places.setdefault(reason, []).append(place)
    lines = [
        f"{first}{f' and {len(others):,} more' if others else ''}: {reason}"
        for reason, (first, *others) in places.items()
    ]
    left = sum(map(len, [*places.values()][most:]))
    return [*lines[:most], *([f"and {left:,} more"] if left else [])]


def _manifest(database: sqlite3.Connection) -> CorpusManifest:
    return CorpusManifest(*database.execute("SELECT * FROM manifest").fetchone())


def _publish(target: Path) -> None:
    """Rename the finished file, write its digest, and sync its folder."""
    os.replace(target / UNFINISHED, target / PUBLISHED)
    file_manifest.write(target, names=[PUBLISHED])
    folder = os.open(target, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _ThreadConnection(sqlite3.Connection):
    """A connection that is closed once its thread has ended, by whichever thread collects it."""

    def __del__(self) -> None:
        with contextlib.suppress(sqlite3.ProgrammingError):  # it could not be opened
            self.close()


def _connect_read_only(target: Path) -> sqlite3.Connection:
    # immutable: a published file is replaced and never written, so SQLite need not lock it
    uri = f"{(target / PUBLISHED).as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False, factory=_ThreadConnection)
