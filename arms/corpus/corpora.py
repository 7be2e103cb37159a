"""Several corpora as one: the id of a passage is the name of its corpus, a slash, and its id there.

Each has its own folder and indexes: adding, replacing or removing a corpus leaves the others unchanged.
"""

import contextlib
import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import override

from armwise.arms.base import Passage, Progress, Query
from armwise.arms.corpus.chunking import CHUNKING, Chunking
from armwise.arms.corpus.corpus import Corpus, CorpusManifest, ingest, problems
from armwise.arms.corpus.permissions import Permitted
from armwise.arms.corpus.records import CorpusError

TROUBLE = "unread.txt"
"""File in the folder of a corpus that says why its source could not be read the last time."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceTrouble:
    """A source that could not be read.

    Attributes:
        name: Name of the corpus.
        why: What was wrong.
        read_at: When its passages were read that are searched instead, in seconds since the epoch, UTC; None:
            there are none, and the arms that search it are left out.
    """

    name: str
    why: str
    read_at: float | None

    def __str__(self) -> str:
        """Return a line for people.

        >>> print(SourceTrouble("docs", "no corpus at /docs", 0.0))
        no corpus at /docs; its passages of 1970-01-01 00:00 UTC are searched
        """
        if self.read_at is None:
            return f"{self.why}; the arms that search it are left out"
        read = datetime.fromtimestamp(self.read_at, UTC)
        return f"{self.why}; its passages of {read:%Y-%m-%d %H:%M} UTC are searched"


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """The source and the folder of a corpus.

    Attributes:
        source: The source, as `ingest` reads it.
        folder: The folder of the corpus.
        name: Name of the corpus, with which the ids of its passages begin; empty for a single corpus.
        chunking: How its texts are cut into passages.
    """

    source: str
    folder: Path
    name: str = ""
    chunking: Chunking = CHUNKING

    @property
    def prefix(self) -> str:
        """Prefix of the ids of its passages."""
        return f"{self.name}/" if self.name else ""

    def ingest(self, *, compare: bool = False, progress: Progress | None = None) -> Corpus:
        """Read it, unless its folder holds it already. Raises CorpusError."""
        try:
            return ingest(
                self.source,
                self.folder,
                compare=compare,
                prefix=self.prefix,
                chunking=self.chunking,
                progress=progress,
            )
        except CorpusError as error:
            raise CorpusError(f"corpus {self.folder.name!r}: {error}") from error

    def open(self) -> Corpus:
        """Open it where it was read. Raises CorpusError."""
        return Corpus.open(self.folder, self.prefix)

    def ingest_or_open(self, *, compare: bool = False, progress: Progress | None = None) -> Corpus:
        """Read it, or open what was read of it before.

        Raises:
            CorpusError: There is neither.
            OSError: There is no place for its folder.
        """
        note = self.folder / TROUBLE
        # a home that cannot be written is no fault of a source
        note.parent.parent.mkdir(parents=True, exist_ok=True)
        try:
            corpus = self.ingest(compare=compare, progress=progress)
        except (CorpusError, OSError) as error:
            with contextlib.suppress(OSError):  # a full disk, for example
                note.parent.mkdir(parents=True, exist_ok=True)
                note.write_text(str(error), encoding="utf-8", errors="backslashreplace")
            former = self._open_former(compare=compare)
            if former is None:
                raise CorpusError(str(error)) from error
            logger.warning("%s", SourceTrouble(self.folder.name, str(error), former.manifest.created_at))
            return former
        note.unlink(missing_ok=True)
        return corpus

    def find_trouble(self, why: str | None = None) -> SourceTrouble | None:
        """Return why the source could not be read the last time, or why it cannot; None: it could be read."""
        if why is None:
            try:
                why = (self.folder / TROUBLE).read_text(encoding="utf-8")
            except OSError:
                return None
        former = self._open_former()
        return SourceTrouble(self.folder.name, why, None if former is None else former.manifest.created_at)

    def _open_former(self, *, compare: bool = False) -> Corpus | None:
        """Return the passages that were read from the same place, if there are any that are sound."""
        try:
            if problems(self.folder, contents=compare):
                return None
            corpus = self.open()
        except (CorpusError, OSError):
            return None
        places = {self.source, os.path.abspath(self.source), str(Path(self.source).resolve())}
        read = Path(corpus.manifest.source)  # of a BEIR folder, the file in it
        return corpus if {str(read), str(read.parent)} & places else None


def ingest_all(
    sources: Sequence[CorpusSource],
    *,
    compare: bool = False,
    leave_out: bool = False,
    least: int = 1,
    progress: Progress | None = None,
) -> Corpus:
    """Read the corpora whose folders lack them, and return all corpora as one.

    If a source cannot be read, the passages that were read of it before stand for it.

    Args:
        sources: The sources; if there are several, all have names. Without any, the corpus is empty.
        compare: Whether to compare existing corpora with their digests.
        leave_out: Whether to leave out a source that was never read.
        least: Fewest corpora to be left, if there are sources.
        progress: Called after every commit.

    Raises:
        CorpusError: A corpus cannot be read; the message names it.
    """
    parts, unread = list[Corpus](), list[str]()
    for source in sources:
        try:
            parts.append(source.ingest_or_open(compare=compare, progress=progress))
        except CorpusError as error:
            unread.append(str(error))
    if unread and not (leave_out and len(parts) >= least):
        raise CorpusError("; ".join(unread))
    for why in unread:
        logger.warning("%s; the arms that search it are left out", why)
    return parts[0] if len(parts) == 1 and not parts[0].prefix else Corpora(parts)


class Corpora(Corpus):
    """A sequence of corpora: positions of each follow those of the one before.

    Args:
        parts: Corpora whose ids have different prefixes.
    """

    def __init__(self, parts: Sequence[Corpus]) -> None:
        self.prefix = ""
        self._parts = {part.prefix: part for part in parts}
        self._starts = [0, *itertools.accumulate(len(part) for part in parts)]
        self.manifest = _manifest(parts)

    @property
    @override
    def parts(self) -> Mapping[str, Corpus]:
        return self._parts

    @override
    def part(self, name: str | None) -> Corpus:
        if name is None:
            return next(iter(self._parts.values())) if len(self._parts) == 1 else self
        return self._parts[f"{name}/"]

    @override
    def start(self, prefix: str) -> int:
        return self._starts[list(self._parts).index(prefix)]

    @override
    def __iter__(self) -> Iterator[Passage]:
        return itertools.chain.from_iterable(self._parts.values())

    @override
    def passages(self, positions: Iterable[int]) -> list[Passage]:
        parts, passages = list(self._parts.values()), []
        for position in positions:
            at = int(np.searchsorted(self._starts, position, side="right")) - 1
            if not 0 <= at < len(parts):
                raise CorpusError(
                    f"position {position} is out of range: corpora {self.name} have {len(self)} passages"
                )
            passages += parts[at].passages([position - self._starts[at]])
        return passages

    @override
    def find_permitted(self, query: Query) -> Permitted | None:
        each = [(part.find_permitted(query), len(part)) for part in self._parts.values()]
        if all(permitted is None for permitted, _ in each):
            return None
        masks = [np.ones(n, dtype=np.bool_) if p is None else p.mask for p, n in each]
        return Permitted.from_mask(np.concatenate(masks))

    @override
    def ids(self) -> list[str]:
        return [passage_id for part in self._parts.values() for passage_id in part.ids()]

    @override
    def order(self) -> NDArray[np.intp]:
        # no prefix begins another one: each ends with its only slash
        orders = [self.start(name) + self._parts[name].order() for name in sorted(self._parts)]
        return np.concatenate([np.empty(0, dtype=np.intp), *orders])

    @override
    def find_positions(self, ids: Iterable[str]) -> dict[str, int]:
        requested_ids = list(ids)
        positions = {
            passage_id: self.start(prefix) + position
            for prefix, part in self._parts.items()
            for passage_id, position in part.find_positions(requested_ids).items()
        }
        return {passage_id: positions[passage_id] for passage_id in requested_ids if passage_id in positions}

    @override
    def list_skipped(self) -> list[str]:
        return [line for part in self._parts.values() for line in part.list_skipped()]

    @override
    def remarks(self) -> list[str]:
        return [line for part in self._parts.values() for line in part.remarks()]

    @override
    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        return Corpora, (list(self._parts.values()),)


def _manifest(parts: Sequence[Corpus]) -> CorpusManifest:
    """Return a manifest with the sums of the counts, and hashes of the hashes, of the parts."""
    each = [part.manifest for part in parts]
    names = [part.prefix.removesuffix("/") for part in parts]

    def digest(values: Sequence[str]) -> str:
        listed = orjson.dumps([*zip(names, values, strict=True)])
        return hashlib.blake2b(listed, digest_size=16).hexdigest()

    return CorpusManifest(
        name=", ".join(names),
        source=", ".join(manifest.source for manifest in each),
        fingerprint=digest([manifest.fingerprint for manifest in each]),
        created_at=max((manifest.created_at for manifest in each), default=0.0),
        records=sum(manifest.records for manifest in each),
        done=sum(manifest.done for manifest in each),
        count=sum(manifest.count for manifest in each),
        digest=digest([manifest.digest for manifest in each]),
        metadata=digest([manifest.metadata for manifest in each])
        if any(manifest.metadata for manifest in each)
        else "",
        restricted=sum(manifest.restricted for manifest in each),
    )
