"""Read the features of decisions that were moved out of the log.

Their rows have, in the place of features, the URL of a Parquet file and a position in it. The name of the
file ends in its SHA-256, which is compared when the file is read.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from armwise.feedback.errors import LogGapError, LogUnavailableError

MOVED = "archived"
"""Key of the reference in the place of features: a list of the URL and the position."""

GROUP = 1000
"""Rows that are read together."""

PROTOCOLS = ("file", "s3", "gs", "gcs", "az", "abfs", "memory")
"""Schemes of the URLs that are read and written."""

DIGEST_CHARS = 32

MOST_GROUP_BYTES = 1 << 30
"""Largest size of an unpacked group in bytes: the largest request has a megabyte of features."""

_NAME = re.compile(r"([a-z0-9]{2,8})://[^\s:@]*/\d{12}-\d{12}-([0-9a-f]{32})\.parquet")


def is_moved(features: str) -> bool:
    """Return whether the features of a row, as JSON, are in an archive."""
    return features.startswith(f'{{"{MOVED}":')


def resolved(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the features of a row, from the archive if they were moved.

    Raises:
        LogGapError: The file differs from what was written, or the URL does not name an archive.
        LogUnavailableError: It cannot be read now.
    """
    if MOVED not in stored:
        return stored
    match stored[MOVED]:
        case [str() as url, int() as row] if row >= 0:
            texts = _group(url, row // GROUP)
        case other:
            raise LogGapError(f"{str(other)[:200]!r} names no row of an archive")
    try:
        features = orjson.loads(texts[row % GROUP])
    except (IndexError, orjson.JSONDecodeError) as error:
        raise LogGapError(f"row {row} of {url} holds no features: {error}") from None
    if not isinstance(features, dict):
        raise LogGapError(f"row {row} of {url} holds no features, but {type(features).__name__}")
    return features


def read_file(url: str) -> bytes:
    """Return the bytes of a file of an archive, checked. Raises LogGapError, LogUnavailableError."""
    import fsspec

    named = _NAME.fullmatch(url)
    if named is None or named[1] not in PROTOCOLS:
        raise LogGapError(f"{url!r} names no file of an archive")
    try:
        fs, path = fsspec.core.url_to_fs(url)
        data: bytes = fs.cat_file(path)
    except FileNotFoundError:
        raise LogGapError(f"{url} is missing, which has features of decisions: restore the archive") from None
    except OSError as error:
        raise LogUnavailableError(f"{url} cannot be read: {error}") from error
    if hashlib.sha256(data).hexdigest()[:DIGEST_CHARS] != named[2]:
        raise LogGapError(f"{url} is damaged: its bytes are not those that were written")
    return data


_data = lru_cache(maxsize=4)(read_file)


@lru_cache(maxsize=32)
def _group(url: str, group: int) -> list[str]:
    import pyarrow as pa
    from pyarrow import compute, parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(_data(url)), read_dictionary=["features"])
        about = file.metadata.row_group(group) if group < file.num_row_groups else None
        rows = f"rows {group * GROUP} and on"
        if about is None or about.num_rows > GROUP or about.total_byte_size > MOST_GROUP_BYTES:
            raise LogGapError(f"{url} is not an archive: {rows} are missing, or too large")
        column = file.read_row_group(group, columns=["features"]).column(0).combine_chunks()
        # of a dictionary, which may repeat a long text for each row
        lengths = compute.take(compute.binary_length(column.dictionary), column.indices)
        if (compute.sum(lengths).as_py() or 0) > MOST_GROUP_BYTES:
            raise LogGapError(f"{url} is not an archive: {rows} are too large")
        texts: list[str] = column.to_pylist()
    except (pa.ArrowException, OSError, IndexError, KeyError, AttributeError) as error:  # of other columns
        raise LogGapError(f"{url} is not an archive: {error}") from error
    return texts
