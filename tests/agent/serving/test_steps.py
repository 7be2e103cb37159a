"""Steps plug in: a service works without any one of them, and what each recorded is what verifies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from armwise.agent.turn import steps
from tests.agent.asking import ask, look_up, tell
from tests.agent.fakes import Service


@pytest.fixture(params=steps.BUILT_IN)
def left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A step whose file and line are gone."""
    name = str(request.param)
    module = steps.BUILT_IN[name].partition(":")[0]
    monkeypatch.setitem(sys.modules, f"armwise.agent.turn.steps.{module}", None)  # type: ignore[arg-type]
    monkeypatch.delattr(steps, module, raising=False)
    monkeypatch.setattr(steps, "BUILT_IN", {key: at for key, at in steps.BUILT_IN.items() if key != name})
    steps.load_built_in.cache_clear()
    yield name
    steps.load_built_in.cache_clear()


async def test_a_service_works_without_a_step(tmp_path: Path, left: str) -> None:
    async with Service(tmp_path).running() as service:
        assert service.replica.find_step(left) is None
        for _ in range(3):
            made = (await ask(service)).json()["agent"]
            await tell(service, made["decision_id"], 1.0)
        assert (await look_up(service)).is_success
        await service.learn()
        made = (await ask(service, agent={"episode_id": "talk"})).json()["agent"]
        record = (await service.client.get(f"/v1/decisions/{made['decision_id']}")).json()
        assert sum(record["pmf"].values()) == pytest.approx(1.0)
        verified = (await service.client.get(f"/v1/decisions/{made['decision_id']}/verify")).json()
        assert (verified["verified"], verified["why"]) == (True, [])
        for path in (
            "/v1/policy",
            "/v1/policies",
            "/metrics",
            "/console",
            "/console/details",
            "/health",
        ):
            reply = await service.client.get(path)
            assert reply.status_code == 200, (path, reply.text)


async def test_a_decision_of_a_step_that_is_gone_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Service(tmp_path).running() as service:
        name = (await look_up(service)).json()["agent"]["decision_id"]
        monkeypatch.setattr(
            steps, "BUILT_IN", {key: at for key, at in steps.BUILT_IN.items() if key != "floor"}
        )
        steps.load_built_in.cache_clear()
        verified = (await service.client.get(f"/v1/decisions/{name}/verify")).json()
        steps.load_built_in.cache_clear()
        assert not verified["verified"]
        assert "this service lacks the steps that took part: floor" in verified["why"][0]
