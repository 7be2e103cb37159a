"""Read the features of decisions that were moved out of the log.

A row of the log then has, in the place of its features, the URL of a Parquet file and a position in it. The
name of the file ends in its SHA-256, which is compared when the file is read.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import orjson

from feedback.errors import LogGapError, LogUnavailableError

MOVED = "archived"
"""Key of what stands in the place of features: a list of the URL and the position."""

GROUP = 1000
"""Rows that are read together."""

PROTOCOLS = ("file", "s3", "gs", "gcs", "az", "abfs", "memory")
"""Of the URLs that are read and written."""

DIGEST_CHARS = 32

_NAME = re.compile(r"([a-z0-9]{2,8})://[^\s:@]*/\d{12}-\d{12}-([0-9a-f]{32})\.parquet")


def resolved(seen: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the features of a row, from the archive where they were moved.

    Raises:
        LogGapError: The file is not what was written, or names no archive.
        LogUnavailableError: It cannot be read now.
    """
    if MOVED not in seen:
        return seen
    url, row = seen[MOVED]
    found: Mapping[str, Any] = orjson.loads(_group(url, row // GROUP)[row % GROUP])
    return found


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
    from pyarrow import parquet

    file = parquet.ParquetFile(pa.BufferReader(_data(url)))
    texts: list[str] = file.read_row_group(group, columns=["features"]).column(0).to_pylist()
    return texts
