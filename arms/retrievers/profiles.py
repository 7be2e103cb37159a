"""The profile of a source: its words, and some of its passages as vectors, before any label.

The words of a corpus are counted in one pass, and its passages are sampled at random. A source that can only
be searched, such as a search engine that something else fills or an MCP server, is sampled through its own
search, with single words of what was found before.

Sources: Si and Callan 2003, Relevant document distribution estimation method for resource selection, SIGIR;
Callan and Connell 2001, Query-based sampling of text databases, ACM TOIS 19(2).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import Arm, ArmError, Passage, Progress, Query
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import (
    IndexMismatchError,
    PassageVectors,
    build_once,
    build_passage_embedder,
    compose_text,
)
from armwise.arms.manifest import Identity
from armwise.arms.models import Embedder, digest_backbone
from armwise.arms.profile import Profile, ProfileSpec, hash_terms
from armwise.arms.retrievers.arm_graph import ArmGraph
from armwise.arms.retrievers.build import build_arm
from armwise.arms.retrievers.kind import NoRetrieval, Resources
from armwise.arms.tokenizer import VERSION, words

logger = logging.getLogger(__name__)

VECTORS, TERMS, SHARES = "vectors.npy", "terms.npy", "shares.npy"

SEED = 0

CHARACTERS = 300
"""Characters of a passage that words are drawn from: the subject of a longer one shows in its beginning."""

AT_ONCE = 64
"""Passages that are embedded between two steps of the progress."""

COUNTED, COUNTED_AT_ONCE, SPARE = 100_000, 2000, 4
"""Most passages whose words are counted, and those of a step; the factor on the terms kept till the end."""

FOUND = 10
"""Passages of one search of a source that is sampled through its search."""

FIRST_WORDS = ("information", "people", "time", "use", "system", "problem", "number", "world", "new", "name")
"""Words that the first searches of such a source are made of; later ones come from its own passages."""

FAILURES = 3
"""Searches in a row that may fail before a source is given up."""


@dataclass(frozen=True, slots=True)
class ProfiledSource:
    """A source of passages.

    Attributes:
        name: Name of an arm that searches it.
        corpus: The passages; None where they can only be searched.
        words: What the counts of its words depend on.
        vectors: What the vectors of its sample depend on; None: there are none.
    """

    name: str
    corpus: Corpus | None
    words: Identity
    vectors: Identity | None

    def folders(self, indexes: Path) -> tuple[Path, Path | None]:
        """Return the folder of its words, and that of its vectors."""
        near = None if self.vectors is None else build_once.folder(indexes, "profile", self.vectors)
        return build_once.folder(indexes, "words", self.words), near


def list_sources(name: str, spec: ProfileSpec, have: Resources) -> list[ProfiledSource]:
    """Return the sources that an arm and its members search, each once; none where they search nothing.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    model = None if spec.backbone is None else digest_backbone(have.backbones[spec.backbone])
    graph, sources = ArmGraph(have.specs), dict[Path, ProfiledSource]()
    for part, arm_spec in graph.closure(name).items():
        kind, params = graph.resolve(part)
        if arm_spec.kind == NoRetrieval.kind or kind.members(params):
            continue
        if arm_spec.corpus is not None or kind.searches_corpus:
            corpus, sample = have.select_corpus(arm_spec).corpus, {"passages": spec.passages}
            what: Identity = {"corpus": corpus.digest}
        else:
            corpus, sample = None, {}
            searched = graph.search_digest(part)
            what = {"searched": searched, "searches": spec.searches, "passages": spec.passages}
        near = None if model is None else {**what, **sample, "model": model}
        source = ProfiledSource(part, corpus, {**what, "words": VERSION, "terms": spec.words}, near)
        sources.setdefault(source.folders(have.indexes)[0], source)
    return list(sources.values())


def prepare_profiles(
    names: Iterable[str], spec: ProfileSpec, have: Resources, progress: Progress | None = None
) -> None:
    """Count the words of the sources of some arms, sample them and embed the samples, where that is missing.

    Passages whose vectors an index has are not embedded again. A source that cannot be searched now, or finds
    nothing, is left without a profile, with a warning.

    Args:
        names: The arms.
        spec: How sources are sampled.
        have: The resources of all arms; those that are searched are built.
        progress: Progress callback.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of a backbone cannot be found.
    """

    @cache  # loaded for the first source that is missing
    def encoder(backbone: str) -> Embedder:
        return build_passage_embedder(have.backbones[backbone])

    # each once: one that cannot be searched is not tried again for every arm over it
    sources = {
        source.folders(have.indexes)[0]: source for name in names for source in list_sources(name, spec, have)
    }
    for source in sources.values():
        _prepare(source, spec, have, encoder, progress)


