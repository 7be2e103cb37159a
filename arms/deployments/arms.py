"""Arms behind Serve handles, and the client of those handles.

Blocking work runs in threads: the event loop of a replica stays free for health checks and
cancellation.
"""

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from arms.async_bridge import Blocking
from arms.base import Arm, ArmBuildError, ArmError, NoRetrieval, Query, Retrieval
from arms.corpus import CorpusError, ingest
from arms.deployments.models import RemoteEmbedders, RemoteGenerator, local_error
from arms.indexes import IndexMismatchError, PassageVectors, Vectors
from arms.llm import blocking_writer
from arms.models import Backbone, ModelNotFoundError
from arms.retrievers import (
    DEFAULT_HOST,
    ArmSpec,
    ArmSpecError,
    OpenSelector,
    Resources,
    build_arm,
    closure,
    kind,
    prepare,
)
from arms.suggestions import did_you_mean

THREADS = max(4, os.cpu_count() or 4)
"""Concurrent searches of each arm in a replica."""

Specs = Mapping[str, ArmSpec]

logger = logging.getLogger(__name__)


class UnknownArmError(Exception):
    """This host has not built the arm yet, and needs its description."""


class ArmHost:
    """Hosts arms, and builds them with their indexes when needed.

    The key of an arm is a hash of its description and its members', so that two arms of one
    name are never confused. Live arms are built at the start, others when they are loaded or
    first searched. Each arm has threads of its own: one that waits for a language model
    does not delay another.

    Args:
        source: Source of the corpus, if it is not ingested yet.
        corpus: Folder of the ingested corpus.
        indexes: Folder of all indexes.
        backbones: Sentence encoders by name.
        arms: Arms of the configuration, each with its members.
        live: Returns the arms to build at the start: these, or those that replaced them.
        embedders: Hosts of the encoders, for texts that arms write.
        generator: Host of the language model.
        limit_s: Seconds that an arm waits for an encoder, or for an answer of the model.
        looked_at: Backbones whose passage vectors are served.
        open_selector: Opens a trained router that selects answers.
    """

    def __init__(
        self,
        source: str,
        corpus: Path,
        indexes: Path,
        backbones: Mapping[str, Backbone],
        arms: Mapping[str, Specs],
        live: Callable[[], Mapping[str, Specs]],
        embedders: Mapping[str, DeploymentHandle[Any]],
        generator: DeploymentHandle[Any],
        limit_s: float,
        looked_at: frozenset[str] = frozenset(),
        open_selector: OpenSelector = kind.no_selector,
    ) -> None:
        waiting, encoders = Blocking(limit_s), RemoteEmbedders(embedders)
        self._resources = Resources(
            ingest(source, corpus),
            indexes,
            backbones,
            {},
            lambda text, names: waiting.run(encoders.embed(text, names)),
            blocking_writer(waiting, RemoteGenerator("the language model", generator)),
            open_selector,
        )
        self._arms: dict[str, _Built] = {}
        self._building = threading.Lock()
        self._vectors = {name: self._prepared(name) for name in looked_at}
        for name, specs in live().items():
            try:
                self._build(name, specs)
            except ArmBuildError as error:
                if arms.get(name) == specs:
                    raise
                logger.warning("%s", error)  # replicas continue with the arms that they serve

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def load(self, arms: Mapping[str, Specs]) -> None:
        """Build arms, each with its members. Raises ArmBuildError."""
        for name, specs in arms.items():
            await asyncio.to_thread(self._build, name, specs)

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        """Run one arm.

        Args:
            arm: Its name.
            key: Its key.
            query: The question.
            k: Passages to find.
            specs: The arm and its members, for a host that does not know the key.

        Raises:
            ArmError: The arm failed.
            UnknownArmError: The key is unknown, and `specs` is None.
        """
        found = self._arms.get(key)
        if found is None:
            if specs is None:
                raise UnknownArmError(arm)
            found = await asyncio.to_thread(self._build, arm, specs)
        return await asyncio.get_running_loop().run_in_executor(found.pool, found.arm.search, query, k)

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors, shape (dim,), of the passages in the corpus, by one of `looked_at`."""
        return await asyncio.to_thread(self._vectors[backbone].of, ids)

    def _prepared(self, name: str) -> PassageVectors:
        corpus, indexes = self._resources.corpus, self._resources.indexes
        backbone = self._resources.backbones[name]
        Vectors.of(corpus, indexes, backbone).prepare(corpus, backbone)
        return PassageVectors(corpus, indexes, backbone)

    def _build(self, name: str, specs: Specs) -> "_Built":
        """Build an arm. Raises ArmBuildError."""
        key = key_of(name, specs)
        with self._building:
            if key not in self._arms:
                resources = replace(self._resources, specs=specs)
                try:
                    prepare(resources, [name])
                    arm = build_arm(name, resources)
                except (
                    ArmBuildError,
                    ArmSpecError,
                    CorpusError,
                    IndexMismatchError,
                    ModelNotFoundError,
                ) as error:
                    raise ArmBuildError(f"arm {name!r} cannot be built: {error}") from error
                self._arms[key] = _Built(arm, ThreadPoolExecutor(THREADS, thread_name_prefix=name))
            return self._arms[key]


@dataclass(frozen=True, slots=True)
class _Built:
    """An arm and its threads."""

    arm: Arm
    pool: ThreadPoolExecutor


def key_of(name: str, specs: Specs) -> str:
    """Return a hash of an arm's name, its description and its members'."""
    facts = [name, *((n, s.kind, sorted(s.params.items())) for n, s in sorted(specs.items()))]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _Hosted:
    """The host of an arm, and its key there."""

    host: DeploymentHandle[Any]
    key: str
    specs: Specs


class RemoteArms:
    """The client of the ArmHosts, which runs any arm by name.

    Replaced arms stay known, so that turns that were decided before can be searched.

    Args:
        hosts: The hosts by name.
        specs: Every arm by name.
    """

    def __init__(self, hosts: Mapping[str, DeploymentHandle[Any]], specs: Specs) -> None:
        self._hosts = hosts
        self._known = self._described(specs)

    def _described(self, specs: Specs) -> dict[str, _Hosted | Arm]:
        """Return each arm's host; `none` needs no host. Raises ArmBuildError."""
        known: dict[str, _Hosted | Arm] = {}
        for name, spec in specs.items():
            if spec.kind == "none":
                known[name] = NoRetrieval(name)
                continue
            if not spec.action:
                continue
            if spec.host not in self._hosts:
                there = did_you_mean(spec.host, self._hosts)
                raise ArmBuildError(f"arm {name!r}: no deployment {spec.host!r} hosts arms{there}")
            members = closure(name, specs)
            known[name] = _Hosted(self._hosts[spec.host], key_of(name, members), members)
        return known

    async def load(self, specs: Specs) -> None:
        """Build these arms in one replica of each host. Raises ArmError."""
        by_host: defaultdict[str, dict[str, Specs]] = defaultdict(dict)
        for name, arm in self._described(specs).items():
            if isinstance(arm, _Hosted):
                by_host[specs[name].host][name] = arm.specs
        try:
            await asyncio.gather(*(self._hosts[host].load.remote(arms) for host, arms in by_host.items()))
        except (RayError, RayServeException) as error:
            raise local_error(error, ArmError) from None

    def know(self, specs: Specs) -> None:
        """Add these arms, or replace those of the same names. Raises ArmBuildError."""
        self._known.update(self._described(specs))

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm. Raises ArmError."""
        known = self._known[arm]
        if not isinstance(known, _Hosted):
            return known.search(query, k)
        search = known.host.search
        try:
            try:
                retrieval: Retrieval = await search.remote(arm, known.key, query, k)
            except RayTaskError as error:
                if not isinstance(error.cause, UnknownArmError):
                    raise
                retrieval = await search.remote(arm, known.key, query, k, known.specs)
        except (RayError, RayServeException) as error:
            raise local_error(error, ArmError) from None
        return retrieval

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors of the passages in the corpus. Raises ArmError."""
        vectors = self._hosts[DEFAULT_HOST].vectors
        try:
            found: dict[str, NDArray[np.float32]] = await vectors.remote(backbone, ids)
        except (RayError, RayServeException) as error:
            raise local_error(error, ArmError) from None
        return found
