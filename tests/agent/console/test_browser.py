"""The console in a real browser: every page and action, without errors, by keyboard, in light and dark."""

import re
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from armwise.agent.console.course import draw_levels
from armwise.agent.console.page import CONSOLE, PAGES
from armwise.agent.console.period import read_period
from armwise.agent.console.period_report import write_page
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.arms.llm import base
from armwise.feedback.log import Store, tables
from armwise.feedback.registry import arm_sets
from tests.agent.browsing import CHROMIUM, Visit, browsing, listening, traffic
from tests.agent.console.test_overview import play, two_models
from tests.agent.evaluation.logged import BEGIN, RULE, World, fill
from tests.agent.fakes import Service

pytestmark = pytest.mark.slow

AXE = (Path(__file__).parents[2] / "assets" / "axe.min.js").read_text(encoding="utf-8")

HARM = "<script>alert(1)</script><img src=x onerror=alert(2)>"

LOOKS = [
    (1280, "light"),
    (390, "dark"),
    pytest.param(1280, "dark", marks=pytest.mark.nightly),
    pytest.param(390, "light", marks=pytest.mark.nightly),
]

LONG = HARM + " [1] " + "ما هو أطول نهر؟ " * 6000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service with traffic, below a prefix, whose answers mean harm, are long, or read to the left."""
    generator = base.ScriptedGenerator({HARM: LONG}, default=f"The Danube does [1], {HARM}.")
    policy = {"kind": "linucb", "params": {"ridge": 5.0}}
    limits = {"question_chars": 1000, "completion_tokens": 100_000}
    folder = tmp_path_factory.mktemp("console")
    service = Service(folder, generator, policy=policy, limits=limits)
    with listening(service, "/team") as address, service.working():
        traffic(address, [f"question {i} about rivers" for i in range(40)] + [HARM])
        for _ in range(3):
            service.learner.step()
        yield service, address


OPENAI = {"engine": "openai", "base_url": "http://localhost:1/v1"}

MODELS = {
    "dear": OPENAI | {"model": "claude-sonnet-4-5-20250929"},
    "cheap": OPENAI | {"model": "gemini-2.5-flash-lite"},
}


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service with traffic whose four arms cost dollars, and ask one of two models each."""
    arms = {
        f"library_{name}_{llm}": {"kind": "bm25", "answering": {"llm": llm}}
        for name in ("words", "meaning")
        for llm in MODELS
    }
    service = Service(tmp_path_factory.mktemp("priced"), arms=arms, llms=MODELS, llm=OPENAI | {"model": "m"})
    with listening(service) as address, service.working():
        traffic(address, [f"question {i} about rivers" for i in range(40)])
        with service.replica.store.writing() as connection:
            spent = {"usd": 0.00998, "retrieval_s": 1.234, "steps": 2}
            connection.execute(sa.update(tables.executions).values(spent))
        service.learner.step()
        service.settled()
        service.summarise()
        yield service, address


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """A service of a cheap and a dear arm that has learned what to send where."""
    service = two_models(tmp_path_factory.mktemp("two"))
    play(service, 400)
    arm_sets.switch(service.replica.store, "cheap", False, time.time())
    arm_sets.switch(service.replica.store, "cheap", True, time.time())
    service.close()
    with listening(two_models(service.folder)) as address:
        yield service, address


