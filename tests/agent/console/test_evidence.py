"""The gate's evidence beside what one may do about it, and evaluations side by side."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from armwise.agent.config import parse
from armwise.agent.console import evidence
from armwise.agent.console.page import CONSOLE
from armwise.agent.evaluation import Report
from armwise.feedback.registry import evaluations
from tests.agent.api.test_promotion_gate import published, without_waiting
from tests.agent.console.test_pages import ORIGIN, plain, seen
from tests.agent.fakes import CONFIG, Service
from tests.agent.judged import judged_log


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose log holds judged turns, and which answers evaluations."""
    judged_log(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), turns=60)
    async with Service(tmp_path).running() as service:
        yield service


async def post(service: Service, path: str, **fields: str) -> str:
    answer = await service.client.post(CONSOLE + path, data=fields, headers=ORIGIN)
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


async def finish(service: Service) -> None:
    """Answer what was asked."""
    with service.working():
        async with asyncio.timeout(60):
            while "is queued" in (page := await seen(service, "/policies/gate")) or "is running" in page:
                assert 'hx-trigger="every 2s"' in page
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_the_gate_is_asked_and_its_evidence_is_drawn_with_the_margin(judged: Service) -> None:
    empty = await seen(judged, "/policies")
    assert "The gate has judged no version lately." in plain(empty)
    assert 'hx-get="/console/policies/gate"' not in empty
    assert await post(judged, "/policies/gate", version="1") == f"{CONSOLE}/policies"
    await finish(judged)
    shown = await seen(judged, "/policies")
    document = await asyncio.to_thread(evaluations.read_result, judged.replica.store, 1)
    assert document is not None
    (verdict,) = (one["verdict"] for one in document["candidates"] if one["name"] == "recipe:1")
    (figure,) = (json.loads(html.unescape(one)) for one in re.findall(r'data-chart="([^"]*)"', shown))
    points = verdict["trail"]
    assert figure["x"] == [point["at"] for point in points] == sorted(figure["x"])
    by_name = {one["label"]: one["values"] for one in figure["series"]}
    assert by_name["at least"] == [point["low"] for point in points]
    assert by_name["estimated gain"] == [point["gain"] for point in points]
    assert set(by_name["margin"]) == {verdict["figures"]["margin"]}
    low, high = figure["bounds"]
    assert low < min(points[-1]["low"], verdict["figures"]["margin"]) < high
    said = plain(shown)
    assert "recipe:1: hold" in said.replace(" :", ":")
    assert all(reason in said for reason in verdict["reasons"])
    assert "Promote 1 Judge 1" in plain(shown[shown.index('id="gate"') :])
    answer = await judged.client.post(f"{CONSOLE}/policies/gate", data={"version": "99"}, headers=ORIGIN)
    assert (answer.status_code, "there is no version 99" in answer.text) == (404, True)


@pytest.mark.slow
async def test_a_promotion_is_forced_only_where_the_operator_ticks_it(judged: Service) -> None:
    without_waiting(judged)
    fields = {"action": "promote", "version": str(published(judged)), "reason": "better"}
    waits = await post(judged, "/policies", **fields)
    assert waits == f"{CONSOLE}/policies/act?action=promote&version={fields['version']}", "no verdict yet"
    assert judged.replica.versions.active.promotion is None
    await post(judged, "/policies", **fields, force="on")
    promotion = judged.replica.versions.active.promotion
    assert promotion is not None
    assert promotion.forced


async def test_the_newest_verdicts_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {
        9: ("queued", []),
        8: ("running", []),
        7: ("failed", []),
        6: ("done", ["recipe:1"]),
        5: ("done", ["recipe:1", "version:2"]),
        4: ("done", ["uniform"]),
        3: ("done", ["recipe:9"]),
    }
    states = [
        SimpleNamespace(id=n, status=status, request={"gate": True}) for n, (status, _) in names.items()
    ]
    states.append(SimpleNamespace(id=2, status="queued", request={"gate": False}))
    verdict = {"trail": [], "figures": None}

    async def listed(*_: object) -> SimpleNamespace:
        return SimpleNamespace(reply=SimpleNamespace(evaluations=states))

    async def result_of(_: object, __: object, number: int) -> int:
        return number

    def report(number: int) -> SimpleNamespace:
        found = [SimpleNamespace(name=name, verdict=verdict) for name in names[number][1]]
        return SimpleNamespace(candidates=[SimpleNamespace(name="fixed:bm25", verdict=None), *found])

    monkeypatch.setattr(evidence.api, "evaluations", listed)
    monkeypatch.setattr(evidence.api, "read_result", result_of)
    monkeypatch.setattr(evidence, "_report", report)
    replica: Any = None
    shown = await evidence.read_verdicts(replica, replica)
    found = [(one.name, one.version, one.evaluation.id) for one in shown["judged"]]
    assert found == [("recipe:1", 1, 6), ("version:2", 2, 5), ("uniform", None, 4)]
    assert [one.id for one in shown["pending"]] == [9, 8]


async def test_a_canary_is_judged_as_its_promotion_would_judge_it(judged: Service) -> None:
    said = {"reason": "new labels", "share": 0.5}
    assert (await judged.client.post("/v1/policies/1/canary", json=said)).status_code == 200
    await post(judged, "/policies/gate", version="1")
    (asked,) = await asyncio.to_thread(evaluations.page, judged.replica.store, 2)
    assert asked.request["candidates"] == ["canary:1"]


@pytest.mark.slow
async def test_evaluations_are_compared_by_the_estimates_that_lead_their_reports(judged: Service) -> None:
    await post(judged, "/evaluations", candidates="fixed:bm25\nuniform")
    await post(judged, "/evaluations", candidates="fixed:bm25\nfixed:dense", gate="on")
    with judged.working():
        async with asyncio.timeout(60):
            while len(re.findall(r'name="of"', await seen(judged, "/evaluations"))) < 2:
                await asyncio.sleep(0.01)
    shown = plain(await seen(judged, "/evaluations/compare?of=2&of=1"))
    ends: list[float] = []
    for number in (1, 2):
        document = await asyncio.to_thread(evaluations.read_result, judged.replica.store, number)
        assert document is not None
        report = Report.read(document)
        assert f"evaluation {number}" in shown
        assert len(report.candidates) == 3
        for one in report.candidates:
            assert one.headline is not None
            assert one.headline.value is not None
            ends += [one.headline.value.low, one.headline.value.high]
            assert (
                f"{one.headline.value.value:+.3f} {one.headline.value.ends}, {one.headline.estimator}"
                in shown
            )
    assert f"drawn from {min(ends):+.3f} to {max(ends):+.3f}" in shown
    assert "not asked" in shown
    for query, status, said in (
        ("of=1", 400, "choose two evaluations"),
        ("of=1&of=1", 400, "choose two evaluations"),
        ("", 400, "choose two evaluations"),
        ("of=1&of=99", 404, "there is no evaluation 99"),
        ("of=1&of=two", 400, "of"),
        ("&".join(f"of={n}" for n in range(1, 9)), 400, "at most 6"),
    ):
        answer = await judged.client.get(f"{CONSOLE}/evaluations/compare?{query}")
        assert (answer.status_code, said in plain(answer.text)) == (status, True), answer.text
