"""A trained cascade in an arm: after each stage it picks an answer, and stops or goes on."""

from collections.abc import Sequence

import numpy as np

from agent.routers.cascade.features import stage_features
from agent.routers.cascade.observed import Observed, with_relevance
from agent.routers.cascade.saved import TrainedCascade, read_cascade
from agent.routers.dataset import RouterError
from arms.base import ArmBuildError, ArmError, Passage
from arms.retrievers import kind


class TrainedDecider:
    """Decides by a trained cascade.

    Args:
        trained: The cascade.
    """

    def __init__(self, trained: TrainedCascade) -> None:
        self.k = trained.about.k
        self._cascade = trained.cascade

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> kind.Verdict:
        """Return what to do after a stage; a failed arm has given an empty answer. Raises ArmError."""
        cascade = self._cascade
        stage = cascade.spec.counts.index(len(answers))
        arms = cascade.spec.arms[: len(answers)]
        try:
            given = [answer or "" for answer in answers]
            features = stage_features((question,), arms, [found], [given])
            if cascade.relevance is not None:
                seen = Observed((found,), (given,), (frozenset(),))
                features = with_relevance(features, seen, cascade.relevance)
            scores = cascade.models[stage].answers.scores(features)
            gain = float(cascade.gains(stage, features, scores)[0])
        except RouterError as error:
            raise ArmError(f"the cascade cannot judge its answers: {error}") from error
        known = np.where([answer is None for answer in answers], -np.inf, scores[0])
        last = stage == len(cascade.spec.stages) - 1
        return kind.Verdict(
            int(known.argmax()),
            float(cascade.models[stage].probability(known.max())),
            None if last else gain,
            goes_on=not last and gain > cascade.thresholds[stage],
        )


def open_decider(wanted: kind.DeciderSpec) -> TrainedDecider:
    """Read a trained cascade.

    Raises:
        ArmBuildError: It cannot be read, has other stages, or learned from answers of another form or length.
    """
    try:
        trained = read_cascade(wanted.folder)
    except RouterError as error:
        raise ArmBuildError(str(error)) from None
    about = trained.about
    if about.spec.stages != wanted.stages:
        known, here = (" | ".join(map(", ".join, stages)) for stages in (about.spec.stages, wanted.stages))
        raise ArmBuildError(
            f"decider {wanted.folder}: it was trained on stages {known}, and these are {here}"
        )
    for fact, value in ({} if about.writing is None else about.writing.facts).items():
        if (now := wanted.writing.facts[fact]) != value:
            raise ArmBuildError(
                f"decider {wanted.folder}: it learned from answers of {fact} {value}, and these have {now}"
            )
    return TrainedDecider(trained)
