"""Searches before the draw, for a router that reads passages.

Every eligible arm searches, and every search is charged; the drawn arm answers from its probe.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import UNUSED, ArmError, Query, Retrieval

Embeddings = Mapping[str, NDArray[np.float32]]

Embed = Callable[[str, frozenset[str]], Awaitable[Embeddings]]

Recall = Callable[[str, Query, int], Awaitable[Retrieval | None]]
"""Arm, query (without embeddings) and k -> the cached retrieval of the same search, if there is one."""

Search = Callable[[str, Query, int], Awaitable[Retrieval]]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Probes:
    """Results of the searches before a draw.

    Attributes:
        found: Retrievals of the arms that answered.
        failed: Errors of the arms that failed.
        seconds: Sum of the seconds of all searches and embeddings.
    """

    found: Mapping[str, Retrieval] = field(default_factory=dict)
    failed: Mapping[str, ArmError | TimeoutError] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        """Rounds of retrieval, summed over the arms."""
        return sum(retrieval.steps for retrieval in self.found.values())

    def get(self, arm: str) -> Retrieval | None:
        """Return the retrieval of an arm, None if it did not search. Raises the error that it failed with."""
        if arm in self.failed:
            raise self.failed[arm]
        return self.found.get(arm)


UNPROBED = Probes()
"""The probes of a turn without searches before the draw."""


async def recall_nothing(arm: str, query: Query, k: int) -> None:
    """Return None: a service without a cache of retrievals."""


async def probe(
    query: Query,
    k: int,
    needs: Mapping[str, frozenset[str]],
    embed: Embed,
    search: Search,
    limit_s: float,
    recall: Recall = recall_nothing,
    searched: Mapping[str, str] = MappingProxyType({}),
) -> Probes:
    """Search with all arms concurrently; the question is embedded once per backbone.

    Of arms that search the same, one searches and is charged; a cached retrieval replaces the search.

    Args:
        query: The question, with the embeddings computed so far.
        k: Passages to find.
        needs: Backbones that an arm needs, by arm.
        embed: Embeds the question.
        search: Runs an arm.
        limit_s: Seconds that each embedding, and each search, may take.
        recall: Returns a cached retrieval.
        searched: Hash of what an arm searches and how, by arm; an arm with an empty hash searches by itself.
    """

    async def embed_with(backbone: str) -> tuple[float, Embeddings | ArmError | TimeoutError]:
        return await _attempt(embed(query.text, frozenset({backbone})), limit_s)

    async def find(arm: str) -> tuple[float, Retrieval | ArmError | TimeoutError]:
        for backbone in sorted(needs[arm] & failures.keys()):
            return 0.0, failures[backbone]
        return await _attempt(search(arm, query, k), limit_s)

    first: dict[str, str] = {}  # of the arms that search the same
    for arm in needs:
        first.setdefault(searched.get(arm) or arm, arm)
    leaders = [*first.values()]
    started = time.perf_counter()
    recalled = dict(
        zip(leaders, await asyncio.gather(*(recall(arm, query, k) for arm in leaders)), strict=True)
    )
    looked_s = time.perf_counter() - started
    unknown = [arm for arm, kept in recalled.items() if kept is None]
    missing = sorted(frozenset[str]().union(*(needs[arm] for arm in unknown)) - query.embeddings.keys())
    vectors = dict(zip(missing, await asyncio.gather(*map(embed_with, missing)), strict=True))
    failures = {name: got for name, (_, got) in vectors.items() if isinstance(got, Exception)}
    embeddings = {name: got[name] for name, (_, got) in vectors.items() if not isinstance(got, Exception)}
    query = replace(query, embeddings={**query.embeddings, **embeddings})
    tried = dict(zip(unknown, await asyncio.gather(*map(find, unknown)), strict=True))
    retrievals = {arm: kept for arm, kept in recalled.items() if kept is not None}
    retrievals |= {arm: got for arm, (_, got) in tried.items() if isinstance(got, Retrieval)}
    failed = {arm: got for arm, (_, got) in tried.items() if not isinstance(got, Retrieval)}
    for arm in needs:
        leader = first[searched.get(arm) or arm]
        if leader in failed:
            failed[arm] = failed[leader]
        elif arm != leader:
            retrievals[arm] = replace(retrievals[leader], steps=0, tokens=0, usage=UNUSED)
    return Probes(
        {arm: retrievals[arm] for arm in needs if arm in retrievals},
        {arm: failed[arm] for arm in needs if arm in failed},
        looked_s + sum(seconds for seconds, _ in (*vectors.values(), *tried.values())),
    )


async def _attempt(call: Awaitable[T], limit_s: float) -> tuple[float, T | ArmError | TimeoutError]:
    """Return the seconds that an awaitable took, and its result or error."""
    started = time.perf_counter()
    result: T | ArmError | TimeoutError
    try:
        async with asyncio.timeout(limit_s):
            result = await call
    except (ArmError, TimeoutError) as error:
        result = error
    return time.perf_counter() - started, result
