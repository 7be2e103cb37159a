"""The host of arms: builds them, and searches in threads.

The event loop of the process stays free for HTTP, health checks and cancellation.
"""

import asyncio
import contextvars
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from armwise.arms import tracing
from armwise.arms.async_bridge import Blocking
from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval, Usage
from armwise.arms.corpus import Corpus, CorpusError, CorpusSource, ingest_all
from armwise.arms.deployments.embedders import Embedders
from armwise.arms.indexes import IndexMismatchError, PassageVectors, prepare_vectors
from armwise.arms.llm import (
    Chunk,
    Generator,
    GeneratorError,
    Prompt,
    TokenPrices,
    Write,
    base,
    blocking_writer,
    most_tokens,
)
from armwise.arms.models import Backbone, ModelNotFoundError
from armwise.arms.profile import Profiles, ProfileSpec
from armwise.arms.retrievers import (
    METER,
    WAITING,
    ArmGraph,
    ArmSpec,
    ArmSpecError,
    Meter,
    OpenTrained,
    Resources,
    SourceAwayError,
    VersionedArm,
    build_versioned,
    no_selector,
    prepare,
    read_profiles,
)

THREADS = max(4, os.cpu_count() or 4)
"""Concurrent searches of each arm in a process."""

Specs = Mapping[str, ArmSpec]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class UnbuiltArmError(ArmError):
    """This host still has to build the arm, and needs its description."""


@dataclass(frozen=True)
class ArmSettings:
    """Settings from which every host builds its arms.

    Attributes:
        corpora: Sources of the passages, and the folders that they are ingested into.
        indexes: Folder of all indexes.
        backbones: Sentence encoders by name.
        limit_s: Seconds that an arm waits for an encoder, or for an answer of the model.
        open_selector: Opens a model that was trained for an arm.
        prices: Prices of the language model that arms prompt.
    """

    corpora: tuple[CorpusSource, ...]
    indexes: Path
    backbones: Mapping[str, Backbone]
    limit_s: float
    open_selector: OpenTrained = no_selector
    prices: TokenPrices = field(default_factory=TokenPrices)


