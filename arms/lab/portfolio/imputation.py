"""Imputation of unknown scores by a two-way model.

A log of served answers has one score per question: that of the arm that served it. Counting the
other scores as 0 would favour the arms that were served most. They are imputed by

    score = mean + arm in this group of questions + question + noise

where a group is, say, a data set. Effects of arms in groups are shrunk towards the arm's mean
effect, all others towards 0. Arms and questions within a group are assumed not to interact, so
arms are chosen by their means in the groups and by the known scores.

A learned policy serves an arm on the questions that suit it, so an arm's unknown scores differ from its
known ones. If the chance p of each known score is on record, effects of arms weigh it by (1 - p) / p, its
odds to be unknown, which makes the mean of the unknown scores right. Together with the known score itself,
that is a weight of 1 / p.
"""

import numpy as np
from numpy.typing import NDArray

from armwise.arms.lab.portfolio.coverage import Scores, take_best, total

Floats = NDArray[np.float64]

Integers = NDArray[np.integer]

SETTLED = 1e-7
"""Convergence: the largest change of an effect in the last round."""

LEAST = 1e-6
"""Least chance of a known score, and its least odds to be unknown."""

ROUNDS = 1000
"""Most rounds; convergence is slow when few questions connect the arms."""


def complete(
    scores: Scores, groups: Integers | None = None, ridge: float = 1.0, *, chances: Scores | None = None
) -> Scores:
    """Return the scores with each unknown score replaced by its expectation.

    An arm or a question without scores has an effect of 0. Needs some 50 bytes per known score
    beside the result. Complete scores are returned without a copy.

    Args:
        scores: In [0, 1], NaN where unknown, shape (n_arms, n_questions).
        groups: Group of each question, codes from 0, shape (n_questions,); None: a single group.
        ridge: Strength of the shrinkage, in scores per effect, positive.
        chances: Probability that each score would be known, in [0, 1], shape (n_arms, n_questions); None:
            the same for all questions.

    Raises:
        ValueError: All scores are unknown.

    Source: weights by odds, Imai, King and Stuart 2008, Misunderstandings between experimentalists and
    observationalists about causal inference (the effect on the untreated).

    >>> complete(np.array([[0.5, 0.75], [0.25, np.nan]], np.float32), ridge=1e-9).round(3).tolist()
    [[0.5, 0.75], [0.25, 0.5]]
    """
    known = ~np.isnan(scores)
    if known.all():
        return scores
    if not known.any():
        raise ValueError(f"none of the {scores.size} scores is known; at least one is needed")
    if groups is None:
        groups = np.zeros(scores.shape[1], dtype=np.intp)
    arms, questions = np.nonzero(known)
    left = scores[arms, questions].astype(np.float64)
    weight = None if chances is None else _odds(chances[arms, questions].astype(np.float64), arms)
    mean = float(np.average(left, weights=weight))
    left -= mean
    n_groups = int(groups.max()) + 1
    shape = len(scores), n_groups, scores.shape[1]
    cells = arms * n_groups + groups[questions]
    if weight is None:
        in_group, by_question = _two_way(left, cells, questions, shape, ridge)
    else:
        in_group = _fit_arm_effects(left, weight, cells, shape, ridge)
        left -= in_group.ravel()[cells]
        count = np.bincount(questions, minlength=shape[2])
        by_question = np.bincount(questions, left, shape[2]) / (count + ridge)
    completed = np.empty(scores.shape, dtype=np.float32)
    for arm, expected in enumerate(mean + in_group):
        if weight is not None:  # effects of questions are centred, so that they leave the arm's mean as it is
            rest = ~known[arm]
            total = np.bincount(groups[rest], by_question[rest], n_groups)
            expected = expected - total / np.maximum(np.bincount(groups[rest], minlength=n_groups), 1)
        np.clip(expected[groups] + by_question, 0.0, 1.0, out=completed[arm], casting="same_kind")
        np.copyto(completed[arm], scores[arm], where=known[arm])
    return completed


