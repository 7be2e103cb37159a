"""What Personalizer's protocol refuses and pages; `tests/clients` has its own clients speak it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.api import ranking
from agent.api.personalizer import evaluations
from tests.agent.fakes import Service

NEWS = {
    "actions": "request",
    "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.2 -q sf"}},
    "reward": {"metrics": {"click": {"range": [-1, 1]}}, "cost_weight": 0.0},
}
CONTRACT = {
    "name": "which settings",
    "startTime": "2020-01-01T00:00:00Z",
    "endTime": "2120-01-01T00:00:00Z",
}
ACTIONS = [{"id": name} for name in ("a", "b", "c")]
OLDER = "/personalizer/v1.0"
NEWER = "/personalizer"


@pytest.fixture
async def news(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with one decision, which an evaluation needs."""
    async with Service(tmp_path, points={"news": NEWS}, personalizer="news").running() as service:
        assert (await service.client.post(f"{OLDER}/rank", json={"actions": ACTIONS})).status_code == 201
        yield service


def failure(answer: httpx.Response, status: int) -> tuple[str, str | None]:
    """Return the code and the target of an error in the shape of the protocol."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error["code"], error.get("target")


async def put(service: Service, name: str) -> httpx.Response:
    return await service.client.put(f"{NEWER}/evaluations/{name}", json=CONTRACT)


async def listed(service: Service, **query: int) -> list[str]:
    answer = await service.client.get(f"{NEWER}/evaluations", params=query)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["value"]]


@pytest.mark.parametrize("name", ["none", "7", "9" * 15, "9" * 16, "9" * 20, "9" * 256])
async def test_an_evaluation_that_is_not_there_is_not_found_however_many_digits_its_id_has(
    news: Service, name: str
) -> None:
    await put(news, "e-1")
    for ask in (news.client.get, news.client.delete):
        found = failure(await ask(f"{OLDER}/evaluations/{name}"), 404)
        assert found == ("ResourceNotFound", "evaluationId")


async def test_an_evaluation_is_found_by_the_id_of_its_client_and_by_its_number(news: Service) -> None:
    number = "12345678901234567890"
    for name in ("e-1", number):
        assert (await put(news, name)).json()["id"] == name
        assert failure(await put(news, name), 409) == ("Conflict", "evaluationId")
    made = await news.client.post(f"{OLDER}/evaluations", json=CONTRACT)
    assert (made.status_code, made.json()["id"]) == (201, "3")
    assert made.headers["location"] == f"{OLDER}/evaluations/3"
    found = [
        (await news.client.get(f"{NEWER}/evaluations/{name}")).json()["id"]
        for name in ("e-1", "1", number, "2", "3")
    ]
    assert found == ["e-1", "e-1", number, number, "3"]


async def test_evaluations_are_listed_newest_first_from_where_the_client_skips_to(
    news: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await listed(news) == []
    for i in range(5):
        assert (await put(news, f"e-{i}")).status_code == 200
    assert await listed(news) == ["e-4", "e-3", "e-2", "e-1", "e-0"]
    assert await listed(news, top=2) == ["e-4", "e-3"]
    assert await listed(news, top=2, skip=2) == ["e-2", "e-1"]
    assert await listed(news, top=2, skip=4) == ["e-0"]
    assert await listed(news, skip=5) == []
    older = await news.client.get(f"{OLDER}/evaluations", params={"top": 1})
    assert [one["id"] for one in older.json()] == ["e-4"]
    for query in ({"top": 0}, {"top": 1001}, {"skip": -1}, {"skip": 1001}):
        answer = await news.client.get(f"{NEWER}/evaluations", params=query)
        assert answer.status_code == 400, query
    monkeypatch.setattr(evaluations, "MOST", 2)
    assert (await news.client.get(f"{NEWER}/evaluations/e-3")).status_code == 200
    assert (await news.client.get(f"{NEWER}/evaluations/e-2")).status_code == 404
    assert (await news.client.get(f"{NEWER}/evaluations/3")).json()["id"] == "e-2", "a number is a position"


def slots(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": f"slot-{i}", "baselineAction": name, **fields} for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"slots": [*slots("a"), *slots("b")]}, "slots"),
        ({"slots": slots("a", "b", "c", "a")}, "slots"),
        ({"slots": slots("a", "d")}, "slots.baselineAction"),
    ],
)
async def test_slots_that_cannot_be_filled_are_refused(
    news: Service, body: dict[str, Any], target: str
) -> None:
    answer = await news.client.post(f"{OLDER}/multislot/rank", json={"actions": ACTIONS, **body})
    assert failure(answer, 400) == ("BadRequest", target)


async def test_as_many_slots_as_actions_show_each_action_once_and_are_rewarded_each(news: Service) -> None:
    body = {"eventId": "m-1", "actions": ACTIONS, "slots": slots("c", "b", "a"), "deferActivation": True}
    answer = await news.client.post(f"{OLDER}/multislot/rank", json=body)
    assert answer.status_code == 201, answer.text
    shown = {one["id"]: one["rewardActionId"] for one in answer.json()["slots"]}
    assert sorted(shown.values()) == ["a", "b", "c"]
    values = [{"slotId": f"slot-{i}", "value": i / 2} for i in range(3)]
    path = f"{OLDER}/multislot/events/m-1"
    assert (await news.client.post(f"{path}/reward", json={"reward": values})).status_code == 204
    assert (await news.client.post(f"{path}/activate")).status_code == 204
    store = news.replica.points["news"].store
    for i in range(3):
        logged = store.record(f"m-1:slot-{i}")
        assert logged is not None
        record = ranking.record_by_ids(logged)
        assert record.decision.drawn == shown[f"slot-{i}"]
        assert [(item.kind, item.value) for item in record.feedback] == [
            ("value", i / 2),
            ("activation", None),
        ]
