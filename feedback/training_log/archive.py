"""Move features of old decisions, most of the bytes of a row, to Parquet files, and read them from there.

The rows stay, with the guarantees of the log: one order without gaps, unique ids, feedback that finds its
decision. Texts stay in them, where they can be erased; in the archive, names of features become pseudonyms,
by which they are learned. A file is written, synced, read back and compared before the first row refers to
it. After an interruption the next call writes the rows that still have their features to another file.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from armwise.feedback import archived
from armwise.feedback.errors import StoreError
from armwise.feedback.log import Store, listing, loads
from armwise.feedback.log import tables as t
from armwise.feedback.texts import bare_features

SEGMENT = 50_000
"""Decisions of one file."""

AT_ONCE = 1000
"""Rows that are changed in one transaction, a bound on the wait of commits."""

LEAST = 400
"""Fewest characters of features that are worth moving; a reference to a file has up to half as many."""

MANIFEST = "manifest.jsonl"

_d = t.decisions.c


@dataclass(frozen=True, slots=True)
class Segment:
    """A line of the manifest.

    Attributes:
        url: URL of the file.
        first: Position of its first decision in the log.
        last: Position of its last decision.
        decisions: Number of rows.
        sha256: SHA-256 of the file, in hexadecimal.
        bytes: Size in bytes of the file.
    """

    url: str
    first: int
    last: int
    decisions: int
    sha256: str
    bytes: int


def position_before(store: Store, at: float) -> int:
    """Return the position of the last decision that was committed before a time; 0: none was."""
    with store.reading() as connection:
        return listing.position_at(connection, at, before=True)


def archive(
    store: Store,
    to: str,
    upto: int,
    most: int | None = None,
    on_progress: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Iterator[Segment]:
    """Move the features of decisions, oldest first, and yield each file once all rows refer to it.

    Args:
        store: The log, which may be written meanwhile.
        to: URL of a folder, or a path.
        upto: Position of the last decision.
        most: Largest number of decisions; None: all.
        on_progress: Called with the progress.

    Raises:
        StoreError: The protocol of the URL is not supported, or a file reads back differently.
        LogUnavailableError: Call again later.
    """
    base, left = folder_url(to), most
    after = _moved_upto(store)
    while left is None or left > 0:
        rows = _whole(store, after, upto, SEGMENT if left is None else min(SEGMENT, left))
        if not rows:
            return
        segment = _written(base, rows)
        for first in range(0, len(rows), AT_ONCE):
            on_progress("moving features", first, len(rows))
            _refer(store, segment.url, rows, first)
        after, left = segment.last, None if left is None else left - len(rows)
        yield segment


def folder_url(to: str) -> str:
    """Return the URL of a folder, without a slash at its end. Raises StoreError.

    >>> folder_url("s3://bucket/armwise/")
    's3://bucket/armwise'
    """
    url = to if "://" in to else f"file://{Path(to).expanduser().absolute()}"
    protocol, _, rest = url.partition("://")
    if protocol not in archived.PROTOCOLS or set(rest) & set(":@ ?#"):
        allowed = ", ".join(archived.PROTOCOLS)
        raise StoreError(
            f"{to!r}: a path or a URL of {allowed} was expected, without a user, a port or spaces"
        )
    return url.rstrip("/")


def _moved_upto(store: Store) -> int:
    """Return the position up to which all decisions are moved: they are moved in order."""
    low, high = 0, store.log_seq()
    while low < high:
        middle = (low + high) // 2
        following = _text().label("features"), _d.seq
        query = sa.select(*following).where(_d.seq > middle).order_by(_d.seq).limit(1)
        with store.reading() as connection:
            row = connection.execute(query).first()
        if row is not None and row.seq <= high and archived.is_moved(row.features):
            low = row.seq
        else:
            high = middle
    return low


def _text() -> sa.ColumnElement[str]:
    return sa.cast(_d.features, sa.Text)


def _whole(store: Store, after: int, upto: int, limit: int) -> Sequence[sa.Row[Any]]:
    query = sa.select(_d.seq, _text().label("features")).where(_d.seq > after, _d.seq <= upto)
    query = query.where(sa.func.length(_text()) >= LEAST)
    with store.reading() as connection:
        rows = connection.execute(query.order_by(_d.seq).limit(limit)).all()
    return [row for row in rows if not archived.is_moved(row.features)]


def _written(base: str, rows: Sequence[sa.Row[Any]]) -> Segment:
    """Write a file and a line of the manifest, and read the file back. Raises StoreError."""
    import pyarrow as pa  # here: reading a log has no need of it
    from pyarrow import parquet

    bare = [orjson.dumps(bare_features(loads(row.features))).decode() for row in rows]
    columns = {"seq": [row.seq for row in rows], "features": bare}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink, compression="zstd", row_group_size=archived.GROUP)
    data = sink.getvalue().to_pybytes()
    digest = hashlib.sha256(data).hexdigest()
    first, last = rows[0].seq, rows[-1].seq
    url = f"{base}/{first:012d}-{last:012d}-{digest[: archived.DIGEST_CHARS]}.parquet"
    _put(url, data)
    if archived.read_file(url) != data:
        raise StoreError(f"{url} is not read back as it was written: nothing was moved")
    segment = Segment(url, first, last, len(rows), digest, len(data))
    _put(f"{base}/{MANIFEST}", _manifest(base, segment))
    return segment


def _manifest(base: str, segment: Segment) -> bytes:
    """Return the lines of the manifest, with that of a segment."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(f"{base}/{MANIFEST}")
    before = fs.cat_file(path).splitlines() if fs.exists(path) else []
    line = orjson.dumps(asdict(segment))
    return b"".join(entry + b"\n" for entry in (*before, *([] if line in before else [line])))


def _put(url: str, data: bytes) -> None:
    """Write a file atomically; on a local disk it is durable when this returns."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    fs, path = fsspec.core.url_to_fs(url)
    if not isinstance(fs, LocalFileSystem):
        fs.pipe_file(path, data)
        return
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(file.name + ".unfinished")
    with unfinished.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    unfinished.rename(file)
    parent = os.open(file.parent, os.O_RDONLY)
    os.fsync(parent)
    os.close(parent)


def _refer(store: Store, url: str, rows: Sequence[sa.Row[Any]], first: int) -> None:
    """Replace the features of some rows by references to a file, in one transaction."""
    last = min(first + AT_ONCE, len(rows))
    moved = [{"of": rows[n].seq, "to": {archived.MOVED: [url, n]}} for n in range(first, last)]
    update = sa.update(t.decisions).where(_d.seq == sa.bindparam("of")).values(features=sa.bindparam("to"))
    with store.writing() as connection:
        connection.execute(update, moved)
