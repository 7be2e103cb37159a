"""Routers of boosted trees: fitted by xgboost, asked without it.

A row that a tree sees tells first what is known of the question, then what is known of the arm, then which
arm it is. Of a pair of arms, it has the differences of the latter two.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import expit

from agent.routers.base import Parametrised, Schema, StageParameters, State
from agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, positions, scored_in_parts
from agent.routers.preprocessing import Preparation
from agent.routers.ranking_targets import CentreParameters, centred
from agent.routers.tabular.tree_inference import Forest, Leaves, Trees

THREADS = 1
"""Of a fit, so that equal labels give equal bytes. On busy cores, two took five times as long as one."""

Mask = NDArray[np.bool_]


class Boosting(StageParameters):
    """How rows are made and trees are grown; the trees are those of LTRR by default."""

    identity: bool = Field(True, description="Whether a row tells which arm it is of; in LTRR it does not.")
    impute: bool = Field(
        False,
        description="Whether the median of the training data stands for what is missing of an arm: LTRR. "
        "Otherwise each node learns where to send it.",
    )
    rounds: int = Field(100, ge=1, description="Trees.")
    depth: int = Field(5, ge=1, le=6, description="Most nodes between the root of a tree and a leaf.")
    learning_rate: float = Field(0.05, gt=0.0, le=1.0, description="What the leaves of a tree are scaled by.")
    min_child_weight: float = Field(2.0, ge=0.0, description="Least sum of second derivatives in a leaf.")
    gamma: float = Field(0.1, ge=0.0, description="Least gain of a split.")
    subsample: float = Field(0.8, gt=0.0, le=1.0, description="Share of the rows that a tree is grown on.")
    colsample: float = Field(0.8, gt=0.0, le=1.0, description="Share of the columns that a tree looks at.")
    seed: int = Field(0, ge=0, description="Of both draws.")


class PointwiseBoosting(CentreParameters, Boosting):
    """How trees that predict utilities are grown, many and careful ones by default."""

    rounds: int = Field(300, ge=1, description="Trees.")
    depth: int = Field(4, ge=1, le=6, description="Most nodes between the root of a tree and a leaf.")
    learning_rate: float = Field(0.03, gt=0.0, le=1.0, description="What the leaves of a tree are scaled by.")
    min_child_weight: float = Field(20.0, ge=0.0, description="Least sum of second derivatives in a leaf.")
    gamma: float = Field(0.0, ge=0.0, description="Least gain of a split.")
    subsample: float = Field(0.7, gt=0.0, le=1.0, description="Share of the rows that a tree is grown on.")
    colsample: float = Field(0.5, gt=0.0, le=1.0, description="Share of the columns that a tree looks at.")


B = TypeVar("B", bound=Boosting)


class BoostedTrees(Parametrised[B]):
    """Trees over rows of one arm, or of a pair of arms.

    Attributes:
        objective: What xgboost is to optimise.
    """

    objective: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def _rows(self, of_arms: Floats) -> Floats:
        """Turn numbers of arms, shape (..., n_arms, c), into numbers of rows: (..., n_arms, [n_arms,] c)."""

    @abstractmethod
    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        """Return what each row is worth and whether it teaches anything, both (n, n_arms, [n_arms])."""

    @abstractmethod
    def _ranked(self, sums: Floats) -> Floats:
        """Turn what the trees say of rows, shape (n, n_arms, [n_arms]), into scores (n, n_arms)."""

    def _fit(self, labels: RoutingDataset) -> None:
        import xgboost  # here, because what is fitted can do without

        chosen, features = self.chosen, labels.features
        self._preparation = Preparation.of(features, chosen.dims)
        known = self._known(features)
        if not known.shape[-1] and not chosen.identity:
            raise RouterError(
                f"{self.kind}: nothing is known of an arm at stage {chosen.stage!r}, and identity is false: "
                "arms would all look the same"
            )
        target, taught = self._targets(labels.utility)
        of_question = np.nonzero(taught)[0]
        names = self._rows(self._names(len(features.arms)))
        parts = (
            self._preparation.question(features)[of_question],
            self._rows(known)[taught],
            np.broadcast_to(names, (*taught.shape, names.shape[-1]))[taught],
        )
        rows = np.concatenate(parts, axis=1, dtype=np.float32)
        listwise = {"qid": of_question} if self.objective["objective"] == "rank:ndcg" else {}
        booster = xgboost.train(
            {
                "nthread": THREADS,
                "max_depth": chosen.depth,
                "eta": chosen.learning_rate,
                "min_child_weight": chosen.min_child_weight,
                "gamma": chosen.gamma,
                "subsample": chosen.subsample,
                "colsample_bytree": chosen.colsample,
                "seed": chosen.seed,
                **self.objective,
            },
            xgboost.QuantileDMatrix(rows, target[taught], nthread=THREADS, **listwise),
            chosen.rounds,
        )
        self._take(Trees.of_xgboost(booster.save_raw("json")), len(features.arms))

    def _take(self, trees: Trees, n_arms: int) -> None:
        """Take what was grown, and look up what is known before any question: which arm is which."""
        names = self._rows(self._names(n_arms))
        self._trees, self._forest = trees, Forest(trees)
        self._named = self._forest.possible(names, trees.n_columns - names.shape[-1])

    def _scores(self, features: Features) -> Floats:
        schema = self._fitted
        named = self._named
        if features.arms != schema.arms:
            at = positions(schema.arms, features.arms)
            named = named[np.ix_(*[at] * (named.ndim - 1))]
        return scored_in_parts(features, named[..., 0].size, lambda part: self._scored(part, named))

    def _scored(self, features: Features, named: Leaves) -> Floats:
        question = self._preparation.question(features)
        shared = self._forest.possible(question).reshape(
            len(features), *[1] * (named.ndim - 1), named.shape[-1]
        )
        own = self._forest.possible(self._rows(self._known(features)), question.shape[1])
        return self._ranked(self._forest.sums(shared & own & named))

    def _known(self, features: Features) -> Floats:
        return self._preparation.imputed(features) if self.chosen.impute else self._preparation.arms(features)

    def _names(self, n_arms: int) -> Floats:
        return np.eye(n_arms, n_arms if self.chosen.identity else 0)

    def _state(self) -> State:
        return {**self._preparation.state(), **self._trees.state()}

    def _restore(self, schema: Schema, state: State) -> None:
        self._preparation = Preparation.restore(state)
        self._take(Trees.restore(state), len(schema.arms))


class PointwiseXGBoost(BoostedTrees[PointwiseBoosting]):
    """Predicts the utility of each arm by itself, by regression on squared errors.

    Unlike in the paper, a row tells which arm it is of, and the mean utility of a question is taken off
    first (`identity`, `centre`).

    Source: LTRR: Learning To Rank Retrievers for LLMs (2025), arXiv:2506.13743; Chen and Guestrin 2016,
    XGBoost: a scalable tree boosting system, arXiv:1603.02754.
    """

    kind = "pointwise_xgboost"
    Params = PointwiseBoosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "reg:squarederror"}

    def _rows(self, of_arms: Floats) -> Floats:
        return of_arms

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        target = centred(utility) if self.chosen.centre else utility
        return target, ~np.isnan(target)

    def _ranked(self, sums: Floats) -> Floats:
        return sums


class PairwiseXGBoost(BoostedTrees[Boosting]):
    """Predicts which of two arms is the better one; an arm's score is its mean probability to win.

    It learns from every pair in both directions, ties left out. Both directions are asked too, an arm
    against itself counts as a half, and the mean is over the arms that were asked for: without one of
    them, the scores of the others change. Unlike in the paper, a row also tells which arms it is of.

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

    def _ranked(self, sums: Floats) -> Floats:
        wins = expit(sums)
        return np.asarray(0.5 + (wins - wins.swapaxes(1, 2)).mean(axis=2) / 2.0)


