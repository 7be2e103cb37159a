"""Clients of Ray Serve handles: errors of a replica and of Ray are those of an arm or of the model."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError

from arms.base import ArmError, Query, Retrieval
from arms.deployments import RemoteArmHost, RemoteEmbedder
from arms.deployments.arm_host import UnknownArmError

QUERY = Query("Where is the sea?")


def handle(result: object) -> Any:
    """Return a handle whose methods return this, or raise it."""

    async def answer(*_: object) -> object:
        if isinstance(result, Exception):
            raise result
        return result

    method = SimpleNamespace(remote=answer)
    return SimpleNamespace(search=method, search_version=method, version=method, load=method, embed=method)


def raised(cause: Exception) -> RayTaskError:
    """Return what Ray raises where a replica raised the cause."""
    return RayTaskError("search", "a trace", cause)


async def test_what_a_replica_returns_is_returned() -> None:
    assert await RemoteArmHost(handle(Retrieval())).search("a", "key", QUERY, 1) == Retrieval()
    assert await RemoteArmHost(handle(Retrieval())).search_version("a", "key", QUERY, 1) == Retrieval()
    assert await RemoteArmHost(handle("a1")).version("a", "key") == "a1"
    assert np.array_equal(await RemoteEmbedder(handle(np.ones(2))).embed("x"), np.ones(2))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (raised(ArmError("no index")), ArmError, "^no index$"),
        (raised(UnknownArmError("a")), UnknownArmError, "^a$"),
        (raised(ValueError("a mistake")), ArmError, "^ValueError: a mistake$"),
        (ActorDiedError(), ArmError, "^ActorDiedError: "),
        (DeploymentUnavailableError(SimpleNamespace(name="Arms")), ArmError, "^DeploymentUnavailableError: "),
    ],
    ids=["of the arm", "unknown", "a mistake", "a dead replica", "no replica"],
)
async def test_an_error_is_one_of_the_arm(error: Exception, kind: type[ArmError], message: str) -> None:
    host = RemoteArmHost(handle(error))
    searches = host.search("a", "key", QUERY, 1), host.search_version("a", "key", QUERY, 1)
    others = host.version("a", "key"), host.load({}), RemoteEmbedder(handle(error)).embed("x")
    for call in (*searches, *others):
        with pytest.raises(ArmError, match=message) as caught:
            await call
        assert type(caught.value) is kind


class LoopBound:
    """A handle that belongs to the event loop that used it first; a copy belongs to none."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def __copy__(self) -> "LoopBound":
        return LoopBound()

    @property
    def embed(self) -> Any:
        async def answer(_question: str, _carried: str) -> object:
            self.loop = self.loop or asyncio.get_running_loop()
            assert self.loop is asyncio.get_running_loop()
            return np.ones(2)

        return SimpleNamespace(remote=answer)


def test_a_client_can_be_used_in_several_event_loops() -> None:
    client: Any = RemoteEmbedder(LoopBound())  # type: ignore[arg-type]
    for _ in range(2):
        assert np.array_equal(asyncio.run(client.embed("x")), np.ones(2))
