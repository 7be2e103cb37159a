"""The buttons under an answer: what a page may do that has a token of one answer and no key."""

import asyncio
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.gateways import buttons
from armwise.feedback.log.store import DrawSecret
from armwise.feedback.registry import KeySettings, keys
from tests.agent.asking import QUESTION, forced, look_up, refused
from tests.agent.browsing import CHROMIUM, browsing, listening
from tests.agent.fakes import Service

EVIL = {"origin": "https://app.test", "sec-fetch-site": "cross-site"}
BUTTON = "/v1/feedback/button"


async def token(service: Service, decision_id: str, headers: dict[str, str] | None = None) -> str:
    made = await service.client.post(f"/v1/decisions/{decision_id}/feedback-token", headers=headers)
    assert made.status_code == 200, made.text
    return str(made.json()["token"])


async def press(service: Service, token: str, value: str | None, change: int = 0) -> httpx.Response:
    """Send what the script sends, as a page of another site."""
    body = {"token": token, "value": value, "change": change}
    return await service.client.post(BUTTON, json=body, headers=EVIL)


async def counted(service: Service, decision_id: str) -> list[float | None]:
    """Return the values of a decision in the order in which they came; None for one taken back."""
    record = (await service.client.get(f"/v1/decisions/{decision_id}")).json()
    return [item["value"] for item in record["feedback"]]


async def test_a_page_of_another_site_rates_the_answer_of_its_token_alone(service: Service) -> None:
    one, other = await forced(service, "bm25"), await forced(service, "bm25")
    response = await press(service, await token(service, one), "up")
    assert response.status_code == 202
    assert response.json() == {"decision_id": one, "value": "up", "status": "stored"}
    assert response.headers["access-control-allow-origin"] == "*"
    assert await counted(service, one) == [1.0]
    assert await counted(service, other) == []


async def test_a_changed_mind_leaves_what_was_said_last(service: Service) -> None:
    decision = await forced(service, "bm25")
    made = await token(service, decision)
    for change, value in enumerate(["up", "down", None, "up"]):
        assert (await press(service, made, value, change)).status_code == 202
    service.learner.step()
    record = (await service.client.get(f"/v1/decisions/{decision}")).json()
    kept = {
        item["feedback_id"].partition(":")[0]: item["value"] for item in record["feedback"] if item["value"]
    }
    assert kept == {"button-0": 1.0, "button-1": -1.0, "button-3": 1.0}
    assert record["metrics"] == {"thumb": 1.0}


async def test_buttons_of_a_passage_rate_it_apart_from_the_answer(service: Service) -> None:
    asked = (await look_up(service)).json()
    name, passages = asked["agent"]["decision_id"], [one["id"] for one in asked["passages"]]
    made = await token(service, name)

    async def press_passage(number: int, value: str | None, change: int = 0) -> httpx.Response:
        body = {"token": made, "value": value, "change": change, "passage": number}
        return await service.client.post(BUTTON, json=body, headers=EVIL)

    for response in (
        await press_passage(2, "down"),
        await press_passage(1, "up"),
        await press(service, made, "up"),
    ):
        assert response.status_code == 202
    assert (await press_passage(1, None, 1)).status_code == 202
    refused(await press_passage(len(passages) + 1, "up"), 400, "invalid_value", "passage")
    record = (await service.client.get(f"/v1/decisions/{name}")).json()
    said = [(item["kind"], item["value"], item["content"].get("passage")) for item in record["feedback"]]
    rated = [("passage", -1.0, passages[1]), ("passage", 1.0, passages[0]), ("value", 1.0, None)]
    assert said == [*rated, ("retraction", None, None)]


async def test_the_same_press_twice_is_one_fact(service: Service) -> None:
    made = await token(service, await forced(service, "bm25"))
    assert [(await press(service, made, "up")).json()["status"] for _ in "ab"] == ["stored", "duplicate"]
    said = refused(await press(service, made, "down"), 409, "idempotency_conflict", "change")
    assert said == "press 0 of this answer was kept with another value: count the next one up"


