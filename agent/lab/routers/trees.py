"""Routers of boosted trees, by xgboost.

The columns of a row are the features of the question, the features of an arm, and the one-hot code of the
arm. In the row of a pair of arms, the last two are differences between the arms.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from armwise.agent.lab.routers.preprocessing import Preparation, check_rows_differ
from armwise.agent.lab.routers.ranking_targets import CentreParameters, subtract_mean
from armwise.agent.lab.routers.tree_ensemble import TreeEnsemble
from armwise.agent.routers.base import IdentityParameters, Parametrised, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RoutingDataset, positions, score_in_parts
from armwise.agent.routers.features import scale_columns
from armwise.arms import extras

THREADS = 1
"""A single thread, so that a fit is deterministic. On busy cores, two took five times as long."""

Mask = NDArray[np.bool_]
Rows = NDArray[np.float32]


SEED = 0
"""Seed that draws rows and columns of each tree."""


class Boosting(IdentityParameters):
    """The rows, and how many trees."""

    impute: bool = Field(
        False,
        description=(
            "Whether to replace missing features by the median, as in LTRR. If false, the trees learn how "
            "to treat them."
        ),
    )
    rounds: int = Field(100, ge=1, description="Number of trees.")


class PointwiseBoosting(CentreParameters, Boosting):
    """The rows, and how many trees predict utilities."""

    rounds: int = Field(300, ge=1, description="Number of trees.")


B = TypeVar("B", bound=Boosting)


class BoostedTrees(Parametrised[B]):
    """Trees over rows of one arm, or of a pair of arms.

    Attributes:
        objective: Objective of xgboost.
        growth: Parameters of xgboost for each tree, by default as in LTRR.
    """

    libraries = ("xgboost",)
    objective: ClassVar[Mapping[str, Any]]
    growth: ClassVar[Mapping[str, float]] = {
        "max_depth": 5,
        "eta": 0.05,
        "min_child_weight": 2.0,
        "gamma": 0.1,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
    }

    @abstractmethod
    def _rows(self, of_arms: Floats) -> Floats:
        """Turn features of arms, shape (..., n_arms, c), into rows, shape (..., n_arms, [n_arms,] c)."""

    @abstractmethod
    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        """Return the target of each row and whether it is known, both of shape (n, n_arms, [n_arms])."""

    @abstractmethod
    def _to_scores(self, sums: Floats) -> Floats:
        """Turn the sums of the trees, shape (n, n_arms, [n_arms]), into scores, shape (n, n_arms)."""

    @extras.explain_missing()
    def _fit(self, labels: RoutingDataset) -> None:
        import xgboost

        chosen, features = self.chosen, labels.features
        check_rows_differ(self.kind, chosen, features)
        self._preparation = Preparation.fit(features, chosen.dims)
        target, used = self._targets(labels.utility)
        rows = self._table(features, self._names(len(features.arms)))[used]
        listwise = {"qid": np.nonzero(used)[0]} if self.objective["objective"] == "rank:ndcg" else {}
        self._booster: xgboost.Booster | None = xgboost.train(
            {"nthread": THREADS, "seed": SEED, **self.growth, **self.objective},
            xgboost.QuantileDMatrix(rows, target[used], nthread=THREADS, **listwise),
            chosen.rounds,
        )
        self._trees = TreeEnsemble.from_booster(self._booster)

    def _scores(self, features: Features) -> Floats:
        names = self._names(len(self._fitted.arms))[positions(self._fitted.arms, features.arms)]
        n_rows = math.prod(self._rows(names).shape[:-1])
        return score_in_parts(
            features, n_rows, lambda part: self._to_scores(self._margins(self._table(part, names)))
        )

    def _margins(self, table: Rows) -> Floats:
        """Return the sum of the trees on each row, shape (n, n_arms, [n_arms])."""
        rows = table.reshape(-1, table.shape[-1])
        if self._booster is None:
            margins = self._trees.sums(rows)
        else:  # grown here; of many rows the library is faster
            margins = self._booster.inplace_predict(rows, predict_type="margin")
        return np.asarray(margins, dtype=np.float64).reshape(table.shape[:-1])

    def _table(self, features: Features, names: Floats) -> Rows:
        """Return the rows of arms with these one-hot codes, shape (n, n_arms, [n_arms], n_columns)."""
        arm_features, names = self._rows(self._read_arms(features)), self._rows(names)
        shape = arm_features.shape[:-1]
        question = self._preparation.question(features)
        question = question.reshape(len(features), *[1] * (len(shape) - 1), question.shape[1])
        parts = (
            np.broadcast_to(question, (*shape, question.shape[-1])),
            arm_features,
            np.broadcast_to(names, (*shape, names.shape[-1])),
        )
        return np.concatenate(parts, axis=-1, dtype=np.float32)

    def _read_arms(self, features: Features) -> Floats:
        return self._preparation.impute(features) if self.chosen.impute else self._preparation.arms(features)

    def _names(self, n_arms: int) -> Floats:
        return np.eye(n_arms, n_arms if self.chosen.identity else 0)

    def _state(self) -> State:
        return {**self._preparation.state(), **self._trees.state()}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema
        self._preparation = Preparation.restore(state)
        self._trees = TreeEnsemble.restore(state)
        self._booster = None


class PointwiseXGBoost(BoostedTrees[PointwiseBoosting]):
    """Predicts the utility of each arm with boosted trees trained on squared error.

    Unlike in the paper, a row has the one-hot code of its arm, and the mean utility of a question is
    subtracted first (`identity`, `centre`).

    Source: LTRR: Learning To Rank Retrievers for LLMs (2025), arXiv:2506.13743; Chen and Guestrin 2016,
    XGBoost: a scalable tree boosting system, arXiv:1603.02754.
    """

    kind = "pointwise_xgboost"
    Params: ClassVar[type[Any]] = PointwiseBoosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "reg:squarederror"}
    growth: ClassVar[Mapping[str, float]] = {
        "max_depth": 4,
        "eta": 0.03,
        "min_child_weight": 20.0,
        "gamma": 0.0,
        "subsample": 0.7,
        "colsample_bytree": 0.5,
    }

    def _rows(self, of_arms: Floats) -> Floats:
        return of_arms

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        target = subtract_mean(utility) if self.chosen.centre else utility
        return target, ~np.isnan(target)

    def _to_scores(self, sums: Floats) -> Floats:
        return sums


class PairwiseXGBoost(BoostedTrees[Boosting]):
    """Predicts with boosted trees which of two arms is better.

    It is fitted to every pair in both directions, without ties. A prediction uses both directions, too; an
    arm against itself counts as one half. The mean is over the arms in the request: without one of them, the
    scores of the others change. Unlike in the paper, a row also has the codes of its arms.

    Source: LTRR: Learning To Rank Retrievers for LLMs (2025), arXiv:2506.13743.
    """

    kind = "pairwise_xgboost"
    Params = Boosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "binary:logistic"}

    def _rows(self, of_arms: Floats) -> Floats:
        return of_arms[..., :, None, :] - of_arms[..., None, :, :]

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        ahead = utility[:, :, None] - utility[:, None, :]
        return (ahead > 0.0).astype(np.float64), ~np.isnan(ahead) & (ahead != 0.0)

    def _to_scores(self, sums: Floats) -> Floats:
        from scipy.special import expit

        wins = expit(sums)
        return np.asarray(0.5 + (wins - wins.swapaxes(1, 2)).mean(axis=2) / 2.0)


class LambdaMART(BoostedTrees[Boosting]):
    """Ranks the arms of a question as a list, with boosted trees trained on the gradient of NDCG.

    The relevance of an arm is its utility, scaled to [0, 1] between the worst and the best known arm of the
    question; it is the gain itself, so utilities need no grades. LTRR trains a network by the same gradient;
    these are trees, as in the original LambdaMART.

    Source: Burges 2010, From RankNet to LambdaRank to LambdaMART: an overview, MSR-TR-2010-82; for the
    utilities, LTRR: Learning To Rank Retrievers for LLMs (2025), arXiv:2506.13743.
    """

    kind = "lambdamart"
    Params = Boosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "rank:ndcg", "ndcg_exp_gain": False}

    def _rows(self, of_arms: Floats) -> Floats:
        return of_arms

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        relevance = scale_columns(utility.T).T
        return relevance, ~np.isnan(relevance) & (relevance == 1.0).any(axis=1, keepdims=True)

    def _to_scores(self, sums: Floats) -> Floats:
        return sums