@pytest.fixture(scope="module")
def chrome() -> Iterator[Visit]:
    """A browser; where there is none, the reason why these tests are skipped."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip("there is no chromium: `make browser` installs Debian's, and needs apt")
    with browsing() as visit:
        yield visit


def paths(address: str) -> list[str]:
    found = httpx.get(f"{address}{CONSOLE}/decisions?text=script").text
    decision = found.split(f"{CONSOLE}/decisions/")[1].split('"')[0]
    recipe = httpx.get(f"{address}{CONSOLE}/policies").text.split('data-value="')[1].split('"')[0]
    more = [
        *("/nowhere", "?by=", "/arms"),
        *(f"/policies?recipe={recipe}", "/policies/act?action=rollback&version=1"),
        "/policies/act?action=judge&version=1",
        f"/decisions/{decision}?open=features,record",
    ]
    return [*(path for path, _ in PAGES), f"/decisions/{decision}", *more]


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_page_has_no_errors_and_no_serious_barrier(
    served: tuple[Service, str], chrome: Visit, width: int, scheme: str
) -> None:
    _, address = served
    page = chrome(width, scheme)
    for path in paths(address):
        page.goto(f"{address}{CONSOLE}{path}")
        assert_no_barrier(page, path)


def assert_no_barrier(page: Any, path: str) -> None:
    """Look for what axe calls serious, and for what is wider than the window."""
    page.evaluate(AXE)
    barriers = page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in barriers
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == [], path
    overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, f"{path} is {overflow} pixels too wide"


def test_a_question_is_asked_by_keyboard(served: tuple[Service, str], chrome: Visit) -> None:
    _, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/playground")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("Who flows through Vienna?")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector(".after .judge")
    assert page.inner_text("article .text-of") == f"The Danube does [1], {HARM}."
    assert page.locator("article .passages li").count() == 4
    assert page.locator("article .passages li").first.locator("strong").text_content().endswith("cited")
    assert page.locator("article svg.bar").count() == 3
    page.get_by_role("button", name="thumb 1", exact=True).click()
    page.wait_for_selector("article .outcome .note")
    assert "Saved: thumb 1." in page.inner_text("article .outcome")
    assert '"Who flows through Vienna?"' in page.inner_text("#curl")


def test_every_arm_is_asked_side_by_side(served: tuple[Service, str], chrome: Visit) -> None:
    service, address = served
    page = chrome(1280, "dark")
    page.goto(f"{address}{CONSOLE}/playground")
    page.get_by_label("Question").fill(HARM)
    page.get_by_role("button", name="Ask every arm").click()
    page.locator(".after .judge").nth(2).wait_for()
    assert page.locator(".after .judge").count() == 3
    assert len({one.bounding_box()["y"] for one in page.locator(".judge").all()}) == 1, "in one row"
    assert [page.locator("article h2").nth(i).inner_text() for i in range(3)] == [*service.config.arms]
    assert page.locator("article .text-of[aria-busy=false]").first.inner_text().startswith(HARM)
    assert page.locator("article img, article script").count() == 0


def test_a_decision_is_verified_and_labelled(served: tuple[Service, str], chrome: Visit) -> None:
    _, address = served
    page = chrome(390, "light")
    page.goto(f"{address}{CONSOLE}/decisions?text=script")
    page.locator("tbody a").last.click()
    page.get_by_role("button", name="Verify").click()
    page.wait_for_selector("#verification .good")
    page.get_by_label("Value").fill("many")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".outcome .problem")
    assert "'many' is not a number" in page.inner_text(".outcome")
    page.get_by_label("Value").fill("0.5")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".outcome .note")


def test_the_overview_follows_the_log_without_a_reload(served: tuple[Service, str], chrome: Visit) -> None:
    service, address = served
    service.learner.step()
    service.summarise()
    page = chrome(1280, "light")
    page.clock.install()
    page.goto(f"{address}{CONSOLE}")
    arm_sets.switch(service.replica.store, "none", False, time.time())
    arm_sets.switch(service.replica.store, "none", True, time.time())
    page.clock.run_for(6000)
    page.get_by_text("Switch: none can").first.wait_for()
    page.clock.run_for(100)
    page.locator("canvas").first.wait_for()


def test_operators_act_by_buttons(served: tuple[Service, str], chrome: Visit) -> None:
    service, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/arms")
    page.get_by_role("button", name="Switch off none").click()
    page.get_by_role("button", name="Switch on none").click()
    page.get_by_role("button", name="Switch off none").wait_for()
    page.goto(f"{address}{CONSOLE}/policies")
    page.locator("details[name=recipe] summary").first.click()
    page.get_by_role("link", name="Roll back to 1", exact=True).click()
    page.get_by_text("Version 1 (linucb, learned 0 examples) will decide all traffic").wait_for()
    page.keyboard.type("it was <b>better</b>")
    page.keyboard.press("Enter")
    page.get_by_text("it was <b>better</b>").first.wait_for()
    page.goto(f"{address}{CONSOLE}/policies/act?action=rollback&version=999")
    page.get_by_text("there is no version 999").wait_for()
    service.settled()
    page.goto(f"{address}{CONSOLE}/evaluations")
    page.get_by_text("Evaluate other policies").click()
    page.get_by_label("Candidates").fill("fixed:bm25")
    page.get_by_role("button", name="Evaluate").click()
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="What other policies would have earned").wait_for(timeout=60_000)


def test_the_gate_is_asked_and_acted_on(served: tuple[Service, str], chrome: Visit) -> None:
    service, address = served
    recipe = Recipe(PolicySpec(kind="linucb", params={"ridge": 1.0}), service.config.reward)
    publish_candidate(service.replica.store, recipe, list(service.config.actions))
    service.settled()
    page = chrome(390, "light")
    page.goto(f"{address}{CONSOLE}/policies")
    page.get_by_role("link", name=re.compile("^Judge")).first.click()
    page.get_by_role("button", name="Judge").click()
    page.locator("#gate").get_by_text(re.compile("hold|promote")).first.wait_for(timeout=60_000)
    assert_no_barrier(page, "the verdict of the gate")
    page.get_by_role("link", name=re.compile("^Canary")).first.click()
    page.get_by_label("Share of the traffic").select_option("10 %")
    page.get_by_label("Reason, which is recorded").fill("a <b>tenth</b> of it first")
    page.get_by_role("button", name="Start canary").click()
    page.get_by_text("a <b>tenth</b> of it first").first.wait_for()
    assert "canary of 10 %" in page.get_by_role("region", name="Timeline").inner_text().replace("\xa0", " ")


def test_a_decision_opens_its_passages(served: tuple[Service, str], chrome: Visit) -> None:
    _, address = served
    page = chrome(1280, "dark")
    page.goto(f"{address}{CONSOLE}/decisions?text=rivers")
    page.locator("tbody a").first.click()
    page.locator("#passages summary").first.focus()
    page.keyboard.press("Enter")
    page.locator("#passages .text-of").first.wait_for()
    assert page.locator("#passages li").count() == 4
    assert_no_barrier(page, "passages")


def test_a_person_signs_in_and_out_and_sees_when_the_key_ceases_to_hold(
    tmp_path: Path, chrome: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "admin-secret")
    service = Service(tmp_path, keys=[{"env": "ADMIN_KEY", "scopes": ["admin"]}])
    with listening(service) as address:
        page = chrome(1280, "light")
        page.goto(f"{address}{CONSOLE}/system")
        page.get_by_label("Key of this service").fill("admin-secret")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Create a key").click()
        page.get_by_label("Name").fill("for a while")
        page.get_by_label("Scopes").fill("read decide")
        page.get_by_role("button", name="Create key").click()
        secret = page.inner_text(".note pre")
        page.get_by_role("button", name="Sign out").click()
        assert page.evaluate("document.cookie") == ""
        page.get_by_label("Key of this service").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        page.clock.install()
        page.goto(f"{address}{CONSOLE}")
        page.get_by_text("Nothing was asked yet.").wait_for()
        public = secret.split("-")[2]
        httpx.delete(
            f"{address}/v1/keys/{public}", headers={"authorization": "Bearer admin-secret"}
        ).raise_for_status()
        page.clock.run_for(6000)
        page.get_by_text("is disabled").wait_for()
        page.get_by_role("link", name="Sign in").click()
        page.get_by_label("Key of this service").wait_for()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_of_a_period_has_no_errors_and_no_serious_barrier(
    tmp_path: Path, chrome: Visit, width: int, scheme: str
) -> None:
    """`armwise report` writes it; names that mean harm, and long ones, are in it."""
    world = World(
        {HARM: 0.5, "b" * 90: 0.8, "c": 0.2},
        usd={HARM: 0.1, "b" * 90: 0.01, "c": 0.0},
        seconds={HARM: 1.0, "b" * 90: 2.0, "c": 0.1},
    )
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    fill(store, world, 400, seed=1)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    config: Any = SimpleNamespace(
        reward=RULE, actions=(), baseline=None, guard=None, home_path=tmp_path, database_url=url
    )
    made = read_period(store, config, BEGIN, BEGIN + 1e6, lambda *_: None)
    store.close()
    file = tmp_path / "week.html"
    file.write_text(write_page(made, "armwise report -o week.html"), encoding="utf-8")
    page = chrome(width, scheme)
    page.goto(file.as_uri())
    assert page.locator("figure svg.shares").count() == 1
    assert_no_barrier(page, "week.html")


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_first_page_answers_three_questions_on_the_first_screen(
    two: tuple[Service, str], chrome: Visit, width: int, scheme: str
) -> None:
    """On a wide screen; on a telephone the savings come first, and nothing is wider than the screen."""
    _, address = two
    page = chrome(width, scheme)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{address}{CONSOLE}")
    answers = [page.locator(".claim").nth(0), page.locator(".claim").nth(1), page.locator(".topics li").first]
    places = [box for one in answers if (box := one.bounding_box()) is not None]
    assert len(places) == 3
    first_screen = places if width > 1000 else places[:1]
    assert all(box["y"] + box["height"] <= 800 for box in first_screen)
    assert page.locator("canvas").count() == 2
    assert "Switch: cheap" in page.locator("ol.marks").inner_text()
    assert_no_barrier(page, "overview")


def test_the_page_of_health_asks_again_until_ray_serve_has_answered(
    served: tuple[Service, str], chrome: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not unwell after a fifth of a second, and what is typed into a form stays."""
    service, address = served
    answered = threading.Event()
    found = {"Ingress": (True, "2 running")}
    monkeypatch.setattr(service.replica, "deployments", lambda: found if answered.wait(60) else {})
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/system")
    try:
        deployments = page.locator("#deployments")
        assert "Waiting for Ray Serve" in deployments.inner_text()
        page.get_by_text("Create a key").click()
        page.get_by_label("Name").fill("for a while")
    finally:
        answered.set()
    deployments.get_by_role("rowheader", name="Ingress").wait_for()
    assert page.get_by_label("Name").input_value() == "for a while"


