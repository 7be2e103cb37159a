"""The scores of a router as rewards: what an arm is expected to be worth, given its score."""

from typing import Any

import numpy as np
from pydantic import Field

from agent.labels import Features, Floats, Labels, RouterError, positions
from agent.router import Schema, State
from agent.routers.blend import built
from agent.routers.folds import folds
from agent.routers.parameters import Parameters, Parametrised
from agent.specs import Spec


class CalibratedParameters(Parameters):
    """What is calibrated, and how."""

    router: Spec = Field(description="A `kind` of the catalogue and its `params`.")
    folds: int = Field(5, ge=2, description="Parts of the questions that are held out in turn.")
    seed: int = Field(0, ge=0, description="Of the parts.")


class Calibrated(Parametrised[CalibratedParameters]):
    """Scores an arm with its expected utility: an offset of the arm, plus a slope times a router's score.

    The slope is that of least squares, with an offset for each arm, over scores of questions that the
    router was not fitted to: it tells how far scores are to be believed, and is 0 where they mislead. The
    offsets are such that the mean score of an arm on the training questions is its mean utility there.

    All arms must be asked at once of a router that compares arms with each other, as pairwise ones do.

    Attributes:
        slope: Utility by which a score one higher is better, at least 0.
        offsets: Of each arm, shape (n_arms,).
    """

    kind = "calibrated"
    Params = CalibratedParameters
    slope: float
    offsets: Floats

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._router = built(self.chosen.router)
        self.stage = self._router.stage

    def _fit(self, labels: Labels) -> None:
        self.slope = slope(self._unseen(labels), labels.utility)
        scores = self._router.fit(labels).scores(labels.features)
        scores[np.isnan(labels.utility)] = np.nan
        self.offsets = np.nanmean(labels.utility, axis=0) - self.slope * np.nanmean(scores, axis=0)

    def _unseen(self, labels: Labels) -> Floats:
        """Return scores of routers that did not see the question, NaN if none could, shape (n, n_arms)."""
        scores = np.full(labels.utility.shape, np.nan)
        for seen, held_out in folds(labels.features.texts, self.chosen.folds, self.chosen.seed):
            try:
                router = built(self.chosen.router).fit(labels.rows(seen))
            except RouterError as error:
                raise RouterError(
                    f"calibrated: {len(labels)} questions are too few for {self.chosen.folds} folds: {error}"
                ) from error
            scores[held_out] = router.scores(labels.features.rows(held_out))
        return scores

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


def slope(scores: Floats, utility: Floats) -> float:
    """Return the slope of utility over score by least squares, each arm with its own offset; at least 0.

    Args:
        scores: NaN where unknown, shape (n, n_arms).
        utility: Likewise.

    >>> slope(np.array([[1.0, 10.0], [2.0, 12.0]]), np.array([[5.0, 0.0], [7.0, 4.0]]))
    2.0
    """
    known = ~np.isnan(scores) & ~np.isnan(utility)
    counts = np.maximum(known.sum(axis=0), 1)
    x, y = (
        np.where(known, values - np.where(known, values, 0.0).sum(axis=0) / counts, 0.0)
        for values in (scores, utility)
    )
    return max(0.0, float((x * y).sum() / ((x * x).sum() or 1.0)))


__all__ = ["Calibrated", "CalibratedParameters", "slope"]
