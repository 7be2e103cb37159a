"""Features of a router on recorded questions: embeddings, passages and answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from armwise.agent.config import AppConfig
from armwise.agent.lab.offline.labelled_data import Retrieved
from armwise.agent.lab.routers import cross_validation
from armwise.agent.routers import Features, RouterError, Stage, dataset
from armwise.agent.routers import features as router_features
from armwise.arms.base import Passage, Progress
from armwise.arms.corpus import Corpus, ingest_all
from armwise.arms.indexes import PassageVectors, prepare_vectors
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.relevance import Case, Examples, Fitting
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.profile import NO_PROFILES, Profiles, similarities
from armwise.arms.relevance import RelevanceModel
from armwise.arms.retrievers import Resources, prepare_profiles, read_profiles

BLOCK = 256
"""Questions per progress report."""

FOLDS = 5
"""Folds of the relevance models that score a router's training questions."""

FITTING = Fitting(draws=1, rounds=150, depth=5, learning_rate=0.06)
"""Settings of these models, and of the relevance model that is served with the router."""


@dataclass(frozen=True, slots=True)
class ObservedFeatures:
    """The features of a router.

    Attributes:
        features: Features of all questions, up to the router's stage.
        k: Most passages of an arm; 0: the router ignores passages.
        corpus: Digest of the corpus of the passages.
        foreign: Number of passages outside that corpus, which are disregarded.
        found: Passages of each arm on each question, within the corpus.
        answers: Answers of each arm on each question, if the router compares them.
    """

    features: Features
    k: int = 0
    corpus: str | None = None
    foreign: int = 0
    found: Sequence[Sequence[Sequence[Passage]]] = ()
    answers: Sequence[Sequence[str]] | None = None

    def with_relevance(self, relevance: Sequence[Mapping[str, float]]) -> Features:
        """Return the features with columns for the relevance of each question's passages, given by id."""
        return router_features.with_relevance(self.features, relevance, self.found, self.answers)

    def examples(self, gold: Sequence[Collection[str]], on_progress: Progress) -> Examples:
        """Return the questions as examples for relevance models. Raises RelevanceError."""
        texts, arms = self.features.texts, self.features.arms
        cases = [
            Case(text, dict(zip(arms, row, strict=True)), frozenset(ids))
            for text, row, ids in zip(texts, self.found, gold, strict=True)
        ]
        return Examples.from_cases(cases, FITTING, on_progress)


def relevance_of_others(
    examples: Examples, texts: Sequence[str], known: cross_validation.Rows, seed: int
) -> tuple[RelevanceModel, list[Mapping[str, float]]]:
    """Return a relevance model, and the out-of-fold relevance of all passages.

    Args:
        examples: All questions.
        texts: Texts of all questions.
        known: Indices of the questions whose gold passages may be used. Their relevance is out-of-fold; for
            all other questions it is from the returned model, which is fitted to the known questions.
        seed: Seed that shuffles questions into folds.

    Raises:
        RelevanceError: None or all of the passages of these questions are gold.
    """
    model = examples.fit(known)
    relevance = examples.predict(model)
    inner = cross_validation.folds([texts[row] for row in known], FOLDS, seed)
    parts = [(known[training], known[held_out]) for training, held_out in inner]
    for row, predicted in enumerate(examples.out_of_fold(parts)):
        if predicted is not None:
            relevance[row] = predicted
    return model, relevance


