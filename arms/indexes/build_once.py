"""Index folders: built once, under a lock, then renamed into place.

The name of a folder has a hash of its identity: corpus, model, parameters. Another corpus
or model means another folder, so an index is never stale, and is whole or absent. Its manifest
(`armwise.arms.manifest`) finds a file that was damaged later: such an index is removed and built again.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from armwise.arms import manifest
from armwise.arms.manifest import Identity

logger = logging.getLogger(__name__)


class IndexMismatchError(Exception):
    """An index is missing or damaged, or has another identity."""


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
        write: Fills a folder, with files alone.

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
        manifest.write(unfinished, identity)
        for path in (*unfinished.iterdir(), unfinished):
            _sync(path)
        unfinished.rename(target)
        _sync(target.parent)
    return True


def build(target: Path, identity: Identity, write: Callable[[Path], None]) -> bool:
    """Fill the folder of an index as `publish` does, also in place of one whose files have other sizes.

    Contents are compared by `discard_damaged`, as that reads all of them.
    """
    _discard(target, partial(_problems, target, identity))
    return publish(target, identity, write)


def discard_damaged(indexes: Path) -> None:
    """Remove every index of which a file is missing or has changed; `build` then makes it again.

    Reads all files of all indexes. What is removed is logged as a warning, one line an index.
    """
    for target in list_finished(indexes):
        _discard(target, partial(manifest.problems, target, contents=True))


def list_finished(indexes: Path) -> list[Path]:
    """Return the folders of the finished indexes, by name."""
    if not indexes.is_dir():
        return []
    return sorted(path for path in indexes.iterdir() if path.is_dir() and not path.name.startswith("."))


def check(target: Path, identity: Identity) -> None:
    """Refuse an index of another identity, or of which a file has another size.

    Raises:
        IndexMismatchError: There is none, or its identity differs, or it is damaged; the message names what
            differs, and what builds it.
    """
    if not target.is_dir():
        raise IndexMismatchError(f"no index in {target}: prepare the arms first")
    if problems := _problems(target, identity):
        raise IndexMismatchError(
            f"the index in {target}: {', '.join(problems)}; run `armwise serve --prepare-only` to build it "
            "again"
        )


def _problems(target: Path, identity: Identity) -> list[str]:
    """Return what is wrong with an index, by sizes and identity."""
    if problems := manifest.problems(target, contents=False):
        return problems
    if (fact := difference(target, identity)) is not None:
        return [f"it was built with {fact.name} {fact.kept!r}, but {fact.name} {fact.wanted!r} is needed"]
    return []


def _discard(target: Path, problems: Callable[[], list[str]]) -> None:
    """Remove an index that is there and has a problem; another process may do so at the same time."""
    if not target.exists() or not problems():
        return
    with _alone(target.with_name(f".{target.name}.lock")):
        if target.exists() and (faults := problems()):  # else another process has built it again meanwhile
            logger.warning(
                "removed index %s; it is built again when it is needed: %s", target.name, ", ".join(faults)
            )
            damaged = target.with_name(f".{target.name}.damaged")
            shutil.rmtree(damaged, ignore_errors=True)  # of a process that was killed here
            target.rename(damaged)
            shutil.rmtree(damaged)


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which two identities differ; a missing value is None."""

    name: str
    kept: str | int | float | None
    wanted: str | int | float | None


def difference(target: Path, identity: Identity) -> Difference | None:
    """Return the first difference, by name, between an identity and that of a folder.

    Raises:
        DamagedFileError: The manifest of the folder is missing or damaged.
    """
    return differing(manifest.identify(target), identity)


def differing(kept: Identity, identity: Identity) -> Difference | None:
    """Return the first difference, by name, between two identities."""
    for fact in sorted(kept.keys() | identity.keys()):
        if kept.get(fact) != identity.get(fact):
            return Difference(fact, kept.get(fact), identity.get(fact))
    return None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock whose file is removed before it is released; a waiting process then locks a new file."""
    from filelock import FileLock  # here: what only evaluates has no need of it

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
