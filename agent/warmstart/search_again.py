"""Scores of a router that looks at passages, on decisions that were made without it.

The log has the passages of the arm that was drawn. So the arms that could be drawn search again, as they
would have before the draw: with the same question and seed, in the corpus of today. Only arms that are light
are asked: others may cost money, or answer otherwise the second time. The log does not hold the groups of a
caller: where passages are for some groups alone, nothing is searched again.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from agent.config import AppConfig
from agent.learning import router_scores
from agent.policies import sampling
from agent.routers import Stage, features
from arms.base import Arm, ArmError, Passage, Progress, Query
from arms.corpus import ingest
from arms.indexes import PassageVectors, Vectors
from arms.models import Embedder, build_embedder
from arms.retrievers import Resources, build_arm, catalog, prepare
from feedback.events import Decision
from feedback.log import Store
from feedback.training_log import router_contexts

BATCH = 50
"""Decisions whose scores are stored together."""


def score_by_searching(
    store: Store, digest: str, config: AppConfig, newest: int, on_progress: Progress
) -> str:
    """Score the newest decisions with a router that looks at passages, and store the scores.

    Args:
        store: The log.
        digest: Digest of the router in it.
        config: Settled, with the arms.
        newest: Most decisions that are looked at.
        on_progress: Called with the progress.

    Returns:
        What was done, in a sentence; empty for a router that reads the question alone.

    Raises:
        RouterError: The router cannot be read.
        ArmError: An arm cannot be built.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of an encoder is not where its name says.
    """
    stored = router_scores.open_router(store, digest)
    if stored.trained.router.stage is not Stage.RETRIEVED:
        return ""
    known = [arm for arm in config.actions if arm in stored.trained.about.arms]
    if heavy := [arm for arm in known if not catalog.is_light(arm, config.arms)]:
        return (
            f"earlier decisions are not searched again, which would ask {', '.join(heavy)}: "
            "the router has no scores of them"
        )
    if ingest(config.corpus.source, config.corpus_path).restricted:
        return (
            "earlier decisions are not searched again: which passages they could find depended on the groups "
            "of their callers, so the router has no scores of them"
        )
    unscored = [name for name, _ in router_contexts.unscored(store, digest, newest=newest)]
    if not unscored:
        return ""
    again = _SearchAgain.open(config, stored, known, store.draw_secret.salt(config.salt), on_progress)
    for first in range(0, len(unscored), BATCH):
        decisions = router_contexts.decisions_of(store, unscored[first : first + BATCH])
        router_contexts.store_scores(store, digest, {one.id: again.scores(one) for one in decisions})
        on_progress("searching again for the router", first + len(decisions), len(unscored))
    return f"{len(unscored):,} earlier decisions were searched again for the router"


@dataclass(frozen=True, slots=True)
class _SearchAgain:
    """Arms that search again, and the router that scores what they find."""

    stored: router_scores.StoredTrained
    arms: Mapping[str, Arm]
    embedders: Mapping[str, Embedder]
    vectors: PassageVectors
    salt: str

    @classmethod
    def open(
        cls,
        config: AppConfig,
        stored: router_scores.StoredTrained,
        arms: Sequence[str],
        salt: str,
        on_progress: Progress,
    ) -> "_SearchAgain":
        """Build the arms, the encoders and the vectors that are missing."""
        corpus, indexes = ingest(config.corpus.source, config.corpus_path), config.indexes_path
        resources = Resources(corpus, indexes, config.backbones, config.arms, trust=config.trust)
        prepare(resources, arms, on_progress)
        backbone = stored.trained.about.backbone
        Vectors.of(corpus, indexes, config.backbones[backbone]).prepare(corpus, config.backbones[backbone])
        needed = {backbone}.union(*(catalog.embeddings_of(arm, config.arms) for arm in arms))
        return cls(
            stored,
            {arm: build_arm(arm, resources) for arm in arms},
            {name: build_embedder(config.backbones[name]) for name in sorted(needed)},
            PassageVectors(corpus, indexes, config.backbones[backbone]),
            salt,
        )

    def scores(self, decision: Decision) -> dict[str, float] | None:
        """Return the score of each arm that could be drawn, as before the draw; None where none searched."""
        question, about = decision.context.question, self.stored.trained.about
        fitted, before = self.stored.unseen.of([question], len(about.arms))
        if fitted[0]:
            known = not np.isnan(before[0]).any()
            return dict(zip(about.arms, before[0].tolist(), strict=True)) if known else None
        embeddings = {name: one.encode_queries([question])[0] for name, one in self.embedders.items()}
        query = Query(question, embeddings, sampling.seed_of_arm(decision.id, self.salt))
        found: dict[str, Sequence[Passage]] = {}
        for arm in decision.arms:
            if arm in self.arms:
                with suppress(ArmError):
                    found[arm] = self.arms[arm].search(query, about.k).passages
        if not found:
            return None
        ids = sorted({one.id for passages in found.values() for one in passages})
        vectors = self.vectors.of(ids) if ids else {}
        seen = features.features_of(
            question, embeddings[about.backbone], list(found), list(found.values()), vectors
        )
        scores = self.stored.trained.router.scores(seen)[0].tolist()
        return dict(zip(found, scores, strict=True))
