"""Encoders: those of this process and those of a deployment, behind one client."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms import tracing
from armwise.arms.base import ArmError
from armwise.arms.deployments import EmbedderHost, Embedders, embedders
from armwise.arms.models import Backbone
from armwise.arms.models.embedding import HashingEmbedder

HERE, FAR = Backbone(model="hashing:8"), Backbone(model="hashing:16", host="own")


class Deployed:
    """An encoder behind a handle, of ones."""

    async def embed(self, question: str) -> NDArray[np.float32]:
        del question
        return np.ones(16, dtype=np.float32)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were loaded, in order."""
    models: list[str] = []

    def build(backbone: Backbone) -> Any:
        models.append(backbone.model)
        if backbone.model == "missing":
            raise OSError("there is no such model")
        return HashingEmbedder(8)

    monkeypatch.setattr(embedders, "build_embedder", build)
    return models


def test_a_process_is_prepared_before_its_model_is_loaded(loaded: list[str]) -> None:
    EmbedderHost(HERE, lambda: loaded.append("prepare"))
    assert loaded == ["prepare", "hashing:8"]


async def test_a_question_has_the_vector_of_the_model() -> None:
    (expected,) = HashingEmbedder(8).encode_queries(["Where is the sea?"])
    assert np.array_equal(await EmbedderHost(HERE).embed("Where is the sea?"), expected)


async def test_a_question_is_embedded_for_the_turn_of_its_caller() -> None:
    await EmbedderHost(HERE).embed("Where?", '["", "d-1", "e-1"]')
    assert tracing.TURN.get() == tracing.TracedTurn("d-1", "e-1", "Where?")


async def test_an_encoder_of_a_deployment_is_asked_there(
    loaded: list[str],
) -> None:
    client = Embedders({"here": HERE, "far": FAR}, {"far": Deployed()})
    found = await client.embed("x", frozenset({"here", "far"}))
    assert {name: vector.shape for name, vector in found.items()} == {"here": (8,), "far": (16,)}
    assert loaded == ["hashing:8"]


async def test_an_encoder_that_two_ask_for_at_once_is_loaded_once(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, both_wait = embedders.build_embedder, threading.Event()

    def delayed(backbone: Backbone) -> Any:
        assert both_wait.wait(timeout=30)
        return build(backbone)

    monkeypatch.setattr(embedders, "build_embedder", delayed)
    client = Embedders({"here": HERE})
    asked = [asyncio.create_task(client.load(frozenset({"here"}))) for _ in range(2)]
    await asyncio.sleep(0)
    both_wait.set()
    await asyncio.gather(*asked)
    assert loaded == ["hashing:8"]


async def test_every_missing_encoder_is_loaded(loaded: list[str]) -> None:
    client = Embedders({name: Backbone(model=f"hashing:{n}") for n, name in enumerate("abc", start=1)})
    client.expected = frozenset("abc")
    client.open(frozenset("a"))
    assert client.loading == {"b", "c"}
    await client.load(frozenset("abc"))
    assert loaded == ["hashing:1", "hashing:2", "hashing:3"]
    assert client.loading == frozenset()


def test_an_encoder_that_nothing_needs_is_not_loaded(loaded: list[str]) -> None:
    client = Embedders({"here": HERE, "other": Backbone(model="missing")})
    client.open(frozenset({"here"}))
    assert loaded == ["hashing:8"]


async def test_a_model_that_cannot_be_loaded_is_named(loaded: list[str]) -> None:
    client = Embedders({"other": Backbone(model="missing")})
    with pytest.raises(ArmError, match="backbone 'other' cannot be loaded: there is no such model"):
        client.open(frozenset({"other"}))
    with pytest.raises(ArmError, match="backbone 'other' cannot be loaded: there is no such model"):
        await client.embed("x", frozenset({"other"}))
    assert loaded == ["missing", "missing"]
