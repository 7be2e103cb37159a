"""Trained models inside arms: routers rank members or select answers, and a decider stops a cascade.

A router of stage answered has further features: which answers agree, and whether the passages contain them.
The price is that all members answer.
"""

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from armwise.agent.lab.routers.cascade import (
    StageObservations,
    TrainedCascade,
    read_cascade,
    stage_features,
    with_relevance,
)
from armwise.agent.routers.dataset import RouterError, Stage, positions
from armwise.agent.routers.features import compute_features
from armwise.agent.routers.saved import Trained, read_trained
from armwise.arms.base import ArmBuildError, ArmError, Passage, Query
from armwise.arms.llm import prompts
from armwise.arms.retrievers import CascadeStep, DeciderSpec, RankerSpec, SelectorSpec


class RouterSelector:
    """Selects answers by the scores of a router of stage answered.

    Passages outside the corpus, such as those of a search API, have no vectors and are left out, as in
    training.

    Args:
        trained: The router.
        arms: Names of the members, in the order of their answers.
    """

    def __init__(self, trained: Trained, arms: Sequence[str]) -> None:
        self.k = trained.about.k
        self._trained = trained
        self._arms = tuple(arms)

    def select(
        self,
        query: Query,
        answers: Sequence[str],
        found: Sequence[Sequence[Passage]],
        vectors: Mapping[str, NDArray[np.float32]],
    ) -> int:
        """Return the index of the answer with the highest score, of ties the first. Raises ArmError."""
        embedding = query.embeddings[self._trained.about.backbone]
        try:
            relevance = self._trained.relevance
            features = compute_features(query.text, embedding, self._arms, found, vectors, answers, relevance)
            return int(self._trained.router.scores(features)[0].argmax())
        except RouterError as error:
            raise ArmError(f"the router cannot pick an answer: {error}") from error


class RouterRanker:
    """Ranks members by the scores of a router of stage question.

    Args:
        trained: The router.
        arms: Names of the members.
    """

    def __init__(self, trained: Trained, arms: Sequence[str]) -> None:
        self._trained = trained
        self._arms = tuple(arms)

    def rank(self, query: Query) -> Sequence[int]:
        """Return the indices of the members, of the highest score first. Raises ArmError."""
        try:
            embedding = query.embeddings[self._trained.about.backbone]
            scores = self._trained.router.scores(compute_features(query.text, embedding, self._arms))[0]
        except RouterError as error:
            raise ArmError(f"the router cannot rank the members: {error}") from error
        ranking: list[int] = np.argsort(-scores, kind="stable").tolist()
        return ranking


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
    ) -> CascadeStep:
        """Return the step after a stage; a failed arm counts as an empty answer. Raises ArmError."""
        cascade = self._cascade
        stage = cascade.spec.counts.index(len(answers))
        arms = cascade.spec.arms[: len(answers)]
        try:
            given = [answer or "" for answer in answers]
            features = stage_features((question,), arms, [found], [given])
            if cascade.relevance is not None:
                observed = StageObservations((found,), (given,), (frozenset(),))
                features = with_relevance(features, observed, cascade.relevance)
            scores = cascade.models[stage].answers.scores(features)
            gain = float(cascade.gains(stage, features, scores)[0])
        except RouterError as error:
            raise ArmError(f"the cascade cannot judge its answers: {error}") from error
        answered_scores = np.where([answer is None for answer in answers], -np.inf, scores[0])
        last = stage == len(cascade.spec.stages) - 1
        return CascadeStep(
            int(answered_scores.argmax()),
            float(cascade.models[stage].probability(answered_scores.max())),
            None if last else gain,
            goes_on=not last and gain > 0.0,
        )


@overload
def open_selector(wanted: SelectorSpec, /) -> RouterSelector: ...


@overload
def open_selector(wanted: RankerSpec, /) -> RouterRanker: ...


@overload
def open_selector(wanted: DeciderSpec, /) -> TrainedDecider: ...