async def test_the_last_press_that_is_kept_is_the_tenth(service: Service) -> None:
    made = await token(service, await forced(service, "bm25"))
    assert (await press(service, made, "up", buttons.MOST_CHANGES - 1)).status_code == 202
    refused(await press(service, made, "up", buttons.MOST_CHANGES), 400, "invalid_value", "change")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.replace(".", ".A" if made.partition(".")[2][0] != "A" else ".B"),
        lambda made: made.partition(".")[0],
        lambda made: "." + made.partition(".")[2],
        lambda made: "x" + made,
        lambda _: "é.é",
        lambda _: "W10.W10",
        lambda made: made.partition(".")[0] + "." + made.partition(".")[2][:4],
    ],
)
async def test_a_token_that_was_not_made_here_is_refused(service: Service, spoil: Any) -> None:
    decision = await forced(service, "bm25")
    said = refused(
        await press(service, spoil(await token(service, decision)), "up"), 403, "forbidden", "token"
    )
    assert said == "this service did not issue this token"
    assert await counted(service, decision) == []


async def test_a_token_whose_decision_was_exchanged_is_refused(service: Service) -> None:
    one, other = await forced(service, "bm25"), await forced(service, "bm25")
    foreign = (await token(service, other)).partition(".")[0]
    signature = (await token(service, one)).partition(".")[2]
    refused(await press(service, f"{foreign}.{signature}", "up"), 403, "forbidden", "token")


async def test_a_token_ends_when_feedback_would_no_longer_count(service: Service) -> None:
    decision, wait_s = await forced(service, "bm25"), service.config.reward.wait_s
    before = service.clock()
    made = (await service.client.post(f"/v1/decisions/{decision}/feedback-token")).json()
    assert int(before + wait_s) <= made["expires_at"] <= service.clock() + wait_s
    now = int(service.clock())
    late, early = (buttons.make_token(service.replica, None, decision, now + left) for left in (0, 60))
    said = refused(await press(service, late, "down"), 403, "forbidden", "token")
    assert said == "the token has expired: feedback would no longer count"
    assert (await press(service, early, "up")).status_code == 202


async def test_a_token_signed_with_another_secret_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await token(service, await forced(service, "bm25"))
    monkeypatch.setitem(vars(service.replica.store), "draw_secret", DrawSecret("another"))
    refused(await press(service, made, "up"), 403, "forbidden", "token")


async def test_buttons_need_a_metric_thumb(tmp_path: Path) -> None:
    reward = {"metrics": {"right": {"type": "boolean"}}}
    async with Service(tmp_path, reward=reward).running() as service:
        response = await service.client.post("/v1/decisions/d-1/feedback-token")
    said = refused(response, 400, "unknown_metric", "metric_name")
    assert "'thumb'" in said


@pytest.mark.parametrize(
    ("metric", "up", "down"),
    [
        ({"type": "boolean"}, 1.0, 0.0),
        ({"range": [1, 5]}, 5.0, 1.0),
        ({"range": [0, 3], "optimize": "min"}, 0.0, 3.0),
        ({"type": "categorical", "values": {"good": 1, "so so": 0.5, "bad": 0}}, 1.0, 0.0),
    ],
)
async def test_up_is_the_best_value_of_the_metric_and_down_the_worst(
    tmp_path: Path, metric: dict[str, Any], up: float, down: float
) -> None:
    async with Service(tmp_path, reward={"metrics": {"thumb": metric}}).running() as service:
        for pressed, value in (("up", up), ("down", down)):
            decision = await forced(service, "bm25")
            assert (await press(service, await token(service, decision), pressed)).status_code == 202
            assert await counted(service, decision) == [value]


