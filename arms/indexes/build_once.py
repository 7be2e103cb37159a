"""Index folders: built once, under a lock, then renamed into place.

The name of a folder has a hash of its identity: corpus, model, parameters. Another corpus
or model means another folder, so an index is never stale, and is whole or absent.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
from filelock import FileLock

Identity = Mapping[str, str | int | float]
"""All inputs of the contents of a folder, flat and readable."""

MANIFEST = "manifest.json"


class IndexMismatchError(Exception):
    """An index is missing, or has another identity."""


def folder(indexes: Path, kind: str, identity: Identity) -> Path:
    """Return the folder of an index with this identity.

    >>> folder(Path("/indexes"), "bm25", {"corpus": "c0ffee"}).as_posix()
    '/indexes/bm25-64d4ccf1be05248f'
    """
    document = orjson.dumps(dict(identity), option=orjson.OPT_SORT_KEYS)
    return indexes / f"{kind}-{hashlib.blake2b(document, digest_size=8).hexdigest()}"


def publish(target: Path, identity: Identity, write: Callable[[Path], None]) -> bool:
    """Fill a folder by `write`, unless it exists.

    A killed builder leaves `.<name>.part` beside the target, and `write` may resume from its
    contents. A second builder waits for the first.

    Args:
        target: The finished folder.
        identity: Stored beside the contents, for `check`.
        write: Fills a folder.

    Returns:
        Whether this call filled it.
    """
    if target.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(target.with_name(f".{target.name}.lock")):
        if target.exists():
            return False
        unfinished = target.with_name(f".{target.name}.part")
        unfinished.mkdir(exist_ok=True)
        write(unfinished)
        (unfinished / MANIFEST).write_bytes(orjson.dumps(dict(identity), option=orjson.OPT_INDENT_2))
        for path in (*unfinished.iterdir(), unfinished):
            _sync(path)
        unfinished.rename(target)
        _sync(target.parent)
    return True


def check(target: Path, identity: Identity) -> None:
    """Refuse an index of another identity.

    Raises:
        IndexMismatchError: There is none, or its identity differs; the message names both values.
    """
    if not (target / MANIFEST).exists():
        raise IndexMismatchError(f"no index in {target}: prepare the arms first")
    if (fact := difference(target / MANIFEST, identity)) is not None:
        raise IndexMismatchError(
            f"the index in {target} was built with {fact.name} {fact.kept!r}, "
            f"but {fact.name} {fact.wanted!r} is needed: prepare the arms again"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which two identities differ; a missing value is None."""

    name: str
    kept: str | int | float | None
    wanted: str | int | float | None


def difference(path: Path, identity: Identity) -> Difference | None:
    """Return the first difference, by name, between an identity and the one in a file."""
    kept: Identity = orjson.loads(path.read_bytes())
    for fact in sorted(kept.keys() | identity.keys()):
        if kept.get(fact) != identity.get(fact):
            return Difference(fact, kept.get(fact), identity.get(fact))
    return None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock whose file is removed before it is released; a waiting process then locks a new file."""
    with FileLock(path):
        try:
            yield
        finally:
            path.unlink()


def _sync(path: Path) -> None:
    """Sync a file or a folder, so that a power failure leaves no empty index."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
