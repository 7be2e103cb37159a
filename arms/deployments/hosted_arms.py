"""The client of the hosts of arms, which runs any arm by name, wherever it is placed."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arms.base import Arm, ArmBuildError, NoRetrieval, Passage, Query, Retrieval
from arms.deployments import spans
from arms.deployments.arm_host import ArmHost, Specs, UnknownArmError, key_of
from arms.deployments.embedders import Embedders
from arms.deployments.placement import place
from arms.retrievers import catalog, closure
from arms.suggestions import did_you_mean

logger = logging.getLogger(__name__)


class SearchHost(Protocol):
    """Runs arms that are named by their keys: an `ArmHost`, or the handle of one."""

    async def load(self, arms: Mapping[str, Specs]) -> None:
        """Build arms, each with its members. Raises ArmError."""
        ...

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        """Run one arm; see `ArmHost.search`. Raises ArmError, UnknownArmError."""
        ...


@dataclass(frozen=True, slots=True)
class _Placed:
    """The host of an arm, and its key there."""

    host: SearchHost
    key: str
    specs: Specs


class HostedArms:
    """Runs any arm by name, in this process or in the deployment that hosts it.

    Replaced arms stay known, so that turns that were decided before can be searched.

    Args:
        here: The host in this process.
        deployed: The other hosts, by deployment.
        embedders: Encoders of questions.
        specs: Every arm by name.

    Raises:
        ArmBuildError: No host of that name runs an arm.
    """

    def __init__(
        self, here: ArmHost, deployed: Mapping[str, SearchHost], embedders: Embedders, specs: Specs
    ) -> None:
        self._here, self._deployed, self._embedders = here, deployed, embedders
        self._known: dict[str, _Placed | Arm] = {}
        self.know(specs)

    def of(self, specs: Specs) -> "HostedArms":
        """Return a client of the same hosts that knows other arms. Raises ArmBuildError."""
        return HostedArms(self._here, self._deployed, self._embedders, specs)

    def _described(self, specs: Specs) -> dict[str, _Placed | Arm]:
        """Return each arm's host; `none` needs no host. Raises ArmBuildError."""
        known: dict[str, _Placed | Arm] = {}
        for name, spec in specs.items():
            if spec.kind == "none":
                known[name] = NoRetrieval(name)
            elif spec.action:
                members = closure(name, specs)
                known[name] = _Placed(self._host(name, specs), key_of(name, members), members)
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
        with spans.retrieval(self._here.corpus, arm, query.text, k) as found:
            try:
                retrieval = await known.host.search(arm, known.key, query, k)
            except UnknownArmError:
                retrieval = await known.host.search(arm, known.key, query, k, known.specs)
            spans.found(found, retrieval.passages)
            return retrieval

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors of the passages in the corpus. Raises ArmError."""
        return await self._here.vectors(backbone, ids)

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Return those of these passages that are in the corpus. Raises ArmError."""
        return await self._here.passages(ids)

    async def restricted(self) -> bool:
        """Return whether any passage of the corpus is for some groups alone. Raises ArmError."""
        return await self._here.restricted()
