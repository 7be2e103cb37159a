"""The pages of each decision point: what is shown, where links lead, and what actions act on."""

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from armwise.agent.console.page import CONSOLE, PAGES
from tests.agent.api.test_points import POINTS
from tests.agent.asking import look_up
from tests.agent.console.test_pages import ORIGIN, plain, seen
from tests.agent.fakes import Service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a point whose callers carry out its arms, and one with other arms."""
    async with Service(tmp_path, points=POINTS).running() as service:
        yield service


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.slow
async def test_every_link_and_form_of_a_page_stays_at_its_point(service: Service, point: str) -> None:
    for path, title in PAGES:
        shown = await seen(service, f"{path}?point={point}")
        assert f'aria-current="true">{point}</a>' in shown, title
        picker = re.findall(rf'href="({CONSOLE}[^"]*)"[^>]*>(default|news|cheap)</a>', shown)
        assert [name for _, name in picker] == ["default", *POINTS]
        assert picker[0][0] == CONSOLE + path, "the default point has the addresses that it always had"
        others = {address for address, name in picker if name != point}
        led = re.findall(rf'(?:href|hx-get|hx-post|formaction|action|data-ask)="({CONSOLE}[^"]*)"', shown)
        kept = [one for one in led if "/static/" not in one and one not in others and "logout" not in one]
        assert len(kept) > len(PAGES)
        assert all(re.search(rf"[?;]point={point}\b", one) for one in kept), title
    unknown = await service.client.get(f"{CONSOLE}?point=<b>")
    assert (unknown.status_code, "no decision point '<b>'" in html.unescape(unknown.text)) == (404, True)


@pytest.mark.slow
async def test_a_page_shows_the_log_of_its_point_alone(service: Service) -> None:
    await look_up(service, query="asked of the service")
    await look_up(service, query="asked cheaply", model="point/cheap")
    await service.learn()
    await service.learn_at("cheap")
    for point, own, other in (
        ("default", "asked of the service", "asked cheaply"),
        ("cheap", "asked cheaply", "asked of the service"),
    ):
        shown = await seen(service, f"/decisions?point={point}")
        assert own in shown
        assert other not in shown
        assert "requests 1 since" in plain(await seen(service, f"?point={point}"))
    live = {"hx-request": "true"}
    for point in ("default", "news", "cheap"):  # the live part of one point is not that of another
        part = await service.client.get(f"{CONSOLE}?point={point}", headers=live)
        said = "Nothing was asked yet." if point == "news" else "requests 1 since"
        assert said in plain(part.text)
    (address,) = set(re.findall(r'href="([^"]*/decisions/cheap%3A[^"]*)"', shown))
    assert "asked cheaply" in (await service.client.get(address)).text
    told = await service.client.post(
        address.replace("?", "/feedback?"), data={"metric": "thumb", "value": "1"}, headers=ORIGIN
    )
    assert "accepted" in told.text
    switched = await service.client.post(
        f"{CONSOLE}/arms/none?point=cheap", data={"enabled": "false"}, headers=ORIGIN
    )
    assert switched.headers["location"] == f"{CONSOLE}/arms?point=cheap"
    assert [service.points[point].turns.arms["none"].enabled for point in ("default", "cheap")] == [
        True,
        False,
    ]


@pytest.mark.slow
async def test_an_arm_that_is_switched_off_cannot_be_asked_in_the_playground(service: Service) -> None:
    await service.points["cheap"].switch("bm25", enabled=False)
    assert 'value="point/cheap/arm/bm25"' not in await seen(service, "/playground?point=cheap")
    assert 'value="arm/bm25"' in await seen(service, "/playground")


async def test_the_command_for_a_first_question_names_the_point_of_the_page(service: Service) -> None:
    assert re.search(r"armwise ask [^<]* --point cheap</code>", await seen(service, "?point=cheap"))
    assert "--point" not in await seen(service, "")
