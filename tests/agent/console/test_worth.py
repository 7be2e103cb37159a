"""What each arm is worth by kind of question, and the curve of the last portfolio."""

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from armwise.agent.access import OPEN
from armwise.agent.console import worth
from armwise.agent.console.page import CONSOLE
from armwise.agent.console.served_comparison import estimate_value
from armwise.feedback.log import listing
from armwise.feedback.ope import ESTIMATORS, Sample, confidence_sequences, intervals
from armwise.feedback.ope.confidence_sequences import Evidence
from armwise.feedback.registry import runs
from armwise.feedback.training_log import read_examples, rollups
from tests.agent.asking import look_up
from tests.agent.console.test_pages import plain, seen
from tests.agent.fakes import Service


async def asked(service: Service, tier: str, n: int, feature: str = "tier", **headers: str) -> None:
    """Ask questions of a kind, and praise BM25 for it if it is free."""
    for i in range(n):
        context = {"context": {feature: tier, "size": i}}
        found = (await look_up(service, headers, query=f"question {i}", agent=context)).json()["agent"]
        praised = (found["arm_served"] == "bm25") == (tier == "free")
        body = {
            "metric_name": "thumb",
            "decision_id": found["decision_id"],
            "value": 1.0 if praised else -1.0,
        }
        answer = await service.client.post("/v1/feedback", json=body, headers=headers)
        assert answer.status_code == 202, answer.text


@pytest.mark.slow
async def test_the_worth_for_a_kind_is_the_estimate_on_it(
    service: Service,
) -> None:
    assert "No reward counts yet" in plain(await seen(service, "/arms"))
    for tier in ("free", "paid<b>"):
        await asked(service, tier, 9)
    await service.settle()
    store, rule = service.replica.store, service.config.reward
    rows = rollups.newest_rewards(store, rule, 100, listing.DecisionFilter())
    assert len(rows) == 18
    assert len(rollups.newest_rewards(store, rule, 5, listing.DecisionFilter())) == 5
    shown = plain(await seen(service, "/arms?by=tier"))
    assert "paid<b> 9" in shown
    assert "<b>" not in (await seen(service, "/arms?by=tier")).replace("<body", "")
    arms = [*service.config.actions]
    kinds = worth.group_questions(rows, "tier", rule.reward_range, service.config.explores.among(3))
    assert len(kinds) == 2
    for kind in kinds:
        examples = [
            one
            for one in read_examples(store, rule.join)
            if f"tier={kind.name}" in one.decision.context.features
        ]
        assert kind.n == len(examples) == 9
        propensity = np.array([one.decision.propensity for one in examples])
        drawn = np.array([arms.index(one.decision.drawn) for one in examples])
        reward = np.array([rule.compute_reward(one) for one in examples], dtype=np.float64)
        for arm, found in kind.worth.items():
            target = np.tile(np.eye(len(arms))[arms.index(arm)], (9, 1))
            terms = ESTIMATORS["snips"](Sample(propensity, drawn, reward, target))
            weight = np.where(drawn == arms.index(arm), 1.0 / propensity, 0.0)
            reach = 1.0 / service.config.explores.among(3)
            bounds = confidence_sequences.value(
                Evidence(weight, reward, rule.reward_range, reach=reach), 1.0 - 0.05 / len(kind.worth)
            )
            assert found is not None
            low, high = min(bounds.low[-1], terms.value), max(bounds.high[-1], terms.value)
            assert np.allclose((found[0], *found[1]), (terms.value, low, high))
            assert kind.drawn[arm] == (drawn == arms.index(arm)).sum()
        assert kind.best is None, "nine decisions prove nothing"
    assert "cannot be told apart" in shown
    unknown = await service.client.get(f"{CONSOLE}/arms?by=colour")
    assert (unknown.status_code, "there are: " in unknown.text) == (400, True)


async def test_the_kinds_are_by_the_feature_that_most_questions_have(service: Service) -> None:
    for tier, n, feature in (("here", 1, "place"), ("free", 3, "tier"), ("there", 1, "place")):
        await asked(service, tier, n, feature)
    await service.settle()
    found = worth.by_kind(service.replica, OPEN, None)
    assert [head for head in found["families"] if head in ("tier", "place")] == ["tier", "place"]
    assert (found["rewarded"], found["by"]) == (5, found["families"][0])


def test_rare_kinds_are_counted_together_and_a_question_without_one_is_with_them() -> None:
    def rewarded(arm: str, reward: float, features: dict[str, float]) -> rollups.Rewarded:
        return rollups.Rewarded(arm, 0.5, reward, ("a", "b"), features)

    seen_features: list[dict[str, float]] = [{}, {"w=river": 1.0}, {"ask=who": 1.0, "ask=how": 1.0}]
    seen_features += [{f"ask={i}": 1.0} for i in range(20) for _ in range(2)]
    found = worth.group_questions([rewarded("a", 0.5, one) for one in seen_features], "ask", (0, 1), 0.1)
    assert len(found) == worth.MOST + 1
    assert [kind.n for kind in found] == [2] * worth.MOST + [2 * (20 - worth.MOST) + 2 + 1]
    assert found[-1].name == worth.OTHERS
    two = [rewarded("a", 0.1, {"ask=who": 1.0}), rewarded("b", 0.9, {"ask=who": 1.0})]
    (kind,) = worth.group_questions(two, "ask", (0, 1), 0.1)
    assert (kind.n, kind.best) == (2, None)
    assert kind.more is not None
    (kind,) = worth.group_questions(200 * two, "ask", (0, 1), 0.1)
    assert (kind.n, kind.best, kind.more) == (400, "b", None)


