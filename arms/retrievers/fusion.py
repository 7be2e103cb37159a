"""Reciprocal rank fusion of the rankings of several arms."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from armwise.arms.base import Arm, Passage, Query, Retrieval
from armwise.arms.retrievers.kind import Kind, MemberNames, Members, Resources

CONSTANT = 60.0
"""Constant added to each rank: the larger, the less the first ranks outweigh the next."""

DEPTH = 10
"""Passages of each search that is fused, at least k."""


class FusionParams(BaseModel):
    """Parameters of a fused arm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arms: MemberNames = Field(description="Arms whose rankings are fused.")
    depth: int = Field(
        DEPTH,
        ge=1,
        description=(
            "Number of passages to take from each arm, at least `k`. With a larger depth, a passage that "
            "all arms rank in the middle can beat a passage that only one arm ranks first."
        ),
    )


class FusionArm(Kind[FusionParams]):
    """Fuses the rankings of other arms by reciprocal rank.

    A passage scores the sum of 1 / (CONSTANT + rank) over the members that found it.

    Source: Cormack et al. 2009, Reciprocal rank fusion outperforms Condorcet and
    individual rank learning methods, SIGIR.
    """

    kind = "rrf"
    params = FusionParams
    example: ClassVar = {"arms": ["bm25", "dense"]}
    light = filters = True

    def __init__(self, name: str, members: Sequence[Arm], params: FusionParams) -> None:
        self.name = name
        self.backbones = frozenset[str]().union(*(member.backbones for member in members))
        self._members = tuple(members)
        self._params = params

    @classmethod
    @override
    def build(cls, name: str, params: FusionParams, have: Resources, member: Members) -> Self:
        return cls(name, [member(other) for other in params.arms], params)

    @override
    def search(self, query: Query, k: int) -> Retrieval:
        """Fuse the rankings of all members; steps are the most of any, as they could run in parallel."""
        answers = [member.search(query, max(k, self._params.depth)) for member in self._members]
        return Retrieval(
            passages=fuse([answer.passages for answer in answers])[:k],
            steps=max(answer.steps for answer in answers),
            tokens=sum(answer.tokens for answer in answers),
        )


def fuse(rankings: Sequence[Sequence[Passage]]) -> tuple[Passage, ...]:
    """Return all passages of the rankings, best fused score first, ties broken by id.

    >>> a, b = Passage("a", "", "one"), Passage("b", "", "two")
    >>> [(p.id, p.score) for p in fuse([[a, b], [b]])]
    [('b', 0.03252247488101534), ('a', 0.01639344262295082)]
    """
    shares: defaultdict[str, list[float]] = defaultdict(list)
    passages: dict[str, Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            shares[passage.id].append(1.0 / (CONSTANT + rank))
            passages[passage.id] = passage
    # fsum: the order of the members must not affect ties
    fused = [passages[name].replace_score(math.fsum(parts)) for name, parts in shares.items()]
    return tuple(sorted(fused, key=lambda passage: (-passage.score, passage.id)))
