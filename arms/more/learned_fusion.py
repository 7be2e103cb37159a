"""Fusion of several arms by the predicted relevance of their passages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

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


class LearnedFusionArm(Kind[LearnedFusionParams]):
    """Ranks other arms' passages with a [model of relevance](#learned-fusion), and keeps the best.

    Args:
        name: The arm.
        members: In the order of `params.arms`.
        params: Parameters.
        model: Model of relevance; it knows those of the members by name that it was fitted to.
    """

    kind = "learned_fusion"
    params = LearnedFusionParams
    example: ClassVar = {"arms": ["bm25", "dense"]}
    libraries = ("xgboost",)
    light = filters = True

    def __init__(
        self, name: str, members: Sequence[Arm], params: LearnedFusionParams, model: RelevanceModel
    ) -> None:
        self.name = name
        self.backbones = frozenset[str]().union(*(member.backbones for member in members))
        self._members = dict(zip(params.arms, members, strict=True))
        self._depth = model.header.k
        self._model = model

    @classmethod
    @override
    def prepare(cls, params: LearnedFusionParams, have: Resources, progress: Progress | None) -> None:
        relevance_model(params.model)

    @classmethod
    @override
    def build(cls, name: str, params: LearnedFusionParams, have: Resources, member: Members) -> Self:
        return cls(name, [member(other) for other in params.arms], params, relevance_model(params.model))

    @override
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
