"""The routers of a cascade: trees that score answers, and trees that predict what going on gains."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from armwise.agent.lab.routers.optimizer import Mask
from armwise.agent.lab.routers.trees import PointwiseBoosting, PointwiseXGBoost
from armwise.agent.routers.dataset import Floats


class AnswerBoosting(PointwiseBoosting):
    """The rows of the answers so far."""

    stage: Literal["question", "retrieved", "answered"] = "answered"
    dims: int = 0
    centre: bool = False
    rounds: int = 400


class AnswerTrees(PointwiseXGBoost):
    """Predicts the probability that the answer of an arm is right, by the logistic loss.

    A score beyond [0, 1] counts as the nearest of the two.

    Source: FrugalGPT (2023), arXiv:2305.05176, scores answers likewise; Chen and Guestrin 2016, XGBoost.
    """

    kind = "cascade_answers"
    Params = AnswerBoosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "reg:logistic"}
    growth: ClassVar[Mapping[str, float]] = {
        **PointwiseXGBoost.growth,
        "max_depth": 5,
        "eta": 0.02,
        "colsample_bytree": 0.3,
    }

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        return np.clip(utility, 0.0, 1.0), ~np.isnan(utility)

    def _to_scores(self, sums: Floats) -> Floats:
        from scipy.special import expit

        return np.asarray(expit(sums), dtype=np.float64)


class GainBoosting(PointwiseBoosting):
    """The rows of all answers so far."""

    dims: int = 0
    centre: bool = False
    rounds: int = 120


class GainTrees(PointwiseXGBoost):
    """Predicts the reward that going on gains."""

    kind = "cascade_gain"
    Params = GainBoosting
    growth: ClassVar[Mapping[str, float]] = {
        **PointwiseXGBoost.growth,
        "max_depth": 2,
        "min_child_weight": 40.0,
        "colsample_bytree": 0.3,
    }
