"""The deployments of arms, encoders and language models on Ray Serve, and the clients of their handles."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from armwise.arms import tracing
from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.deployments.arm_host import ArmHost, ArmSettings, Specs
from armwise.arms.deployments.embedders import Embedders
from armwise.arms.deployments.generator_host import AddressedGenerator
from armwise.arms.deployments.per_loop import PerLoop
from armwise.arms.llm import Chunk, Generator, GeneratorError, LlmSpec, Prompt

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle


class RemoteGenerator(Generator):
    """The client of a GeneratorHost."""

    def __init__(self, model: str, handle: "DeploymentHandle[Any]") -> None:
        self.model = model
        self._stream: PerLoop[Any] = PerLoop(lambda: copy(handle).options(stream=True).stream)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Yield the answer as it is written."""
        response: Any = self._stream.here().remote(prompt, tracing.carry())
        try:
            async for chunk in response:
                yield chunk
        except _ray_errors() as error:
            raise _local_error(error, GeneratorError) from None
        finally:
            response.cancel()

    async def close(self) -> None:
        """Do nothing: the engine belongs to the host."""


def open_generator(spec: LlmSpec, handle: "DeploymentHandle[Any] | None") -> Generator:
    """Return the client of a language model, which a host runs, or which has an address.

    Args:
        spec: The model.
        handle: Host of the model; None: it has none.

    Raises:
        GeneratorError: It cannot be asked, for instance because its key is not set.
    """
    return AddressedGenerator(spec) if handle is None else RemoteGenerator(spec.engine, handle)


class RemoteEmbedder:
    """The client of a deployed EmbedderHost."""

    def __init__(self, handle: "DeploymentHandle[Any]") -> None:
        self._embed: PerLoop[Any] = PerLoop(lambda: copy(handle).embed)

    async def embed(self, question: str) -> NDArray[np.float32]:
        """Return a unit vector of shape (dim,). Raises ArmError."""
        call = self._embed.here().remote(question, tracing.carry())
        vector: NDArray[np.float32] = await _await_result(call)
        return vector


class RemoteArmHost:
    """The client of an ArmReplica."""

    def __init__(self, handle: "DeploymentHandle[Any]") -> None:
        self._handle = handle

    async def load(self, arms: Mapping[str, Specs]) -> None:
        """Build arms in one replica. Raises ArmError."""
        await _await_result(self._handle.load.remote(arms))

    async def search(self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None) -> Retrieval:
        """Run one arm. Raises ArmError, UnknownArmError."""
        call = self._handle.search.remote(arm, key, query, k, specs, tracing.carry())
        retrieval: Retrieval = await _await_result(call)
        return retrieval

    async def search_version(
        self, arm: str, key: str, query: Query, k: int, specs: Specs | None = None
    ) -> Retrieval:
        """Run an arm, and check that its index has not changed. Raises ArmError, UnknownArmError."""
        call = self._handle.search_version.remote(arm, key, query, k, specs, tracing.carry())
        retrieval: Retrieval = await _await_result(call)
        return retrieval

    async def version(self, arm: str, key: str, specs: Specs | None = None) -> str | None:
        """Return the version of the index of an arm. Raises ArmError, UnknownArmError."""
        version: str | None = await _await_result(self._handle.version.remote(arm, key, specs))
        return version


class ArmReplica(ArmHost):
    """An ArmHost as a deployment.

    Args:
        settings: Settings from which arms are built.
        arms: Arms of the configuration, each with its members.
        live: Returns the arms to build at the start.
        embedders: Deployed encoders by name; others are loaded here when an arm first embeds its texts.
        spec: The language model.
        generator: Host of the language model; None: it has none.
    """

    def __init__(
        self,
        settings: ArmSettings,
        arms: Mapping[str, Specs],
        live: Callable[[], Mapping[str, Specs]],
        embedders: Mapping[str, "DeploymentHandle[Any]"],
        spec: LlmSpec,
        generator: "DeploymentHandle[Any] | None",
    ) -> None:
        deployed = {name: RemoteEmbedder(handle) for name, handle in embedders.items()}
        encoders = Embedders(settings.backbones, deployed)
        super().__init__(settings, arms, live, encoders, open_generator(spec, generator))


async def reach(hosts: Sequence["DeploymentHandle[Any]"]) -> None:
    """Wait until every host is ready, which may take minutes."""
    await asyncio.gather(*(host.ready.remote() for host in hosts))


async def _await_result(response: Awaitable[Any]) -> Any:
    """Return the result of a replica. Raises ArmError."""
    try:
        return await response
    except _ray_errors() as error:
        raise _local_error(error, ArmError) from None


def _ray_errors() -> tuple[type[Exception], ...]:
    """Return the errors of Ray, which is imported only when a handle is called."""
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    return RayError, RayServeException


def _local_error(error: Exception, kind: type[ArmError] | type[GeneratorError]) -> Exception:
    """Return the error that a replica raised, or an error of `kind` for one of Ray."""
    from ray.exceptions import RayTaskError

    cause = error.cause if isinstance(error, RayTaskError) else error
    return cause if isinstance(cause, kind) else kind(f"{type(cause).__name__}: {cause}")
