"""Several corpora as one: the id of a passage is the name of its corpus, a slash, and its id there.

Each has its own folder and indexes: adding, replacing or removing a corpus leaves the others unchanged.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from typing_extensions import override

from armwise.arms.base import Passage, Progress, Query
from armwise.arms.corpus.chunking import CHUNKING, Chunking
from armwise.arms.corpus.corpus import Corpus, CorpusManifest, ingest
from armwise.arms.corpus.permissions import Permitted
from armwise.arms.corpus.records import CorpusError


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


def ingest_all(
    sources: Sequence[CorpusSource], *, compare: bool = False, progress: Progress | None = None
) -> Corpus:
    """Read the corpora whose folders lack them, and return all corpora as one.

    Args:
        sources: The sources; if there are several, all have names. Without any, the corpus is empty.
        compare: Whether to compare existing corpora with their digests.
        progress: Called after every commit.

    Raises:
        CorpusError: A corpus cannot be read; the message names it.
    """
    parts = [source.ingest(compare=compare, progress=progress) for source in sources]
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
