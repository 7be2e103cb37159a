"""Steps plug in: a service works without any one of them, and what each recorded is what verifies."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.policies import Exploration, Uniform
from armwise.agent.turn import (
    ArmHealth,
    ArmInfo,
    Ask,
    Draft,
    Probes,
    Serving,
    StepError,
    StepRecord,
    TurnStep,
    steps,
    weigh_arms,
)
from armwise.agent.turn.steps.base import Array, DrawInputs
from armwise.agent.turn.steps.health import HealthStep
from armwise.arms.base import Query, Retrieval
from armwise.feedback.events import Context, Decision, Mask
from tests.agent.asking import ask, look_up, tell
from tests.agent.fakes import CONFIG, FakeArms, MemoryLog, Service
from tests.agent.turn.test_turn import CHAT, LOOK_UP, a_loop, run
from tests.agent.turns import make_decider


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


async def test_health_looks_at_the_arms_that_all_other_steps_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(steps.TurnStep):
        name = "own"

    monkeypatch.setattr(AppConfig, "build_steps", lambda _: [Own()])
    async with Service(tmp_path).running() as service:
        names = [step.name for step in service.replica.decider.steps]
    assert names[0] == "groups"
    assert names[-2:] == ["own", "health"]


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


def add_step(service: Service, step: TurnStep) -> None:
    """Have a step take part after all others."""
    replica = service.replica
    replica.decider.steps = replica.turns.writer.steps = (*replica.decider.steps, step)


class Failing(TurnStep):
    """Cannot take part, and says so under a name."""

    name = "failing"
    is_for_any_turn = True
    blames = "failing"

    def plan(self, draft: Draft) -> StepRecord:
        draft.terms = replace(draft.terms, policy=self.name)
        return {}

    @classmethod
    def distribute(cls, record: StepRecord, draw: DrawInputs, p: Array) -> Array:
        del record, draw, p
        raise StepError(cls.blames, "no")


async def test_a_step_that_cannot_take_part_is_left_out_of_the_draw(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        add_step(service, Failing())
        made = (await ask(service)).json()["agent"]
        verified = (await service.client.get(f"/v1/decisions/{made['decision_id']}/verify")).json()
        assert verified["verified"], verified["why"]


async def test_a_kept_arm_is_kept_although_another_step_fails(tmp_path: Path) -> None:
    async with Service(tmp_path, sticky="episode").running() as service:
        add_step(service, Failing())
        made = [(await ask(service, agent={"episode_id": "talk"})).json()["agent"] for _ in range(4)]
        assert [one["mode"] for one in made] == ["explore", *["continued"] * 3]
        assert len({one["arm_drawn"] for one in made}) == 1


@pytest.mark.parametrize("name", ["no_step", "floor"])
async def test_a_step_that_blames_another_one_fails_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(Failing, "blames", name)
    async with Service(tmp_path).running() as service:
        add_step(service, Failing())
        assert (await look_up(service)).status_code == 500
        assert f"step {name!r} cannot be left out" in caplog.text


async def test_a_step_that_records_by_itself_and_fails_twice_fails_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plans: list[int] = []

    def plan(_: TurnStep, draft: Draft) -> None:
        plans.append(1)
        assert len(plans) < 10, "the draw is planned without end"
        draft.records["failing"] = {}

    monkeypatch.setattr(Failing, "plan", plan)
    async with Service(tmp_path).running() as service:
        add_step(service, Failing())
        assert (await look_up(service)).status_code == 500
        assert "step 'failing' cannot be left out" in caplog.text
    assert len(plans) == 2


async def test_beside_a_default_incumbent_a_conversation_keeps_its_arm(tmp_path: Path) -> None:
    tap = {"share": 0.5, "incumbent": "bm25"}
    async with Service(tmp_path, sticky="episode", tap=tap).running() as service:
        made = [(await ask(service, agent={"episode_id": "talk"})).json()["agent"] for _ in range(3)]
        assert [one["mode"] for one in made] == ["explore", "continued", "continued"]
        record = (await service.client.get(f"/v1/decisions/{made[-1]['decision_id']}")).json()
        assert (record["steps"].get("incumbent"), record["shadow"]) == (None, None)


def test_two_steps_of_one_name_are_refused() -> None:
    twice = [{"kind": f"{__name__}:Failing"}] * 2
    with pytest.raises(ValueError, match="two have the name failing"):
        parse({**CONFIG, "steps": twice}).build_steps()


class Elsewhere(TurnStep):
    """Leaves out an arm that is not there."""

    name = "elsewhere"

    def mask(self, draft: Draft) -> dict[str, str]:
        del draft
        return {"nowhere": "gone"}


async def test_a_reason_for_an_arm_that_is_not_there_is_not_recorded(tmp_path: Path) -> None:
    async with Service(tmp_path).running() as service:
        add_step(service, Elsewhere())
        name = (await look_up(service)).json()["agent"]["decision_id"]
        record = (await service.client.get(f"/v1/decisions/{name}")).json()
        assert (len(record["pmf"]), record["masked"]) == (3, {})


class Following(TurnStep):
    """Counts the decisions that it follows."""

    name = "following"

    def __init__(self) -> None:
        self.followed: list[str] = []

    def follow(self, ask: Ask, decision: Decision) -> None:
        assert decision.id == ask.decision_id
        self.followed.append(decision.id)


@pytest.mark.parametrize("seconds", [0.0, 0.02], ids=["a quick search", "a slow one"])
@pytest.mark.parametrize("asked", [CHAT, LOOK_UP], ids=["chat", "retrieve"])
async def test_each_durable_decision_is_followed_once(asked: Ask, seconds: float) -> None:
    async def search(_query: Query, _k: int) -> Retrieval:
        await asyncio.sleep(seconds)
        return Retrieval()

    step = Following()
    await run(a_loop(MemoryLog(), FakeArms({"bm25": search}), steps=(step,)), asked)
    assert step.followed == [asked.decision_id]


def test_what_a_budget_and_a_cache_cost_adds_up() -> None:
    budget = {"price": 2.0, "costs": {"small": 1.0, "large": 3.0}}
    records = {"budget": budget, "cache": {"usd_weight": 10.0, "usd": {"large": 0.5}}}
    assert weigh_arms(records, steps.load_built_in(), ["large", "small"]) == [11.0, 2.0]


def test_an_arm_that_has_searched_before_the_draw_needs_no_room() -> None:
    health = ArmHealth(caps={"bm25": 1})
    decider = make_decider(Serving(Uniform(), 1), Exploration(0.1), health=health)
    arms = {name: ArmInfo() for name in ("none", "bm25")}
    draft = decider.draft(Ask("d-1", "?"), arms, Context("?"), decider.serving, restricted=False)
    with health.track("bm25"):
        assert HealthStep(health).mask(draft) == {"bm25": Mask.AT_CAP}
        draft.probes = Probes(found={"bm25": Retrieval()})
        assert HealthStep(health).mask(draft) == {}