class LambdaMART(BoostedTrees[Boosting]):
    """Ranks the arms of a question as a list, by the gradient of NDCG.

    The relevance of an arm is its utility, scaled to [0, 1] between the worst and the best known arm of the
    question; it is the gain itself, so that utilities need no grades. LTRR trains a network by the same
    gradient; these are trees, as in the method that the name is of.

    Source: Burges 2010, From RankNet to LambdaRank to LambdaMART: an overview, MSR-TR-2010-82; for the
    utilities, LTRR: Learning To Rank Retrievers for LLMs (2025), arXiv:2506.13743.
    """

    kind = "lambdamart"
    Params = Boosting
    objective: ClassVar[Mapping[str, Any]] = {"objective": "rank:ndcg", "ndcg_exp_gain": False}

    def _rows(self, of_arms: Floats) -> Floats:
        return of_arms

    def _targets(self, utility: Floats) -> tuple[Floats, Mask]:
        known = ~np.isnan(utility)
        low = np.where(known, utility, np.inf).min(axis=1, keepdims=True)
        high = np.where(known, utility, -np.inf).max(axis=1, keepdims=True)
        telling = high > low
        relevance = (utility - np.where(telling, low, 0.0)) / np.where(telling, high - low, 1.0)
        return relevance, known & telling

    def _ranked(self, sums: Floats) -> Floats:
        return sums
