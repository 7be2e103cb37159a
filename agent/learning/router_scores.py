"""Routers of recipes: kept in the log, loaded from it, and applied to decisions that were made without them.

    a folder of `armwise train`  --keep_router-->  the log  --open_router-->  replicas, learners, evaluations

A recipe learns from contexts with the scores of its own router (`feedback.training_log.router_contexts`).
Where a decision has none, they are computed from its question when they are first needed, and stored. On
questions that the router was trained on, they are its out-of-fold scores. A router that looks at passages
scores no other decision of earlier traffic: the log does not hold what the arms would have found that were
not drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from agent.routers import Features, RouterError, Stage, Trained, dataset, features, out_of_fold, saved
from arms.base import Progress
from arms.models import Backbone, build_embedder
from feedback.log import Store
from feedback.registry import routers
from feedback.training_log import router_contexts

MOST = 50_000
"""Newest decisions that the router of a candidate scores; earlier ones are learned without its scores."""

BATCH = 256
"""Questions that are embedded together."""


class Encoder(Protocol):
    """Embeds questions."""

    def encode_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dim)."""
        ...


@dataclass(frozen=True, slots=True)
class StoredTrained:
    """A trained router with its out-of-fold scores."""

    trained: Trained
    unseen: out_of_fold.OutOfFoldScores

    @classmethod
    def read(cls, folder: Path) -> "StoredTrained":
        """Read the folder of `armwise train`. Raises RouterError."""
        trained = saved.read_trained(folder)
        return cls(trained, out_of_fold.read_out_of_fold(folder, trained.about))

    def scores(self, texts: Sequence[str], encoder: Encoder | None) -> dataset.Floats:
        """Return its scores of questions that it has not been fitted to, shape (n_questions, n_arms).

        Args:
            texts: The questions.
            encoder: Encoder of the router's backbone; needed for questions that it was not trained on.

        Returns:
            NaN where it has none: it looks at passages, or a training question was never held out.
        """
        about, router = self.trained.about, self.trained.router
        fitted, found = self.unseen.of(texts, len(about.arms))
        if router.stage is Stage.QUESTION and encoder is not None and not fitted.all():
            new = ~fitted
            some = tuple(text for text, is_new in zip(texts, new, strict=True) if is_new)
            table, vectors = features.question_table(some), encoder.encode_queries(some)
            found[new] = router.scores(Features(about.arms, some, features.QUESTION, table, vectors))
        return found


def keep_router(store: Store, folder: Path, now: float) -> str:
    """Write the router of a folder to the log, and return its digest there. Raises RouterError."""
    about = StoredTrained.read(folder).trained.about  # refuses damaged files
    if about.relevance is not None:
        raise RouterError(f"{folder} has a model of relevance, which the log does not keep: train without it")
    model, unseen = ((folder.expanduser() / name).read_bytes() for name in (saved.MODEL, out_of_fold.FILE))
    return routers.add(store, routers.StoredRouter(about.model_dump(mode="json"), model, unseen), now)


def open_router(store: Store, digest: str) -> StoredTrained:
    """Return a router of the log.

    Raises:
        RouterError: It is not there, damaged, of another version, or a model that it needs is missing.
        LogUnavailableError: Try again later.
    """
    name, stored = f"router {digest[:12]} of the log", routers.find(store, digest)
    if stored is None or stored.digest != digest:
        raise RouterError(f"{name} is {'missing' if stored is None else 'damaged'}")
    try:
        about = saved.About.model_validate(stored.about)
    except ValidationError as error:
        raise RouterError(f"{name} is of another version: {error}") from None
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
        digest: Digest of the router in it.
        decisions: Their ids and questions.
        backbones: Every encoder by name.
        on_progress: Called with the progress.

    Raises:
        RouterError: The router is missing, or its encoder is another one here.
        ModelNotFoundError: The model of the encoder is not where its name says.
        LogUnavailableError: Some are stored; call again later.
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
        scores = stored.scores([question for _, question in some], encoder)
        found = {
            name: None if np.isnan(row).any() else dict(zip(about.arms, row.tolist(), strict=True))
            for (name, _), row in zip(some, scores, strict=True)
        }
        router_contexts.store_scores(store, digest, found)
        on_progress("scoring earlier decisions with the router", first + len(some), len(decisions))
