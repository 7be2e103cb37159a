"""Features of a router on recorded questions: embeddings, passages and answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.config import AppConfig
from agent.routers import Features, RouterError, Stage, dataset
from agent.routers import features as router_features
from arms.base import Passage, Progress
from arms.corpus import Corpus, ingest
from arms.indexes import PassageVectors, Vectors
from arms.models import Backbone, build_embedder
from arms.portfolio import Outcomes

BLOCK = 256
"""Questions between two steps of the progress."""

Rankings = Sequence[Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class ObservedFeatures:
    """The features of a router.

    Attributes:
        features: Of all questions, as far as its stage goes.
        k: The most passages that an arm found; 0 where the router does not look at them.
        corpus: Digest of the corpus that they are of; None likewise.
        foreign: Passages that are not of that corpus: they count as not found.
    """

    features: Features
    k: int = 0
    corpus: str | None = None
    foreign: int = 0


def observed_features(
    outcomes: Outcomes, config: AppConfig, backbone: str, stage: Stage, on_progress: Progress
) -> ObservedFeatures:
    """Compute the features of a router's stage, the same as at serving time.

    Args:
        outcomes: The questions, and what was found and answered.
        config: Settled; names the corpus, whose vectors are made where they are missing.
        backbone: Name of the sentence encoder.
        stage: How far the router looks.
        on_progress: Called with the progress.

    Raises:
        RouterError: The outcomes have no passages, or only those of another corpus.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    found = [[ids or () for ids in row] for row in outcomes.passages]
    if stage is not Stage.QUESTION and not any(ids for row in found for ids in row):
        raise RouterError("the router reads what was retrieved; the outcomes have no passages")
    texts = tuple(question.text for question in outcomes.questions)
    embedding = _embedded(texts, config.backbones[backbone], on_progress)
    asked = Features(
        outcomes.arms, texts, router_features.QUESTION, router_features.question_table(texts), embedding
    )
    if stage is Stage.QUESTION:
        return ObservedFeatures(asked)
    corpus = ingest(config.corpus.source, config.corpus_path, progress=on_progress)
    vectors = _vectors(corpus, config, backbone, found, on_progress)
    passages = {one.id: one for one in corpus.passages(corpus.positions(list(vectors)))}
    known = [[[passages[name] for name in ids if name in vectors] for ids in row] for row in found]
    retrieved = _retrieved(texts, embedding, known, vectors, on_progress)
    answers = [[answer or "" for answer in row] for row in outcomes.answers]
    answered = (
        router_features.answered_table(texts, outcomes.arms, answers, known)
        if stage is Stage.ANSWERED
        else None
    )
    return ObservedFeatures(
        Features(asked.arms, texts, asked.names, asked.question, embedding, retrieved, answered),
        max(len(ids) for row in found for ids in row),
        corpus.digest,
        len({name for row in found for ids in row for name in ids}) - len(vectors),
    )


def _embedded(texts: Sequence[str], backbone: Backbone, on_progress: Progress) -> NDArray[np.float32]:
    embedder = build_embedder(backbone)
    blocks = []
    for start in range(0, len(texts), BLOCK):
        blocks.append(embedder.encode_queries(texts[start : start + BLOCK]))
        on_progress("embedding questions", min(start + BLOCK, len(texts)), len(texts))
    return np.concatenate(blocks)


def _vectors(
    corpus: Corpus, config: AppConfig, name: str, found: Rankings, on_progress: Progress
) -> Mapping[str, NDArray[np.float32]]:
    """Return the vectors of what was found, of those that are of the corpus. Raises RouterError."""
    backbone = config.backbones[name]
    Vectors.of(corpus, config.indexes_path, backbone).prepare(corpus, backbone, on_progress)
    wanted = sorted({name for row in found for ids in row for name in ids})
    vectors = PassageVectors(corpus, config.indexes_path, backbone).of(wanted)
    if not vectors:
        raise RouterError(
            f"none of the {len(wanted):,} passages of the outcomes, such as {wanted[0]!r}, "
            f"is of corpus {config.corpus.name!r}"
        )
    return vectors


def _retrieved(
    texts: Sequence[str],
    embedding: NDArray[np.float32],
    found: Sequence[Sequence[Sequence[Passage]]],
    vectors: Mapping[str, NDArray[np.float32]],
    on_progress: Progress,
) -> dataset.ArmTable:
    blocks = []
    for start in range(0, len(found), BLOCK):
        end = min(start + BLOCK, len(found))
        blocks.append(
            router_features.retrieved_table(texts[start:end], embedding[start:end], found[start:end], vectors)
        )
        on_progress("looking at passages", end, len(found))
    return dataset.ArmTable(blocks[0].names, np.concatenate([block.values for block in blocks]))
