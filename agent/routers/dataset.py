"""The features of questions and arms, and the utilities that a router is fitted to.

Columns and arms are selected by name, which prevents mix-ups. Features of a later stage cost the searches, or
the answers, that they are computed from.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from armwise.arms.suggestions import did_you_mean

Floats = NDArray[np.float64]

SAME_AS = "same_as:"
"""Prefix of a column that is 1 where an arm's answer equals that of the arm named after it."""


class RouterError(ValueError):
    """Features or labels do not fit, or a router cannot be fitted, used or loaded; the message names it."""


class TooLittleError(RouterError):
    """Labels say too little to fit a router: they are few, or no arm does better than another.

    A warm start ends well with this: there is nothing to learn until documents or ratings change.
    """


class Stage(IntEnum):
    """When features are known, in the course of a turn."""

    QUESTION = 0
    """Before any search: nothing was spent."""
    RETRIEVED = 1
    """After every arm has searched: all searches are paid for, whichever arm answers."""
    ANSWERED = 2
    """After the language model has answered from every arm: all answers are paid for."""


@dataclass(frozen=True, slots=True)
class ArmTable:
    """Features of each arm on each question.

    Attributes:
        names: Names of the features, in the order of the last axis; at least one, without duplicates.
        values: Values of the features, NaN if unknown, shape (n_questions, n_arms, n_names).

    Raises:
        RouterError: The names do not fit, or a number is infinite.
    """

    names: tuple[str, ...]
    values: Floats

    def __post_init__(self) -> None:
        if not self.names:
            raise RouterError("an arm table has no column: leave the table out")
        _distinct("arm feature", self.names)
        if self.values.ndim != 3 or self.values.shape[2] != len(self.names):
            raise RouterError(f"{len(self.names)} names do not fit a table of shape {self.values.shape}")
        if np.isinf(self.values).any():
            column = int(np.argwhere(np.isinf(self.values))[0][2])
            raise RouterError(f"arm feature {self.names[column]!r} is infinite")

    def rows(self, at: NDArray[np.intp]) -> "ArmTable":
        """Return some of the questions."""
        return ArmTable(self.names, self.values[at])

    def select_arms(self, at: Sequence[int]) -> "ArmTable":
        """Return some of the arms."""
        return ArmTable(self.names, self.values[:, list(at)])


@dataclass(frozen=True, slots=True)
class Features:
    """The input of a router: features of some questions, and of each arm on them.

    Attributes:
        arms: The arms to score, without duplicates.
        texts: The questions, shape (n_questions,).
        names: Names of the columns of `question`, without duplicates.
        question: Features of the questions, finite, shape (n_questions, n_names).
        embedding: Unit vectors of the questions, shape (n_questions, dim); dim is 0 without embeddings.
        retrieved: Features of the arms, once all have searched.
        answered: Features of the arms, once all have answered; it requires `retrieved`.
        fit: How well each question fits the sources of each arm (`features.build_fit`), shape
            (n_questions, n_arms); None without `features.similarity`.

    Raises:
        RouterError: Shapes or names do not fit, `answered` is given without `retrieved`, or a feature of a
            question is not finite.
    """

    arms: tuple[str, ...]
    texts: tuple[str, ...]
    names: tuple[str, ...]
    question: Floats
    embedding: NDArray[np.float32]
    retrieved: ArmTable | None = None
    answered: ArmTable | None = None
    fit: Floats | None = None

    def __post_init__(self) -> None:
        _distinct("arm", self.arms)
        _distinct("question feature", self.names)
        n = len(self.texts)
        if self.question.shape != (n, len(self.names)):
            raise RouterError(
                f"{n} questions with {len(self.names)} features have a table of shape {self.question.shape}"
            )
        if self.embedding.ndim != 2 or len(self.embedding) != n:
            raise RouterError(f"{n} questions have embeddings of shape {self.embedding.shape}")
        for what, values in (("question feature", self.question), ("embedding", self.embedding)):
            if not np.isfinite(values).all():
                row, column = np.argwhere(~np.isfinite(values))[0].tolist()
                name = repr(self.names[column]) if what == "question feature" else f"number {column}"
                raise RouterError(f"{what} {name} of {self.texts[row]!r} is {values[row, column]}")
        if self.answered is not None and self.retrieved is None:
            raise RouterError("features have an answered table but no retrieved one: give both")
        if self.fit is not None and self.fit.shape != (n, len(self.arms)):
            raise RouterError(f"{n} questions and {len(self.arms)} arms have a fit of shape {self.fit.shape}")
        for table in (self.retrieved, self.answered):
            if table is not None and table.values.shape[:2] != (n, len(self.arms)):
                raise RouterError(
                    f"{n} questions and {len(self.arms)} arms have an arm table of shape {table.values.shape}"
                )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def stage(self) -> Stage:
        """The latest stage whose features are known."""
        if self.answered is not None:
            return Stage.ANSWERED
        return Stage.QUESTION if self.retrieved is None else Stage.RETRIEVED

    def rows(self, rows: Sequence[int] | NDArray[Any]) -> "Features":
        """Return some of the questions, by index or by mask."""
        at = _indices(rows, len(self))
        return Features(
            self.arms,
            tuple(self.texts[i] for i in at),
            self.names,
            self.question[at],
            self.embedding[at],
            None if self.retrieved is None else self.retrieved.rows(at),
            None if self.answered is None else self.answered.rows(at),
            None if self.fit is None else self.fit[at],
        )

    def select_arms(self, arms: Sequence[str]) -> "Features":
        """Return the features of only these arms, in this order. Raises RouterError."""
        at = positions(self.arms, arms)
        return replace(
            self,
            arms=tuple(arms),
            retrieved=None if self.retrieved is None else self.retrieved.select_arms(at),
            answered=None if self.answered is None else self.answered.select_arms(at),
            fit=None if self.fit is None else self.fit[:, at],
        )