def open_selector(
    wanted: SelectorSpec | RankerSpec | DeciderSpec, /
) -> RouterSelector | RouterRanker | TrainedDecider:
    """Read a router that selects answers or ranks members, or the decider of a cascade.

    Raises:
        ArmBuildError: It cannot be read, is of another stage or for other arms, or its features would differ
            from those of its training.
    """
    if isinstance(wanted, DeciderSpec):
        return _open_decider(wanted)
    try:
        trained = read_trained(wanted.router)
    except RouterError as error:
        raise ArmBuildError(str(error)) from None
    try:
        _check_backbone(trained, wanted)
        if isinstance(wanted, RankerSpec):
            _check_ranker(trained, wanted.arms)
            return RouterRanker(trained, wanted.arms)
        _check(trained, wanted)
    except RouterError as error:
        raise ArmBuildError(f"router {wanted.router}: {error}") from None
    return RouterSelector(trained, wanted.arms)


def _check_backbone(trained: Trained, spec: SelectorSpec | RankerSpec) -> None:
    """Check that questions are embedded as in training. Raises RouterError."""
    if trained.about.backbone != spec.backbone:
        raise RouterError(f"it was trained on backbone {trained.about.backbone!r}, not on {spec.backbone!r}")
    if trained.router.reads_fit:
        raise RouterError("it reads how well a question fits each source, which an arm does not know")
    trained.check_encoder(spec.encoder)


def _check_ranker(trained: Trained, arms: Sequence[str]) -> None:
    """Check that a router can rank the members of an ensemble before they search. Raises RouterError."""
    if trained.router.stage is not Stage.QUESTION:
        raise RouterError(
            f"{trained.about.kind!r} of stage {trained.about.stage} ranks arms that have all searched: train "
            "one of stage question"
        )
    positions(trained.about.arms, arms)
    if len(set(arms)) < len(arms):
        raise RouterError(f"it ranks each member once, and the members are {', '.join(arms)}")


def _check(trained: Trained, spec: SelectorSpec) -> None:
    """Check that a router fits the members of an ensemble. Raises RouterError."""
    about = trained.about
    if trained.router.stage is not Stage.ANSWERED:
        raise RouterError(
            f"{about.kind!r} of stage {about.stage} compares no answers: train one of stage answered"
        )
    if sorted(about.arms) != sorted(spec.arms):
        trained_arms, here = ", ".join(about.arms), ", ".join(spec.arms)
        raise RouterError(
            f"it compares the answers of {trained_arms}, and the members are {here}: train one on just these"
        )
    _check_writing(about.writing, spec.writing, "the members'")


def _check_writing(learned: prompts.Writing | None, here: prompts.Writing, whose: str) -> None:
    """Check that answers are written as in training. Raises RouterError."""
    if learned is None:  # unrecorded in the training outcomes
        return
    for fact, value in learned.facts.items():
        if (now := here.facts[fact]) != value:
            raise RouterError(f"it learned from answers of {fact} {value}, and {whose} have {now}")


def _open_decider(spec: DeciderSpec) -> TrainedDecider:
    """Read a trained cascade.

    Raises:
        ArmBuildError: It cannot be read, has other stages, or learned from answers of another form or length.
    """
    try:
        trained = read_cascade(spec.folder)
    except RouterError as error:
        raise ArmBuildError(str(error)) from None
    about = trained.about
    if about.spec.stages != spec.stages:
        trained_stages, here = (
            " | ".join(map(", ".join, stages)) for stages in (about.spec.stages, spec.stages)
        )
        raise ArmBuildError(
            f"decider {spec.folder}: it was trained on stages {trained_stages}, and these are {here}"
        )
    try:
        _check_writing(about.writing, spec.writing, "these")
    except RouterError as error:
        raise ArmBuildError(f"decider {spec.folder}: {error}") from None
    return TrainedDecider(trained)