def test_times_are_in_the_zone_of_the_reader(served: tuple[Service, str], chrome: Visit) -> None:
    """UTC is in the title; what comes later is in the reader's zone, too."""
    _, address = served
    page = chrome(1280, "light")
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    page.goto(f"{address}{CONSOLE}/decisions")
    time_of = page.locator("tbody time").first
    utc, there = (
        datetime.fromisoformat(text) for text in (time_of.get_attribute("datetime"), time_of.inner_text())
    )
    assert there == utc.replace(second=0, tzinfo=None) + timedelta(hours=5, minutes=30)
    assert time_of.get_attribute("title") == f"{utc:%Y-%m-%d %H:%M} UTC"


def test_what_is_open_is_in_the_address(served: tuple[Service, str], chrome: Visit) -> None:
    """A link opens the same recipe, the same parts of a decision and the same page."""
    _, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/policies")
    page.locator("details[name=recipe] summary").first.click()
    page.wait_for_url("**/policies?recipe=*")
    page.get_by_role("region", name="Versions").wait_for()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied", exact=True).wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    page.goto(f"{link}&earlier=999")  # a page of the versions, which closes with them
    page.get_by_role("region", name="Versions").wait_for()
    page.locator("details[name=recipe] summary").first.click()
    page.wait_for_url("**/policies")
    page.goto(f"{address}{CONSOLE}/decisions?text=script")
    page.locator("tbody a").last.click()
    page.locator("#features summary").click()
    page.locator("#record summary").click()
    page.wait_for_url("**/decisions/*?open=features%2Crecord")
    page.reload()
    page.locator("#features pre").wait_for()
    page.locator("#record pre").wait_for()
    page.locator("#record summary").click()
    page.wait_for_url("**/decisions/*?open=features")


