"""Fusion of several arms by the predicted relevance of their passages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from armwise.arms.base import Arm, ArmBuildError, Passage, Progress, Query, Retrieval
from armwise.arms.models import LocalModel, ModelNotFoundError, locate
from armwise.arms.relevance import RelevanceError, RelevanceModel, read_model
from armwise.arms.retrievers.kind import Kind, MemberNames, Members, Resources

PRETRAINED = "package:armwise/arms/relevance/pretrained"
"""The model of this package."""

ModelFolder = Annotated[
    LocalModel,
    Field(
        description="Folder that `armwise lab train --model relevance` wrote, or the built-in model.",
    ),
]
"""The model of relevance of an arm."""


class LearnedFusionParams(BaseModel):
    """Parameters of a learned fusion."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: MemberNames = Field(description="Arms whose passages are fused.")
    model: ModelFolder = PRETRAINED


class LearnedFusionArm:
    """Keep the most relevant passages of all members, as a model of relevance predicts.

    Args:
        name: The arm.
        members: In the order of `params.arms`.
        params: Parameters.
        model: Model of relevance; it knows those of the members by name that it was fitted to.
    """

    def __init__(
        self, name: str, members: Sequence[Arm], params: LearnedFusionParams, model: RelevanceModel
    ) -> None:
        self.name = name
        self.backbones = frozenset[str]().union(*(member.backbones for member in members))
        self._members = dict(zip(params.arms, members, strict=True))
        self._depth = model.header.k
        self._model = model

    def search(self, query: Query, k: int) -> Retrieval:
        """Search with all members; steps are the most of any, as they could run in parallel."""
        retrievals = {name: arm.search(query, max(k, self._depth)) for name, arm in self._members.items()}
        rankings = {name: retrieval.passages for name, retrieval in retrievals.items()}
        relevance = self._model.relevance(query.text, rankings)
        return Retrieval(
            passages=most_relevant(rankings, relevance, k),
            steps=max(retrieval.steps for retrieval in retrievals.values()),
            tokens=sum(retrieval.tokens for retrieval in retrievals.values()),
        )


def most_relevant(
    rankings: Mapping[str, Sequence[Passage]], relevance: Mapping[str, float], k: int
) -> tuple[Passage, ...]:
    """Return the k most relevant of some passages, scored by their relevance."""
    passages = {passage.id: passage for ranking in rankings.values() for passage in ranking}
    best = sorted(relevance, key=lambda name: (-relevance[name], name))[:k]
    return tuple(passages[name].replace_score(relevance[name]) for name in best)


def relevance_model(location: str) -> RelevanceModel:
    """Read a model of relevance. Raises ArmBuildError."""
    try:
        return read_model(Path(locate(location)))
    except (ModelNotFoundError, RelevanceError) as error:
        raise ArmBuildError(str(error)) from None


def _prepare(params: LearnedFusionParams, _: Resources, progress: Progress | None) -> None:
    del progress
    relevance_model(params.model)


def _build(name: str, params: LearnedFusionParams, _: Resources, member: Members) -> LearnedFusionArm:
    return LearnedFusionArm(
        name, [member(other) for other in params.arms], params, relevance_model(params.model)
    )


KIND = Kind(
    "learned_fusion",
    "ranks other arms' passages with a [model of relevance](#learned-fusion), and keeps the best",
    LearnedFusionParams,
    _build,
    _prepare,
    members=lambda params: params.arms,
    models=lambda params: (params.model,),
    libraries=("xgboost",),
    light=True,
    filters=True,
    example={"arms": ["bm25", "dense"]},
)
