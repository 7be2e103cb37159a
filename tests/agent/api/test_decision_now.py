"""`GET /v1/decisions/{id}/now` shows what a rating has changed for the question of a decision."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.fakes import Service

POLICY = {"kind": "adaptive"}
REWARD = {"metrics": {"thumb": {"type": "float", "range": [-1, 1]}}, "correction_time": "PT0S"}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with Service(tmp_path, policy=POLICY, reward=REWARD).running() as running:
        yield running


async def ask(service: Service, **body: Any) -> dict[str, Any]:
    answer = await service.client.post("/v1/retrieve", json={"query": "Which river?", **body})
    agent: dict[str, Any] = answer.raise_for_status().json()["agent"]
    return agent


async def rate(service: Service, decision_id: str, value: float) -> None:
    item = {"decision_id": decision_id, "metric_name": "thumb", "value": value}
    (await service.client.post("/v1/feedback", json=item)).raise_for_status()


async def now(service: Service, decision_id: str) -> dict[str, Any]:
    answer = await service.client.get(f"/v1/decisions/{decision_id}/now")
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def test_a_rating_is_shown_once_the_served_version_has_learned_it(service: Service) -> None:
    agent = await ask(service)
    name, arm = agent["decision_id"], agent["arm_drawn"]
    await rate(service, name, 1.0)
    waiting = await now(service, name)
    assert waiting["learned"] is False
    assert waiting["before"] == waiting["now"] == pytest.approx(agent["pmf"])
    await service.learn()
    learned = await now(service, name)
    assert learned["learned"] is True
    assert (learned["policy_version"], learned["served_version"]) == (1, 2)
    assert learned["before"] == pytest.approx(agent["pmf"]), "as it was logged"
    later = await ask(service)
    assert learned["now"] == pytest.approx(later["pmf"]), "as the next request is drawn"
    assert learned["now"][arm] > learned["before"][arm]


async def test_what_no_policy_drew_has_no_comparison(service: Service) -> None:
    forced = await ask(service, model="arm/bm25")
    answer = await service.client.get(f"/v1/decisions/{forced['decision_id']}/now")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_drawn")
    absent = await service.client.get("/v1/decisions/nobody/now")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "decision_not_found")
