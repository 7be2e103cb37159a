"""Train-free routers: the arm whose passages look best by one number is asked."""

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from agent.routers.base import Router, Schema, State
from agent.routers.dataset import Features, Floats, RouterError, RoutingDataset, Stage

LAST = -2.0
"""Score of an arm without the number: below all others, which are cosines or variances of cosines."""


class Similarity(Router, ABC):
    """Scores an arm with one number of what it retrieved; an arm without that number comes last.

    Fitting only checks that the number is there. The number itself is the score, or its negative where a
    small one is better, so that scores of different questions do not compare.

    Attributes:
        column: Name of the number among what retrieval tells of an arm.
        sign: 1 where a large number is better, -1 where a small one is.

    Source: Kim, Diaz et al., LTRR: Learning to Rank Retrievers for LLMs (2025), arXiv:2506.13743, section
    on train-free routing.
    """

    stage = Stage.RETRIEVED
    column: ClassVar[str]
    sign: ClassVar[float] = 1.0

    @property
    def params(self) -> Mapping[str, Any]:
        """None."""
        return {}

    def _fit(self, labels: RoutingDataset) -> None:
        self._numbers(labels.features)

    def _scores(self, features: Features) -> Floats:
        return np.nan_to_num(self.sign * self._numbers(features), nan=LAST)

    def _state(self) -> State:
        return {}

    def _restore(self, schema: Schema, state: State) -> None:
        del schema, state

    def _numbers(self, features: Features) -> Floats:
        table = features.retrieved
        if table is None or self.column not in table.names:
            raise RouterError(
                f"router {self.kind!r} looks at {self.column!r} of each arm, which is not there"
            )
        numbers: Floats = table.values[:, :, table.names.index(self.column)]
        return numbers


class OverallSim(Similarity):
    """Asks the arm whose mean passage is nearest to the question."""

    kind = column = "overall_sim"


class AvgSim(Similarity):
    """Asks the arm whose passages are nearest to the question on average."""

    kind = column = "avg_sim"


class MaxSim(Similarity):
    """Asks the arm that has the passage nearest to the question."""

    kind = column = "max_sim"


class VarSim(Similarity):
    """Asks the arm whose passages are most equally near to the question."""

    kind = column = "var_sim"
    sign = -1.0


class Moran(Similarity):
    """Asks the arm whose passages are near to the question where those like them are."""

    kind = column = "moran"


HEURISTICS = (OverallSim, AvgSim, MaxSim, VarSim, Moran)
"""The five of the paper."""
