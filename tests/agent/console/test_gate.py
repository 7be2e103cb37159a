"""The verdicts of the gate on the page of policies, and how it is asked there."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from armwise.agent.config import parse
from armwise.agent.console.page import CONSOLE
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
            while "queued," in (page := await seen(service, "/policies/gate")) or "running," in page:
                assert 'hx-trigger="every 2s"' in page
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_the_gate_is_asked_and_its_verdict_is_shown(judged: Service) -> None:
    empty = await seen(judged, "/policies")
    assert "The gate has not judged any version yet." in plain(empty)
    assert 'hx-get="/console/policies/gate"' not in empty
    assert await post(judged, "/policies/gate", version="1") == f"{CONSOLE}/policies"
    await finish(judged)
    shown = await seen(judged, "/policies")
    document = await asyncio.to_thread(evaluations.read_result, judged.replica.store, 1)
    assert document is not None
    (verdict,) = (one["verdict"] for one in document["candidates"] if one["name"] == "recipe:1")
    said = plain(shown)
    assert "recipe:1: hold" in said.replace(" :", ":")
    assert all(reason in said for reason in verdict["reasons"])
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


async def test_a_canary_is_judged_as_its_promotion_would_judge_it(judged: Service) -> None:
    said = {"reason": "new labels", "share": 0.5}
    assert (await judged.client.post("/v1/policies/1/canary", json=said)).status_code == 200
    await post(judged, "/policies/gate", version="1")
    (asked,) = await asyncio.to_thread(evaluations.page, judged.replica.store, 2)
    assert asked.request["candidates"] == ["canary:1"]
