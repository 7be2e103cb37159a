"""Who may see and do what in the console, and what its pages may load."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from armwise.agent.config import Scope
from armwise.agent.console import page
from armwise.agent.console.page import CONSOLE, KEY_COOKIE
from armwise.feedback.errors import LogUnavailableError
from tests.agent.fakes import Service

SCOPES: tuple[Scope, ...] = ("decide", "feedback", "read", "operate", "admin")

ORIGIN = {"origin": "http://service"}

SEEN = [path for path, _ in page.PAGES]


@asynccontextmanager
async def closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service with one key for each scope: `<scope>-secret`."""
    for scope in SCOPES:
        monkeypatch.setenv(f"{scope.upper()}_KEY", f"{scope}-secret")
    keys = [{"env": f"{scope.upper()}_KEY", "scopes": [scope]} for scope in SCOPES]
    async with Service(folder, keys=keys).running() as service:
        yield service


async def sign_in(service: Service, scope: str, **fields: str) -> httpx.Response:
    service.client.cookies.clear()
    form = {"key": f"{scope}-secret", **fields}
    return await service.client.post(f"{CONSOLE}/login", data=form, headers=ORIGIN)


@pytest.mark.slow
async def test_an_open_service_shows_every_page_without_a_key(on_each: Service) -> None:
    service = on_each
    for path in (*SEEN, "/decisions?text=a&metric=thumb&least=0&since=2026-01-01"):
        answer = await service.client.get(CONSOLE + path)
        assert answer.status_code == 200, path
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"] == page.POLICY
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", answer.text), path
    assert "unsafe" not in page.POLICY
    assert (await service.client.get(f"{CONSOLE}/login")).headers["location"] == CONSOLE


async def test_a_key_signs_in_by_a_cookie_that_scripts_and_other_sites_do_not_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed(tmp_path, monkeypatch) as service:
        asked = await service.client.get(f"{CONSOLE}/decisions?before=3")
        assert asked.status_code == 303
        assert asked.headers["location"] == f"{CONSOLE}/login?next=/decisions"
        form = await service.client.get(asked.headers["location"])
        assert form.status_code == 200
        assert '<input type="hidden" name="next" value="/decisions">' in form.text
        wrong = await sign_in(service, "no")
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        assert "unknown key" in wrong.text
        assert "Your key has expired" not in wrong.text
        right = await sign_in(service, "read", next="/decisions")
        assert right.headers["location"] == f"{CONSOLE}/decisions"
        cookie = right.headers["set-cookie"]
        assert cookie == f"{KEY_COOKIE}=read-secret; HttpOnly; Path={CONSOLE}; SameSite=strict"
        secure = await service.client.post(
            f"{CONSOLE}/login", data={"key": "read-secret"}, headers={"origin": "https://service"}
        )
        assert "Secure" in secure.headers["set-cookie"]
        await sign_in(service, "read")
        assert (await service.client.get(f"{CONSOLE}/decisions")).status_code == 200
        assert (await service.client.get("/v1/policies")).status_code == 401, "for the console alone"
        out = await service.client.post(f"{CONSOLE}/logout", headers=ORIGIN)
        assert out.headers["location"] == f"{CONSOLE}/login"
        removed = out.headers["set-cookie"]
        assert removed.startswith(f'{KEY_COOKIE}=""; ')
        assert removed.endswith(f"; HttpOnly; Max-Age=0; Path={CONSOLE}; SameSite=strict")
        assert (await service.client.get(f"{CONSOLE}/decisions")).status_code == 303


@pytest.mark.parametrize("after", ["https://evil.test", "//evil.test", "/\\evil.test", "evil"])
async def test_signing_in_leads_to_no_other_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    async with closed(tmp_path, monkeypatch) as service:
        assert (await sign_in(service, "read", next=after)).headers["location"] == CONSOLE


@pytest.mark.slow
async def test_every_action_is_refused_from_another_origin_and_every_route_without_its_scope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed(tmp_path, monkeypatch) as service:
        routes = [
            one for one in service.app.routes if isinstance(one, Route) and one.path.startswith(CONSOLE)
        ]
        assert len(routes) >= len(SEEN)
        for route in routes:
            path = route.path.replace(":path", "").format(
                name="bm25", decision_id="d-1", number=1, version=1, public_id="k", path="nowhere"
            )
            free = path.startswith((f"{CONSOLE}/log", f"{CONSOLE}/static"))
            for method in (route.methods or set()) - {"HEAD"}:
                if method != "GET":
                    for headers in ({}, {"origin": "http://evil.test"}, {"sec-fetch-site": "cross-site"}):
                        await sign_in(service, "admin")
                        refused = await service.client.request(method, path, headers=headers)
                        assert refused.status_code == 403, (path, headers)
                service.client.cookies.clear()
                without = await service.client.request(method, path, headers=ORIGIN)
                if not free:
                    assert without.status_code in (303, 401), path
                    assert without.headers.get("location", "/login").count("/login") == 1
                await sign_in(service, "feedback")
                other = await service.client.request(method, path, headers=ORIGIN)
                if not free and "nowhere" not in path and "feedback" not in path:
                    assert other.status_code == 403, path


