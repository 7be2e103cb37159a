"""Decisions of one episode are a slate to `armwise replay`: made over HTTP, and evaluated."""

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
COURSES = {"a": "soup", "b": "soup", "c": "cake"}
EPISODES = 40


async def choose(service: Service, n: int, place: str, taken: tuple[str, ...] = ()) -> str:
    """Choose the action of a place of a page, other than those that are taken."""
    body = {
        "point": "meals",
        "context": {"place": place},
        "actions": [{"id": name, "features": {"course": course}} for name, course in COURSES.items()],
        "excluded": taken,
        "episode_id": f"e-{n}",
    }
    headers = {"idempotency-key": f"e-{n}-{place}"}
    answer = await service.client.post("/v1/decisions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    chosen: str = answer.json()["chosen"]
    return chosen


async def rate(service: Service, n: int, place: str, value: float) -> None:
    body = {"decision_id": f"meals:e-{n}-{place}", "metric_name": "click", "value": value}
    answer = await service.client.post("/v1/feedback", json=body)
    assert answer.status_code == 202, answer.text


@pytest.fixture
async def meals(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that has filled the two places of 40 pages, each of them rewarded."""
    async with Service(tmp_path, points={"meals": MEALS}).running() as service:
        for n in range(EPISODES):
            top = await choose(service, n, "top")
            side = await choose(service, n, "side", (top,))
            # feedback on the second place comes first, so that the training log has it before the first
            await rate(service, n, "side", 0.5 * (top == "c") + 0.5 * (side == "a"))
            await rate(service, n, "top", float(top == "c"))
            if n in (9, EPISODES - 1):  # from the tenth on the policy prefers some
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


@pytest.mark.slow
async def test_the_decisions_of_an_episode_are_one_slate_in_their_order(meals: Service) -> None:
    names = ("ips", "sips", "rips", "cascade_dr", "mips")
    report, log = await asyncio.to_thread(evaluated, meals, estimators=names)
    (found,) = (one for one in report.candidates if one.name == "uniform")
    value = {one.estimator: one.value for one in found.estimates}
    assert all(value[name] is not None for name in names), [one.note for one in found.estimates]
    assert log.seq.tolist() == list(range(1, 2 * EPISODES + 1))
    store, total, alone = meals.points["meals"].store, 0.0, 0.0
    for n in range(EPISODES):
        prefix = 1.0
        for place in ("top", "side"):
            record = store.record(f"e-{n}-{place}")
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
        assert found_value.value == pytest.approx(min(1.0, expected / (2 * EPISODES)))
    assert total != pytest.approx(alone)
    whole = Slates.from_log(log, uniform(log))
    assert whole.rows.n_slates == EPISODES
    assert slates.rips(whole).value == pytest.approx(total / EPISODES)


@pytest.mark.slow
async def test_a_slate_is_one_observation_and_the_report_says_so(meals: Service) -> None:
    report, _ = await asyncio.to_thread(evaluated, meals, cluster="episode", estimators=("rips",))
    assert any("rows of the same episode are one observation" in one for one in report.assumptions)
    users, _ = await asyncio.to_thread(evaluated, meals, cluster="user", estimators=("rips",))
    assert any("No two decisions are on record with the same user" in one for one in users.assumptions)
