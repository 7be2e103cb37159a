"""Fitting a model of relevance to questions whose gold passages are known.

A question is seen once with all arms, and some times with arms drawn at random, every other time without
their names: so the model serves fewer and other arms, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from armwise.arms import extras
from armwise.arms.base import Passage, Progress
from armwise.arms.relevance.features import FALLING, NAMES, RISING, CandidatePassages, candidates
from armwise.arms.relevance.model import THREADS, RelevanceError, RelevanceHeader, RelevanceModel, make_rows

Rows = NDArray[np.float32]
Indices = NDArray[np.intp]

EVERY = 64
"""Questions between two steps of the progress."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question whose gold passages are known.

    Attributes:
        question: The question.
        found: Passages of each arm, best first.
        gold: Ids of the passages that support its answer.
    """

    question: str
    found: Mapping[str, Sequence[Passage]]
    gold: frozenset[str]


class Fitting(BaseModel):
    """How a model of relevance is fitted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draws: int = Field(
        default=2,
        ge=0,
        description="Times that each question is seen with arms drawn at random, besides once with all.",
    )
    by_name: bool = Field(
        default=True, description="Whether the rank by each of these arms counts under its name."
    )
    rounds: int = Field(default=300, ge=1, le=5000, description="Trees.")
    depth: int = Field(default=6, ge=1, le=8, description="Largest depth of a tree.")
    learning_rate: float = Field(default=0.03, gt=0.0, le=1.0, description="Factor of the leaves of a tree.")
    min_child_weight: float = Field(
        default=2.0, ge=0.0, description="Smallest sum of second derivatives in a leaf."
    )
    subsample: float = Field(
        default=0.7, gt=0.0, le=1.0, description="Share of the rows that a tree is grown on."
    )
    colsample: float = Field(
        default=0.5, gt=0.0, le=1.0, description="Share of the columns that a tree uses."
    )
    seed: int = Field(default=0, ge=0, description="Seed of all draws.")


@dataclass(frozen=True, slots=True)
class Examples:
    """The rows of some questions, to fit models to any of them.

    Attributes:
        fitting: How to fit.
        arms: Names of the arms that are columns.
        k: The most passages that an arm found.
        seen: Candidates of each question, with all arms.
        rows: Rows of each question, shape (n_rows, len(NAMES) + len(arms)).
        labels: Labels of each question, 1 for a gold passage and else 0, shape (n_rows,).
    """

    fitting: Fitting
    arms: tuple[str, ...]
    k: int
    seen: tuple[CandidatePassages, ...]
    rows: tuple[Rows, ...]
    labels: tuple[Rows, ...]

    @classmethod
    def from_cases(
        cls, cases: Sequence[Case], fitting: Fitting | None = None, progress: Progress | None = None
    ) -> "Examples":
        """Compute the rows of questions. Raises RelevanceError if there are fewer than two arms."""
        fitting = fitting or Fitting()
        arm_names = dict.fromkeys(arm for case in cases for arm, ranking in case.found.items() if ranking)
        if len(arm_names) < 2:
            raise RelevanceError(
                f"passages of {len(arm_names)} arm ({', '.join(arm_names)}); a fusion needs at least two"
            )
        arms = tuple(arm_names) if fitting.by_name else ()
        rng = np.random.default_rng(fitting.seed)
        pools: list[CandidatePassages] = []
        rows: list[Rows] = []
        labels: list[Rows] = []
        for number, case in enumerate(cases, start=1):
            views = [*_views(case, fitting.draws, rng)]
            pools.append(views[0])
            rows.append(np.concatenate([make_rows(view, arms) for view in views]))
            ids = (passage.id for view in views for passage in view.passages)
            labels.append(np.array([name in case.gold for name in ids], dtype=np.float32))
            if progress is not None and (number % EVERY == 0 or number == len(cases)):
                progress("reading passages", number, len(cases))
        k = max(len(ranking) for case in cases for ranking in case.found.values())
        return cls(fitting, arms, k, tuple(pools), tuple(rows), tuple(labels))

    @extras.explain_missing()
    def fit(self, questions: Sequence[int] | Indices | None = None) -> RelevanceModel:
        """Fit a model to some of the questions, by index; None for all of them.

        Raises:
            RelevanceError: All passages that were found are gold, or none is.
        """
        import xgboost

        of = range(len(self.rows)) if questions is None else questions
        rows = np.concatenate([self.rows[number] for number in of])
        labels = np.concatenate([self.labels[number] for number in of])
        if not 0 < (gold := int(labels.sum())) < len(labels):
            raise RelevanceError(
                f"{gold} of {len(labels)} passages found for {len(of)} questions are gold; some must be "
                "gold and some not. Do the gold_ids belong to this corpus?"
            )
        signs = [(name in RISING) - (name in FALLING) for name in NAMES] + [1] * len(self.arms)
        booster = xgboost.train(
            {
                "objective": "binary:logistic",
                "nthread": THREADS,
                "max_depth": self.fitting.depth,
                "eta": self.fitting.learning_rate,
                "min_child_weight": self.fitting.min_child_weight,
                "subsample": self.fitting.subsample,
                "colsample_bytree": self.fitting.colsample,
                "monotone_constraints": f"({','.join(map(str, signs))})",
                "seed": self.fitting.seed,
            },
            xgboost.QuantileDMatrix(rows, labels, nthread=THREADS),
            self.fitting.rounds,
        )
        header = RelevanceHeader(columns=NAMES, arms=self.arms, k=self.k, questions=len(of))
        return RelevanceModel(header, booster)

    def predict(
        self, model: RelevanceModel, questions: Sequence[int] | Indices | None = None
    ) -> list[Mapping[str, float]]:
        """Return the relevance of the passages of some questions, by id; None for all of them."""
        pools = [self.seen[number] for number in (range(len(self.seen)) if questions is None else questions)]
        values = iter(model.predict(pools).tolist()) if pools else iter(())
        return [{passage.id: next(values) for passage in pool.passages} for pool in pools]

    def out_of_fold(
        self, parts: Sequence[tuple[Indices, Indices]], progress: Progress | None = None
    ) -> list[Mapping[str, float] | None]:
        """Return the relevance of each question's passages by a model that was not fitted to the question.

        Args:
            parts: The questions to fit to, and those to predict, by index.
            progress: Progress callback.

        Returns:
            By question; None for one that no part predicts.
        """
        predicted: list[Mapping[str, float] | None] = [None] * len(self.rows)
        for number, (fitted, held_out) in enumerate(parts, start=1):
            model = self.fit(fitted)
            for question, relevance in zip(held_out, self.predict(model, held_out), strict=True):
                predicted[question] = relevance
            if progress is not None:
                progress("fitting relevance", number, len(parts))
        return predicted


def fit(cases: Sequence[Case], fitting: Fitting | None = None) -> RelevanceModel:
    """Fit a model to questions with gold passages. Raises RelevanceError."""
    return Examples.from_cases(cases, fitting).fit()


def _views(case: Case, draws: int, rng: np.random.Generator) -> Iterator[CandidatePassages]:
    """Yield what all arms found, then what some drawn at random did; every other time without names."""
    arms = [arm for arm, ranking in case.found.items() if ranking]
    for draw in range(draws + 1):
        some = arms
        if draw and len(arms) > 2:
            some = rng.choice(arms, rng.integers(2, len(arms)), replace=False).tolist()
        pool = candidates(case.question, {arm: case.found[arm] for arm in some})
        yield replace(pool, reciprocal={}) if draw % 2 else pool
