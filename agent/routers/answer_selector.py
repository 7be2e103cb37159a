"""A trained router in an ensemble arm: it selects one of the answers of the arm's members.

A router of stage answered has more features than others: which answers agree, and whether the passages
contain them. The price is that all members answer, whichever answer is selected.
"""

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from agent.routers.cascade.decider import TrainedDecider, open_decider
from agent.routers.dataset import RouterError, Stage
from agent.routers.features import features_of
from agent.routers.saved import Trained, read_trained
from arms.base import ArmBuildError, ArmError, Passage, Query
from arms.retrievers import SelectorSpec, kind


class RouterSelector:
    """Selects answers by the scores of a router of stage answered.

    A passage outside the corpus, such as one from a search API, has no vector: it is left out, as in
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
        """Return the index of the answer with the highest score; of ties, the first. Raises ArmError."""
        embedding = query.embeddings[self._trained.about.backbone]
        try:
            relevance = self._trained.relevance
            features = features_of(query.text, embedding, self._arms, found, vectors, answers, relevance)
            return int(self._trained.router.scores(features)[0].argmax())
        except RouterError as error:
            raise ArmError(f"the router cannot pick an answer: {error}") from error


@overload
def open_selector(wanted: SelectorSpec, /) -> RouterSelector: ...


@overload
def open_selector(wanted: kind.DeciderSpec, /) -> TrainedDecider: ...


def open_selector(wanted: SelectorSpec | kind.DeciderSpec, /) -> RouterSelector | TrainedDecider:
    """Read a router that selects answers, or the decider of a cascade.

    Raises:
        ArmBuildError: It cannot be read, compares no answers or those of other arms, or its features would
            not be those of its training.
    """
    if isinstance(wanted, kind.DeciderSpec):
        return open_decider(wanted)
    try:
        trained = read_trained(wanted.router)
    except RouterError as error:
        raise ArmBuildError(str(error)) from None
    try:
        _check(trained, wanted)
    except RouterError as error:
        raise ArmBuildError(f"router {wanted.router}: {error}") from None
    return RouterSelector(trained, wanted.arms)


def _check(trained: Trained, wanted: SelectorSpec) -> None:
    """Refuse a router that does not fit. Raises RouterError."""
    about = trained.about
    if trained.router.stage is not Stage.ANSWERED:
        raise RouterError(
            f"{about.kind!r} of stage {about.stage} compares no answers: train one of stage answered"
        )
    if sorted(about.arms) != sorted(wanted.arms):
        known, here = ", ".join(about.arms), ", ".join(wanted.arms)
        raise RouterError(
            f"it compares the answers of {known}, and the members are {here}: train one on just these"
        )
    if about.backbone != wanted.backbone:
        raise RouterError(f"it was trained on backbone {about.backbone!r}, not on {wanted.backbone!r}")
    trained.check_encoder(wanted.encoder)
    if about.writing is None:  # the outcomes that it was trained on did not state it
        return
    trained_facts, facts = about.writing.facts, wanted.writing.facts
    for fact, value in trained_facts.items():
        if facts[fact] != value:
            raise RouterError(
                f"it learned from answers of {fact} {value}, and the members' have {facts[fact]}"
            )
