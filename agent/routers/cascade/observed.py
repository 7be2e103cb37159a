"""What the arms of a cascade found and answered, and the predicted relevance of their passages as features.

Training questions are given the relevance of a model that was fitted to others, as new questions will be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.routers import features as router_features
from agent.routers.dataset import ArmTable, Features, RouterError
from arms.base import Passage
from arms.relevance import Case, Examples, Fitting, RelevanceError, RelevanceModel

FITTING = Fitting(draws=1, rounds=150, learning_rate=0.06)

Found = Sequence[Sequence[Passage]]


@dataclass(frozen=True, slots=True)
class Observed:
    """What the arms of a cascade did on questions.

    Attributes:
        found: Passages that each answer was written from, best first: `found[question][arm]`.
        answers: `answers[question][arm]`.
        gold: Ids of the passages that support the right answer of each question; empty where unknown.
    """

    found: tuple[Found, ...]
    answers: tuple[Sequence[str], ...]
    gold: tuple[frozenset[str], ...]

    def rows(self, at: NDArray[np.intp]) -> "Observed":
        """Return some of the questions."""
        return Observed(
            *(tuple(values[row] for row in at) for values in (self.found, self.answers, self.gold))
        )


def examples_of(features: Sequence[Features], seen: Observed) -> tuple[Examples, NDArray[np.intp]]:
    """Return what a model of relevance is fitted to, and the question of each of its cases.

    A question is a case at each stage at which something has been found. Raises RouterError.
    """
    cases, owners = [], []
    for stage in features:
        for number, (text, row, gold) in enumerate(zip(stage.texts, seen.found, seen.gold, strict=True)):
            if gold and (found := _by_arm(stage.arms, row)):
                cases.append(Case(text, found, gold))
                owners.append(number)
    try:
        return Examples.of(cases, FITTING), np.array(owners, dtype=np.intp)
    except RelevanceError as error:
        raise RouterError(f"the cascade cannot learn relevance: {error}") from error


def _by_arm(arms: Sequence[str], row: Found) -> dict[str, Sequence[Passage]]:
    return {arm: passages for arm, passages in zip(arms, row, strict=False) if passages}


def with_relevance(features: Features, seen: Observed, model: RelevanceModel) -> Features:
    """Add the predicted relevance of passages to the features of a stage, which has found and answered."""
    n = len(features.arms)
    relevance = [
        model.relevance(text, _by_arm(features.arms, row))
        for text, row in zip(features.texts, seen.found, strict=True)
    ]
    found, answers = [row[:n] for row in seen.found], [row[:n] for row in seen.answers]
    return router_features.with_relevance(features, relevance, found, answers)


def stacked(parts: Sequence[Features]) -> Features:
    """Return the questions of several features of the same arms and columns, one after the other."""
    first = parts[0]
    tables = [
        None
        if table is None
        else ArmTable(table.names, np.concatenate([getattr(one, name).values for one in parts]))
        for name, table in (("retrieved", first.retrieved), ("answered", first.answered))
    ]
    return Features(
        first.arms,
        tuple(text for one in parts for text in one.texts),
        first.names,
        np.concatenate([one.question for one in parts]),
        np.concatenate([one.embedding for one in parts]),
        *tables,
    )