def read_profiles(names: Iterable[str], spec: ProfileSpec, have: Resources) -> dict[str, tuple[Profile, ...]]:
    """Return the profiles of the sources of each arm that searches; of a source without one, none.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    profiles = {}
    for name in names:
        if sources := list_sources(name, spec, have):
            found = [_find(source, have.indexes) for source in sources]
            # arms over the same source share its profile
            profiles[name] = tuple(
                have.share(("profile", *folders), partial(_read, *folders))
                for folders in found
                if folders is not None
            )
    return profiles


def _read(of_words: Path, of_vectors: Path | None) -> Profile:
    terms, shares = (np.load(of_words / name, mmap_mode="r") for name in (TERMS, SHARES))
    return Profile(terms, shares, None if of_vectors is None else np.load(of_vectors / VECTORS))


def _find(source: ProfiledSource, indexes: Path) -> tuple[Path, Path | None] | None:
    """Return the folders that are there; None: nothing is known of the source."""
    of_words, of_vectors = source.folders(indexes)
    if not _is_there(of_words, source.words):
        return None
    return of_words, of_vectors if of_vectors is not None and _is_there(of_vectors, source.vectors) else None


def _is_there(folder: Path, identity: Identity | None) -> bool:
    try:
        build_once.check(folder, identity or {})
    except build_once.IndexMismatchError:
        return False
    return True


def _prepare(
    source: ProfiledSource,
    spec: ProfileSpec,
    have: Resources,
    encoder: Callable[[str], Embedder],
    progress: Progress | None,
) -> None:
    of_words, of_vectors = source.folders(have.indexes)
    is_embedded = of_vectors is None or _is_there(of_vectors, source.vectors)
    if is_embedded and _is_there(of_words, source.words):
        return
    passages: list[Passage] = []
    if source.corpus is not None:
        counted, passages = (
            _draw_parts(source.corpus),
            [] if is_embedded else _draw(source.corpus, spec.passages),
        )
    else:
        passages = _search_passages(source, spec, have, encoder, progress)
        if not passages:
            return
        counted = iter([passages])

    def count(unfinished: Path) -> None:
        terms, shares = count_terms(_report(counted, source, progress), spec.words)
        np.save(unfinished / TERMS, terms)
        np.save(unfinished / SHARES, shares)

    def embed(unfinished: Path) -> None:
        backbone = spec.backbone or ""
        vectors = _read_indexed(source, passages, have, backbone)
        missing = [passage for passage in passages if passage.id not in vectors]
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            encoded = encoder(backbone).encode_passages([compose_text(passage) for passage in some])
            vectors |= zip((passage.id for passage in some), encoded, strict=True)
            if progress is not None:
                progress(f"profile of {source.name}", start + len(some), len(missing))
        np.save(unfinished / VECTORS, np.stack([vectors[passage.id] for passage in passages]))

    build_once.build(of_words, source.words, count)
    if of_vectors is not None and source.vectors is not None and (passages or is_embedded):
        build_once.build(of_vectors, source.vectors, embed)


def _report(
    parts: Iterable[Sequence[Passage]], source: ProfiledSource, progress: Progress | None
) -> Iterator[Sequence[Passage]]:
    """Yield the parts, and report how many passages were counted."""
    total = 0 if source.corpus is None else min(len(source.corpus), COUNTED)
    done = 0
    for passages in parts:
        yield passages
        done += len(passages)
        if progress is not None and done:
            progress(f"words of {source.name}", done, max(total, done))


def _read_indexed(
    source: ProfiledSource, passages: Sequence[Passage], have: Resources, backbone: str
) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of passages, by id, as far as an index of the source has them."""
    if source.corpus is None:
        return {}
    try:
        kept = PassageVectors(source.corpus, have.indexes, have.backbones[backbone], some=True)
    except IndexMismatchError:
        return {}
    return kept.look_up(passage.id for passage in passages)


