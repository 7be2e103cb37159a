"""Train-free routers: an arm is scored by one feature of its passages, or of its sources."""

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from armwise.agent.routers.base import Router, Schema, State
from armwise.agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, Stage

UNKNOWN_SCORE = -2.0
"""Score of an arm without the feature: below all others, which are cosines or variances of cosines."""


class Similarity(Router, ABC):
    """Scores an arm with one feature of what it retrieved; an arm without that feature comes last.

    Fitting only checks that the feature is there. The score is the feature, or its negative where a small
    value is better, so scores of different questions are not comparable.

    Attributes:
        column: Name of the feature.
        sign: 1 if a large value is better, -1 if a small one is.

    Source: Kim, Diaz et al., LTRR: Learning to Rank Retrievers for LLMs (2025), arXiv:2506.13743, section
    on train-free routing.
    """

    stage = Stage.RETRIEVED
    column: ClassVar[str]
    sign: ClassVar[float] = 1.0

    @property
    def params(self) -> Mapping[str, Any]:
        """Empty: there are no parameters."""
        return {}

    def _fit(self, labels: RoutingDataset) -> None:
        self._numbers(labels.features)

    def _scores(self, features: Features) -> Floats:
        return np.nan_to_num(self.sign * self._numbers(features), nan=UNKNOWN_SCORE)

    def _state(self) -> State:
        return {}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema, state

    def _numbers(self, features: Features) -> Floats:
        table = features.retrieved
        if table is None or self.column not in table.names:
            raise RouterError(
                f"router {self.kind!r} needs the feature {self.column!r} of each arm, which is missing"
            )
        numbers: Floats = table.values[:, :, table.names.index(self.column)]
        return numbers


class SourceFit(Router):
    """Scores an arm by how well the question fits its sources, as `features.similarity` says.

    Within `calibrated`, one weight is fitted to labels, and an offset for each arm. So it transfers from
    generated questions to real ones, which a router with a weight for each word or direction does not.
    """

    kind = "source_fit"
    reads_fit = True
    stage = Stage.QUESTION

    @property
    def params(self) -> Mapping[str, Any]:
        """Empty: there are no parameters."""
        return {}

    def _fit(self, labels: RoutingDataset) -> None:
        if labels.features.fit is None:
            raise RouterError("router 'source_fit' needs `features.similarity` in the configuration")

    def _scores(self, features: Features) -> Floats:
        if features.fit is None:
            raise RouterError("router 'source_fit' needs to know how well a question fits the sources")
        return features.fit

    def _state(self) -> State:
        return {}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema, state


class OverallSim(Similarity):
    """Scores an arm by the similarity of the question to the mean of its passages."""

    kind = column = "overall_sim"


class AvgSim(Similarity):
    """Scores an arm by the mean similarity of the question to its passages."""

    kind = column = "avg_sim"


class MaxSim(Similarity):
    """Scores an arm by the similarity of the question to its nearest passage."""

    kind = column = "max_sim"


class VarSim(Similarity):
    """Scores an arm by how little the similarities of its passages vary (minus the variance)."""

    kind = column = "var_sim"
    sign = -1.0


class Moran(Similarity):
    """Scores an arm by Moran's I: whether similar passages are about equally near the question."""

    kind = column = "moran"
