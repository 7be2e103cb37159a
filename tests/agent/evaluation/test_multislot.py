"""Multi-slot decisions of the service are slates to `armwise replay`: logged by the protocol, evaluated."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from armwise.agent.evaluation import EvaluationRequest, evaluate_log
from armwise.agent.evaluation.evaluate import uniform
from armwise.agent.evaluation.report import Report
from armwise.feedback.dataset import Log
from armwise.feedback.exchange import Slates, slates
from armwise.feedback.log import Store
from armwise.feedback.sources import LogSource
from tests.agent.fakes import Service

MEALS = {
    "actions": "request",
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.4 -q sf"}},
    "reward": {"metrics": {"click": {"range": [0, 1]}}, "cost_weight": 0.0},
}
ACTIONS = [
    {"id": name, "features": [{"course": course}]}
    for name, course in (("a", "soup"), ("b", "soup"), ("c", "cake"))
]
SLOTS = [{"id": "top", "baselineAction": "a"}, {"id": "side", "baselineAction": "b"}]
EVENTS = 40


@pytest.fixture
async def meals(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that has filled 40 pairs of slots, each of them rewarded."""
    async with Service(tmp_path, points={"meals": MEALS}, personalizer="meals").running() as service:
        for n in range(EVENTS):
            body = {"eventId": f"e-{n}", "actions": ACTIONS, "slots": SLOTS}
            answer = await service.client.post("/personalizer/v1.0/multislot/rank", json=body)
            assert answer.status_code == 201, answer.text
            shown = [slot["rewardActionId"] for slot in answer.json()["slots"]]
            reward = [
                {"slotId": "top", "value": float(shown[0] == "c")},
                {"slotId": "side", "value": 0.5 * (shown[0] == "c") + 0.5 * (shown[1] == "a")},
            ]
            path = f"/personalizer/v1.0/multislot/events/e-{n}/reward"
            # feedback on the second slot comes first, so that the training log has it before the first
            for one in reward[::-1]:
                answer = await service.client.post(path, json={"reward": [one]})
                assert answer.status_code == 204, answer.text
            if n in (9, EVENTS - 1):  # from the tenth on the policy prefers some
                await service.learn_at("meals")
        yield service


def evaluated(service: Service, **asked: object) -> tuple[Report, Log]:
    config = service.config.of("meals")
    store = Store(config.database_url, config.reward.join)
    try:
        source = LogSource(store, config.reward)
        request = EvaluationRequest(candidates=("uniform",), reward_model="means", **asked)  # type: ignore[arg-type]
        return evaluate_log(config, request, source, store, lambda *_: None), source.log(config.reward)
    finally:
        store.close()


async def test_the_slots_of_a_request_are_one_slate_in_their_order(meals: Service) -> None:
    names = ("ips", "sips", "rips", "cascade_dr", "mips")
    report, log = await asyncio.to_thread(evaluated, meals, estimators=names)
    (found,) = (one for one in report.candidates if one.name == "uniform")
    value = {one.estimator: one.value for one in found.estimates}
    assert all(value[name] is not None for name in names), [one.note for one in found.estimates]
    assert log.seq.tolist() == list(range(1, 2 * EVENTS + 1))
    store, total, alone = meals.points["meals"].store, 0.0, 0.0
    for n in range(EVENTS):
        prefix = 1.0
        for slot in ("top", "side"):
            record = store.record(f"e-{n}:{slot}")
            assert record is not None
            (reward,) = (item.value for item in record.feedback)
            assert reward is not None
            weight = 1.0 / len(record.decision.arms) / record.decision.propensity
            prefix *= weight
            total += prefix * reward
            alone += weight * reward
    for name, expected in (("rips", total), ("ips", alone)):
        found_value = value[name]
        assert found_value is not None
        assert found_value.value == pytest.approx(min(1.0, expected / (2 * EVENTS)))
    assert total != pytest.approx(alone)
    whole = Slates.from_log(log, uniform(log))
    assert whole.rows.n_slates == EVENTS
    assert slates.rips(whole).value == pytest.approx(total / EVENTS)


async def test_a_slate_is_one_observation_and_the_report_says_so(meals: Service) -> None:
    report, _ = await asyncio.to_thread(evaluated, meals, cluster="episode", estimators=("rips",))
    assert any("rows of the same episode are one observation" in one for one in report.assumptions)
    users, _ = await asyncio.to_thread(evaluated, meals, cluster="user", estimators=("rips",))
    assert any("No two decisions are on record with the same user" in one for one in users.assumptions)