def observe_features(
    outcomes: Outcomes,
    config: AppConfig,
    backbone: str,
    stage: Stage,
    on_progress: Progress,
    relevance: RelevanceModel | None = None,
) -> ObservedFeatures:
    """Compute the features of a router's stage, the same as at serving time.

    Args:
        outcomes: The questions, with passages and answers.
        config: Configuration with defaults resolved; missing vectors of its corpus are computed.
        backbone: Name of the sentence encoder.
        stage: Stage of the router.
        on_progress: Called with the progress.
        relevance: Relevance model of the router, if it reads relevance.

    Raises:
        RouterError: The outcomes have no passages, or only passages of another corpus.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    rankings = [[ids or () for ids in row] for row in outcomes.passages]
    if stage is not Stage.QUESTION and not any(ids for row in rankings for ids in row):
        raise RouterError("the router reads what was retrieved; the outcomes have no passages")
    texts = tuple(question.text for question in outcomes.questions)
    embedding = embed_questions(texts, config.backbones[backbone], on_progress)
    features = Features(
        outcomes.arms, texts, router_features.QUESTION, router_features.build_question_table(texts), embedding
    )
    features = replace(features, fit=measure_fit(features, config, backbone, on_progress))
    if stage is Stage.QUESTION:
        return ObservedFeatures(features)
    passages = Retrieved.look_up(outcomes, config, on_progress)
    assert passages.corpus is not None  # some were retrieved
    vectors = _vectors(passages, passages.corpus, config, backbone, on_progress)
    retrieved = _build_retrieved_table(texts, embedding, passages.rankings, vectors, on_progress)
    answers = answered = None
    if stage is Stage.ANSWERED:
        answers = [[answer or "" for answer in row] for row in outcomes.answers]
        answered = router_features.build_answered_table(texts, outcomes.arms, answers, passages.rankings)
    observed = ObservedFeatures(
        replace(features, retrieved=retrieved, answered=answered),
        max(len(ids) for row in rankings for ids in row),
        passages.corpus.digest,
        passages.foreign,
        passages.rankings,
        answers,
    )
    if relevance is None:
        return observed
    predicted = [
        relevance.relevance(text, dict(zip(outcomes.arms, row, strict=True)))
        for text, row in zip(texts, passages.rankings, strict=True)
    ]
    return replace(observed, features=observed.with_relevance(predicted))


def measure_fit(
    features: Features, config: AppConfig, backbone: str, on_progress: Progress
) -> dataset.Floats | None:
    """Return how well each question fits the sources of each arm, shape (n_questions, n_arms).

    An arm outside the configuration counts as an average one.

    Args:
        features: The questions, with their embeddings, and the arms.
        config: Configuration with defaults resolved; None is returned without `features.similarity`.
        backbone: Name of the sentence encoder of the embeddings.
        on_progress: Called with the progress.

    Raises:
        CorpusError: A corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    profiles, spec = sample_profiles(config, on_progress), config.features.similarity
    if spec is None:
        return None
    known = {arm: profiles.get(arm, ()) for arm in features.arms if arm in profiles or arm not in config.arms}
    vectors: Sequence[NDArray[np.float32] | None] = [None] * len(features)
    if spec.backbone == backbone:
        vectors = [*features.embedding]
    elif spec.backbone is not None:
        vectors = [*embed_questions(features.texts, config.backbones[spec.backbone], on_progress)]
    fits = [similarities(known, text, vector) for text, vector in zip(features.texts, vectors, strict=True)]
    return router_features.build_fit(fits, features.arms)


def sample_profiles(config: AppConfig, on_progress: Progress) -> Profiles:
    """Return the profiles of all arms' sources, if the configuration uses similarities.

    Args:
        config: Configuration with defaults resolved; what is missing of its sources is counted and sampled.
        on_progress: Called with the progress.

    Raises:
        CorpusError: A corpus cannot be read.
        ModelNotFoundError: The model of the backbone cannot be found.
    """
    spec = config.features.similarity
    if spec is None:
        return NO_PROFILES
    corpus = ingest_all(config.corpus_sources, progress=on_progress)
    have = Resources(corpus, config.indexes_path, config.backbones, config.arms)
    prepare_profiles(config.arms, spec, have, on_progress)
    return read_profiles(config.arms, spec, have)


def embed_questions(texts: Sequence[str], backbone: Backbone, on_progress: Progress) -> NDArray[np.float32]:
    """Return the unit vectors of questions, shape (n_questions, dim). Raises ModelNotFoundError."""
    embedder = build_embedder(backbone)
    blocks = [np.empty((0, embedder.dim), dtype=np.float32)]
    for start in range(0, len(texts), BLOCK):
        blocks.append(embedder.encode_queries(texts[start : start + BLOCK]))
        on_progress("embedding questions", min(start + BLOCK, len(texts)), len(texts))
    return np.concatenate(blocks)


def _vectors(
    passages: Retrieved, corpus: Corpus, config: AppConfig, name: str, on_progress: Progress
) -> Mapping[str, NDArray[np.float32]]:
    """Return the vectors of retrieved passages, by id."""
    backbone = config.backbones[name]
    prepare_vectors(corpus, config.indexes_path, backbone, on_progress)
    ids = sorted({passage.id for row in passages.rankings for ranking in row for passage in ranking})
    return PassageVectors(corpus, config.indexes_path, backbone).look_up(ids)


def _build_retrieved_table(
    texts: Sequence[str],
    embedding: NDArray[np.float32],
    rankings: Sequence[Sequence[Sequence[Passage]]],
    vectors: Mapping[str, NDArray[np.float32]],
    on_progress: Progress,
) -> dataset.ArmTable:
    blocks = []
    for start in range(0, len(rankings), BLOCK):
        end = min(start + BLOCK, len(rankings))
        blocks.append(
            router_features.build_retrieved_table(
                texts[start:end], embedding[start:end], rankings[start:end], vectors
            )
        )
        on_progress("looking at passages", end, len(rankings))
    return dataset.ArmTable(blocks[0].names, np.concatenate([block.values for block in blocks]))