def test_what_is_opened_while_the_page_loads_is_filled_and_in_the_address(
    served: tuple[Service, str], chrome: Visit
) -> None:
    _, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/arms")
    held: list[Any] = []
    page.route("**/static/console.js", lambda route: held.append(route))
    page.get_by_role("link", name="Policies").click(no_wait_after=True)
    page.locator("details[name=recipe] summary").first.click()
    page.locator("details[name=recipe][open]").wait_for()
    held.pop().continue_()
    page.wait_for_url("**/policies?recipe=*")
    page.get_by_role("region", name="Versions").wait_for()


def test_a_question_in_a_link_is_never_sent(served: tuple[Service, str], chrome: Visit) -> None:
    """It stands behind the #, so that no log of a proxy has it; the arm is chosen again."""
    _, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/playground")
    page.get_by_label("Question").fill("Who & where?")
    page.get_by_label("Arm", exact=True).select_option("bm25")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator(".after .judge").wait_for()
    assert page.url == f"{address}{CONSOLE}/playground#question=Who+%26+where%3F&model=arm%2Fbm25"
    asked: list[str] = []
    again = chrome(1280, "light")
    again.on("request", lambda request: asked.append(request.url))
    again.goto(f"{address}{CONSOLE}/playground#question=Who+%26+where%3F&model=arm%2Fbm25")
    assert again.get_by_label("Question").input_value() == "Who & where?"
    assert again.get_by_label("Arm", exact=True).input_value() == "arm/bm25"
    assert not [one for one in asked if "ask" in one]