class ArmHost:
    """Hosts arms, and builds them with their indexes when needed.

    The key of an arm is a hash of its description and its members', which distinguishes arms of the same
    name. Live arms are built at the start, others when they are loaded or first searched. Each arm has
    separate threads, so that waiting for a language model delays no other arm. The corpus is opened for the
    first arm.

    Args:
        settings: Settings from which arms are built.
        arms: Arms of the configuration, each with its members.
        live: Returns the arms to build at the start: these, or those that replaced them.
        embedders: Encoders of the texts that arms write.
        generator: The language model.
        looked_at: Backbones whose passage vectors are opened at the start; others are opened on first use.
    """

    def __init__(
        self,
        settings: ArmSettings,
        arms: Mapping[str, Specs],
        live: Callable[[], Mapping[str, Specs]],
        embedders: Embedders,
        generator: Generator,
        looked_at: frozenset[str] = frozenset(),
    ) -> None:
        self._settings, self._embedders, self._generator = settings, embedders, generator
        self._arms: dict[str, _Built] = {}
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="arm-builder")  # one arm at a time
        self._reader = ThreadPoolExecutor(THREADS, thread_name_prefix="vectors")
        self._vectors = {name: self._prepare_vectors(name) for name in looked_at}
        for name, specs in live().items():
            try:
                self._build(name, specs)
            except SourceAwayError as error:
                logger.warning("%s", error)  # other arms answer until it can be read
            except ArmBuildError as error:
                if arms.get(name) == specs:
                    raise
                logger.warning("%s", error)  # replicas continue with the arms that they serve

    @property
    def corpora(self) -> tuple[str, ...]:
        """The names of the corpora."""
        return tuple(corpus.folder.name for corpus in self._settings.corpora)

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def load(self, arms: Mapping[str, Specs]) -> None:
        """Build arms, each with its members, unless their source is away. Raises ArmBuildError."""
        for name, specs in arms.items():
            with suppress(SourceAwayError):
                await self._build_in_thread(name, specs)

    async def search(
        self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None, carried: str = ""
    ) -> Retrieval:
        """Run one arm.

        Args:
            arm: Name of the arm.
            key: Key of the search.
            query: The question.
            k: Passages to find.
            specs: The arm and its members, for a host that does not know the key.
            carried: Turn and span of a caller in another process, by `tracing.carry`.

        Raises:
            ArmError: The arm failed.
            UnknownArmError: The key is unknown, and `specs` is None.
        """
        return await self._search(await self._find_or_build(arm, key, specs), arm, query, k, carried)

    async def search_version(
        self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None, carried: str = ""
    ) -> Retrieval:
        """Run an arm like `search`, and check afterwards whether its index has changed meanwhile.

        If so, the version of the result names both versions.
        """
        built = await self._find_or_build(arm, key, specs)
        retrieval = await self._search(built, arm, query, k, carried)
        return await asyncio.get_running_loop().run_in_executor(
            built.pool, built.arm.check_version, retrieval
        )

    async def version(self, arm: str, key: str, specs: Specs | None = None) -> str | None:
        """Return the current version of the index of an arm; None: it is unknown, or about to change.

        Args:
            arm: Name of the arm.
            key: Key of the search.
            specs: The arm and its members, for a host that does not know the key.

        Raises:
            UnknownArmError: The key is unknown, and `specs` is None.
        """
        built = await self._find_or_build(arm, key, specs)
        return await asyncio.get_running_loop().run_in_executor(built.pool, built.arm.version)

    async def _find_or_build(self, arm: str, key: str, specs: Specs | None) -> "_Built":
        built = self._arms.get(key)
        if built is None:
            if specs is None:
                raise UnbuiltArmError(arm)
            built = await self._build_in_thread(arm, specs)
        return built

    async def _search(self, built: "_Built", arm: str, query: Query, k: int, carried: str) -> Retrieval:
        tracing.enter(carried, query.text)
        meter = Meter()
        context = contextvars.copy_context()  # what the arm prompts and embeds is of the same turn
        context.run(METER.set, meter)
        try:
            done = await asyncio.get_running_loop().run_in_executor(
                built.pool, context.run, built.arm.search, query, k
            )
            if not type(done.steps) is type(done.tokens) is int:  # an arm of one's own may estimate them
                done = replace(done, steps=round(done.steps), tokens=round(done.tokens))
            return replace(done, usage=sum(meter.spent, done.usage)) if meter.spent else done
        except asyncio.CancelledError:
            meter.abandoned = True  # the thread goes on, and may spend no more
            raise
        except ArmError as error:
            error.usage = meter.total
            raise
        except Exception as error:
            logger.exception("arm %r failed", arm)
            failure = ArmError(f"{type(error).__name__}: {error}")
            failure.usage = meter.total
            raise failure from error

    async def vectors(self, backbone: str, ids: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the unit vectors, shape (dim,), of passages in the corpus; missing ones are computed.

        Raises:
            ArmError: They cannot be read.
        """

        def read() -> dict[str, NDArray[np.float32]]:
            if backbone not in self._vectors:
                self._vectors[backbone] = self._prepare_vectors(backbone)
            return self._vectors[backbone].look_up(ids)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, read)
        except Exception as error:
            raise ArmError(
                f"cannot compute vectors of {backbone!r}: {type(error).__name__}: {error}"
            ) from error

    async def profiles(self, specs: Specs, spec: ProfileSpec) -> Profiles:
        """Return the profiles of the sources of arms, as far as they were built. Raises ArmError."""

        def read() -> Profiles:
            readable = ArmGraph(specs).keep_readable(self._resources.corpus.parts)
            return read_profiles(readable, spec, replace(self._resources, specs=readable))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, read)
        except Exception as error:
            raise ArmError(
                f"cannot compute the profiles of sources: {type(error).__name__}: {error}"
            ) from error

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids that the corpus has. Raises ArmError."""
        return await self._read_corpus(lambda corpus: corpus.passages(corpus.find_positions(ids).values()))

    async def is_restricted(self) -> bool:
        """Return whether a passage of the corpus is restricted to groups. Raises ArmError."""
        return await self._read_corpus(lambda corpus: corpus.restricted)

    async def _read_corpus(self, read: Callable[[Corpus], T]) -> T:
        """Read the corpus in a thread. Raises ArmError."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader, lambda: read(self._resources.corpus))
        except Exception as error:
            raise ArmError(f"cannot read passages of the corpus: {type(error).__name__}: {error}") from error

    @cached_property
    def _resources(self) -> Resources:
        settings, waiting = self._settings, Blocking(self._settings.limit_s)
        return Resources(
            ingest_all(settings.corpora, leave_out=True, least=0),
            settings.indexes,
            settings.backbones,
            {},
            lambda text, names: waiting.run(self._embedders.embed(text, names)),
            meter_calls(blocking_writer(waiting, self._generator), settings.prices),
            settings.open_selector,
            WAITING * settings.limit_s,
        )

    def _prepare_vectors(self, name: str) -> PassageVectors:
        corpus, indexes = self._resources.corpus, self._resources.indexes
        backbone = self._resources.backbones[name]
        prepare_vectors(corpus, indexes, backbone)
        return PassageVectors(corpus, indexes, backbone)

    async def _build_in_thread(self, name: str, specs: Specs) -> "_Built":
        return await asyncio.get_running_loop().run_in_executor(self._builder, self._build, name, specs)

    def _build(self, name: str, specs: Specs) -> "_Built":
        """Build an arm. Raises ArmBuildError."""
        key = digest_arm(name, specs)
        if key not in self._arms:
            try:
                resources, graph = replace(self._resources, specs=specs), ArmGraph(specs)
                graph.require_readable(name, resources.corpus.parts)
                prepare(resources, [name])
                arm = build_versioned(name, resources)
                self._embedders.open(graph.embeddings_of_texts(name))
            except SourceAwayError:
                raise
            except (
                ArmError,
                ArmSpecError,
                CorpusError,
                IndexMismatchError,
                ModelNotFoundError,
                ModuleNotFoundError,
            ) as error:
                raise ArmBuildError(f"arm {name!r} cannot be built: {error}") from error
            self._arms[key] = _Built(arm, ThreadPoolExecutor(THREADS, thread_name_prefix=name))
        return self._arms[key]


@dataclass(frozen=True, slots=True)
class _Built:
    """An arm and its threads."""

    arm: VersionedArm
    pool: ThreadPoolExecutor


def meter_calls(write: Write, prices: TokenPrices) -> Write:
    """Return a function that also counts the tokens that the language model reads and writes for a search.

    A call that ran out of time counts with the most that it may have read and written. An abandoned search
    may not prompt again.

    Args:
        write: Prompts the model.
        prices: Prices of its tokens.
    """

    def write_and_count(prompt: Prompt) -> tuple[str, Chunk]:
        meter = METER.get() or Meter()
        if meter.abandoned:
            raise GeneratorError("the caller no longer waits for this search")
        try:
            text, last = write(prompt)
        except base.GeneratorTimeoutError:
            read = sum(most_tokens(message["content"]) for message in prompt.messages)
            usd = prices.compute_usd(read, prompt.max_tokens)
            meter.spent.append(Usage(read, prompt.max_tokens, 0, usd))
            raise
        counts = last.prompt_tokens, last.completion_tokens, last.cached_tokens, last.usd
        meter.spent.append(Usage(*counts, cache_written_tokens=last.cache_written_tokens))
        return text, last

    return write_and_count


def digest_arm(name: str, specs: Specs) -> str:
    """Return a hash of an arm's name, its description and price, and its members'."""
    parts = ((n, s.kind, s.corpus, s.usd, sorted(s.params.items())) for n, s in sorted(specs.items()))
    facts = [name, *parts]
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()
