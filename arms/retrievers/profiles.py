"""The profile of a source: some of its passages as vectors, which show what it is about before any label.

A corpus is sampled at random. A source that can only be searched, such as a search engine that something
else fills or an MCP server, is sampled through its own search, with single words of what was found before.

Sources: Si and Callan 2003, Relevant document distribution estimation method for resource selection, SIGIR;
Callan and Connell 2001, Query-based sampling of text databases, ACM TOIS 19(2).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
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
from armwise.arms.profile import Profile, ProfileSpec
from armwise.arms.retrievers.arm_graph import ArmGraph
from armwise.arms.retrievers.build import build_arm
from armwise.arms.retrievers.kind import NONE, Resources
from armwise.arms.tokenizer import words

logger = logging.getLogger(__name__)

VECTORS = "vectors.npy"

SEED = 0

CHARACTERS = 300
"""Characters of a passage that words are drawn from: the subject of a longer one shows in its beginning."""

AT_ONCE = 64
"""Passages that are embedded between two steps of the progress."""

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
        identity: What its profile depends on.
    """

    name: str
    corpus: Corpus | None
    identity: Identity

    def folder(self, indexes: Path) -> Path:
        """Return the folder of its profile."""
        return build_once.folder(indexes, "profile", self.identity)


def list_sources(name: str, spec: ProfileSpec, have: Resources) -> list[ProfiledSource]:
    """Return the sources that an arm and its members search, each once; none where they search nothing.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    settings: dict[str, str | int] = {
        "model": digest_backbone(have.backbones[spec.backbone]),
        "passages": spec.passages,
    }
    graph, sources = ArmGraph(have.specs), dict[Path, ProfiledSource]()
    for part, arm_spec in graph.closure(name).items():
        kind, params = graph.resolve(part)
        if arm_spec.kind == NONE.name or kind.members(params):
            continue
        if arm_spec.corpus is not None or kind.searches_corpus:
            corpus = have.select_corpus(arm_spec).corpus
            source = ProfiledSource(part, corpus, {"corpus": corpus.digest, **settings})
        else:
            searched = graph.search_digest(part)
            source = ProfiledSource(part, None, {"searched": searched, "searches": spec.searches, **settings})
        sources.setdefault(source.folder(have.indexes), source)
    return list(sources.values())


def prepare_profiles(
    names: Iterable[str], spec: ProfileSpec, have: Resources, progress: Progress | None = None
) -> None:
    """Sample the sources of some arms and embed the samples, where that is missing.

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
        source.folder(have.indexes): source for name in names for source in list_sources(name, spec, have)
    }
    for source in sources.values():
        if not _is_there(source, have.indexes):
            _prepare(source, spec, have, encoder, progress)


def read_profiles(names: Iterable[str], spec: ProfileSpec, have: Resources) -> dict[str, Profile]:
    """Return the profile of each arm of which some source has one.

    Raises:
        ArmSpecError: There is no such arm, or one is described wrongly.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    profiles = {}
    for name in names:
        there = [source for source in list_sources(name, spec, have) if _is_there(source, have.indexes)]
        if folders := tuple(source.folder(have.indexes) for source in there):
            # arms over the same sources share the vectors
            profiles[name] = have.share(("profile", folders), partial(_read, folders))
    return profiles


def _read(folders: tuple[Path, ...]) -> Profile:
    return Profile(np.concatenate([np.load(folder / VECTORS) for folder in folders]))


def _is_there(source: ProfiledSource, indexes: Path) -> bool:
    try:
        build_once.check(source.folder(indexes), source.identity)
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
    if source.corpus is not None:
        passages = _draw(source.corpus, spec.passages)
    elif spec.searches:
        try:
            passages = sample_passages(build_arm(source.name, have), spec, encoder, progress)
        except ArmError as error:
            logger.warning("arm %r has no profile, because its search failed: %s", source.name, error)
            return
    else:
        return
    if not passages:
        logger.warning("arm %r has no profile: its search found no passages", source.name)
        return

    def write(unfinished: Path) -> None:
        vectors = _read_indexed(source, passages, spec, have)
        missing = [passage for passage in passages if passage.id not in vectors]
        for start in range(0, len(missing), AT_ONCE):
            some = missing[start : start + AT_ONCE]
            encoded = encoder(spec.backbone).encode_passages([compose_text(passage) for passage in some])
            vectors |= zip((passage.id for passage in some), encoded, strict=True)
            if progress is not None:
                progress(f"profile of {source.name}", start + len(some), len(missing))
        np.save(unfinished / VECTORS, np.stack([vectors[passage.id] for passage in passages]))

    build_once.build(source.folder(have.indexes), source.identity, write)


def _read_indexed(
    source: ProfiledSource, passages: Sequence[Passage], spec: ProfileSpec, have: Resources
) -> dict[str, NDArray[np.float32]]:
    """Return the vectors of passages, by id, as far as an index of the source has them."""
    if source.corpus is None:
        return {}
    try:
        kept = PassageVectors(source.corpus, have.indexes, have.backbones[spec.backbone], some=True)
    except IndexMismatchError:
        return {}
    return kept.look_up(passage.id for passage in passages)


def _draw(corpus: Corpus, n: int) -> list[Passage]:
    """Return passages of a corpus, drawn at random without replacement."""
    rows = np.random.default_rng(SEED).choice(len(corpus), min(n, len(corpus)), replace=False)
    return corpus.passages(sorted(rows.tolist()))


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