def positions(known: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the index of each name among the known ones.

    Raises:
        RouterError: A name is unknown.

    >>> positions(("bm25", "dense"), ("dense",))
    [1]
    """
    at = {name: number for number, name in enumerate(known)}
    for name in names:
        if name not in at:
            raise RouterError(f"{name!r} is unknown here{did_you_mean(name, known)}")
    return [at[name] for name in names]


def _distinct(what: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise RouterError(f"{what} {twice!r} is named twice among {', '.join(names)}")


def _indices(rows: Sequence[int] | NDArray[Any], n: int) -> NDArray[np.intp]:
    """Return the indices among `n` that an index list or a mask selects."""
    # numpy makes a list without elements an array of floats
    at: NDArray[np.intp] = np.arange(n)[np.asarray(rows, dtype=None if len(rows) else np.intp)]
    return at


@dataclass(frozen=True, slots=True)
class RoutingDataset:
    """The utility of each arm on each question, with the features of the questions.

    Attributes:
        features: Features of the questions.
        utility: Utilities, higher is better, NaN if unknown, shape (n_questions, n_arms).
        quality: Quality of each arm's passages regardless of the answer, if measured; shaped as the utility,
            but an arm may lack values entirely.
        without_prior: The utility without the prior of the arms, if it has one; shaped as the utility.
        is_choice: Whether arms are compared: at least two, which differ on some question.

    Raises:
        RouterError: A shape does not fit, there are fewer than two arms or questions, a number is infinite,
            or no two arms differ on any question.
    """

    features: Features
    utility: Floats
    quality: Floats | None = None
    without_prior: Floats | None = None
    is_choice: bool = True

    def __post_init__(self) -> None:
        n, arms = len(self.features), self.features.arms
        for what, values in (
            ("utility", self.utility),
            ("quality", self.quality),
            ("utility without prior", self.without_prior),
        ):
            if values is None:
                continue
            if values.shape != (n, len(arms)):
                raise RouterError(f"{n} questions and {len(arms)} arms have a {what} of shape {values.shape}")
            if np.isinf(values).any():
                row, column = np.argwhere(np.isinf(values))[0].tolist()
                raise RouterError(
                    f"the {what} of {arms[column]!r} on {self.features.texts[row]!r} is infinite"
                )
        if self.is_choice and len(arms) < 2:
            raise RouterError(f"labels of {len(arms)} arm ({', '.join(arms)}); a choice needs at least two")
        if n < 2:
            questions = ", ".join(map(repr, self.features.texts)) or "none"
            raise TooLittleError(f"labels of too few questions ({questions}); a fit needs at least two")
        for column in np.flatnonzero(np.isnan(self.utility).all(axis=0)).tolist():
            raise RouterError(f"arm {arms[column]!r} has no label at all: leave it out")
        if self.is_choice and not self.telling.any():
            raise TooLittleError(f"all {len(arms)} arms did equally well on nearly every question")

    @property
    def outcome(self) -> Floats:
        """The part of the utility that depends on the question: all but the prior."""
        return self.utility if self.without_prior is None else self.without_prior

    @property
    def telling(self) -> NDArray[np.bool_]:
        """Whether the outcomes of at least two known arms differ on each question, shape (n_questions,).

        Arms that differ by their prior alone do not count as different.
        """
        is_known = ~np.isnan(self.outcome)
        low = np.where(is_known, self.outcome, math.inf).min(axis=1)
        high = np.where(is_known, self.outcome, -math.inf).max(axis=1)
        return np.asarray(high > low)

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, rows: Sequence[int] | NDArray[Any]) -> "RoutingDataset":
        """Return some of the questions, by index or by mask."""
        at = _indices(rows, len(self))
        quality, outcome = (
            None if values is None else values[at] for values in (self.quality, self.without_prior)
        )
        features = self.features.rows(at)
        return replace(
            self, features=features, utility=self.utility[at], quality=quality, without_prior=outcome
        )


ROWS_PER_BATCH = 4096
"""Most rows in a batch of scoring."""


def score_in_parts(
    features: Features, rows: int, score: Callable[[Features], NDArray[np.floating]]
) -> Floats:
    """Return the scores of all questions, computed in batches, shape (n_questions, n_arms).

    Args:
        features: The questions.
        rows: Number of rows of a question.
        score: Scores a batch, shape (n, n_arms).
    """
    step = max(1, ROWS_PER_BATCH // rows)
    if len(features) <= step:
        return np.asarray(score(features), dtype=np.float64)
    starts = range(0, len(features), step)
    parts = [features.rows(range(start, min(start + step, len(features)))) for start in starts]
    return np.concatenate([score(part) for part in parts], dtype=np.float64)
