"""What the arms of a cascade found and answered, and the predicted relevance of their passages as features.

    passages --relevance model--> a probability each --+--> of an arm: sum, largest, first, discounted by rank
                                                       '--> of an answer: of the passages that contain it

Training questions are given the relevance of a model that was fitted to others, as new questions will be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agent.routers.dataset import ArmTable, Features, Floats, RouterError
from arms.base import Passage
from arms.relevance import Case, Fitting, RelevanceError, RelevanceModel, candidates
from arms.tokenizer import normalised

RELEVANCE = ("relevance", "most_relevant", "first_relevant", "discounted_relevance")
"""Features of an arm: of its passages the sum, the largest, the first, the sum divided by log2(1 + rank)."""

SUPPORT = ("support", "best_support", "own_support")
"""Features of an answer: of the passages with it the sum and the largest, and the sum of its own arm's."""

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


def fit_relevance(features: Sequence[Features], seen: Observed) -> RelevanceModel:
    """Fit a model of relevance to what arms have found by each stage. Raises RouterError."""
    cases = [
        Case(text, _by_arm(stage.arms, row), gold)
        for stage in features
        for text, row, gold in zip(stage.texts, seen.found, seen.gold, strict=True)
        if gold and any(row[: len(stage.arms)])
    ]
    try:
        return RelevanceModel.fit(cases, FITTING)
    except RelevanceError as error:
        raise RouterError(f"the cascade cannot learn relevance: {error}") from error


def _by_arm(arms: Sequence[str], row: Found) -> dict[str, Sequence[Passage]]:
    return {arm: passages for arm, passages in zip(arms, row, strict=False) if passages}


def with_relevance(features: Features, seen: Observed, model: RelevanceModel) -> Features:
    """Add the predicted relevance of passages to the features of a stage, which has found and answered."""
    if features.retrieved is None or features.answered is None:
        raise RouterError("relevance is a feature of what was retrieved and answered: nothing was")
    n_arms = len(features.arms)
    each = [
        candidates(text, _by_arm(features.arms, row))
        for text, row in zip(features.texts, seen.found, strict=True)
    ]
    predicted, start = model.predicted(each), 0
    found, answered = [], []
    for one, row, answers in zip(each, seen.found, seen.answers, strict=True):
        stop = start + len(one.passages)
        relevance = dict(zip((passage.id for passage in one.passages), predicted[start:stop], strict=True))
        start = stop
        found.append([_of_arm([relevance[passage.id] for passage in passages]) for passages in row[:n_arms]])
        answered.append(_support(answers[:n_arms], row[:n_arms], one.passages, relevance))
    return replace(
        features,
        retrieved=_wider(features.retrieved, RELEVANCE, np.array(found)),
        answered=_wider(features.answered, SUPPORT, np.array(answered)),
    )


def _wider(table: ArmTable, names: tuple[str, ...], values: Floats) -> ArmTable:
    return ArmTable((*table.names, *names), np.concatenate([table.values, values], axis=2))


def _of_arm(relevance: Sequence[float]) -> tuple[float, ...]:
    """Return the relevance of the passages of an arm, best first, as features; 0 without passages.

    >>> _of_arm([0.5, 0.25, 0.0])[:3]
    (0.75, 0.5, 0.5)
    """
    if not relevance:
        return (0.0,) * len(RELEVANCE)
    discounted = float(np.sum(np.array(relevance) / np.log2(np.arange(len(relevance)) + 2.0)))
    return float(sum(relevance)), float(max(relevance)), float(relevance[0]), discounted


def _support(
    answers: Sequence[str], row: Found, passages: Sequence[Passage], relevance: Mapping[str, float]
) -> list[tuple[float, float, float]]:
    """Return the relevance of the passages that contain each answer; an empty one is in none."""
    text = {one.id: f" {normalised(one.title)} {normalised(one.text)} " for one in passages}
    rows = []
    for answer, own in zip(answers, row, strict=True):
        given = normalised(answer)
        inside = {name: relevance[name] for name, padded in text.items() if given and f" {given} " in padded}
        rows.append(
            (
                float(sum(inside.values())),
                float(max(inside.values(), default=0.0)),
                float(sum(inside.get(passage.id, 0.0) for passage in own)),
            )
        )
    return rows


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
