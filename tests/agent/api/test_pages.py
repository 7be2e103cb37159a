"""The interactive page of the API works without a network, and shows nothing that a browser may not load."""

import re

import pytest

from tests.agent.fakes import Service


@pytest.mark.slow
async def test_the_page_and_what_it_loads_come_from_the_service_alone(service: Service) -> None:
    page = await service.client.get("/docs")
    loaded = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", page.text)
    assert "openapi.json" in loaded
    assert len(loaded) == 4
    for url in loaded:
        assert not re.match(r"[a-z]+:|/", url), f"{url} is not relative: behind a prefix it leads elsewhere"
        assert (await service.client.get(str(page.url.join(url)))).status_code == 200
    css = (await service.client.get("/docs/swagger-ui.css")).text
    assert not re.search(r"@import|url\(\s*[\"']?+(?!data:)", css)


async def test_a_browser_loads_nothing_of_another_origin(service: Service) -> None:
    policy = (await service.client.get("/docs")).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    assert "http" not in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]


async def test_the_root_leads_to_the_page(service: Service) -> None:
    found = await service.client.get("/", follow_redirects=True)
    assert (found.status_code, found.url.path) == (200, "/docs")
    assert found.history[0].headers["location"] == "docs"
