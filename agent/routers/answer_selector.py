"""A trained router at work in an ensemble arm: of the answers of its members, it picks one.

Every router that looks before the answers knows less; this one knows where they agree, and whether they
stand in what was found. The price is that all members are asked, whichever answer is picked.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from agent.routers.dataset import RouterError, Stage
from agent.routers.features import features_of
from agent.routers.saved import Trained, read_trained
from arms.base import ArmBuildError, ArmError, Passage, Query
from arms.retrievers import SelectorSpec


class RouterSelector:
    """Picks by the scores of a router of stage answered, as `arms.retrievers.kind.AnswerSelector` has it.

    A passage that is not of the corpus, such as one that a search API returned, has no vector: it counts as
    not found, as it did in training.

    Args:
        trained: The router.
        arms: Whose answers it is given, in this order.
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
        """Return the index of the answer with the highest score, of several the first. Raises ArmError."""
        embedding = query.embeddings[self._trained.about.backbone]
        try:
            seen = features_of(query.text, embedding, self._arms, found, vectors, answers)
            return int(self._trained.router.scores(seen)[0].argmax())
        except RouterError as error:
            raise ArmError(f"the router cannot pick an answer: {error}") from error


def open_selector(wanted: SelectorSpec) -> RouterSelector:
    """Read a router that picks answers.

    Raises:
        ArmBuildError: It cannot be read, compares no answers or those of other arms, or would see something
            else than it was fitted to.
    """
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
    if about.writing is None:  # outcomes that somebody else made need not tell
        return
    told, here_told = about.writing.facts, wanted.writing.facts
    for fact, value in told.items():
        if here_told[fact] != value:
            raise RouterError(
                f"it learned from answers of {fact} {value}, and the members' have {here_told[fact]}"
            )
