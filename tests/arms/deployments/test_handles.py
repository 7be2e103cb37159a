"""Clients of Ray Serve handles: errors of a replica and of Ray are those of an arm or of the model."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError

from armwise.arms import tracing
from armwise.arms.base import ArmError, Query, Retrieval
from armwise.arms.deployments import ArmReplica, RemoteArmHost, RemoteEmbedder, handles
from armwise.arms.deployments.arm_host import ArmHost, UnbuiltArmError
from armwise.arms.deployments.generator_host import AddressedGenerator
from armwise.arms.deployments.handles import RemoteGenerator
from armwise.arms.llm import Chunk, GeneratorError, Prompt
from armwise.arms.llm.catalog import ScriptedSpec
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmSpec

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
        (raised(UnbuiltArmError("a")), UnbuiltArmError, "^a$"),
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


class Calls:
    """A handle that records the arguments of each call of each method."""

    def __init__(self) -> None:
        self.made: list[tuple[object, ...]] = []

    def __copy__(self) -> "Calls":
        return self

    def __getattr__(self, method: str) -> Any:
        async def answer(*arguments: object) -> None:
            self.made.append((method, *arguments))

        return SimpleNamespace(remote=answer)


async def test_a_host_gets_every_argument_and_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "carry", lambda: "the turn")
    calls, specs = Calls(), {"a": ArmSpec(kind="bm25")}
    host = RemoteArmHost(calls)  # type: ignore[arg-type]
    await host.search("a", "key", QUERY, 3, specs)
    await host.search_version("a", "key", QUERY, 4, specs)
    await host.version("a", "key", specs)
    await host.load({"a": specs})
    await RemoteEmbedder(calls).embed("x")  # type: ignore[arg-type]
    assert calls.made == [
        ("search", "a", "key", QUERY, 3, specs, "the turn"),
        ("search_version", "a", "key", QUERY, 4, specs, "the turn"),
        ("version", "a", "key", specs),
        ("load", {"a": specs}),
        ("embed", "x", "the turn"),
    ]


async def test_every_host_is_waited_for() -> None:
    calls = [Calls(), Calls()]
    await handles.reach(calls)  # type: ignore[arg-type]
    assert [one.made for one in calls] == [[("ready",)], [("ready",)]]


def test_a_deployment_asks_encoders_of_deployments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = list[Any]()
    monkeypatch.setattr(ArmHost, "__init__", lambda _, *arguments: given.extend(arguments))
    backbones = {"here": Backbone(model="hashing:8"), "far": Backbone(model="hashing:16", host="own")}
    settings, arms, spec = SimpleNamespace(backbones=backbones), {"a": {}}, ScriptedSpec(engine="scripted")
    live = dict[str, Any]
    ArmReplica(settings, arms, live, {"far": Calls()}, spec, Calls())  # type: ignore[arg-type]
    *same, encoders, writer = given
    assert same == [settings, arms, live]
    assert encoders.loaded == {"far"}
    encoders.open(frozenset({"here"}))
    assert encoders.loaded == {"far", "here"}
    assert (type(writer), writer.model) == (RemoteGenerator, "scripted")
    ArmReplica(settings, arms, live, {}, spec, None)  # type: ignore[arg-type]
    assert type(given[-1]) is AddressedGenerator, "a model without a host is asked from here"


# -- the stream of an answer -------------------------------------------------------------------------------


class Stream:
    """A response that streams: three chunks, then an error or the end; never ends where it waits.

    Attributes:
        cancelled: How often it was cancelled.
        asked: The arguments of the call.
    """

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self.error, self.waits = error, waits
        self.cancelled = 0
        self.waiting = asyncio.Event()
        self.asked: tuple[object, ...] = ()

    def __copy__(self) -> "Stream":
        return self

    def options(self, *, stream: bool) -> Any:
        assert stream, "else Ray would wait for the whole answer"
        return SimpleNamespace(stream=SimpleNamespace(remote=self._remote))

    def _remote(self, *arguments: object) -> "Stream":
        self.asked = arguments
        return self

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        for text in "abc":
            yield Chunk(text)
        if self.waits:
            self.waiting.set()
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        self.cancelled += 1


PROMPT = Prompt(({"role": "user", "content": "Why?"},))


def streamed(stream: Stream) -> AsyncGenerator[Chunk, None]:
    return RemoteGenerator("a model", stream).stream(PROMPT)  # type: ignore[arg-type]


async def test_an_answer_is_streamed_to_its_end_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "carry", lambda: "the turn")
    stream = Stream()
    assert [chunk.text async for chunk in streamed(stream)] == ["a", "b", "c"]
    assert stream.asked == (PROMPT, "the turn")
    assert RemoteGenerator("a model", stream).model == "a model"  # type: ignore[arg-type]


async def test_an_answer_that_is_closed_is_cancelled_at_its_host() -> None:
    stream = Stream()
    async with aclosing(streamed(stream)) as chunks:
        assert (await anext(chunks)).text == "a"
        assert stream.cancelled == 0
    assert stream.cancelled == 1


async def test_an_answer_is_cancelled_with_its_caller() -> None:
    stream = Stream(waits=True)

    async def read() -> None:
        async for _ in streamed(stream):
            pass

    reading = asyncio.create_task(read())
    await stream.waiting.wait()
    assert stream.cancelled == 0
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert stream.cancelled == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (raised(GeneratorError("out of memory")), "^out of memory$"),
        (raised(ValueError("a mistake")), "^ValueError: a mistake$"),
        (ActorDiedError(), "^ActorDiedError: "),
        (DeploymentUnavailableError(SimpleNamespace(name="Llm")), "^DeploymentUnavailableError: "),
    ],
    ids=["of the model", "a mistake", "a dead replica", "no replica"],
)
async def test_an_error_of_a_stream_is_one_of_the_model(error: Exception, message: str) -> None:
    stream, texts = Stream(error), list[str]()
    with pytest.raises(GeneratorError, match=message):  # noqa: PT012 - the pieces before it count
        async for chunk in streamed(stream):
            texts.append(chunk.text)
    assert (texts, stream.cancelled) == (["a", "b", "c"], 1)


class LoopBound:
    """A handle that belongs to the event loop that used it first; a copy belongs to none."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    def __copy__(self) -> "LoopBound":
        return LoopBound()

    def options(self, *, stream: bool) -> "LoopBound":
        assert stream
        return self

    def _use(self) -> None:
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()

    @property
    def embed(self) -> Any:
        async def answer(_question: str, _carried: str) -> object:
            self._use()
            return np.ones(2)

        return SimpleNamespace(remote=answer)

    @property
    def stream(self) -> Any:
        def answer(_prompt: Prompt, _carried: str) -> Stream:
            self._use()
            return Stream()

        return SimpleNamespace(remote=answer)


def test_a_client_can_be_used_in_several_event_loops() -> None:
    client: Any = RemoteEmbedder(LoopBound())  # type: ignore[arg-type]
    generator = RemoteGenerator("a model", LoopBound())  # type: ignore[arg-type]

    async def written() -> list[str]:
        return [chunk.text async for chunk in generator.stream(PROMPT)]

    for _ in range(2):
        assert np.array_equal(asyncio.run(client.embed("x")), np.ones(2))
        assert asyncio.run(written()) == ["a", "b", "c"]


def test_a_handle_is_copied_once_for_each_event_loop() -> None:
    copies: list[str] = []

    class Copied(LoopBound):
        def __copy__(self) -> LoopBound:
            copies.append("a copy")
            return LoopBound()

    client = RemoteEmbedder(Copied())  # type: ignore[arg-type]
    loops = [asyncio.new_event_loop() for _ in range(2)]
    for loop in (*loops, *loops):
        loop.run_until_complete(client.embed("x"))
    for loop in loops:
        loop.close()
    assert copies == ["a copy", "a copy"]
