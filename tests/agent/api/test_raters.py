"""Who rates: what is kept of the sender of feedback, so that one teaches no more than its share."""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.feedback.events import Feedback, Tick
from armwise.feedback.log import Store
from armwise.feedback.log.store import DrawSecret
from armwise.feedback.training_log.raters import read_rated
from tests.agent.asking import forced, look_up
from tests.agent.fakes import Service
from tests.agent.gateways.test_buttons import BUTTON, EVIL, token

THUMB = {"decision_id": "d-1", "metric_name": "thumb", "value": 1.0}


async def feedback(service: Service) -> list[Feedback]:
    return await asyncio.to_thread(lambda: [*service.replica.store.feedback(100)])


async def raters(service: Service) -> list[str | None]:
    return [one.rater for one in await feedback(service)]


def client_at(service: Service, address: tuple[str, int] | None, **headers: str) -> httpx.AsyncClient:
    """A client whose connection comes from an address; None for one through the proxy of the service."""
    transport = httpx.ASGITransport(service.app, client=address)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers)


@pytest.mark.parametrize(
    ("source", "expected"), [("user", "RATER_KEY"), ("judge", ""), ("operator", "")], ids=str
)
async def test_a_rater_is_the_key_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str
) -> None:
    monkeypatch.setenv("RATER_KEY", "a-secret")
    keys = [{"env": "RATER_KEY", "scopes": ["feedback"], "source": source}]
    async with Service(tmp_path, keys=keys).running() as service:
        headers = {"authorization": "Bearer a-secret"}
        assert (await service.client.post("/v1/feedback", json=THUMB, headers=headers)).status_code == 202
        assert await raters(service) == [expected]


async def test_without_keys_a_rater_is_an_address_that_is_not_written_down(service: Service) -> None:
    senders: list[tuple[tuple[str, int] | None, Mapping[str, str]]] = [
        (("192.0.2.1", 1), {}),
        (("192.0.2.1", 2), {"x-forwarded-for": "203.0.113.9"}),
        (("192.0.2.2", 1), {}),
        (None, {"x-forwarded-for": "192.0.2.1"}),
        (("", 0), {"x-forwarded-for": "192.0.2.1"}),
        (None, {}),
    ]
    for number, (address, headers) in enumerate(senders):
        async with client_at(service, address, **headers) as client:
            body = THUMB | {"feedback_id": f"f-{number}"}
            assert (await client.post("/v1/feedback", json=body)).status_code == 202
    one, same, other, proxied, nameless, unknown = await raters(service)
    assert one == same == proxied == nameless != other
    assert unknown is None
    assert str(one).startswith("address-")
    assert "192.0.2" not in f"{one}{other}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:0db8:0001:0002::1", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_addresses_of_one_subscriber_are_one_rater(one: str, other: str, same: bool) -> None:
    rater_at = DrawSecret("s3cret").rater_at
    assert (rater_at(one) == rater_at(other)) == same


async def test_the_rater_of_another_project_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATER_KEY", "a-secret")
    keys = [{"env": "RATER_KEY", "scopes": ["feedback"], "project": "acme"}]
    async with Service(tmp_path, keys=keys).running() as service:
        headers = {"authorization": "Bearer a-secret"}
        assert (await service.client.post("/v1/feedback", json=THUMB, headers=headers)).status_code == 202
        assert await raters(service) == ["acme~RATER_KEY"]


async def test_a_button_is_pressed_by_an_address_not_by_the_key_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_KEY", "a-secret")
    async with Service(
        tmp_path, keys=[{"env": "PAGE_KEY", "scopes": ["decide", "feedback", "read"]}]
    ).running() as service:
        headers = {"authorization": "Bearer a-secret"}
        service.client.headers.update(headers)
        made = await token(service, await forced(service, "bm25"), headers)
        async with client_at(service, ("192.0.2.7", 1)) as page:
            body: dict[str, Any] = {"token": made, "value": "up", "change": 0}
            assert (await page.post(BUTTON, json=body, headers=EVIL)).status_code == 202
        assert await raters(service) == [service.replica.store.draw_secret.rater_at("192.0.2.7")]


@pytest.mark.slow
async def test_a_flood_of_one_sender_teaches_a_quarter(service: Service) -> None:
    async def rate(address: str, n: int) -> None:
        async with client_at(service, (address, 1)) as client:
            for _ in range(n):
                decision = (await look_up(service)).json()["agent"]["decision_id"]
                body = {"decision_id": decision, "metric_name": "thumb", "value": 1.0}
                assert (await client.post("/v1/feedback", json=body)).status_code == 202

    await rate("192.0.2.1", 45)
    await rate("192.0.2.9", 12)
    await service.learn()
    later = service.clock() + service.config.reward.wait_s + 60.0
    with closing(Store(service.config.database_url, clock=lambda: later)) as store:
        store.append([Tick(later)])
    await service.learn()
    page = (await service.client.get("/console/details")).text
    assert "Who rated" in page
    rated = read_rated(service.replica.store, service.config.reward.join)
    left = [rater for rater, learned in rated if not learned]
    assert set(left) == {service.replica.store.draw_secret.rater_at("192.0.2.9")}
    assert f"<td>{len(left)}</td>" in page.partition("Who rated")[2]
