"""Router scores of labelled questions, as a service with this router would have computed them.

    question that the router was trained on  -->  out-of-fold score      (agent.routers.out_of_fold)
    any other question                       -->  score of the router

For a router that reads passages, every arm that it knows searches first. So a label is charged what a turn
would be: the searches of all of them, whichever arm answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
from numpy.typing import NDArray

from agent.config import AppConfig
from agent.offline import labelled_data, router_features
from agent.routers import (
    Features,
    RouterError,
    Stage,
    Trained,
    dataset,
    out_of_fold,
    read_trained,
    validation,
)
from arms.base import Progress
from arms.portfolio import Outcomes


@dataclass(frozen=True, slots=True)
class RouterScores:
    """Scores of a router on some questions.

    Attributes:
        scores: Scores of each question, by arm.
        out_of_fold: Number of questions that the router was trained on, whose scores are out-of-fold.
        backbone: Name of the sentence encoder that it reads questions with.
        embedding: Unit vectors of the questions by it, shape (n_questions, dim).
        outcomes: Outcomes of the arms, at the costs of turns with this router.
        source: Digests of what the scores depend on.
    """

    scores: tuple[Mapping[str, float], ...]
    out_of_fold: int
    backbone: str
    embedding: NDArray[np.float32]
    outcomes: Outcomes
    source: str

    def summary(self) -> str:
        """Return a line on the scores."""
        return (
            f"the router scores {len(self.scores) - self.out_of_fold:,} questions as in service, and "
            f"{self.out_of_fold:,} that it was trained on as routers that were not"
        )


def score_labelled(outcomes: Outcomes, config: AppConfig, on_progress: Progress) -> RouterScores:
    """Score labelled questions with the configured router.

    Args:
        outcomes: Outcomes of arms on them.
        config: Names the router and the live arms, of which it scores those that it knows.
        on_progress: Called with the progress.

    Raises:
        RouterError: The router cannot be read, has no out-of-fold scores of questions that it was trained
            on, or reads passages of an arm without outcomes.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    assert config.router is not None
    trained = read_trained(config.router.path)
    about, kept = trained.about, out_of_fold.read_out_of_fold(config.router.path, trained.about)
    arms = [arm for arm in config.actions if arm in about.arms]
    texts = [question.text for question in outcomes.questions]
    fitted, before = kept.of(texts, len(about.arms))
    if lacking := int((fitted & np.isnan(before).any(axis=1)).sum()):
        raise RouterError(
            f"the router was trained on {lacking:,} of these {len(texts):,} questions and has no "
            "out-of-fold scores of them: train it with --folds 5, or take other questions"
        )
    k = config.router.k or about.k
    if trained.router.stage is Stage.QUESTION:
        observed = router_features.observed_features(
            outcomes, config, about.backbone, Stage.QUESTION, on_progress
        ).features
        features, which = (
            replace(observed, arms=tuple(arms)),
            np.ones((len(texts), len(arms)), dtype=np.bool_),
        )
    else:
        features = _features_with_passages(outcomes, config, trained, arms, k, on_progress)
        which, outcomes = _answering(outcomes, arms), charged(outcomes, arms)
    scores = trained.router.scores(features)
    scores[fitted] = before[fitted][:, dataset.positions(about.arms, arms)]
    return RouterScores(
        tuple(
            {arm: score for arm, score, answered in zip(arms, row, answering, strict=True) if answered}
            for row, answering in zip(scores.tolist(), which.tolist(), strict=True)
        ),
        int(fitted.sum()),
        about.backbone,
        features.embedding,
        outcomes,
        orjson.dumps([about.digest, k, kept.digest]).decode(),
    )


def _features_with_passages(
    outcomes: Outcomes,
    config: AppConfig,
    trained: Trained,
    arms: Sequence[str],
    k: int,
    on_progress: Progress,
) -> Features:
    """Return the features of the router after all arms have searched.

    Raises:
        RouterError: An arm has no outcomes.
    """
    if missing := [arm for arm in arms if arm not in outcomes.arms]:
        raise RouterError(
            f"the router reads what every arm retrieves, and there are no outcomes of {', '.join(missing)}: "
            "label these arms, too"
        )
    known = labelled_data.of_arms(outcomes, dataset.positions(outcomes.arms, arms))
    passages = tuple(tuple(ids and ids[:k] for ids in row) for row in known.passages)
    return router_features.observed_features(
        replace(known, passages=passages),
        config,
        trained.about.backbone,
        Stage.RETRIEVED,
        on_progress,
        trained.relevance,
    ).features


def charged(outcomes: Outcomes, arms: Sequence[str]) -> Outcomes:
    """Return outcomes at the costs of turns in which some arms search before one is drawn.

    Each of these costs the sum of all, any other arm its own search in addition. Failed searches cost
    nothing. Outcomes do not separate what the searches spend on a language model, so that is not charged.

    Args:
        outcomes: At the costs of turns without a router.
        arms: Those that search first.
    """
    at, costs = dataset.positions(outcomes.arms, arms), dict(outcomes.costs)
    searches_first = np.isin(np.arange(len(outcomes.arms)), at)
    for name in validation.PAID[Stage.RETRIEVED]:
        if name in costs:
            own = costs[name]
            first = np.where(_answering(outcomes, arms), own[:, at], 0.0).sum(axis=1, keepdims=True)
            costs[name] = first + np.where(searches_first & ~np.isnan(own), 0.0, own)
    return replace(outcomes, costs=costs)


def _answering(outcomes: Outcomes, arms: Sequence[str]) -> NDArray[np.bool_]:
    """Return which of some arms searched and did not fail, shape (n_questions, n_arms)."""
    at = dataset.positions(outcomes.arms, arms)
    return np.array([[row[arm] is not None for arm in at] for row in outcomes.passages], dtype=np.bool_)
