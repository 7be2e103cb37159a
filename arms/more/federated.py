"""Federated search: the sources that fit a question best are asked in turn, until it has found enough.

It needs no label: sources are ordered by the score of the service's router where there is one, else by how
well the question fits the profile of each (`armwise.arms.profile`); what is found is ranked, and judged, by a
model of relevance.

Source: Shokouhi and Si 2011, Federated search, Foundations and Trends in Information Retrieval 5(1):
resource selection, then the merging of results.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, ArmError, Passage, Progress, Query, Retrieval, StageRun
from armwise.arms.more.learned_fusion import PRETRAINED, ModelFolder, most_relevant, relevance_model
from armwise.arms.profile import Profiles, ProfileSpec, similarities
from armwise.arms.relevance import RelevanceModel
from armwise.arms.retrievers.kind import Kind, MemberNames, Members, Resources
from armwise.arms.retrievers.profiles import prepare_profiles, read_profiles
from armwise.number import Number

logger = logging.getLogger(__name__)

JUDGED = 2
"""The most relevant passages, whose mean relevance says whether enough was found: some questions need two."""


DEPTH = 8
"""Passages of each member that are ranked, at least k."""


class FederatedParams(BaseModel):
    """Parameters of a federated search."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: MemberNames = Field(description="Arms to choose among, such as one per source.")
    profile: ProfileSpec = Field(
        ProfileSpec(),
        description="How sources are compared with a question. What `features.similarity` built is shared.",
    )
    most: int = Field(2, ge=1, description="Maximum arms to ask.")
    enough: Number | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description=(
            "Once the mean predicted relevance of the two best passages reaches this value, no further arm "
            "is asked. Null always asks `most` arms."
        ),
    )
    model: ModelFolder = PRETRAINED


class FederatedArm(Kind[FederatedParams]):
    """Asks the [sources that fit the question best](#federated-search), until it has found enough.

    The most relevant passages of all are kept. A member that fails is left out, and the next one asked in
    its place. Steps are those of all that were asked, as each waits for the one before. It counts as an arm
    that draws: the scores of the router, which change, decide which sources are asked.

    Args:
        name: The arm.
        members: In the order of `params.arms`.
        params: Parameters.
        profiles: The profiles of the sources of each member.
        model: Model of relevance.
    """

    kind = "federated"
    params = FederatedParams
    example: ClassVar = {"arms": ["bm25", "dense"]}
    libraries = ("xgboost",)
    light = filters = draws = True

    def __init__(
        self,
        name: str,
        members: Sequence[Arm],
        params: FederatedParams,
        profiles: Profiles,
        model: RelevanceModel,
    ) -> None:
        self.name = name
        self.backbones = frozenset(self.encoders(params)).union(*(member.backbones for member in members))
        self._members = dict(zip(params.arms, members, strict=True))
        self._params, self._profiles, self._model = params, profiles, model

    @classmethod
    @override
    def encoders(cls, params: FederatedParams) -> tuple[str, ...]:
        return () if params.profile.backbone is None else (params.profile.backbone,)

    @classmethod
    @override
    def steps(cls, params: FederatedParams) -> float:
        return float(min(params.most, len(params.arms)))

    @classmethod
    @override
    def searches(cls, params: FederatedParams, member: str) -> float:
        return cls.steps(params) / len(params.arms)

    @classmethod
    @override
    def prepare(cls, params: FederatedParams, have: Resources, progress: Progress | None) -> None:
        relevance_model(params.model)
        prepare_profiles(params.arms, params.profile, have, progress)

    @classmethod
    @override
    def build(cls, name: str, params: FederatedParams, have: Resources, member: Members) -> Self:
        profiles = read_profiles(params.arms, params.profile, have)
        for other in params.arms:
            if not profiles.get(other):
                logger.warning(
                    "arm %r: member %r has no profile, so the mean of the others is used", name, other
                )
        members = [member(other) for other in params.arms]
        return cls(name, members, params, profiles, relevance_model(params.model))

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Search, with a stage of the result for each member that was asked.

        Raises:
            ArmError: Every member has failed.
        """
        params = self._params
        rankings: dict[str, tuple[Passage, ...]] = {}
        relevance: dict[str, float] = {}
        runs, errors = list[StageRun](), dict[str, ArmError]()
        for name in self._order_members(query):
            if len(rankings) == params.most:
                break
            try:
                retrieval = self._members[name].search(query, max(k, DEPTH))
            except ArmError as error:
                errors[name] = error
                runs.append(StageRun((name,), (name,), 0, 0))
                continue
            rankings[name] = retrieval.passages
            relevance = self._model.relevance(query.text, rankings)
            best = sorted(relevance.values(), reverse=True)[:JUDGED]
            enough = sum(best) / JUDGED
            runs.append(StageRun((name,), (), retrieval.steps, retrieval.tokens, name, enough))
            if params.enough is not None and enough >= params.enough:
                break
        if not rankings:
            raise ArmError(
                f"every member of arm {self.name!r} failed: "
                + "; ".join(f"{name}: {error}" for name, error in errors.items())
            )
        return Retrieval(
            passages=most_relevant(rankings, relevance, k),
            steps=sum(run.steps for run in runs),
            tokens=sum(run.tokens for run in runs),
            stages=tuple(runs),
        )

    def _order_members(self, query: Query) -> list[str]:
        """Return the members, the one that fits best first; of equal ones, in the order of the parameters."""
        fit: Mapping[str, float] = query.expected
        if not self._members.keys() <= fit.keys():
            backbone = self._params.profile.backbone
            vector = None if backbone is None else query.embedding(backbone, arm=self.name)
            fit = similarities(self._profiles, query.text, vector)
        return sorted(self._members, key=lambda name: -fit.get(name, 0.0))
