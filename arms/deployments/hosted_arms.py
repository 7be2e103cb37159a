"""The client of the hosts of arms, which runs any arm by name, wherever it is placed."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arms.base import Arm, ArmBuildError, ArmError, NoRetrieval, Passage, Query, Retrieval
from arms.deployments import retrieval_cache, spans
from arms.deployments.arm_host import ArmHost, Specs, UnknownArmError, key_of
from arms.deployments.embedders import Embedders
from arms.deployments.placement import place
from arms.deployments.retrieval_cache import RetrievalCache
from arms.retrievers import catalog, closure, index_version
from arms.suggestions import did_you_mean

VERSION_S = 10.0
"""Seconds for which the version of an index is taken for the present one."""

ASK_S = 1.0
"""Seconds that a host may take to name the version of an index."""

logger = logging.getLogger(__name__)


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
        """Run one arm, and see that its index has not changed. Raises ArmError, UnknownArmError."""
        ...

    async def version(self, arm: str, key: str, specs: Specs | None = None) -> str | None:
        """Return the version of the index of an arm; see `ArmHost.version`. Raises UnknownArmError."""
        ...


@dataclass(frozen=True, slots=True)
class _Placed:
    """The host of an arm, and its key there.

    Attributes:
        searched: Hash of what it searches and how, where that is to be kept; else empty.
        versioned: Whether the version of its index can be known.
    """

    host: SearchHost
    key: str
    specs: Specs
    searched: str = ""
    versioned: bool = False


class HostedArms:
    """Runs any arm by name, in this process or in the deployment that hosts it.

    Replaced arms stay known, so that turns that were decided before can be searched.

    Args:
        here: The host in this process.
        deployed: The other hosts, by deployment.
        embedders: Encoders of questions.
        specs: Every arm by name.
        cache: Keeps what arms with `cache` find; None keeps nothing.

    Raises:
        ArmBuildError: No host of that name runs an arm.
    """

    def __init__(
        self,
        here: ArmHost,
        deployed: Mapping[str, SearchHost],
        embedders: Embedders,
        specs: Specs,
        cache: RetrievalCache | None = None,
    ) -> None:
        self._here, self._deployed, self._embedders, self._cache = here, deployed, embedders, cache
        self._known: dict[str, _Placed | Arm] = {}
        self._versions: dict[str, tuple[float, str | None]] = {}
        self.know(specs)

    def of(self, specs: Specs) -> "HostedArms":
        """Return a client of the same hosts that knows other arms. Raises ArmBuildError."""
        return HostedArms(self._here, self._deployed, self._embedders, specs, self._cache)

    def _described(self, specs: Specs) -> dict[str, _Placed | Arm]:
        """Return each arm's host; `none` needs no host. Raises ArmBuildError."""
        known: dict[str, _Placed | Arm] = {}
        for name, spec in specs.items():
            if spec.kind == "none":
                known[name] = NoRetrieval(name)
            elif spec.action:
                members = closure(name, specs)
                known[name] = _Placed(
                    self._host(name, specs),
                    key_of(name, members),
                    members,
                    index_version.search_digest(name, specs) if spec.cache else "",
                    index_version.is_versioned(name, specs),
                )
        return known

    def _host(self, name: str, specs: Specs) -> SearchHost:
        host = place(name, specs, self._deployed)
        if host is None:
            return self._here
        if host not in self._deployed:
            there = did_you_mean(host, self._deployed)
            raise ArmBuildError(f"arm {name!r}: no deployment {host!r} hosts arms{there}")
        return self._deployed[host]

    async def load(self, specs: Specs) -> None:
        """Build these arms in one replica of each host, and load what embeds their questions here.

        Raises:
            ArmError: One of them cannot be built.
        """
        by_host: defaultdict[SearchHost, dict[str, Specs]] = defaultdict(dict)
        for name, arm in self._described(specs).items():
            if isinstance(arm, _Placed):
                by_host[arm.host][name] = arm.specs
        await self._embedders.load(catalog.embeddings_of_actions(specs))
        await asyncio.gather(*(host.load(arms) for host, arms in by_host.items()))

    def know(self, specs: Specs) -> None:
        """Add these arms, or replace those of the same names. Raises ArmBuildError."""
        described = self._described(specs)
        for name, arm in described.items():
            heavy = isinstance(arm, _Placed) and arm.host is self._here and not catalog.is_light(name, specs)
            if heavy and arm != self._known.get(name):
                logger.warning(
                    "arm %r of kind %r is not light, and searches beside HTTP: the deployment %r exists only "
                    "where an arm of the configuration file needs it",
                    name,
                    specs[name].kind,
                    specs[name].host,
                )
        self._known.update(described)

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm. Raises ArmError."""
        known = self._known[arm]
        if not isinstance(known, _Placed):
            return known.search(query, k)
        is_kept = self._cache is not None and known.searched and known.versioned
        search = known.host.search_version if is_kept else known.host.search
        with spans.retrieval(self._here.corpus, arm, query.text, k) as found:
            try:
                retrieval = await search(arm, known.key, query, k)
            except UnknownArmError:
                retrieval = await search(arm, known.key, query, k, known.specs)
            spans.found(found, retrieval.passages)
        self._keep(known, query, k, retrieval)
        return retrieval

    def _keep(self, known: _Placed, query: Query, k: int, found: Retrieval) -> None:
        """Keep what was found, where that is wanted and the version of its index is certain."""
        version = found.index_version if known.versioned else index_version.UNKNOWN
        if self._cache is None or not known.searched:
            return
        if known.versioned and not index_version.is_settled(version):
            return
        if (key := retrieval_cache.key_of(known.searched, version, query, k)) is not None:
            self._cache.put(key, found)

    async def recall(self, arm: str, query: Query, k: int) -> Retrieval | None:
        """Return what the same search has found before; None where it has to be made.

        The query needs no embeddings.
        """
        known = self._known[arm]
        if self._cache is None or not isinstance(known, _Placed) or not known.searched:
            return None
        version = await self._version(arm, known) if known.versioned else index_version.UNKNOWN
        key = None if version is None else retrieval_cache.key_of(known.searched, version, query, k)
        found = None if key is None else await self._cache.get(key)
        if found is not None:
            with spans.retrieval(self._here.corpus, arm, query.text, k) as made:
                spans.found(made, found.passages, cached=True)
        return found

    async def _version(self, arm: str, known: _Placed) -> str | None:
        """Return the version of the index of an arm, at most `VERSION_S` seconds old; None if unknown."""
        now = asyncio.get_running_loop().time()
        asked_at, version = self._versions.get(known.key, (-VERSION_S, None))
        if now - asked_at < VERSION_S:
            return version
        try:
            async with asyncio.timeout(ASK_S):
                try:
                    version = await known.host.version(arm, known.key)
                except UnknownArmError:
                    version = await known.host.version(arm, known.key, known.specs)
        except (ArmError, TimeoutError):
            version = None
        self._versions[known.key] = now, version
        return version

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors of the passages in the corpus. Raises ArmError."""
        return await self._here.vectors(backbone, ids)

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Return those of these passages that are in the corpus. Raises ArmError."""
        return await self._here.passages(ids)

    async def restricted(self) -> bool:
        """Return whether any passage of the corpus is for some groups alone. Raises ArmError."""
        return await self._here.restricted()
