"""The panel that says whether it is learning: its sentence, charts and marks, for every kind of log."""

import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
from armwise.feedback.training_log import rollups
from tests.agent.asking import look_up, tell
from tests.agent.console.test_pages import plain
from tests.agent.console.test_worth import asked
from tests.agent.fakes import Service

HARM = '<script>alert(1)</script>" onload="alert(2)'


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
        *_, shares = charts_of(panel)
        assert shares["range"] == [0, 41]
        assert (shares["counts"], shares["stacked"]) == ("decision", True)
        columns = zip(*(one["values"] for one in shares["series"]), strict=True)
        assert [sum(values) for values in columns] == [pytest.approx(100, abs=0.1)] * len(shares["x"])
        assert "cannot be told apart" in text


async def test_the_panel_of_an_empty_log_has_a_sentence_and_no_chart(service: Service) -> None:
    """Nothing is drawn from nothing."""
    panel = await panel_of(service)
    assert "Nothing was asked yet." in plain(panel)
    assert charts_of(panel) == []
    assert 'href="/console/playground"' in panel, "what to do next"
    assert "/v1/feedback" in panel
    assert "Of 0 decisions" not in plain(panel)


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
    assert "Nothing can be estimated yet: 1 decision" in plain(unrated)
    (shares,) = charts_of(unrated)
    assert [one["values"] for one in shares["series"]] == [[100.0, 100.0]], "from its begin to its end"


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
        store, version = service.replica.store, service.replica.versions.version
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
        assert [one["marks"] for one in charts_of(shown[name])] == [[12, 12]]
        other = {"ACME": "MAIN", "MAIN": "ACME"}[name]
        assert f"of-{name}" in shown[name]
        assert f"of-{other}" not in shown[name]
    for text in (shown["ASK"], last.text):
        assert "Is it learning?" in text
        for hidden in ("Rollback", "Switch:", "by kind of question", "of-MAIN"):
            assert hidden not in text
    assert [one["marks"] for one in charts_of(shown["ASK"])] == [[]]
    assert "of-MAIN" in again.text


WHOLE = ServedComparison(
    *(20, 18, 9, (0.5, (0.4, 0.6))),
    Alternative(None, 9, 0.4, (0.3, 0.5), 0.1, -0.1, 0.3, 60),
    (Alternative("b", 9, 0.6, (0.1, 0.9), -0.1, -0.5, 0.3, 90),),
)

CURVE = LearningCurve(
    WHOLE,
    (
        CurveStretch(0, 5, None, {"a": 1.0}),
        CurveStretch(5, 12, (-0.25, (-0.9, 0.75)), {"a": 0.5, "b": 0.5}),
        CurveStretch(12, 18, (0.2, (-0.1, 0.4)), {}),
        CurveStretch(18, 20, (0.25, (0.1, 0.4)), {}),
    ),
    (Mark(1.0, 12, "Switch"),),
    Promise(0.8, 0.7, 3),
)


def test_the_first_chart_is_one_line_beside_the_best_arm_with_a_band_that_is_not_squeezed() -> None:
    """A point stands where its decisions end, and the wide bands of the first third do not set the range."""
    made = {
        name: json.loads(one) for name, one in learning.charts(CURVE, [12], {"a": 4, "b": 5}).items() if one
    }
    lead, shares = made["lead"], made["shares"]
    assert lead["x"] == [12, 18, 20]
    served, beside = lead["series"]
    assert (served["label"], served["colour"]) == ("what was served", "--ink")
    assert (served["values"], served["low"]) == ([-0.25, 0.2, 0.25], [-0.9, -0.1, 0.1])
    assert served["high"] == [0.75, 0.4, 0.4]
    assert (beside["label"], beside["colour"], beside["values"]) == ("always b", "--c5", [0.0] * 3)
    assert "low" not in beside, "one band"
    assert lead["bounds"] == pytest.approx([-0.125, 0.425])
    assert (lead["marks"], lead["range"], lead["counts"]) == ([12], [0, 20], "decision")
    assert shares["x"] == [0, 5, 12]
    levels = [("a", [100, 50, 50]), ("b", [0, 50, 50])]
    assert [(one["label"], one["values"]) for one in shares["series"]] == levels
    by_chance = learning.charts(replace(CURVE, whole=replace(WHOLE, arms=())), [], {})
    assert json.loads(by_chance["lead"])["series"][1]["label"] == "a uniform choice"
    unknown = learning.charts(replace(CURVE, stretches=CURVE.stretches[:2]), [], {})
    assert unknown["lead"] == "", "a point is no line"


@pytest.mark.parametrize("share", [0.02, 0.3])
def test_the_cost_of_exploration_is_what_the_policy_alone_would_earn_more(share: float) -> None:
    policy, uniform, per_day = 0.8, 0.5, 200
    served = (1.0 - share) * policy + share * uniform
    beside = Alternative(None, 10, uniform, (0.0, 1.0), served - uniform, 0.1, 1.0, None)
    whole = ServedComparison(10, 10, 10, (served, (0.0, 1.0)), beside, ())
    cost = policy - served
    sentence = learning.explain_exploration(whole, share, per_day)
    assert sentence is not None
    rate = 1000 * share / (1 - share)
    assert f"for {100 * share:.3g} % of the decisions" in sentence
    assert f"gives up a reward of {1000 * cost:.3g} ({0.1 * rate:.3g} to {rate:.3g}) per 1,000" in sentence
    assert f"{cost * per_day:.3g} in the last 24 hours" in sentence
    assert "$" not in sentence
    unsure = replace(whole, uniform=replace(beside, low=0.0))
    said = str(learning.explain_exploration(unsure, share, per_day))
    assert "cannot be told apart from nothing" in said
    assert f"at most {rate:.3g} per 1,000" in said
    worse = replace(whole, uniform=replace(beside, lead=-0.2, low=-0.3, high=-0.1))
    assert "at most 0 per 1,000" in str(learning.explain_exploration(worse, share, per_day))
    assert learning.explain_exploration(replace(whole, uniform=None), share, per_day) is None
    assert learning.explain_exploration(whole, 1.0, per_day) is None, "all draws are alike"


@pytest.mark.parametrize(("usd", "said"), [(0.009, "costs $1.00 per"), (-0.0009, "saves $0.10 per")])
def test_exploration_that_costs_or_saves_dollars_says_how_many(usd: float, said: str) -> None:
    """A tenth of the draws: a ninth of the difference between a uniform choice and what was served."""
    beside = Alternative(None, 10, 0.5, (0.0, 1.0), 0.2, 0.1, 0.3, None)
    whole = ServedComparison(10, 10, 10, (0.7, (0.0, 1.0)), beside, ())
    sentence = learning.explain_exploration(whole, 0.1, 2000, usd)
    assert sentence is not None
    assert f"{said} 1,000 answers, ${abs(usd) / 9 * 2000:.2f} in the last 24 hours" in sentence


def test_dollars_of_a_uniform_choice_are_the_mean_of_the_arms_less_what_was_paid() -> None:
    """Three answers for nothing and one for 0.04: alike they would cost 0.02, and 0.01 was paid."""
    columns = {"usd": np.array([0.0, 0.04, 0.0]), "finished": np.array([2.0, 1.0, 1.0])}
    day = rollups.Sums(np.zeros(3, dtype=np.int64), np.array(["a", "b", "a"]), np.full(3, 2), columns)
    assert learning.price_uniform(day, ["a", "b"]) == pytest.approx(0.01)
    assert learning.price_uniform(day, ["a", "b", "c"]) is None, "c has not answered"
    assert learning.price_uniform(day, ["a"]) is None, "nothing was charged"
