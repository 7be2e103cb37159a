"""Routers of recipes: stored in the log, loaded from it, and applied to decisions made without them.

    a folder of `armwise lab train` --keep_router--> the log --open_router--> replicas, learners, evaluations

A recipe learns from contexts with the scores of its router (`armwise.feedback.training_log.router_contexts`).
Missing scores are computed from the question when they are first needed, and stored. For questions that the
router was trained on, they are its out-of-fold scores.

A router that reads passages needs those of all eligible arms, and the log has only the drawn arm's. So the
eligible arms search again with the same question and seed, in the current corpus. Only light arms do: others
may cost money, or return something else the second time. With passages restricted to groups, none does,
because the log does not store the groups of callers.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from armwise.agent.config import AppConfig
from armwise.agent.policies import sampling
from armwise.agent.routers import Features, RouterError, Stage, Trained, dataset, features, out_of_fold, saved
from armwise.arms.base import Arm, ArmError, Passage, Progress, Query
from armwise.arms.corpus import ingest_all
from armwise.arms.indexes import PassageVectors, prepare_vectors
from armwise.arms.models import Backbone, Embedder, build_embedder
from armwise.arms.retrievers import ArmGraph, Resources, build_arm, prepare
from armwise.feedback.events import Decision
from armwise.feedback.log import Store
from armwise.feedback.registry import routers
from armwise.feedback.training_log import router_contexts

MOST = 50_000
"""Newest decisions that a candidate's router scores; earlier ones are learned without scores."""

BATCH = 256
"""Questions embedded in one batch."""

SEARCH_BATCH = 50
"""Decisions searched again between two writes of scores."""


@dataclass(frozen=True, slots=True)
class StoredTrained:
    """A trained router with its out-of-fold scores."""

    trained: Trained
    unseen: out_of_fold.OutOfFoldScores

    @classmethod
    def read(cls, folder: Path) -> "StoredTrained":
        """Read the folder of `armwise lab train`. Raises RouterError."""
        trained = saved.read_trained(folder)
        return cls(trained, out_of_fold.read_out_of_fold(folder, trained.about))

    def scores(
        self,
        texts: Sequence[str],
        encoder: Embedder | None,
        fits: Sequence[Mapping[str, float]] | None = None,
    ) -> dataset.Floats:
        """Return the scores of questions, shape (n_questions, n_arms), out-of-fold for training ones.

        Args:
            texts: The questions.
            encoder: Encoder of the router's backbone; needed for questions outside its training set.
            fits: How well each question fits the sources of each arm, for a router that reads this.

        Returns:
            NaN for a training question that was never held out, if the router reads passages, or if it reads
            how well a question fits and that is unknown.
        """
        about, router = self.trained.about, self.trained.router
        fitted, scores = self.unseen.look_up(texts, len(about.arms))
        if router.stage is Stage.QUESTION and encoder is not None and not fitted.all():
            new = ~fitted
            if router.reads_fit:
                new &= np.array([bool(fit) for fit in fits or [{}] * len(texts)])
            some = tuple(text for text, is_new in zip(texts, new, strict=True) if is_new)
            if not some:
                return scores
            table, vectors = features.build_question_table(some), encoder.encode_queries(some)
            fit = None
            if router.reads_fit and fits is not None:
                fit = features.build_fit([fits[n] for n in np.flatnonzero(new).tolist()], about.arms)
            scores[new] = router.scores(
                Features(about.arms, some, features.QUESTION, table, vectors, fit=fit)
            )
        return scores


def keep_router(store: Store, folder: Path, now: float) -> str:
    """Write the router of a folder to the log, and return its digest there. Raises RouterError."""
    about = StoredTrained.read(folder).trained.about  # refuses damaged files
    if about.relevance is not None:
        raise RouterError(f"{folder} has a relevance model, which the log cannot store: train without it")
    model, unseen = ((folder.expanduser() / name).read_bytes() for name in (saved.MODEL, out_of_fold.FILE))
    return routers.add(store, routers.StoredRouter(about.model_dump(mode="json"), model, unseen), now)


def open_router(store: Store, digest: str) -> StoredTrained:
    """Return a router of the log.

    Raises:
        RouterError: It is missing, damaged or of another version, or lacks a model that it needs.
        LogUnavailableError: Try again later.
    """
    name, stored = f"router {digest[:12]} of the log", routers.find(store, digest)
    if stored is None or stored.digest != digest:
        raise RouterError(f"{name} is {'missing' if stored is None else 'damaged'}")
    try:
        about = saved.RouterFacts.model_validate(stored.about)
    except ValidationError as error:
        raise RouterError(f"{name} was written by another version: {error}") from None
    trained = saved.load_trained(about, stored.model, name)
    return StoredTrained(trained, out_of_fold.parse_out_of_fold(stored.unseen, about, name))


