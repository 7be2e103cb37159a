"""The client of the hosts of arms, which runs any arm by name, wherever it is placed.

An arm that names a host runs in the deployment of that name. Of the others, light arms that do not embed run
in the process of the caller, and the rest in the deployment `Arms`, if there is one. Without Ray, the process
of the caller runs all arms.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval
from armwise.arms.deployments import retrieval_cache, spans
from armwise.arms.deployments.arm_host import ArmHost, Specs, UnbuiltArmError, digest_arm
from armwise.arms.deployments.embedders import Embedders
from armwise.arms.deployments.retrieval_cache import RetrievalCache
from armwise.arms.profile import Profiles, ProfileSpec
from armwise.arms.retrievers import DEFAULT_HOST, UNKNOWN, ArmGraph, NoRetrieval, is_settled
from armwise.arms.suggestions import did_you_mean

VERSION_S = 10.0
"""Seconds for which a read version of an index counts as current."""

ASK_S = 1.0
"""Longest time in seconds for a host to return the version of an index."""

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class SearchHost(Protocol):
    """Runs arms that are named by their keys: an `ArmHost`, or the handle of one."""

    async def load(self, arms: Mapping[str, Specs]) -> None:
        """Build arms, each with its members. Raises ArmError."""
        ...

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        """Run one arm; see `ArmHost.search`. Raises ArmError, UnknownArmError."""
        ...

    async def search_version(
        self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None
    ) -> Retrieval:
        """Run an arm, and check that its index has not changed. Raises ArmError, UnknownArmError."""
        ...

    async def version(self, arm: str, key: str, specs: Specs | None = None) -> str | None:
        """Return the version of the index of an arm; see `ArmHost.version`. Raises UnknownArmError."""
        ...


@dataclass(frozen=True)
class HostedArm:
    """An arm in its host, which knows the version of its index.

    Attributes:
        name: Name of the arm.
        host: The host that runs it.
        key: Key of the arm in its host.
        specs: The arm and its members, for a host that has not built it.
        is_versioned: Whether the version of its index can be known.
        source: Names of the corpora that it searches; without corpora its name.
    """

    name: str
    host: SearchHost
    key: str
    specs: Specs
    is_versioned: bool = False
    source: str = ""
    _version: list[tuple[float, str | None]] = field(default_factory=list, repr=False, compare=False)

    async def search(self, query: Query, k: int) -> Retrieval:
        """Search. Raises ArmError."""
        return await self._ask(self.host.search, query, k)

    async def search_version(self, query: Query, k: int) -> Retrieval:
        """Search; the version of the result is certain, or shows that it changed. Raises ArmError."""
        return await self._ask(self.host.search_version, query, k)

    async def version(self) -> str | None:
        """Return the version of its index, at most `VERSION_S` seconds old, if it is known."""
        now = asyncio.get_running_loop().time()
        if self._version and now - self._version[0][0] < VERSION_S:
            return self._version[0][1]
        try:
            async with asyncio.timeout(ASK_S):
                version = await self._ask(self.host.version)
        except (ArmError, TimeoutError):
            version = None
        self._version[:] = [(now, version)]
        return version

    async def _ask(self, method: Callable[..., Awaitable[Found]], *query: Any) -> Found:
        """Call a method of the host, again with the specifications if it has not built the arm."""
        try:
            return await method(self.name, self.key, *query)
        except UnbuiltArmError:
            return await method(self.name, self.key, *query, self.specs)


@dataclass(frozen=True)
class CachedArm:
    """A hosted arm whose results are cached under the version of its index.

    Attributes:
        arm: The arm.
        cache: The cache.
        searched: Hash of its pipeline, `ArmGraph.search_digest`.
    """

    arm: HostedArm
    cache: RetrievalCache
    searched: str

    async def search(self, query: Query, k: int) -> Retrieval:
        """Search, and cache the result if the version of its index is certain. Raises ArmError."""
        if not self.arm.is_versioned:
            retrieval = await self.arm.search(query, k)
            self._put(UNKNOWN, query, k, retrieval)
            return retrieval
        retrieval = await self.arm.search_version(query, k)
        if is_settled(retrieval.index_version):
            self._put(retrieval.index_version, query, k, retrieval)
        return retrieval

    def _put(self, version: str, query: Query, k: int, retrieval: Retrieval) -> None:
        if (key := retrieval_cache.make_key(self.searched, version, query, k)) is not None:
            self.cache.put(key, retrieval)

    async def recall(self, query: Query, k: int) -> Retrieval | None:
        """Return the cached result of the same search, if there is one."""
        version = await self.arm.version() if self.arm.is_versioned else UNKNOWN
        key = None if version is None else retrieval_cache.make_key(self.searched, version, query, k)
        return None if key is None else await self.cache.get(key)


class HostedArms:
    """Runs any arm by name, in this process or in the deployment that hosts it.

    Replaced arms stay known, so that turns that were decided before can still search.

    Args:
        here: The host in this process.
        deployed: The other hosts, by deployment; None: `here` runs all arms.
        embedders: Encoders of questions.
        specs: Every arm by name.
        cache: Stores the results of arms with `cache`, if given.

    Raises:
        ArmBuildError: An arm names a host that is missing.
    """

    def __init__(
        self,
        here: ArmHost,
        deployed: Mapping[str, SearchHost] | None,
        embedders: Embedders,
        specs: Specs,
        cache: RetrievalCache | None = None,
    ) -> None:
        self._here, self._deployed, self._embedders, self._cache = here, deployed, embedders, cache
        self._arms: dict[str, HostedArm | CachedArm | NoRetrieval] = {}
        self.know(specs)

    def _place_arms(self, graph: ArmGraph) -> dict[str, HostedArm]:
        """Return each arm in its host; `none` needs no host. Raises ArmBuildError."""
        placed: dict[str, HostedArm] = {}
        for name, spec in graph.specs.items():
            if spec.kind != "none" and spec.action:
                members = graph.closure(name)
                placed[name] = HostedArm(
                    name,
                    self._host(name, graph),
                    digest_arm(name, members),
                    members,
                    graph.is_versioned(name),
                    self._source(name, graph),
                )
        return placed

    def _source(self, name: str, graph: ArmGraph) -> str:
        corpora = self._here.corpora
        if len(corpora) == 1:
            return corpora[0]
        return ", ".join(sorted(graph.corpora(name) or {name}))

    def _host(self, name: str, graph: ArmGraph) -> SearchHost:
        host = graph.deployment(name, self._deployed)
        if host is None or self._deployed is None:
            return self._here
        if host not in self._deployed:
            there = did_you_mean(host, self._deployed)
            raise ArmBuildError(f"arm {name!r}: no deployment {host!r} hosts arms{there}")
        return self._deployed[host]

    def _lacks_deployment(self, name: str, graph: ArmGraph) -> bool:
        """Return whether an arm runs here only because its deployment does not exist."""
        if self._deployed is None or DEFAULT_HOST in self._deployed:
            return False
        return graph.deployment(name, [DEFAULT_HOST]) == DEFAULT_HOST

    async def load(self, specs: Specs) -> None:
        """Build these arms in a replica of each host, and load the encoders of their questions here.

        Raises:
            ArmError: An arm cannot be built.
        """
        graph, by_host = ArmGraph(specs), defaultdict[SearchHost, dict[str, Specs]](dict)
        for name, arm in self._place_arms(graph).items():
            by_host[arm.host][name] = arm.specs
        await self._embedders.load(graph.embeddings_of_actions())
        await asyncio.gather(*(host.load(arms) for host, arms in by_host.items()))

    def know(self, specs: Specs) -> None:
        """Add these arms, or replace those of the same names. Raises ArmBuildError."""
        graph = ArmGraph(specs)
        for name, arm in self._place_arms(graph).items():
            before = self._arms.get(name)
            same = arm == (before.arm if isinstance(before, CachedArm) else before)
            if not same and self._lacks_deployment(name, graph):
                logger.warning(
                    "arm %r of kind %r runs in the HTTP process: deployment %r exists only if an arm of the "
                    "configuration file needs it",
                    name,
                    specs[name].kind,
                    specs[name].host,
                )
            self._arms[name] = arm
            if self._cache is not None and specs[name].cache:
                self._arms[name] = CachedArm(arm, self._cache, graph.search_digest(name))
        self._arms |= {name: NoRetrieval(name) for name, spec in specs.items() if spec.kind == "none"}

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm. Raises ArmError."""
        hosted = self._arms[arm]
        if isinstance(hosted, NoRetrieval):
            return hosted.search(query, k)
        with spans.retrieval(_find_arm(hosted).source, arm, query.text, k) as span:
            retrieval = await hosted.search(query, k)
            spans.record_passages(span, retrieval.passages)
        return retrieval

    async def recall(self, arm: str, query: Query, k: int) -> Retrieval | None:
        """Return the cached result of the same search, if there is one.

        The query may lack embeddings.
        """
        hosted = self._arms[arm]
        if not isinstance(hosted, CachedArm):
            return None
        kept = await hosted.recall(query, k)
        if kept is not None:
            with spans.retrieval(hosted.arm.source, arm, query.text, k) as span:
                spans.record_passages(span, kept.passages, cached=True)
        return kept

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors of the passages in the corpus. Raises ArmError."""
        return await self._here.vectors(backbone, ids)

    async def profiles(self, specs: Specs, spec: ProfileSpec) -> Profiles:
        """Return the profiles of the sources of arms, as far as they were built. Raises ArmError."""
        return await self._here.profiles(specs, spec)

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids that the corpus has. Raises ArmError."""
        return await self._here.passages(ids)

    async def is_restricted(self) -> bool:
        """Return whether a passage of the corpus is restricted to groups. Raises ArmError."""
        return await self._here.is_restricted()


def _find_arm(hosted: HostedArm | CachedArm) -> HostedArm:
    return hosted.arm if isinstance(hosted, CachedArm) else hosted