async def test_a_key_of_a_project_makes_tokens_for_its_own_decisions_and_needs_the_scope_of_feedback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "shop-secret-1")
    monkeypatch.setenv("READ_KEY", "read-secret-1")
    known = [
        {"env": "SHOP_KEY", "scopes": ["decide", "feedback", "read"], "project": "shop"},
        {"env": "READ_KEY", "scopes": ["read"], "project": "shop"},
    ]
    async with Service(tmp_path, keys=known).running() as service:
        shop, reader = ({"authorization": f"Bearer {name}-secret-1"} for name in ("shop", "read"))
        asked = await look_up(service, headers=shop)
        decision = asked.json()["agent"]["decision_id"]
        made = await token(service, decision, shop)
        response = await press(service, made, "down")
        assert (response.status_code, response.json()["decision_id"]) == (202, decision)
        record = (await service.client.get(f"/v1/decisions/{decision}", headers=shop)).json()
        kept = [(item["value"], item["source"], item["key"]) for item in record["feedback"]]
        assert kept == [(-1.0, "user", "SHOP_KEY")]
        assert "shop~" not in (await press(service, made, "up")).text
        path = f"/v1/decisions/{decision}/feedback-token"
        refused(await service.client.post(path, headers=reader), 403, "forbidden")
        refused(await service.client.post(path), 401, "invalid_api_key")


async def test_a_token_ends_with_its_key_and_what_it_gave_is_of_that_key(service: Service) -> None:
    """Whoever retracts the feedback of a key finds what was given with its tokens."""
    store, now = service.replica.store, service.replica.clock()
    made, headers = [], list[dict[str, str]]()
    for name in ("first", "second"):
        settings = KeySettings(name, ("decide", "feedback", "read"), "shop", expires=now + 3600.0)
        key, secret = await asyncio.to_thread(keys.create, store, settings, now)
        made.append(key)
        headers.append({"authorization": f"Bearer {secret}"})
    await service.refresh()
    decision = (await look_up(service, headers=headers[0])).json()["agent"]["decision_id"]
    tokens = [await token(service, decision, header) for header in headers]
    for change, each in enumerate(tokens):
        assert (await press(service, each, "up", change)).status_code == 202
    query = {"key": made[1].public_id}
    listed = (await service.client.get("/v1/decisions", params=query, headers=headers[0])).json()["decisions"]
    assert [row["decision_id"] for row in listed] == [decision]
    record = (await service.client.get(f"/v1/decisions/{decision}", headers=headers[0])).json()
    assert {item["key"] for item in record["feedback"]} == {key.public_id for key in made}
    await asyncio.to_thread(keys.disable, store, made[0].public_id, now)
    await service.refresh()
    said = refused(await press(service, tokens[0], "up", 3), 403, "forbidden", "token")
    assert said.endswith(f"is no longer valid: key sk-aw-{made[0].public_id} is disabled")
    assert (await press(service, tokens[1], "up", 3)).status_code == 202


async def test_a_token_that_was_made_without_keys_ends_when_there_are_keys(service: Service) -> None:
    made = await token(service, await forced(service, "bm25"))
    assert (await press(service, made, "up")).status_code == 202
    settings = KeySettings("first", ("feedback",))
    await asyncio.to_thread(keys.create, service.replica.store, settings, service.replica.clock())
    await service.refresh()
    refused(await press(service, made, "up", 2), 403, "forbidden", "token")


async def test_no_token_is_made_for_what_it_could_not_be_used_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "admin-secret-1")
    async with Service(tmp_path, keys=[{"env": "ADMIN_KEY", "scopes": ["admin"]}]).running() as service:
        headers = {"authorization": "Bearer admin-secret-1"}
        path = "/v1/decisions/shop~d-1/feedback-token"
        said = refused(await service.client.post(path, headers=headers), 400, "invalid_value")
    assert "names a project" in said