def _search_passages(
    source: ProfiledSource,
    spec: ProfileSpec,
    have: Resources,
    encoder: Callable[[str], Embedder],
    progress: Progress | None,
) -> list[Passage]:
    """Return passages of a source without a corpus; none, with a warning, if its search finds none."""
    if not spec.searches:
        return []
    try:
        passages = sample_passages(build_arm(source.name, have), spec, encoder, progress)
    except ArmError as error:
        logger.warning("arm %r has no profile, because its search failed: %s", source.name, error)
        return []
    if not passages:
        logger.warning("arm %r has no profile: its search found no passages", source.name)
    return passages


def count_terms(
    parts: Iterable[Sequence[Passage]], most: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return the most frequent terms of some passages, ascending, and the share of each in all, shapes (n,).

    Args:
        parts: The passages. Some four times as many terms as are returned, and those of a part, are kept.
        most: Terms to return; of equally frequent ones, the smallest.
    """
    terms, counts, total = np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64), 0
    for passages in parts:
        new = np.array([term for one in passages for term in hash_terms(compose_text(one))], dtype=np.uint32)
        total += len(new)
        terms, at = np.unique(np.concatenate([terms, new]), return_inverse=True)
        often = np.concatenate([counts, np.ones(len(new), dtype=np.int64)])
        counts = np.bincount(at, weights=often, minlength=len(terms)).astype(np.int64)
        terms, counts = _cut(terms, counts, SPARE * most)
    terms, counts = _cut(terms, counts, most)
    return terms, (counts / max(total, 1)).astype(np.float32)


def _cut(
    terms: NDArray[np.uint32], counts: NDArray[np.int64], most: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    kept = np.sort(np.argsort(-counts, kind="stable")[:most])
    return terms[kept], counts[kept]


def _draw(corpus: Corpus, n: int) -> list[Passage]:
    """Return passages of a corpus, drawn at random without replacement."""
    return corpus.passages(_draw_rows(corpus, n))


def _draw_rows(corpus: Corpus, n: int) -> list[int]:
    rows = np.random.default_rng(SEED).choice(len(corpus), min(n, len(corpus)), replace=False)
    return sorted(rows.tolist())


def _draw_parts(corpus: Corpus) -> Iterator[list[Passage]]:
    """Yield the passages whose words are counted: all, or as many as are enough, drawn at random."""
    rows = _draw_rows(corpus, COUNTED)
    for first in range(0, len(rows), COUNTED_AT_ONCE):
        yield corpus.passages(rows[first : first + COUNTED_AT_ONCE])


def sample_passages(
    arm: Arm, spec: ProfileSpec, encoder: Callable[[str], Embedder], progress: Progress | None = None
) -> list[Passage]:
    """Return passages of a source, found by searching it for single words.

    The first words are general ones; as soon as something is found, words are drawn from that. So no text
    of another source is sent to this one.

    Args:
        arm: Searches the source.
        spec: The passages to find, and the most searches.
        encoder: Returns the encoder of a backbone that the arm needs.
        progress: Called after every search.

    Raises:
        ArmError: Three searches in a row have failed.
    """
    rng = np.random.default_rng(SEED)
    passages: dict[str, Passage] = {}
    general, passage_words, searched_words, failed = list(FIRST_WORDS), list[str](), set[str](), 0
    for done in range(1, spec.searches + 1):
        if len(passages) >= spec.passages or not (passage_words or general):
            break
        word = passage_words.pop(int(rng.integers(len(passage_words)))) if passage_words else general.pop(0)
        searched_words.add(word)
        vectors = {name: encoder(name).encode_queries([word])[0] for name in arm.backbones}
        try:
            new = [
                passage
                for passage in arm.search(Query(word, vectors), FOUND).passages
                if passage.id not in passages
            ]
            failed = 0
        except ArmError:
            new, failed = [], failed + 1
            if failed == FAILURES:
                raise
        passages |= {passage.id: passage for passage in new}
        texts = [compose_text(passage)[:CHARACTERS] for passage in new]
        fresh = {word for text in texts for word in words(text, "english")} - searched_words
        passage_words += sorted(
            word
            for word in fresh - {*passage_words}
            if not word.isdigit() and (len(word) > 2 or not word.isascii())
        )
        if progress is not None:
            progress(f"sampling {arm.name}", done, spec.searches)
    return list(passages.values())[: spec.passages]
