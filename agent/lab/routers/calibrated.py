"""A router whose scores are calibrated to utilities: expected rewards."""

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from armwise.agent.lab.routers.cross_validation import FOLDS, choose_best, folds, kinds, out_of_fold_scores
from armwise.agent.routers.base import Parameters, Parametrised, Schema, State
from armwise.agent.routers.catalog import build_router
from armwise.agent.routers.dataset import (
    Features,
    Floats,
    RouterError,
    RoutingDataset,
    TooLittleError,
    positions,
)
from armwise.agent.spec import Spec


class CalibratedParameters(Parameters):
    """The router that is calibrated, and what the cross-validation holds out."""

    router: Spec = Field(description="Router whose scores are calibrated: `kind` and `params`.")
    held_out: Literal["questions", "kinds"] = Field(
        "questions",
        description=(
            "What each fold of the calibration holds out. `questions`: random questions. `kinds`: all "
            "questions of one form. This suits labels of synthetic questions."
        ),
    )


SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidate shares of the differences between questions that a router keeps."""


class Calibrated(Parametrised[CalibratedParameters]):
    """Turns another router's scores into expected utilities, with an offset per arm and one slope.

    The slope is the least-squares one, with an offset for each arm, over out-of-fold scores: it measures how
    reliable the scores are, and is 0 where they mislead. With `held_out: kinds` it is multiplied by the
    largest share at which the best-scored arms earn as much on kinds that were left out of the fit as at any
    other, but for one standard error. The offsets make the mean score of an arm on the training questions its
    mean utility there.

    A router that compares arms with each other, such as a pairwise one, needs all arms in every request.

    Args:
        params: Fields of `CalibratedParameters`.

    Attributes:
        slope: Utility by which a score one higher is better, at least 0.
        offsets: Offsets of each arm, shape (n_arms,).
    """

    kind = "calibrated"
    example: ClassVar = {"router": {"kind": "pairwise_svm"}}
    Params = CalibratedParameters
    slope: float
    offsets: Floats

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._router = build_router(self.chosen.router)
        self.stage, self.libraries = self._router.stage, self._router.libraries
        self.reads_fit = self._router.reads_fit

    def _fit(self, labels: RoutingDataset) -> None:
        out_of_fold = self._out_of_fold(labels)
        self.slope = slope(out_of_fold, labels.utility)
        if self.chosen.held_out == "kinds":
            self.slope *= _best_share(self.slope * out_of_fold, labels.utility)
        scores = self._router.fit(labels).scores(labels.features)
        scores[np.isnan(labels.utility)] = np.nan
        self.offsets = np.nanmean(labels.utility, axis=0) - self.slope * np.nanmean(scores, axis=0)

    def _out_of_fold(self, labels: RoutingDataset) -> Floats:
        """Return out-of-fold scores, shape (n, n_arms), NaN for questions that are never held out."""
        parts = kinds(labels.features.question) if self.chosen.held_out == "kinds" else []
        parts = parts or folds(labels.features.texts)
        try:
            return out_of_fold_scores(lambda: build_router(self.chosen.router), labels, parts)
        except TooLittleError:
            raise
        except RouterError as error:
            raise RouterError(
                f"calibrated: {len(labels)} questions are too few for {FOLDS} folds: {error}"
            ) from error

    def _scores(self, features: Features) -> Floats:
        at = positions(self._fitted.arms, features.arms)
        return self.offsets[at] + self.slope * self._router.scores(features)

    def _state(self) -> State:
        router = np.frombuffer(self._router.save(), dtype=np.uint8)
        return {"router": router, "slope": np.array(self.slope), "offsets": self.offsets}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._router.load(state["router"].tobytes())
        self.slope, self.offsets = float(state["slope"]), state["offsets"]


def _best_share(differences: Floats, utility: Floats) -> float:
    """Return the largest share of predicted differences that earns no less than the best, within its error.

    If the arms are equally good on average, any share of the same differences chooses the same arms.
    """
    is_known = ~np.isnan(differences).any(axis=1)
    scores, utility = differences[is_known], utility[is_known]
    if not ((~np.isnan(utility)).sum(axis=1) > 1).any():
        return 0.0
    scores = scores - scores.mean(axis=0)
    means = np.nan_to_num(np.nanmean(utility, axis=0), nan=-np.inf)
    earned = np.stack([choose_best(means + share * scores, utility) for share in SHARES])
    less = earned[earned.sum(axis=1).argmax()] - earned
    within = less.sum(axis=1) <= less.std(axis=1) * math.sqrt(less.shape[1])
    return max(share for share, good in zip(SHARES, within.tolist(), strict=True) if good)


def slope(scores: Floats, utility: Floats) -> float:
    """Return the least-squares slope of utility over score, with an offset per arm; at least 0.

    Args:
        scores: Scores, NaN where unknown, shape (n, n_arms).
        utility: Utilities, NaN where unknown, shape (n, n_arms).

    >>> slope(np.array([[1.0, 10.0], [2.0, 12.0]]), np.array([[5.0, 0.0], [7.0, 4.0]]))
    2.0
    """
    is_known = ~np.isnan(scores) & ~np.isnan(utility)
    counts = np.maximum(is_known.sum(axis=0), 1)
    x, y = (
        np.where(is_known, values - np.where(is_known, values, 0.0).sum(axis=0) / counts, 0.0)
        for values in (scores, utility)
    )
    return max(0.0, float((x * y).sum() / ((x * x).sum() or 1.0)))
