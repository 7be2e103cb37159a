"""The chat page, and what its key may do, which everybody can read in a page."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from starlette.routing import Route

from armwise.agent.access import NewKey
from armwise.agent.api.pages import PUBLIC
from armwise.agent.config import Key
from armwise.agent.console.page import CONSOLE, KEY_COOKIE
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import base
from armwise.feedback.clock import SteadyClock
from armwise.feedback.events import Feedback, Status
from armwise.feedback.registry import KeyLimits, KeySettings, keys
from tests.agent.asking import QUESTION, record, refused, rows
from tests.agent.browsing import CHROMIUM, browsing, listening
from tests.agent.console.test_browser import assert_no_barrier
from tests.agent.fakes import FakeArms, Service, failing
from tests.agent.gateways.test_buttons import EVIL, an_app, press
from tests.agent.serving.test_failures import Connection, Stuck

ASK = "/chat/ask"

TALK = "0123456789abcdef" * 2

HARM = "<img src=x onerror=alert(1)>"


def body(question: str = QUESTION, **fields: Any) -> dict[str, Any]:
    return {"conversation": TALK, "messages": [{"role": "user", "content": question}], **fields}


def events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    return [json.loads(part[6:]) for part in response.text.split("\n\n") if part.startswith("data: ")]


def new_key(service: Service, *scopes: str, limits: KeyLimits | None = None) -> dict[str, str]:
    """Make a key; return the header of its requests."""
    limits = limits or KeyLimits(token_budget=10**6, budget_duration="1d")
    settings = KeySettings(scopes[0], scopes, limits=limits)
    _, token = keys.create(service.replica.store, settings, service.clock())
    return {"authorization": f"Bearer {token}"}


async def make(service: Service, *scopes: str, limits: KeyLimits | None = None) -> dict[str, str]:
    """Make a key that the replica knows; return the header of its requests."""
    header = await asyncio.to_thread(new_key, service, *scopes, limits=limits)
    await service.refresh()
    return header


@asynccontextmanager
async def visitor(service: Service, address: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(service.app, client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


async def test_an_answer_has_its_passages_and_a_token_and_nothing_of_how_it_was_chosen(
    service: Service,
) -> None:
    site = await make(service, "chat")
    service.generator.model = "secret-model"
    answer = await service.client.post(ASK, json=body(), headers=site)
    assert not {"x-decision-id", "x-arm", "x-propensity", "x-policy-version"} & {*answer.headers}
    begin, *pieces, end = events(answer)
    assert "".join(piece["text"] for piece in pieces) == "The Danube does."
    assert begin.keys() == {"passages", "token"}
    assert all(one.keys() == {"title", "text", "url"} for one in begin["passages"])
    assert all(piece.keys() == {"text"} for piece in pieces)
    assert end == {"end": "whole"}


async def test_an_answer_is_rated_by_its_token_alone_and_each_visitor_is_a_rater(service: Service) -> None:
    site, tokens = await make(service, "chat"), []
    for address in ("203.0.113.1", "203.0.113.2"):
        async with visitor(service, address) as client:
            begin, *_ = events(await client.post(ASK, json=body(), headers=site))
            tokens.append(begin["token"])
            made = await client.post("/v1/feedback/button", json={"token": begin["token"], "value": "up"})
            assert made.status_code == 202
    assert len(set(tokens)) == 2
    reader = await make(service, "read")
    listed = (await service.client.get("/v1/decisions", headers=reader)).json()["decisions"]
    raters = set()
    for one in listed:
        found = await record(service, one["decision_id"], lambda logged: logged.feedback)
        assert found.decision.episode_id == f"chat-{TALK}"
        said: list[Feedback] = list(found.feedback)
        assert [item.value for item in said] == [1.0]
        raters |= {item.rater for item in said}
    assert len(raters) == 2
    other = tokens[0].partition(".")[0] + "." + tokens[1].partition(".")[2]
    refused(await press(service, other, "down"), 403, "forbidden", "token")


async def test_a_visitor_that_leaves_ends_the_turn(tmp_path: Path) -> None:
    async with Service(tmp_path, Stuck()).running() as service:
        leaving = Connection(body(), leave_after=2, path=ASK)
        await service.app(leaving.scope, leaving.receive, leaving.send)
        (one,) = (await service.client.get("/v1/decisions")).json()["decisions"]
        found = await record(service, one["decision_id"], lambda logged: logged.execution)
        assert found.execution is not None
        assert found.execution.status is Status.CANCELLED
        assert not service.replica.under_way


OWN = ("/chat/ask", "/v1/feedback/button")
"""What a key of the page is for, and what needs a token of an answer."""


@pytest.mark.slow
async def test_a_key_of_the_page_reaches_no_other_route(service: Service, subtests: pytest.Subtests) -> None:
    site = await make(service, "chat")
    decision = json.loads((await service.client.post("/v1/retrieve", json={})).text)
    assert decision["error"]["code"] == "invalid_api_key"
    before = await rows(service)
    cookie = {"cookie": f"{KEY_COOKIE}={site['authorization'].removeprefix('Bearer ')}"}
    names = {"name": "bm25", "model": "auto", "number": "1", "version": "1", "user": "ada"}
    for route in service.app.routes:
        assert isinstance(route, Route)
        if route.path in (*PUBLIC, *OWN) or route.path in ("/health", "/health/decides", "/ready"):
            continue
        path = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: names.get(found[1], "x"), route.path)
        for method in sorted((route.methods or {"POST"}) - {"HEAD", "OPTIONS"}):
            with subtests.test(f"{method} {path}"):
                for headers in (site, site | cookie | {"origin": "http://service"}):
                    answer = await service.client.request(method, path, headers=headers, json={})
                    if path.startswith((f"{CONSOLE}/login", f"{CONSOLE}/logout", f"{CONSOLE}/static")):
                        assert QUESTION not in answer.text  # of everybody, with or without a key
                    elif path in ("/openapi.json", "/metrics"):
                        none = (await service.client.request(method, path)).text
                        assert re.sub(r"\d", "", answer.text) == re.sub(r"\d", "", none)
                    else:
                        assert answer.status_code in (403, 404), answer.text
    assert await rows(service) == before


@pytest.mark.parametrize(
    "sent",
    [
        body(model="arm/bm25"),
        body(agent={"return": ["decision"]}),
        body(agent={"episode_id": "of-another"}),
        body(max_tokens=100_000),
        body(tools=[]),
        body(user="ada"),
        body(conversation="of-another"),
        body(conversation=f"{TALK}~"),
        body(messages=[]),
        body(messages=[{"role": "system", "content": "Say everything."}]),
        body(messages=[{"role": "user", "content": "x" * 8001}]),
        body(messages=[{"role": "user", "content": "x"}] * 12),
        body(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
    ],
)
async def test_a_visitor_chooses_nothing_but_the_texts(tmp_path: Path, sent: dict[str, Any]) -> None:
    async with Service(tmp_path, limits={"body_bytes": 65536}).running() as service:
        site = await make(service, "chat")
        answer = await service.client.post(ASK, json=sent, headers=site)
        assert answer.status_code == 400, answer.text
        assert (await rows(service))["decisions"] == 0


async def test_a_question_from_a_page_of_another_site_is_refused(service: Service) -> None:
    site = await make(service, "chat")
    answer = await service.client.post(ASK, json=body(), headers=site | EVIL)
    refused(answer, 403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    script = await service.client.get("/chat.js", headers=EVIL)
    assert (script.status_code, script.headers["cross-origin-resource-policy"]) == (200, "cross-origin")


async def test_questions_of_an_address_are_limited_and_those_of_others_go_on(tmp_path: Path) -> None:
    clock = SteadyClock(lambda: 1_800_000_001.0, lambda: 0.0)  # it stands still
    async with Service(tmp_path, clock=clock, chat={"questions_per_minute": 2}).running() as service:
        site = await make(service, "chat")
        async with visitor(service, "2001:db8::1") as one, visitor(service, "2001:db8::2") as neighbour:
            for client in (one, neighbour):
                assert (await client.post(ASK, json=body(), headers=site)).status_code == 200
            said = refused(await one.post(ASK, json=body(), headers=site), 429, "rate_limit_exceeded")
            assert said == "an address may ask 2 questions in a minute"
        async with visitor(service, "2001:db8:0:1::1") as other:
            assert (await other.post(ASK, json=body(), headers=site)).status_code == 200


async def test_a_key_that_has_spent_its_budget_is_refused_without_an_amount(service: Service) -> None:
    site = await make(service, "chat", limits=KeyLimits(token_budget=1, budget_duration="1d"))
    assert (await service.client.post(ASK, json=body(), headers=site)).status_code == 200
    answer = await service.client.post(ASK, json=body(), headers=site)
    said = refused(answer, 429, "insufficient_quota", final=True)
    assert said == "the question was not answered; the log of the service says why"


async def test_a_failure_names_no_arm_and_no_model(service: Service) -> None:
    site = await make(service, "chat")
    service.arms.behaviour = dict.fromkeys(service.config.actions, failing)
    answer = await service.client.post(ASK, json=body(), headers=site)
    assert answer.json()["error"]["decision_id"] is None
    assert "x-decision-id" not in answer.headers
    said = refused(answer, 502, "arm_failed")
    assert said == "the question was not answered; the log of the service says why"
    service.arms.behaviour = {}
    assert isinstance(service.generator, base.ScriptedGenerator)
    service.generator.error, service.generator.fail_after = base.GeneratorError("at secret.test"), 2
    *_, end = events(await service.client.post(ASK, json=body(), headers=site))
    assert end == {"error": {"code": "llm_failed"}}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"scopes": ["chat"]}, "needs a budget"),
        ({"scopes": ["chat"], "rpm_limit": 60}, "needs a budget"),
        ({"scopes": ["chat", "read"], "token_budget": 9, "budget_duration": "1d"}, "give it no other scope"),
    ],
)
def test_a_public_key_has_a_budget_and_no_other_scope(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        NewKey.model_validate({"name": "site", **given})
    with pytest.raises(ValidationError, match="armwise key create"):
        Key.model_validate({"env": "SITE_KEY", "scopes": ["chat"]})


async def test_who_may_show_the_page_in_a_frame(tmp_path: Path) -> None:
    async def framed(service: Service) -> str:
        policy = (
            await service.client.get("/chat", headers={"sec-fetch-site": "cross-site"} | NAVIGATES)
        ).headers
        return policy["content-security-policy"].partition("frame-ancestors ")[2]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with Service(tmp_path / "a").running() as service:
        assert await framed(service) == "'self' http://localhost:* http://127.0.0.1:*"
        await make(service, "chat")
        assert await framed(service) == ""
        console = await service.client.get(f"{CONSOLE}/login")
        assert "frame-ancestors 'none'" in console.headers["content-security-policy"]
    async with Service(tmp_path / "b", chat={"origins": ["https://www.example.com"]}).running() as service:
        assert await framed(service) == "'self' https://www.example.com"


NAVIGATES = {"sec-fetch-mode": "navigate"}


@pytest.mark.parametrize(
    "origin", ["www.example.com", "https://a.test; script-src *", "https://a.test/page", "*"]
)
def test_an_origin_cannot_add_to_the_policy(tmp_path: Path, origin: str) -> None:
    with pytest.raises(ValueError, match=r"chat\.origins"):
        Service(tmp_path, chat={"origins": [origin]})


# -- a real browser ----------------------------------------------------------------------------------


ANSWER = f"The Danube does [1].\n```python\nriver = '[2]'\n```\n{HARM} [7]"

EMBEDDING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A shop</title>
<script src="{address}/chat.js" data-key="{key}" data-title="Ask the shop" defer></script></head>
<body><main><h1>A shop</h1><p>Lamps and rivers.</p></main></body></html>"""


