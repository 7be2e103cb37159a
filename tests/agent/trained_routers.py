"""Trained routers for tests, made without a verb."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from armwise.agent.routers import (
    Features,
    Router,
    RouterSpec,
    RoutingDataset,
    Stage,
    Trained,
    build_router,
    dataset,
    features,
    saved,
)
from armwise.arms.llm import prompts
from armwise.arms.models import Backbone, digest_backbone
from armwise.arms.models.embedding import HashingEmbedder
from tests.agent.fakes import DIM

ARMS = ("none", "bm25", "dense")
TEXTS = tuple(f"{word} {number}?" for number in range(8) for word in ("who", "when", "where"))


def trained(
    router: Router,
    arms: Sequence[str] = ARMS,
    dim: int = DIM,
    *,
    k: int = 2,
    writing: prompts.Writing | None = None,
) -> Trained:
    """Fit a router to questions whose first word tells the best arm, as `armwise lab train` does.

    Args:
        router: Not fitted yet.
        arms: Three or more.
        dim: Of the backbone `tiny`, which hashes words.
        k: Passages that it is said to have been shown, where it looks at them.
        writing: How the answers are said to have been written.
    """
    n = len(TEXTS)
    embedding = HashingEmbedder(dim).encode_queries(TEXTS)
    retrieved = dataset.ArmTable(
        features.RETRIEVED, np.random.default_rng(0).uniform(size=(n, len(arms), len(features.RETRIEVED)))
    )
    answered = features.build_answered_table(TEXTS, arms, [arms] * n, [[()] * len(arms)] * n)
    seen = Features(
        tuple(arms),
        TEXTS,
        features.QUESTION,
        features.build_question_table(TEXTS),
        embedding,
        retrieved,
        answered,
        fit=np.eye(len(arms))[np.arange(n) % 3],
    )
    router.fit(RoutingDataset(seen, np.eye(len(arms))[np.arange(n) % 3]))
    about = saved.RouterFacts(
        kind=router.kind,
        params=dict(router.params),
        stage=router.stage.name.lower(),
        digest=saved.digest_router(router.save()),
        arms=tuple(arms),
        backbone="tiny",
        encoder=digest_backbone(Backbone(model=f"hashing:{dim}")),
        query_prefix="",
        k=0 if router.stage is Stage.QUESTION else k,
        corpus=None,
        writing=writing,
        utility={},
        inputs={},
        questions=n,
        held_out=None,
    )
    return Trained(router, about)


def kept(
    folder: Path,
    kind: str = "max_sim",
    arms: Sequence[str] = ARMS,
    dim: int = DIM,
    *,
    writing: prompts.Writing | None = None,
    **params: Any,
) -> Path:
    """Train a router of a kind, keep it in a folder, and return that."""
    router = build_router(RouterSpec(kind=kind, params=params))
    saved.write_trained(folder, trained(router, arms, dim, writing=writing))
    return folder
