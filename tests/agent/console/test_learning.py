"""The panel that says whether it is learning: its sentence, charts and marks, for every kind of log."""

import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.console import learning
from armwise.agent.console.page import CONSOLE
from armwise.agent.console.served_comparison import (
    Alternative,
    CurveStretch,
    LearningCurve,
    Mark,
    Promise,
    ServedComparison,
)
from armwise.feedback.registry import arm_sets, promotions
from tests.agent.api.test_points import POINTS, actions, click, fed, ranked
from tests.agent.asking import look_up, tell
from tests.agent.console.test_worth import asked
from tests.agent.fakes import Service

HARM = '<script>alert(1)</script>" onload="alert(2)'


def plain(text: str) -> str:
    """The text of a page, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


async def panel_of(service: Service, query: str = "", **headers: str) -> str:
    """Return the panel of the overview, which comes before everything else that is live."""
    answer = await service.client.get(CONSOLE + query, headers=headers)
    assert answer.status_code == 200, answer.text
    live = answer.text.split('<div id="live"')[1]
    assert live.index('aria-labelledby="learning"') < live.index('class="facts"')
    return live[: live.index('<dl class="facts">')]


def charts_of(panel: str) -> list[dict[str, Any]]:
    return [json.loads(html.unescape(one)) for one in re.findall(r'data-chart="([^"]*)"', panel)]


@pytest.fixture
async def rated(tmp_path: Path) -> AsyncIterator[Service]:
    """A service that has answered 40 questions, of which 32 have feedback, and one for a forced arm."""
    policy = {"kind": "linucb", "params": {"ridge": 1.0}}
    async with Service(tmp_path, policy=policy).running() as service:
        for i in range(40):
            found = (await look_up(service, query=f"who asks question {i}?")).json()["agent"]
            if i % 5:
                await tell(service, found["decision_id"], 1.0 if found["arm_served"] == "bm25" else -1.0)
        await look_up(service, model="arm/dense", query="how is one forced?")
        await service.settle()
        yield service


@pytest.mark.slow
async def test_the_panel_counts_from_the_first_decision_and_leaves_forced_ones_out(rated: Service) -> None:
    """The window of the page does not matter: the line begins with the first decision."""
    for query in ("", "?window=1h"):
        panel = await panel_of(rated, query)
        text = plain(panel)
        assert "Of 41 decisions since the first one, 40 were explored and 32 of these have a reward" in text
        rewards, shares = charts_of(panel)
        assert [one["label"] for one in rewards["series"][:2]] == ["what was served", "a uniform choice"]
        assert rewards["series"][2]["label"].startswith("always ")
        assert rewards["range"] == shares["range"] == [0, 41]
        assert (rewards["counts"], shares["stacked"]) == ("decision", True)
        columns = zip(*(one["values"] for one in shares["series"]), strict=True)
        assert [sum(values) for values in columns] == [pytest.approx(100, abs=0.1)] * len(shares["x"])
        assert rewards["x"] == sorted(rewards["x"])
        assert 0 < rewards["x"][0] <= rewards["x"][-1] <= 41
        assert "Too early to say: " in text


async def test_the_panel_of_an_empty_log_has_a_sentence_and_no_chart(service: Service) -> None:
    """Nothing is drawn from nothing."""
    panel = await panel_of(service)
    assert "Nothing was asked yet. The line begins with the first decision." in plain(panel)
    assert charts_of(panel) == []


async def test_a_log_without_feedback_and_one_of_forced_requests_say_so(service: Service) -> None:
    """Shares need draws, rewards need feedback."""
    await look_up(service, model="arm/bm25", query="a forced one")
    await service.learn()
    forced = await panel_of(service)
    assert "The policy has not drawn yet: in all of 1 decision, callers named" in plain(forced)
    assert charts_of(forced) == []
    await look_up(service, query="an explored one")
    await service.learn()
    unrated = await panel_of(service)
    assert "of 2 decisions none has a reward yet" in plain(unrated)
    (shares,) = charts_of(unrated)
    assert [sum(one["values"]) for one in shares["series"]] == [100.0]


@pytest.mark.slow
async def test_a_change_is_a_mark_with_its_sentence_which_only_a_reader_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasons are texts of operators: escaped, and not for who may only ask; kinds are of the project."""
    keys: list[dict[str, Any]] = []
    for name, project in (("ACME", {"project": "acme"}), ("MAIN", {}), ("ASK", {})):
        monkeypatch.setenv(name, name)
        scopes = ["decide", "feedback"] if name == "ASK" else ["decide", "feedback", "read"]
        keys.append({"env": name, "scopes": scopes, **project})
    async with Service(tmp_path, keys=keys).running() as service:
        bearer = {name: {"authorization": f"Bearer {name}"} for name in ("ACME", "MAIN", "ASK")}
        for name in ("ACME", "MAIN"):
            for tier in ("free", f"of-{name}"):
                await asked(service, tier, 3, **bearer[name])
        await service.settle()
        store, version = service.point.store, service.point.versions.version
        assert version is not None
        promotion = promotions.Promotion(0, version.version, promotions.Action.ROLLBACK, HARM, 1e12)
        promotions.record(store, "any", promotion)
        arm_sets.switch(store, "bm25", False, 2e12)
        shown = {name: await panel_of(service, **bearer[name]) for name in bearer}
        again = await service.client.get(CONSOLE, headers={"hx-request": "true", **bearer["MAIN"]})
        last = await service.client.get(CONSOLE, headers={"hx-request": "true", **bearer["ASK"]})
    for name in ("ACME", "MAIN"):
        escaped = HARM.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
        assert f"Rollback to version {version.version}, because: {escaped}" in shown[name]
        assert "Switch: bm25 can no longer be drawn." in shown[name]
        assert [one["marks"] for one in charts_of(shown[name])] == [[12, 12]] * 2
        other = {"ACME": "MAIN", "MAIN": "ACME"}[name]
        assert f"of-{name}" in shown[name]
        assert f"of-{other}" not in shown[name]
    for text in (shown["ASK"], last.text):
        assert "Is it learning?" in text
        for hidden in ("Rollback", "Switch:", "by kind of question", "of-MAIN"):
            assert hidden not in text
    assert [one["marks"] for one in charts_of(shown["ASK"])] == [[]] * 2
    assert "of-MAIN" in again.text


