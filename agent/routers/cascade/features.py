"""The features of the answers that a cascade has so far: from words alone, so that no encoder is needed."""

from collections.abc import Sequence

import numpy as np

from agent.routers.dataset import ArmTable, Features
from agent.routers.features import QUESTION, answered_table, question_table
from arms.base import Passage
from arms.scoring import signals

FOUND = (*signals.FOUND, *signals.WORDED)
"""Features of the passages of each member."""


def stage_features(
    texts: Sequence[str],
    arms: Sequence[str],
    found: Sequence[Sequence[Sequence[Passage]]],
    answers: Sequence[Sequence[str]],
) -> Features:
    """Return the features of the members that have answered so far, as if there were no other.

    Args:
        texts: The questions.
        arms: Names of these members.
        found: Passages that each answer was written from, best first: `found[question][arm]`.
        answers: `answers[question][arm]`, empty where a member failed.
    """
    rows = [
        np.hstack(
            [
                signals.found_signals([[passage.id for passage in passages] for passages in of_arms]),
                signals.word_signals(text, of_arms),
            ]
        )
        for text, of_arms in zip(texts, found, strict=True)
    ]
    return Features(
        tuple(arms),
        tuple(texts),
        QUESTION,
        question_table(texts),
        np.empty((len(texts), 0), dtype=np.float32),
        ArmTable(FOUND, np.array(rows).reshape(len(texts), len(arms), len(FOUND))),
        answered_table(texts, arms, answers, found),
    )
