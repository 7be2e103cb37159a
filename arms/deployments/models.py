"""An encoder or a language model behind a Serve handle, and the clients of those handles."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from arms.base import ArmError
from arms.llm import Chunk, Generator, GeneratorError, LlmSpec, Prompt, build_generator
from arms.models import Backbone, build_embedder


class EmbedderHost:
    """Embeds questions with one backbone, in batches."""

    def __init__(self, backbone: Backbone) -> None:
        self._embedder = build_embedder(backbone)

    async def ready(self) -> None:
        """Return once the host is ready."""

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.0)
    async def embed(self, questions: list[str]) -> list[NDArray[np.float32]]:
        """Return one unit vector per question, each of shape (dim,)."""
        return list(await asyncio.to_thread(self._embedder.encode_queries, questions))


class GeneratorHost:
    """Hosts a language model."""

    def __init__(self, spec: LlmSpec) -> None:
        self._generator = build_generator(spec)

    async def ready(self) -> None:
        """Return once the host is ready."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written. Raises GeneratorError."""
        async with aclosing(self._generator.stream(prompt)) as chunks:
            async for chunk in chunks:
                yield chunk


class RemoteGenerator(Generator):
    """The client of a GeneratorHost."""

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
            raise local_error(error, GeneratorError) from None
        finally:
            response.cancel()

    async def close(self) -> None:
        """Do nothing: the engine belongs to the host."""


class RemoteEmbedders:
    """The client of the EmbedderHosts, which embeds a question with any backbone by name."""

    def __init__(self, handles: Mapping[str, DeploymentHandle[Any]]) -> None:
        self._handles = handles

    async def embed(self, question: str, backbones: frozenset[str]) -> dict[str, NDArray[np.float32]]:
        """Return a unit vector of shape (dim,) for each backbone. Raises ArmError."""
        names = sorted(backbones)
        try:
            vectors = await asyncio.gather(*(self._handles[name].embed.remote(question) for name in names))
        except (RayError, RayServeException) as error:
            raise local_error(error, ArmError) from None
        return dict(zip(names, vectors, strict=True))


async def reach(hosts: Sequence[DeploymentHandle[Any]]) -> None:
    """Wait until every host is ready, which may take minutes."""
    await asyncio.gather(*(host.ready.remote() for host in hosts))


def local_error(error: Exception, kind: type[ArmError] | type[GeneratorError]) -> Exception:
    """Return the error that a replica raised, or an error of `kind` for one of Ray."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, kind) else kind(f"{type(cause).__name__}: {cause}")