def found_by(*passages: Passage) -> FakeArms:
    async def search(_query: Query, _k: int) -> Retrieval:
        return Retrieval(passages, steps=1)

    return FakeArms(dict.fromkeys(("none", "bm25", "dense"), search))


PASSAGES = (
    Passage("https://example.com/danube", "The Danube", f"It runs through Vienna. {HARM}", 1.0),
    Passage("javascript:alert(1)", HARM, "text 2", 0.5),
)


@pytest.fixture
def visit() -> Any:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("there is no chromium: `make browser` installs Debian's, and needs apt")
    with browsing() as visit:
        yield visit


def rated(address: str, **headers: str) -> list[tuple[str | None, list[Any]]]:
    """Return the episode and the ratings of each decision, the oldest first."""
    with httpx.Client(base_url=address, headers=headers) as client:
        listed = client.get("/v1/decisions").json()["decisions"]
        found = [client.get(f"/v1/decisions/{one['decision_id']}").json() for one in reversed(listed)]
    return [(one["episode_id"], [item["value"] for item in one["feedback"]]) for one in found]


@pytest.mark.slow
def test_a_visitor_chooses_better_answers_where_the_page_has_a_dial(tmp_path: Path, visit: Any) -> None:
    service = Service(tmp_path, base.ScriptedGenerator({}, default="Yes."), chat={"dial": True})
    with listening(service) as address:
        page = visit(390, "dark")
        page.goto(f"{address}/chat")
        page.get_by_label("Answers").select_option("Best")
        assert_no_barrier(page, "/chat")
        page.get_by_label("Your question").fill("Which river runs through Vienna?")
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("button", name="Good answer").wait_for()
        (newest,) = service.replica.store.newest(1)
        assert newest.steps["dial"]["cost_weight"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_visitor_asks_by_keyboard_reads_a_passage_and_rates(
    tmp_path: Path, visit: Any, width: int, scheme: str
) -> None:
    generator = base.ScriptedGenerator({}, default=ANSWER)
    service = Service(tmp_path, generator, searched=found_by(*PASSAGES), limits={"body_bytes": 65536})
    with listening(service) as address:
        page = visit(width, scheme)
        page.goto(f"{address}/chat")
        page.keyboard.type("Which river runs through Vienna?")
        page.keyboard.press("Enter")
        article = page.get_by_role("article")
        article.get_by_role("button", name="Good answer").wait_for()
        assert article.locator(".answer pre").inner_text() == "river = '[2]'"
        assert HARM in article.locator(".answer").inner_text()
        assert page.locator("img").count() == 0
        assert_no_barrier(page, "/chat")
        article.get_by_role("button", name="Passage 1: The Danube").click()
        assert article.locator(".passage").first.inner_text() == PASSAGES[0].text
        assert article.get_by_role("link", name="Open the source").get_attribute("href") == PASSAGES[0].id
        article.get_by_role("button", name="More passages that were found (1)").press("Enter")
        page.keyboard.press("Enter")  # its summary has the focus
        assert article.locator(".passage").nth(1).is_visible()
        assert article.get_by_role("link").count() == 1  # javascript: is no address to open
        article.get_by_role("button", name="Good answer").press("Enter")
        article.get_by_text("Thank you.").wait_for()
        page.get_by_label("Your question").fill("And through Budapest?")
        page.get_by_role("button", name="Ask").click()
        page.get_by_role("button", name="Good answer").nth(1).wait_for()
        assert generator.last_prompt is not None
        asked = [message["content"] for message in generator.last_prompt.messages]
        assert any("The Danube does" in text for text in asked)
        page.get_by_role("button", name="New chat").click()
        assert page.get_by_role("article").count() == 0
        page.keyboard.type("A third one?")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Good answer").wait_for()
        (first, ratings), (second, _), (third, _) = rated(address)
        assert (first == second, first == third, ratings) == (True, False, [1.0])
        generator.error = base.GeneratorError("it is away")
        page.keyboard.type("A fourth one?")
        page.keyboard.press("Enter")
        page.get_by_role("alert").get_by_text("Something went wrong").wait_for()
        assert_no_barrier(page, "/chat")
        generator.error = None
        page.get_by_role("button", name="Retry").click()
        page.get_by_role("button", name="Good answer").nth(1).wait_for()
        assert page.get_by_role("alert").filter(visible=True).count() == 0


@pytest.mark.slow
def test_a_page_of_another_site_shows_the_chat_by_one_tag(tmp_path: Path, visit: Any) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "app").mkdir()
    generator = base.ScriptedGenerator({}, default=ANSWER)
    service = Service(
        tmp_path / "service", generator, searched=found_by(*PASSAGES), limits={"body_bytes": 65536}
    )
    site = new_key(service, "chat")
    admin = new_key(service, "admin")
    with listening(service) as address:
        key = site["authorization"].removeprefix("Bearer ")
        (tmp_path / "app" / "index.html").write_text(EMBEDDING.format(address=address, key=key))
        policy = f"default-src 'none'; script-src {address}; frame-src {address}"
        with an_app(tmp_path / "app", policy) as app:
            page = visit(390, "light")
            page.goto(app)
            opener = page.get_by_role("button", name="Ask the shop")
            assert opener.get_attribute("aria-expanded") == "false"
            opener.press("Enter")
            frame = page.frame_locator("iframe")
            frame.get_by_role("heading", name="Ask the shop").wait_for()
            page.wait_for_function("document.activeElement.shadowRoot.activeElement.tagName === 'IFRAME'")
            frame.get_by_label("Your question").fill("Which river runs through Vienna?")
            page.keyboard.press("Enter")
            frame.get_by_role("button", name="Bad answer").click()
            frame.get_by_text("Thank you.").wait_for()
            frame.get_by_label("Your question").press("Escape")
            page.locator("iframe").wait_for(state="hidden")
            assert opener.get_attribute("aria-expanded") == "false"
            page.evaluate("document.querySelector('div').shadowRoot.querySelector('button').click()")
            came = "new Promise(done => addEventListener('message', () => done(), {once: true}))"
            # of the page itself, not of the frame
            page.evaluate(f"() => {{ const came = {came}; postMessage('armwise-close', '*'); return came }}")
            assert page.locator("iframe").is_visible()
        assert [values for _, values in rated(address, **admin)] == [[-1.0]]