@pytest.mark.parametrize(("path", "width"), [("/details", 1024), ("/arms", 1280), ("/decisions", 1280)])
def test_no_column_is_lost_beside_four_arms_of_two_models(
    priced: tuple[Service, str], chrome: Visit, path: str, width: int
) -> None:
    """No table needs scrolling sideways in a window of 1280 pixels, and that of the details in less."""
    _, address = priced
    page = chrome(width, "light")
    page.goto(f"{address}{CONSOLE}{path}")
    regions = page.locator(".wide").all()
    assert regions
    for region in regions:
        label = region.get_attribute("aria-label")
        for heading in region.get_by_role("columnheader").all():
            box = heading.bounding_box()
            assert box is None or box["x"] + box["width"] <= width, label
        assert region.evaluate("one => one.scrollWidth - one.clientWidth") <= 0, label


SHOW = """made => {
  const figure = document.createElement("figure");
  Object.assign(figure.dataset, { chart: made, title: "shares" });
  document.getElementById("main").replaceChildren(figure);
  document.dispatchEvent(new Event("htmx:afterSettle"));
}"""
"""Draws a chart in the place of what a page shows."""


def colours_of(page: Any, xs: list[float], y: float) -> list[str]:
    """Return the colours of a chart at places from left to right, in [0, 1], at a height from below."""
    found: list[str] = page.evaluate(
        """([xs, y]) => {
          const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
          const plot = document.querySelector(".u-over").getBoundingClientRect();
          const scale = canvas.width / box.width;
          const row = Math.round((plot.top - box.top + (1 - y) * plot.height) * scale);
          const pixels = canvas.getContext("2d").getImageData(0, row, canvas.width, 1).data;
          return xs.map((x) => {
            const at = 4 * Math.round((plot.left - box.left + x * plot.width) * scale);
            return [...pixels.slice(at, at + 3)].join();
          });
        }""",
        [xs, y],
    )
    return found


@pytest.mark.parametrize(("n", "seen"), [(1, "aa....."), (2, "aabb..."), (3, "aabb.aa")])
def test_the_share_of_an_arm_is_a_level_that_jumps_where_the_next_stretch_begins(
    served: tuple[Service, str], chrome: Visit, n: int, seen: str
) -> None:
    """One stretch is a level over its decisions, and nothing is drawn between two shares that are known."""
    _, address = served
    page = chrome(1280, "light")
    page.goto(f"{address}{CONSOLE}/system")
    known = [(0, 100), (100, 200), (300, 400)][:n]
    shares = [
        {"label": "a", "colour": "--c0", "values": [90, 10, 50][:n]},
        {"label": "b", "colour": "--c1", "values": [10, 90, 50][:n]},
    ]
    made = draw_levels(known, shares, unit="%", stacked=True, counts="decision", range=[0, 400])
    page.evaluate(SHOW, made)
    names = {"68,119,170": "a", "238,102,119": "b"}
    found = colours_of(page, [0.02, 0.23, 0.27, 0.48, 0.6, 0.77, 0.98], 0.45)
    assert "".join(names.get(colour, ".") for colour in found) == seen