@pytest.mark.slow
async def test_a_point_whose_actions_come_with_the_request_has_no_single_arm(tmp_path: Path) -> None:
    """Its actions are positions, which are in the shares."""
    async with Service(tmp_path, points=POINTS).running() as service:
        for i in range(12):
            one = await ranked(service, actions=actions("a", "b", "c")[: 2 + i % 2])
            await fed(service, click(one["decision_id"], float(i % 2)))
        await service.settle("news")
        rewards, shares = charts_of(await panel_of(service, "?point=news"))
    assert [one["label"] for one in rewards["series"]] == ["what was served", "a uniform choice"]
    assert {one["label"] for one in shares["series"]} <= {"action-1", "action-2", "action-3"}


WHOLE = ServedComparison(
    *(20, 18, 9, (0.5, (0.4, 0.6))),
    Alternative(None, 9, 0.4, (0.3, 0.5), 0.1, -0.1, 0.3, 60),
    (Alternative("b", 9, 0.6, (0.1, 0.9), -0.1, -0.5, 0.3, 90),),
)

CURVE = LearningCurve(
    WHOLE,
    (
        CurveStretch(0, 5, None, None, None, {"a": 1.0}),
        CurveStretch(5, 12, (0.25, (0.0, 0.5)), (0.5, (0.0, 1.0)), None, {"a": 0.5, "b": 0.5}),
        CurveStretch(12, 20, (0.75, (0.5, 0.9)), (0.5, (-3.0, 1.0)), (0.6, (0.0, 5.0)), {}),
    ),
    (Mark(1.0, 12, "Switch"),),
    Promise(0.8, 0.7, 3, 1.0, decision=12),
)


def test_a_chart_has_a_point_a_stretch_and_gaps_where_nothing_is_known() -> None:
    """What a warm start expected begins where it was promoted; wide bands do not squeeze the picture."""
    made = {name: json.loads(one) for name, one in learning.charts(CURVE, [12], {"a": 4, "b": 5}).items()}
    rewards, shares = made["rewards"], made["shares"]
    assert rewards["x"] == [9.0, 16.5]
    assert [(one["label"], one["colour"], one["values"]) for one in rewards["series"]] == [
        ("what was served", "--ink", [0.25, 0.75]),
        ("a uniform choice", "--grey", [0.5, 0.5]),
        ("always b", "--c5", [None, 0.6]),
        ("expected by the warm start", "--good", [None, 0.8]),
    ]
    assert rewards["series"][0]["low"] == [0.0, 0.5]
    assert rewards["series"][1]["high"] == [1.0, 1.0]
    assert rewards["bounds"] == pytest.approx([-0.045, 0.945])
    assert (rewards["marks"], rewards["range"]) == ([12], [0, 20])
    assert shares["x"] == [3.0, 9.0]
    assert [(one["label"], one["values"]) for one in shares["series"]] == [("a", [100, 50]), ("b", [0, 50])]


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_the_cost_of_exploration_is_what_the_policy_alone_would_earn_more(share: float) -> None:
    policy, uniform, per_day = 0.8, 0.5, 1000
    served = (1.0 - share) * policy + share * uniform
    beside = Alternative(None, 10, uniform, (0.0, 1.0), served - uniform, -1.0, 1.0, None)
    whole = ServedComparison(10, 10, 10, (served, (0.0, 1.0)), beside, ())
    cost = policy - served
    sentence = learning.explain_exploration(whole, share, per_day)
    assert sentence is not None
    assert f"{100 * share:.3g} % of the draws" in sentence
    assert f"costs {cost:.2g} a decision, {cost * per_day:.2g} in the last" in sentence
    worse = replace(whole, uniform=replace(beside, lead=-0.1))
    assert "not distinguished" in str(learning.explain_exploration(worse, share, per_day))
    assert learning.explain_exploration(replace(whole, uniform=None), share, per_day) is None
    assert learning.explain_exploration(whole, 1.0, per_day) is None, "all draws are alike"