def score_unscored(
    store: Store,
    digest: str,
    decisions: Sequence[tuple[str, str]],
    backbones: Mapping[str, Backbone],
    on_progress: Progress = lambda *_: None,
) -> None:
    """Compute the scores of a router on decisions, and store them.

    Args:
        store: The log.
        digest: Digest of the router in the log.
        decisions: Ids and questions of the decisions.
        backbones: Every encoder by name.
        on_progress: Called with the progress.

    Raises:
        RouterError: The router is missing, or its encoder differs here.
        ModelNotFoundError: The model of the encoder cannot be found.
        LogUnavailableError: Some scores are stored; call again later.
    """
    if not decisions:
        return
    stored = open_router(store, digest)
    about, encoder = stored.trained.about, None
    if stored.trained.router.stage is Stage.QUESTION:
        if about.backbone not in backbones:
            raise RouterError(f"its backbone {about.backbone!r} is not declared")
        stored.trained.check_encoder(backbones[about.backbone])
        encoder = build_embedder(backbones[about.backbone])
    for first in range(0, len(decisions), BATCH):
        some = decisions[first : first + BATCH]
        fits = None
        if stored.trained.router.reads_fit:
            logged = router_contexts.read_decisions(store, [name for name, _ in some])
            fits = [decision.context.similarities for decision in logged]
        scores = stored.scores([question for _, question in some], encoder, fits)
        scores_by_decision = {
            name: None if np.isnan(row).any() else dict(zip(about.arms, row.tolist(), strict=True))
            for (name, _), row in zip(some, scores, strict=True)
        }
        router_contexts.store_scores(store, digest, scores_by_decision)
        on_progress("scoring earlier decisions with the router", first + len(some), len(decisions))


SEARCHED = 1000
"""Most of the newest decisions on which all arms search again."""


def score_by_searching(store: Store, digest: str, config: AppConfig, on_progress: Progress) -> str:
    """Score the newest decisions with a router that reads passages, and store the scores.

    Args:
        store: The log.
        digest: Digest of the router in the log.
        config: Configuration with the arms, and with defaults resolved.
        on_progress: Called with the progress.

    Returns:
        A sentence that says what was done; empty for a router that reads the question alone.

    Raises:
        RouterError: The router cannot be read.
        ArmError: An arm cannot be built.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of an encoder cannot be found.
    """
    stored = open_router(store, digest)
    if stored.trained.router.stage is not Stage.RETRIEVED:
        return ""
    arms = [arm for arm in config.actions if arm in stored.trained.about.arms]
    graph = ArmGraph(config.arms)
    if heavy := [arm for arm in arms if not graph.is_light(arm)]:
        return (
            f"earlier decisions are not searched again, which would ask {', '.join(heavy)}: "
            "the router has no scores of them"
        )
    if ingest_all(config.corpus_sources).restricted:
        return (
            "earlier decisions are not searched again: which passages they could find depended on the groups "
            "of their callers, so the router has no scores of them"
        )
    unscored = [name for name, _ in router_contexts.list_unscored(store, digest, newest=SEARCHED)]
    if not unscored:
        return ""
    again = _SearchAgain.open(config, stored, arms, store.draw_secret.salt, on_progress)
    for first in range(0, len(unscored), SEARCH_BATCH):
        decisions = router_contexts.read_decisions(store, unscored[first : first + SEARCH_BATCH])
        router_contexts.store_scores(
            store, digest, {decision.id: again.scores(decision) for decision in decisions}
        )
        on_progress("searching again for the router", first + len(decisions), len(unscored))
    return f"{len(unscored):,} earlier decisions were searched again for the router"


@dataclass(frozen=True, slots=True)
class _SearchAgain:
    """Arms that search again, and the router that scores their passages."""

    stored: StoredTrained
    arms: Mapping[str, Arm]
    embedders: Mapping[str, Embedder]
    vectors: PassageVectors
    salt: str

    @classmethod
    def open(
        cls,
        config: AppConfig,
        stored: StoredTrained,
        arms: Sequence[str],
        salt: str,
        on_progress: Progress,
    ) -> "_SearchAgain":
        """Build the arms, the encoders and missing vectors."""
        corpus, indexes = ingest_all(config.corpus_sources), config.indexes_path
        resources = Resources(corpus, indexes, config.backbones, config.arms)
        prepare(resources, arms, on_progress)
        backbone = stored.trained.about.backbone
        prepare_vectors(corpus, indexes, config.backbones[backbone])
        needed = {backbone}.union(*map(ArmGraph(config.arms).embeddings, arms))
        return cls(
            stored,
            {arm: build_arm(arm, resources) for arm in arms},
            {name: build_embedder(config.backbones[name]) for name in sorted(needed)},
            PassageVectors(corpus, indexes, config.backbones[backbone]),
            salt,
        )

    def scores(self, decision: Decision) -> dict[str, float] | None:
        """Return the score of each eligible arm, as before the draw; None if no arm can search again."""
        question, about = decision.context.question, self.stored.trained.about
        fitted, before = self.stored.unseen.look_up([question], len(about.arms))
        if fitted[0]:
            has_scores = not np.isnan(before[0]).any()
            return dict(zip(about.arms, before[0].tolist(), strict=True)) if has_scores else None
        embeddings = {
            name: embedder.encode_queries([question])[0] for name, embedder in self.embedders.items()
        }
        query = Query(question, embeddings, sampling.seed_of_arm(decision.id, self.salt))
        passages_by_arm: dict[str, Sequence[Passage]] = {}
        for arm in decision.arms:
            if arm in self.arms:
                with suppress(ArmError):
                    passages_by_arm[arm] = self.arms[arm].search(query, about.k).passages
        if not passages_by_arm:
            return None
        ids = sorted({passage.id for passages in passages_by_arm.values() for passage in passages})
        vectors = self.vectors.look_up(ids) if ids else {}
        inputs = features.compute_features(
            question,
            embeddings[about.backbone],
            list(passages_by_arm),
            list(passages_by_arm.values()),
            vectors,
            fit=decision.context.similarities,
        )
        scores = self.stored.trained.router.scores(inputs)[0].tolist()
        return dict(zip(passages_by_arm, scores, strict=True))