def test_an_arm_is_compared_on_the_questions_for_which_it_was_eligible() -> None:
    rows = [
        *1000 * [rollups.Rewarded("a", 1.0, 0.0, ("a",), {"ask=who": 1.0})],
        *100 * [rollups.Rewarded("a", 0.5, 1.0, ("a", "b"), {"ask=who": 1.0})],
        *100 * [rollups.Rewarded("b", 0.5, 1.0, ("a", "b"), {"ask=who": 1.0})],
    ]
    (kind,) = worth.group_questions(rows, "ask", (0.0, 1.0), 0.1)
    assert kind.worth["a"] is not None
    assert kind.worth["b"] is not None
    assert kind.worth["a"][0] < kind.worth["b"][0] == 1.0
    assert kind.worth["b"][1][0] > 0.7, "the thousand others say nothing of it"
    both = Evidence(np.repeat([0.0, 2.0], 100), np.ones(200), (0.0, 1.0), reach=10.0)
    assert kind.worth["b"][1] == pytest.approx(estimate_value(both, 0.05 / 2)[1]), "two ranges hold together"


def test_an_arm_is_best_only_where_its_interval_is_above_all_others() -> None:
    apart = {"a": (0.9, (0.8, 1.0)), "b": (0.5, (0.3, 0.7)), "c": (0.7, (0.5, 0.85))}
    assert worth.leader(apart, 50) == (None, (1, 210)), "the interval of c reaches into it, the last of them"
    assert worth.leader(apart | {"c": (0.7, (0.5, 0.79))}, 50) == ("a", None)
    assert worth.leader(apart | {"c": (0.7, (0.6, 0.8))}, 50) == (None, (1, 48)), "they touch"
    assert worth.leader({"a": (0.9, (0.8, 1.0)), "b": None}, 50) == (None, None)
    wide = (0.0, 1.0)
    for tied in (0.9, 0.9 - 1e-16, 0.9 - 1e-10):  # sums of the same rewards in another order
        assert worth.leader({"a": (0.9, wide), "b": (tied, wide), "c": (0.1, wide)}, 50) == (
            None,
            (560, None),
        )


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("reward", [0.0, 0.95, 1.0])
def test_equal_rewards_have_an_interval_within_their_range_that_narrows(n: int, reward: float) -> None:
    def of(rows: int) -> tuple[float, float]:
        found = intervals.estimate_mean(rows, rows * reward, rows * reward * reward, (0.0, 1.0))
        assert found is not None
        assert found[1][0] <= found[0] <= found[1][1]
        return found[1]

    (low, high), (later_low, later_high) = of(n), of(20 * n)
    assert 0.0 <= low < high <= 1.0
    assert later_high - later_low < high - low


async def test_a_key_sees_the_kinds_of_its_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[dict[str, Any]] = []
    for name, project in (("ACME", {"project": "acme"}), ("MAIN", {}), ("ASK", {})):
        monkeypatch.setenv(name, name)
        scopes = ["decide", "feedback"] if name == "ASK" else ["decide", "feedback", "read"]
        keys.append({"env": name, "scopes": scopes, **project})
    async with Service(tmp_path, keys=keys).running() as service:
        bearer = {name: {"authorization": f"Bearer {name}"} for name in ("ACME", "MAIN", "ASK")}
        for name in ("ACME", "MAIN"):
            await asked(service, f"of-{name}", 3, **bearer[name])
        await service.settle()

        async def arms(name: str) -> httpx.Response:
            return await service.client.get(f"{CONSOLE}/arms?by=tier", headers=bearer[name])

        assert "of-ACME" in (await arms("ACME")).text
        assert "of-MAIN" not in (await arms("ACME")).text
        assert "of-ACME" not in (await arms("MAIN")).text
        assert "Worth by kind" not in (await arms("ASK")).text


async def test_the_last_portfolio_is_drawn_by_its_size(service: Service) -> None:
    assert "<h2>Portfolio</h2>" in await seen(service, "/arms")
    store, now = service.replica.store, service.replica.clock()
    run = runs.claim(store, "configured", runs.Trigger.REQUEST, "test", now)
    found = {"arms": ["bm25", "dense"], "measure": "em", "value": 0.75, "single": 0.5, "questions": 40}
    step = {"name": "portfolio", "at": now, "seconds": 1.0, "said": "", "found": found}
    charts: list[list[str]] = []
    for more in ({}, {"curve": {"portfolio": [0.5, 0.75], "average": [0.5, 0.6]}}):
        steps = [
            {**step, "name": "gather", "found": {"exam": 3}},
            {**step, "found": {**found, **more}},
        ]
        await asyncio.to_thread(
            runs.save_progress, store, run, now, inputs={}, steps=steps, candidate=None, evaluation=None
        )
        shown = await seen(service, "/arms")
        assert "em 0.750 on 40 held-out questions, the best single arm 0.500" in plain(shown)
        charts.append(re.findall(r'data-chart="([^"]*)"', shown))
    assert charts[0] == []
    (drawn,) = (json.loads(html.unescape(one)) for one in charts[1])
    assert drawn["x"] == [1, 2]
    assert drawn["counts"] == "arms"
    assert [one["values"] for one in drawn["series"]] == [[0.5, 0.75], [0.5, 0.6], [0.5, 0.5]]
    runs.finish(store, run, runs.RunState.HELD, now)
    later = runs.claim(store, "configured", runs.Trigger.REQUEST, "test", now + 1.0)
    without = [{**step, "name": "gather"}, {**step, "found": {}}]
    runs.save_progress(store, later, now, inputs={}, steps=without, candidate=None, evaluation=None)
    assert "em 0.750 on 40 held-out questions" in plain(await seen(service, "/arms")), "of an earlier run"
