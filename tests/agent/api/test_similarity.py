"""How near a question is to each source: in decisions, in their distributions, and in what arms are asked."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from armwise.arms.base import Passage
from armwise.arms.llm import base
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.profile import OF_PASSAGES, Profile
from armwise.arms.retrievers.profiles import count_terms
from tests.agent.fakes import DIM, FakeArms, Service
from tests.agent.trained_routers import kept

QUESTION = "How is a ticket closed?"
VECTOR = HashingEmbedder(DIM).encode_queries([QUESTION])[0]
OTHER = HashingEmbedder(DIM).encode_queries(["lambda"])[0]

ARMS: dict[str, Any] = {
    "docs": {"kind": "bm25", "corpus": "docs"},
    "tickets": {"kind": "bm25", "corpus": "tickets"},
    "none": {"kind": "none"},
    "later": {"kind": "bm25", "corpus": "docs", "params": {"k1": 2.0}, "action": False},
}
CORPORA = {name: {"source": f"/data/{name}"} for name in ("docs", "tickets")}
SIMILARITY = {"words": 0, "similarity": {"backbone": "tiny"}}


def near(vector: NDArray[np.float32]) -> Profile:
    """A source of two passages, of which no word is known."""
    return Profile(np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32), np.stack([vector, vector]))


def apart(first: float, second: float) -> float:
    """The probability of a source that is so near, beside another."""
    return 1.0 / (1.0 + math.exp(OF_PASSAGES * (second - first)))


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr("armwise.arms.profile.NEAREST", 1)
    arms = FakeArms()
    arms.sampled = {
        "docs": [near(OTHER)],
        "tickets": [near(VECTOR)],
        "later": [near(0.5 * VECTOR)],
    }
    changes: dict[str, Any] = {
        "corpora": CORPORA,
        "arms": ARMS,
        "features": SIMILARITY,
        "policy": {"kind": "adaptive"},
        "floor": 0.01,
    }
    async with Service(tmp_path, base.ScriptedGenerator({}), searched=arms, **changes).running() as running:
        yield running


async def retrieve(service: Service, question: str = QUESTION, **agent: Any) -> dict[str, Any]:
    response = await service.client.post("/v1/retrieve", json={"query": question, "agent": agent})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    kept = await service.client.get(f"/v1/decisions/{found['agent']['decision_id']}")
    return {**found, **kept.json()}


def similarity(decision: dict[str, Any]) -> dict[str, float]:
    return {arm: own["similarity"] for arm, own in decision["arm_features"].items() if "similarity" in own}


async def test_a_decision_holds_the_similarity_of_each_profiled_arm(service: Service) -> None:
    found = similarity(await retrieve(service))
    assert found.keys() == {"docs", "tickets"}
    assert found["tickets"] == pytest.approx(apart(1.0, float(OTHER @ VECTOR)), abs=1e-5)
    assert found["docs"] == pytest.approx(1.0 - found["tickets"], abs=1e-5)


async def test_a_policy_without_rewards_and_router_starts_from_the_similarity(service: Service) -> None:
    near = await retrieve(service, allowed_arms=["docs", "tickets"])
    assert near["agent"]["pmf"]["tickets"] == pytest.approx(0.99, abs=1e-3)


async def test_an_arm_is_asked_with_how_well_each_is_expected_to_fit(service: Service) -> None:
    found = await retrieve(service, allowed_arms=["tickets"])
    (_, query, _) = service.arms.calls[-1]
    assert query.expected == similarity(found)


async def test_an_arm_that_is_put_has_the_profile_of_its_source(service: Service) -> None:
    response = await service.client.put("/v1/arms", json={"arms": ["docs", "later"]})
    assert response.status_code == 200, response.text
    found = similarity(await retrieve(service))
    assert found["later"] == pytest.approx(apart(0.5, float(OTHER @ VECTOR)), abs=1e-5)


async def test_a_search_that_is_repeated_is_asked_with_what_was_expected_then(service: Service) -> None:
    key = {"idempotency-key": "once"}
    for _ in range(2):
        body = {"query": QUESTION, "agent": {"allowed_arms": ["tickets"]}}
        assert (await service.client.post("/v1/retrieve", json=body, headers=key)).status_code == 200
    (_, first, _), (_, again, _) = service.arms.calls
    assert again.expected == first.expected
    assert first.expected.keys() == {"docs", "tickets"}


async def test_a_router_weighs_how_well_the_words_of_a_question_fit_each_source(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router", kind="source_fit")
    arms = FakeArms()
    texts = {"bm25": "a ticket is closed", "dense": "the mine has gold"}
    arms.sampled = {
        arm: [Profile(*count_terms([[Passage("p", "", text)]], 10))] for arm, text in texts.items()
    }
    changes: dict[str, Any] = {"router": {"path": str(folder)}, "features": {"words": 0, "similarity": {}}}
    async with Service(tmp_path, base.ScriptedGenerator({}), searched=arms, **changes).running() as service:
        decision = await retrieve(service)
    fit = similarity(decision)
    assert fit["bm25"] > 0.8
    assert {arm: own["router"] for arm, own in decision["arm_features"].items()} == {**fit, "none": 0.0}


async def test_with_a_router_an_arm_is_asked_with_its_scores(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router", rounds=20, stage="question", kind="pointwise_xgboost")
    arms = FakeArms()
    arms.sampled = {"bm25": [near(VECTOR)]}
    changes: dict[str, Any] = {"router": {"path": str(folder)}, "features": SIMILARITY}
    async with Service(tmp_path, base.ScriptedGenerator({}), searched=arms, **changes).running() as service:
        decision = await retrieve(service, allowed_arms=["bm25", "dense"])
    (_, query, _) = arms.calls[-1]
    scores = {arm: own["router"] for arm, own in decision["arm_features"].items() if "router" in own}
    assert query.expected == scores
    assert "bm25" in scores
    assert decision["arm_features"]["bm25"]["similarity"] == pytest.approx(1.0, abs=1e-5)
