"""The scores of a router as rewards: what an arm is expected to be worth, given its score."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from agent.routers.base import Parameters, Parametrised, Router, Schema, State
from agent.routers.cross_validation import folds
from agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions
from agent.spec import Spec

ROUNDING = 1e-9
"""Differences this small beside the scores themselves say nothing."""


class BlendParameters(Parameters):
    """What is blended, and how."""

    members: list[Spec] = Field(
        min_length=1, description="Routers, each with a `kind` of the catalogue and its `params`."
    )
    weights: list[Annotated[float, Field(gt=0.0)]] | None = Field(
        None, description="How much each member counts; null is all the same."
    )
    scale: Literal["spread", "rank"] = Field(
        "spread",
        description="What makes scores of members comparable: division by their spread on the questions that "
        "they were fitted to, or the share of arms that an arm is above.",
    )


class Blend(Parametrised[BlendParameters]):
    """Scores an arm with the weighted mean of what its members say, each fitted to the same labels.

    The spread of a member's scores is how far they differ between the arms of a question, as a standard
    deviation over the training questions: what all arms have in common moves none before another. A
    train-free router, which puts an arm that retrieves nothing beyond all others, blends by rank only.

    The blend looks as far as the member that looks farthest.
    """

    kind = "blend"
    Params = BlendParameters

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._members = [built(spec) for spec in self.chosen.members]
        self.stage = max(member.stage for member in self._members)
        weights = np.array(self.chosen.weights or [1.0] * len(self._members))
        if len(weights) != len(self._members):
            raise RouterError(f"blend: {len(weights)} weights do not fit {len(self._members)} members")
        self._weights = weights / weights.sum()

    def _fit(self, labels: RoutingDataset) -> None:
        for member in self._members:
            member.fit(labels)
        self._spreads = np.ones(len(self._members))
        if self.chosen.scale == "spread":
            self._spreads = np.array([_spread(member.scores(labels.features)) for member in self._members])

    def _scores(self, features: Features) -> Floats:
        blended = np.zeros((len(features), len(features.arms)))
        for member, spread, weight in zip(self._members, self._spreads, self._weights, strict=True):
            scores = member.scores(features)
            blended += weight * (beaten(scores) if self.chosen.scale == "rank" else scores / spread)
        return blended

    def _state(self) -> State:
        saved = (np.frombuffer(member.save(), dtype=np.uint8) for member in self._members)
        return {"spreads": self._spreads, **{f"member.{n}": one for n, one in enumerate(saved)}}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._spreads = state["spreads"]
        for number, member in enumerate(self._members):
            member.load(state[f"member.{number}"].tobytes())


def built(spec: Spec) -> Router:
    """Return the router of a spec, not fitted. Raises RouterError."""
    from agent.routers.catalog import (
        RouterSpec,  # here: the catalogue names this router, too
        build_router,
    )

    return build_router(RouterSpec(kind=spec.kind, params=spec.params))


def beaten(scores: Floats) -> Floats:
    """Return the share of the arms of a question that each scores above, itself and ties being one half.

    >>> beaten(np.array([[0.1, 7.0, 0.1]])).round(3).tolist()
    [[0.333, 0.833, 0.333]]
    """
    one, other = scores[:, :, None], scores[:, None, :]
    return np.asarray(0.5 * (one > other).mean(axis=2) + 0.5 * (one >= other).mean(axis=2))


def _spread(scores: Floats) -> float:
    """Return the spread between arms, or 1 where it is a matter of rounding."""
    spread = float((scores - scores.mean(axis=1, keepdims=True)).std())
    return spread if spread > ROUNDING * np.abs(scores).max() else 1.0


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

    def _fit(self, labels: RoutingDataset) -> None:
        self.slope = slope(self._unseen(labels), labels.utility)
        scores = self._router.fit(labels).scores(labels.features)
        scores[np.isnan(labels.utility)] = np.nan
        self.offsets = np.nanmean(labels.utility, axis=0) - self.slope * np.nanmean(scores, axis=0)

    def _unseen(self, labels: RoutingDataset) -> Floats:
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
