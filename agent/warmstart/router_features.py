"""What a trained router tells of labelled questions: what a service that it advises would have been told.

    question that the router was trained on  -->  what was said of it unseen      (agent.routers.out_of_fold)
    any other question                       -->  what the router says of it

A router that looks at what was retrieved has every arm that it knows search first. So a label costs what
a turn does: the searches of all of them, whichever arm answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
from numpy.typing import NDArray

from agent.config import AppConfig
from agent.offline import labelled_data, router_features
from agent.routers import Features, RouterError, Stage, dataset, out_of_fold, read_trained, validation
from arms.base import Progress
from arms.portfolio import Outcomes


@dataclass(frozen=True, slots=True)
class RouterScores:
    """What a router tells of some questions.

    Attributes:
        scores: Of each question, by arm.
        unseen: How many of the questions it was trained on: of these, it is what was said before.
        backbone: Name of the sentence encoder that it looks through.
        embedding: Unit vectors of the questions by it, shape (n_questions, dim).
        outcomes: What the arms did, at the costs of turns with this router.
        source: What the scores follow from.
    """

    scores: tuple[Mapping[str, float], ...]
    unseen: int
    backbone: str
    embedding: NDArray[np.float32]
    outcomes: Outcomes
    source: str

    def told(self) -> str:
        """Say in a line whose scores the policy learns from."""
        return (
            f"the router scores {len(self.scores) - self.unseen:,} questions as in service, and "
            f"{self.unseen:,} that it was trained on as routers that were not"
        )


def score_labelled(outcomes: Outcomes, config: AppConfig, tell: Progress) -> RouterScores:
    """Ask the configured router of labelled questions.

    Args:
        outcomes: What arms did on them.
        config: Names the router, and the arms that are live: it scores those of them that it knows.
        tell: Told of the progress.

    Raises:
        RouterError: The router cannot be read, was trained on questions of which nobody knows what it would
            have said, or looks at what an arm finds of which the outcomes tell nothing.
        CorpusError: The corpus cannot be read.
        ModelNotFoundError: The model of the backbone is not where its name says.
    """
    assert config.router is not None
    trained = read_trained(config.router.path)
    about, unseen = trained.about, out_of_fold.read_out_of_fold(config.router.path, trained.about)
    arms = [arm for arm in config.actions if arm in about.arms]
    texts = [question.text for question in outcomes.questions]
    fitted, before = unseen.of(texts, len(about.arms))
    if lacking := int((fitted & np.isnan(before).any(axis=1)).sum()):
        raise RouterError(
            f"the router was trained on {lacking:,} of these {len(texts):,} questions, and nobody knows what "
            "it would have said of them unseen: train it with --folds 5, or take other questions"
        )
    k = config.router.k or about.k
    if trained.router.stage is Stage.QUESTION:
        shown = router_features.observed_features(
            outcomes, config, about.backbone, Stage.QUESTION, tell
        ).features
        features, which = replace(shown, arms=tuple(arms)), np.ones((len(texts), len(arms)), dtype=np.bool_)
    else:
        features = _looked(outcomes, config, about.backbone, arms, k, tell)
        which, outcomes = _answering(outcomes, arms), charged(outcomes, arms)
    scores = trained.router.scores(features)
    scores[fitted] = before[fitted][:, dataset.positions(about.arms, arms)]
    return RouterScores(
        tuple(
            {arm: score for arm, score, told in zip(arms, row, answering, strict=True) if told}
            for row, answering in zip(scores.tolist(), which.tolist(), strict=True)
        ),
        int(fitted.sum()),
        about.backbone,
        features.embedding,
        outcomes,
        orjson.dumps([about.digest, k, unseen.digest]).decode(),
    )


def _looked(
    outcomes: Outcomes, config: AppConfig, backbone: str, arms: Sequence[str], k: int, tell: Progress
) -> Features:
    """Return what the router sees after all arms have searched.

    Raises:
        RouterError: The outcomes tell nothing of what an arm found.
    """
    if silent := [arm for arm in arms if arm not in outcomes.arms]:
        raise RouterError(
            f"the router looks at what every arm finds, and the outcomes do not tell of {', '.join(silent)}: "
            "label these arms, too"
        )
    asked = labelled_data.of_arms(outcomes, dataset.positions(outcomes.arms, arms))
    passages = tuple(tuple(ids and ids[:k] for ids in row) for row in asked.passages)
    return router_features.observed_features(
        replace(asked, passages=passages), config, backbone, Stage.RETRIEVED, tell
    ).features


def charged(outcomes: Outcomes, arms: Sequence[str]) -> Outcomes:
    """Return outcomes at the costs of turns in which some arms search before one is drawn.

    One of these costs what all do, any other arm its own search besides. Failed ones cost nothing. What
    the searches of others spend on a language model is not told apart in outcomes, and is not charged.

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
