"""What the playground says of the first and the newest rated answers."""

import html
import re
from collections import Counter
from pathlib import Path

import pytest

from armwise.feedback.training_log import rated
from tests.agent.asking import ask, forced, tell
from tests.agent.fakes import Service

pytestmark = pytest.mark.slow


async def shown(service: Service) -> str:
    page = (await service.client.get("/console/playground")).text
    found = re.search(r'<p class="note">(.*?)</p>', page)
    return html.unescape(found[1]) if found else ""


async def rate(service: Service, values: list[float]) -> list[str]:
    """Ask and rate a question for each value; return the arms that were drawn."""
    arms = []
    for value in values:
        found = (await ask(service)).json()["agent"]
        arms.append(found["arm_drawn"])
        await tell(service, found["decision_id"], value)
    await service.learn()
    return arms


def describe(arms: list[str], good: int) -> str:
    shares = ", ".join(f"{arm} ({100 * n / len(arms):.0f} %)" for arm, n in Counter(arms).most_common())
    return f"{good} of {len(arms)} were rated good. They came from {shares}"


async def test_the_first_rated_answers_stand_beside_the_newest_once_fifty_are_rated(tmp_path: Path) -> None:
    async with Service(tmp_path, policy={"kind": "uniform"}).running() as service:
        first = await rate(service, [-1.0] * 24 + [0.0])
        assert await shown(service) == ""
        await ask(service)  # not rated
        await tell(service, await forced(service, "bm25"))  # not drawn
        second = await rate(service, [1.0] * 24)
        assert await shown(service) == ""
        second += await rate(service, [0.5])
        expected = f"Among the first rated answers, {describe(first, 0)}. Among the newest, "
        assert await shown(service) == expected + f"{describe(second[::-1], 25)}."
        third = await rate(service, [1.0] * 75)
        both = (first + second, 25), (third[:-51:-1], 50)
        begin, end = (describe(arms, good) for arms, good in both)
        assert await shown(service) == f"Among the first rated answers, {begin}. Among the newest, {end}."


async def test_the_rated_answers_of_a_project_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = []
    for name in ("one", "two"):
        monkeypatch.setenv(name.upper(), f"{name}-secret")
        known.append({"env": name.upper(), "scopes": ["decide", "feedback", "read"], "project": name})
    async with Service(tmp_path, keys=known, policy={"kind": "uniform"}).running() as service:
        service.client.headers["authorization"] = "Bearer one-secret"
        await rate(service, [1.0] * 2 * rated.GROUP)
        assert "50 of 50 were rated good" in await shown(service)
        service.client.headers["authorization"] = "Bearer two-secret"
        assert await shown(service) == ""