async def test_the_key_of_a_cookie_holds_below_the_console_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed(tmp_path, monkeypatch) as service:
        cookie = {"cookie": f"{KEY_COOKIE}=read-secret"}
        for path, status in (
            (CONSOLE, 200),
            (f"{CONSOLE}/system", 200),
            (f"{CONSOLE}s", 401),
            ("/v1/arms", 401),
        ):
            answer = await service.client.get(path, headers=cookie)
            assert answer.status_code == status, path
            is_page = answer.headers["content-type"].startswith("text/html")
            assert is_page == (status == 200), path


async def test_a_key_that_ceases_to_hold_leads_back_to_the_form_and_a_live_part_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed(tmp_path, monkeypatch) as service:
        await sign_in(service, "admin")
        made = await service.client.post(
            "/v1/keys",
            json={"name": "short", "scopes": ["read"]},
            headers={"authorization": "Bearer admin-secret"},
        )
        key = made.json()
        service.client.cookies.clear()
        await service.client.post(f"{CONSOLE}/login", data={"key": key["key"]}, headers=ORIGIN)
        assert (await service.client.get(CONSOLE)).status_code == 200
        await service.client.request(
            "DELETE", f"/v1/keys/{key['public_id']}", headers={"authorization": "Bearer admin-secret"}
        )
        page_again = await service.client.get(CONSOLE)
        assert page_again.headers["location"] == f"{CONSOLE}/login?next=&expired"
        assert "Your key has expired" in (await service.client.get(page_again.headers["location"])).text
        part = await service.client.get(CONSOLE, headers={"hx-request": "true"})
        assert part.status_code == 401
        assert "is disabled" in part.text
        assert f'href="{CONSOLE}/login"' in part.text
        assert "<html" not in part.text


@pytest.mark.slow
async def test_below_a_prefix_every_address_of_a_page_begins_with_it(service: Service) -> None:
    transport = httpx.ASGITransport(service.app, root_path="/team/armwise")
    async with httpx.AsyncClient(transport=transport, base_url="http://service/team/armwise") as client:
        for path in SEEN:
            answer = await client.get(CONSOLE + path)
            assert answer.status_code == 200
            found = re.findall(r'(?:href|src|action|hx-get|hx-post)="([^"]*)"', answer.text)
            assert len(found) > 10
            kept = [one for one in found if not one.startswith(("data:", "#", "https://"))]
            assert [one for one in kept if not one.startswith(f"/team/armwise{CONSOLE}")] == []
        live = {"hx-request": "true"}
        bare = await service.client.get(CONSOLE, headers=live)
        below = await client.get(CONSOLE, headers=live)
        assert f'href="{CONSOLE}/' in bare.text
        assert f'href="{CONSOLE}/' not in below.text, "the live part of one prefix is not that of another"
        for name in (*page.STATIC, "console.css"):
            assert (await client.get(f"{CONSOLE}/static/{name}")).status_code == 200, name


async def test_pages_that_do_not_exist_or_are_asked_for_wrongly_say_so(service: Service) -> None:
    for path, status, said in (
        ("/nowhere", 404, "there is no page"),
        ("?by=<b>tier</b>", 400, "no question has a field &#39;&lt;b&gt;tier"),
        ("/static/../page.py", 404, ""),
        ("/static/none.js", 404, "there is no file"),
    ):
        answer = await service.client.get(CONSOLE + path)
        assert answer.status_code == status
        assert said in answer.text


async def test_a_page_that_fails_is_in_the_log_with_its_cause_and_one_that_is_not_there_is_not(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of the console")

    assert (await service.client.get(f"{CONSOLE}/nowhere")).status_code == 404
    assert [one for one in caplog.records if one.exc_info] == []
    monkeypatch.setattr(service.replica.store, "reading", broken)
    assert (await service.client.get(f"{CONSOLE}/decisions")).status_code == 500
    assert [str(one.exc_info[1]) for one in caplog.records if one.exc_info] == ["a fault of the console"]


async def test_while_the_log_is_away_every_page_says_so(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise LogUnavailableError("the log cannot be used: gone")

    monkeypatch.setattr(service.replica.store, "reading", away)
    for path in SEEN:
        if path == "/playground":
            continue
        answer = await service.client.get(CONSOLE + path)
        assert answer.status_code == 503, path
        assert "the log cannot be used: gone" in answer.text
        assert answer.headers["retry-after"]


def test_what_is_vendored_comes_with_its_licence() -> None:
    assert {
        "htmx.min.js",
        "htmx.LICENSE.txt",
        "uplot.min.js",
        "uplot.min.css",
        "uplot.LICENSE.txt",
    } < page.STATIC.keys()


async def test_the_playground_answers_as_the_api_does(service: Service) -> None:
    asked = {"model": "arm/bm25", "messages": [{"role": "user", "content": "Who flows through Vienna?"}]}
    answer = await service.client.post(f"{CONSOLE}/playground/ask", json=asked, headers=ORIGIN)
    assert answer.status_code == 200, answer.text
    assert answer.json()["agent"]["arm_drawn"] == "bm25"
    typed = {**ORIGIN, "content-type": "application/json"}
    broken = await service.client.post(f"{CONSOLE}/playground/ask", content=b"{", headers=typed)
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_request")