async def test_a_browser_may_load_the_script_and_send_what_it_sends(service: Service) -> None:
    script = await service.client.get("/feedback.js", headers=EVIL)
    assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert script.headers["cross-origin-resource-policy"] == "cross-origin"
    allowed = await service.client.options(BUTTON, headers=EVIL | {"access-control-request-method": "POST"})
    assert allowed.status_code == 204
    assert {
        name: allowed.headers[f"access-control-allow-{name}"] for name in ("origin", "methods", "headers")
    } == {
        "origin": "*",
        "methods": "POST",
        "headers": "content-type",
    }


# -- a real browser ----------------------------------------------------------------------------------


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>An app</title>
<script src="{address}/feedback.js" defer></script></head>
<body><main><p>The Danube does.</p><div id="first" data-armwise-token="{first}"></div></main></body></html>"""


@contextmanager
def an_app(folder: Path, policy: str) -> Iterator[str]:
    """Serve a folder as an app of another site, with a content security policy."""

    class Pages(http.server.SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            self.send_header("content-security-policy", policy)
            super().end_headers()

        def log_message(self, *_: Any) -> None: ...

    handler = partial(Pages, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_buttons_of_an_app_on_another_site_are_pressed_in_a_browser(tmp_path: Path) -> None:
    if shutil.which(CHROMIUM) is None:
        pytest.skip("there is no chromium: `make browser` installs Debian's, and needs apt")
    (tmp_path / "service").mkdir()
    with listening(Service(tmp_path / "service")) as address:
        ids, tokens = [], []
        for _ in "ab":
            asked = httpx.post(f"{address}/v1/retrieve", json={"query": QUESTION}).json()
            ids.append(asked["agent"]["decision_id"])
            made = httpx.post(f"{address}/v1/decisions/{ids[-1]}/feedback-token").json()
            tokens.append(made["token"])
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "index.html").write_text(PAGE.format(address=address, first=tokens[0]))
        policy = f"default-src 'none'; script-src {address}; connect-src {address}"
        with an_app(tmp_path / "app", policy) as app, browsing() as visit:
            page = visit(390, "light")
            page.goto(app)
            up = page.locator("#first").get_by_role("button", name="Good answer")
            down = page.locator("#first").get_by_role("button", name="Bad answer")
            said = (
                "new Promise(done => addEventListener('armwise-feedback', e => done(e.detail), {once: true}))"
            )
            for button, expected, value in ((up, "up", [1.0]), (down, "down", [1.0, None, -1.0])):
                page.evaluate(f"window.said = {said}; 0")
                button.click()
                assert page.evaluate("window.said") == {"value": expected, "ok": True, "status": 202}
                assert button.get_attribute("aria-pressed") == "true"
                record = httpx.get(f"{address}/v1/decisions/{ids[0]}").json()
                assert [item["value"] for item in record["feedback"]] == value
            assert up.get_attribute("aria-pressed") == "false"
            page.evaluate(f"window.said = {said}; 0")
            down.click()  # again: taken back
            assert page.evaluate("window.said") == {"value": None, "ok": True, "status": 202}
            assert down.get_attribute("aria-pressed") == "false"
            # an answer that comes later, and a token of nobody
            added = "const one = document.createElement('div'); one.id = name; document.body.append(one)"
            for place, made in enumerate([tokens[1], "bm90.b25l"]):
                page.evaluate(f"name => {{ {added} }}", f"later{place}")
                page.evaluate(
                    "([at, made]) => { document.getElementById(at).dataset.armwiseToken = made }",
                    [f"later{place}", made],
                )
            for place, outcome in ((0, (True, 202)), (1, (False, 403))):
                page.evaluate(f"window.said = {said}; 0")
                page.locator(f"#later{place}").get_by_role("button", name="Good answer").click()
                detail = page.evaluate("window.said")
                assert (detail["ok"], detail["status"]) == outcome
            refused_one = page.locator("#later1").get_by_role("button", name="Good answer")
            assert refused_one.get_attribute("aria-pressed") == "false"
            assert refused_one.is_disabled()
        record = httpx.get(f"{address}/v1/decisions/{ids[1]}").json()
        assert [item["value"] for item in record["feedback"]] == [1.0]
