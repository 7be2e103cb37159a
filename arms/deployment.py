"""Any arm, encoder or language model behind a Serve handle, and the near ends of those handles.

Arms of one kind share a deployment, so that each kind scales by itself. Work
that blocks runs in threads: the event loop of a replica stays free for health
checks and cancellation.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from arms.base import Arm, ArmError, Query, Retrieval
from arms.catalog import build_arm, prepare
from arms.corpus import ingest
from arms.embedding import Backbone, build_embedder
from arms.generator import Chunk, Generator, GeneratorError, Prompt
from arms.kinds import ArmSpec, Resources
from arms.llm import LlmSpec, build_generator

THREADS = max(2, os.cpu_count() or 2)
"""Searches that one replica runs at once."""


class ArmHost:
    """Hosts the arms of one kind; builds the indexes that they need and that are not there yet.

    Args:
        names: The arms.
        source: Where the corpus comes from, should it not be ingested yet.
        corpus: Folder of the ingested corpus.
        indexes: Folder of all indexes.
        backbones: Sentence encoders by name.
        specs: All arms of the configuration by name.
    """

    def __init__(
        self,
        names: Sequence[str],
        source: str,
        corpus: Path,
        indexes: Path,
        backbones: Mapping[str, Backbone],
        specs: Mapping[str, ArmSpec],
    ) -> None:
        resources = Resources(ingest(source, corpus), indexes, backbones, specs)
        prepare(resources, names)
        self._arms: Mapping[str, Arm] = {name: build_arm(name, resources) for name in names}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="search")

    async def ready(self) -> None:
        """Return: whoever hears it knows that the host is up."""

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm. Raises ArmError."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._arms[arm].search, query, k)


class EmbedderHost:
    """Embeds questions with one backbone; those that wait together are one batch."""

    def __init__(self, backbone: Backbone) -> None:
        self._embedder = build_embedder(backbone)

    async def ready(self) -> None:
        """Return: whoever hears it knows that the host is up."""

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def embed(self, questions: list[str]) -> list[NDArray[np.float32]]:
        """Return one unit vector a question, each of shape (dim,)."""
        return list(await asyncio.to_thread(self._embedder.encode_queries, questions))


class GeneratorHost:
    """Hosts a language model."""

    def __init__(self, spec: LlmSpec) -> None:
        self._generator = build_generator(spec)

    async def ready(self) -> None:
        """Return: whoever hears it knows that the host is up."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk


class RemoteGenerator(Generator):
    """The near end of a GeneratorHost: a generator like any other."""

    def __init__(self, model: str, handle: DeploymentHandle[Any]) -> None:
        self.model = model
        self._stream = handle.options(stream=True).stream

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written."""
        response: Any = self._stream.remote(prompt)
        try:
            async for chunk in response:
                yield chunk
        except (RayError, RayServeException) as error:
            raise _near(error, GeneratorError) from None
        finally:
            response.cancel()

    async def close(self) -> None:
        """Do nothing: the host owns the engine."""


class RemoteArms:
    """The near end of the ArmHosts: runs any arm by name.

    Args:
        handles: The host of each arm; local arms are given themselves.
    """

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any] | Arm]) -> None:
        self._handles = handles

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        """Run one arm. Raises ArmError."""
        handle = self._handles[arm]
        if not isinstance(
            handle, DeploymentHandle
        ):  # asking for an Arm would not tell: a handle has every attribute
            return handle.search(query, k)
        try:
            retrieval: Retrieval = await handle.search.remote(arm, query, k)
        except (RayError, RayServeException) as error:
            raise _near(error, ArmError) from None
        return retrieval


class RemoteEmbedders:
    """The near end of the EmbedderHosts: embeds a question with any backbone by name."""

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any]]) -> None:
        self._handles = handles

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        """Return a unit vector of shape (dim,) for each backbone. Raises ArmError."""
        names = sorted(backbones)
        try:
            vectors = await asyncio.gather(*(self._handles[name].embed.remote(question) for name in names))
        except (RayError, RayServeException) as error:
            raise _near(error, ArmError) from None
        return dict(zip(names, vectors, strict=True))


async def reach(hosts: Sequence[DeploymentHandle[Any]]) -> None:
    """Return once every host has answered; they may be loading for minutes."""
    await asyncio.gather(*(host.ready.remote() for host in hosts))


def _near(error: Exception, kind: type[ArmError] | type[GeneratorError]) -> Exception:
    """Return what a replica raised as itself, and what Ray raised about a replica as one of ours."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, kind) else kind(f"{type(cause).__name__}: {cause}")