def _odds(chance: Floats, arms: Integers) -> Floats:
    """Return each known score's odds to be unknown, over the mean odds of its arm, shape (n_known,).

    >>> _odds(np.array([0.5, 0.25, 1.0]), np.array([0, 0, 1])).tolist()
    [0.5, 1.5, 1.0]
    """
    odds = np.maximum((1.0 - chance) / np.maximum(chance, LEAST), LEAST)
    relative: Floats = odds / (np.bincount(arms, odds) / np.maximum(np.bincount(arms), 1))[arms]
    return relative


def _fit_arm_effects(
    left: Floats, weight: Floats, cells: Integers, shape: tuple[int, int, int], ridge: float
) -> Floats:
    """Return the effects of arms in groups, shape (n_arms, n_groups): `_two_way` without question effects.

    Args:
        left: Centred scores, shape (n_known,).
        weight: Weight of each score, shape (n_known,).
        cells: Arm * n_groups + group of each score, shape (n_known,).
        shape: (n_arms, n_groups, n_questions).
        ridge: Positive.
    """
    n_arms, n_groups, _ = shape
    of_cell = np.bincount(cells, weight, n_arms * n_groups)
    total = np.bincount(cells, weight * left, n_arms * n_groups)
    in_group = np.zeros((n_arms, n_groups))
    for _ in range(ROUNDS):
        arm = in_group.sum(axis=1, keepdims=True) / (n_groups + 1)
        now = (total.reshape(in_group.shape) + ridge * arm) / (of_cell.reshape(in_group.shape) + ridge)
        step, in_group = np.abs(now - in_group).max(), now
        if step < SETTLED:
            break
    return in_group


def _two_way(
    left: Floats, cells: Integers, questions: Integers, shape: tuple[int, int, int], ridge: float
) -> tuple[Floats, Floats]:
    """Return the effects of arms in groups, shape (n_arms, n_groups), and of questions, shape (n_questions,).

    They minimise the sum of squared residuals plus `ridge` times the squares of in_group - arm,
    of arm and of question, by coordinate descent: each kind of effect has a closed form
    given the others.

    Args:
        left: Centred scores, shape (n_known,); replaced by the residuals.
        cells: Arm * n_groups + group of each known score, shape (n_known,).
        questions: Question of each known score, shape (n_known,).
        shape: (n_arms, n_groups, n_questions).
        ridge: Positive.

    Source: Searle, Casella and McCulloch 1992, Variance components, chapter 7 (the mixed model equations).
    """
    n_arms, n_groups, n_questions = shape
    in_group, question = np.zeros(n_arms * n_groups), np.zeros(n_questions)
    of_cell = np.bincount(cells, minlength=len(in_group)) + ridge
    of_question = np.bincount(questions, minlength=n_questions) + ridge
    for _ in range(ROUNDS):
        arm = in_group.reshape(n_arms, n_groups).sum(axis=1) / (n_groups + 1)
        drawn = ridge * (in_group - np.repeat(arm, n_groups))
        step = (np.bincount(cells, left, len(in_group)) - drawn) / of_cell
        in_group += step
        left -= step[cells]
        also = (np.bincount(questions, left, n_questions) - ridge * question) / of_question
        question += also
        left -= also[questions]
        if max(np.abs(step).max(), np.abs(also).max()) < SETTLED:
            break
    return in_group.reshape(n_arms, n_groups), question


def extremes(scores: Scores, arms: tuple[int, ...]) -> tuple[float, float]:
    """Return the mean coverage of some arms with unknown scores counted as 0, and as 1.

    >>> extremes(np.array([[0.5, np.nan], [0.25, 0.5]], np.float32), (0, 1))
    (0.5, 0.75)
    """
    chosen = scores[list(arms)]
    low, high = (total(take_best(np.nan_to_num(chosen, nan=fill), range(len(arms)))) for fill in (0.0, 1.0))
    return low / scores.shape[1], high / scores.shape[1]
