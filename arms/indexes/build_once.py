"""Folders that are built once: under a lock, out of sight, then renamed into place.

A folder is named after a hash of its identity, the facts that its contents follow
from: corpus, model, parameters. Another corpus or another model means another
folder, so an index is never stale. What was built is whole or absent.
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
"""What the contents of a folder follow from: flat, readable, compared as a whole."""

MANIFEST = "manifest.json"


class IndexMismatchError(Exception):
    """An index is missing, or was built from something else than is now asked for."""


def folder(indexes: Path, kind: str, identity: Identity) -> Path:
    """Return where an index with this identity belongs.

    >>> folder(Path("/indexes"), "bm25", {"corpus": "c0ffee"}).as_posix()
    '/indexes/bm25-64d4ccf1be05248f'
    """
    told = orjson.dumps(dict(identity), option=orjson.OPT_SORT_KEYS)
    return indexes / f"{kind}-{hashlib.blake2b(told, digest_size=8).hexdigest()}"


def publish(target: Path, identity: Identity, write: Callable[[Path], None]) -> bool:
    """Have `write` fill a folder, once; return at once when that has been done.

    A builder that was killed leaves its folder behind, `.<name>.part` beside the target, and
    the next one gets it back: `write` may go on from what it finds. Of two builders, the
    second waits for the first and has nothing left to do.

    Args:
        target: Where the finished folder belongs.
        identity: Kept beside the contents, for `check`.
        write: Fills the folder that it is given.

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
    """Refuse an index that was built from something else.

    Raises:
        IndexMismatchError: There is none, or a fact of its identity differs: both are named.
    """
    if not (target / MANIFEST).exists():
        raise IndexMismatchError(f"no index in {target}: prepare the arms first")
    if (fact := difference(target / MANIFEST, identity)) is not None:
        raise IndexMismatchError(
            f"the index in {target} was built with {fact.name} {fact.kept!r}, "
            f"but {fact.name} {fact.wanted!r} is asked for: prepare the arms again"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that two identities do not share: its name, and its value in each, None where it is missing."""

    name: str
    kept: str | int | float | None
    wanted: str | int | float | None


def difference(path: Path, identity: Identity) -> Difference | None:
    """Return the first fact, by name, in which an identity differs from the one in a file."""
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
    """See a file or a folder to the disk, so that a power cut leaves no empty index."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
