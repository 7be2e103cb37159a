"""Versions folded into recipes, and actions that say what they will do before they do it."""

import html
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from armwise.agent.console import policies
from armwise.agent.console.page import CONSOLE
from armwise.agent.console.policies import Act, Situation, consequences
from armwise.agent.learning import Recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.feedback.registry import Version, evaluations, promotions, runs
from tests.agent.api.test_promotion_gate import approve, let_through, published, without_waiting
from tests.agent.asking import look_up, tell
from tests.agent.console.test_pages import ORIGIN, plain, seen
from tests.agent.fakes import FakeGate, Service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """One replica with three versions of the configured recipe, and a gate that holds everything."""
    gate = FakeGate(False, "it gains too little", "it is <b>new</b>")
    async with Service(tmp_path, promotion_gate=gate).running() as service:
        for i in range(2):
            found = (await look_up(service, query=f"question {i}")).json()["agent"]
            await tell(service, found["decision_id"], 1.0)
            await service.learn()
        yield service


def candidate(service: Service, kind: str = "linucb", **params: float) -> int:
    """Publish a version of another recipe."""
    recipe = Recipe(PolicySpec(kind=kind, params=params), service.config.reward)
    return publish_candidate(service.replica.store, recipe, list(service.config.actions)).version


async def act(service: Service, **fields: str) -> httpx.Response:
    return await service.client.post(f"{CONSOLE}/policies", data=fields, headers=ORIGIN)


async def considered(service: Service, action: str, version: int) -> str:
    return plain(await seen(service, f"/policies/act?action={action}&version={version}"))


def rows_of(shown: str) -> list[str]:
    """The text of the row of each recipe, in order."""
    return [plain(part) for part in shown.split('<li id="recipe-')[1:]]


def version(number: int, examples: int, kind: str = "adaptive") -> Version:
    return Version(number, None, "r", "j", {"kind": kind, "params": {}}, examples, 0, "d", 1, 0.0)


FIRST = Situation(version(41, 465), version(41, 465), served=40)


@pytest.mark.parametrize(
    ("action", "now", "said"),
    [
        (
            Act.PROMOTE,
            replace(FIRST, canaries=(37, 39), pinned=12),
            ("Version 41", "465 examples", "version 12 ends", "version 37 ends", "version 39 ends"),
        ),
        (
            Act.PROMOTE,
            replace(FIRST, version=version(38, 400), is_active=True),
            ("Version 41", "already active", "the gate does not run"),
        ),
        (
            Act.ROLLBACK,
            replace(
                FIRST, version=version(7, 1070), canaries=(39,), arms_added=("a", "b"), arms_removed=("c",)
            ),
            ("Version 7", "1,070 examples", "version 39 ends", "live: a, b.", "removed: c."),
        ),
        (Act.CANARY, replace(FIRST, canaries=(37, 38, 39)), ("Version 41", "40 the rest", "37, 38 and 39")),
        (
            Act.CANARY,
            replace(FIRST, canaries=(41,), served=None, is_automatic=True),
            ("the served version the rest", "no longer changes its share"),
        ),
        (Act.END, replace(FIRST, canaries=(41,)), ("version 41 ends", "version 40")),
        (Act.JUDGE, replace(FIRST, canaries=(39,)), ("Version 41", "logged decisions", "does not change")),
    ],
)
def test_an_action_says_what_begins_and_ends_with_it(
    action: Act, now: Situation, said: tuple[str, ...]
) -> None:
    text = " ".join(consequences(action, now))
    assert [part for part in said if part not in text] == []
    assert action in (Act.PROMOTE, Act.ROLLBACK, Act.END) or " ends" not in text


@pytest.mark.slow
async def test_each_recipe_is_a_row_with_its_origin_and_its_state(service: Service) -> None:
    """The configured recipe serves, a candidate names its warm start, and a canary its share."""
    store = service.replica.store
    mine = runs.claim(store, "ours", runs.Trigger.REQUEST, "worker", 3.0)
    of_run = candidate(service)
    runs.save_progress(store, mine, 4.0, inputs={}, steps=[], candidate=of_run)
    other = candidate(service, ridge=7.0)
    await act(service, action="canary", version=str(other), reason="try it", share="0.25")
    shown = (await seen(service, "/policies")).replace("\xa0", " ").replace("&nbsp;", " ")
    canary, warm, configured = rows_of(shown)
    assert re.search(rf"linucb \w+ canary version {other}, 25 %", canary)
    assert "from an earlier configuration, or a command newest version 5," in canary
    assert f"End the canary {other}" in canary
    assert re.search(r"linucb \w+ candidate from warm start 1 , 1970-01-01 00:00 UTC newest version 4", warm)
    assert "learned 2 examples" in warm
    assert re.search(r"vowpal \w+ serving from the configuration newest version 3", configured)
    assert "3 versions" in configured
    assert ("Roll back" in canary, "Roll back" in warm) == (False, False), "neither has ever decided"
    assert "Promote" not in configured
    await act(service, action="promote", version=str(of_run), reason="better", force="on")
    await service.learn()
    for row in rows_of(await seen(service, "/policies")):
        if "from the configuration" in row:
            assert "earlier from the configuration" in row
            assert "Roll back to 3" in row
        elif "warm start 1" in row:
            assert re.search(r"serving.* promoted \d{4}-", row)
        else:
            assert "candidate from" in row, "its canary has ended"


@pytest.mark.slow
async def test_the_versions_of_a_recipe_are_reached_beyond_its_first_page(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page of an open recipe leads to the one before, and keeps that it is open."""
    monkeypatch.setattr(policies, "PAGE", 2)
    configured = service.replica.versions.configured.digest
    path, found = f"/policies?recipe={configured}", []
    while path:
        shown = await seen(service, path)
        opened = shown[shown.index('aria-label="Versions"') :]
        found.append(re.findall(r'<th scope="row">(\d+)</th>', opened))
        links = re.findall(rf'href="{CONSOLE}(/policies\?recipe=[^"#]*)#recipe-{configured[:12]}"', opened)
        path = html.unescape(links[0]) if links else ""
    assert found == [["3", "2"], ["1"]]
    part = await seen(service, f"/policies/versions?recipe={configured}")
    assert re.findall(r'<th scope="row">(\d+)</th>', part) == ["3", "2"]
    wrong = await service.client.get(f"{CONSOLE}/policies?recipe=<b>")
    assert (wrong.status_code, "no version is of recipe '<b>'" in plain(wrong.text)) == (400, True)


@pytest.mark.slow
async def test_recipes_and_the_timeline_go_on_with_their_next_pages(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is paged apart, and an open recipe is shown although it is on a later page."""
    for ridge in (1.0, 2.0, 3.0):
        candidate(service, ridge=ridge)
    for i in range(3):
        await act(service, action="rollback", version="1", reason=f"reason {i}")
    monkeypatch.setattr(policies, "PAGE", 2)
    first = await seen(service, "/policies")
    assert [re.findall(r"newest version (\d)", row) for row in rows_of(first)] == [["6"], ["5"]]
    (link,) = re.findall(r'rel="next" href="([^"]*)"', first)
    second = (await service.client.get(html.unescape(link))).text
    assert [re.findall(r"newest version (\d)", row) for row in rows_of(second)] == [["4"], ["3"]]
    configured = service.replica.versions.configured.digest
    opened = rows_of(await seen(service, f"/policies?recipe={configured}"))
    assert [re.findall(r"newest version (\d)", row)[0] for row in opened] == ["3", "6", "5"]
    (link,) = re.findall(r'href="([^"]*until=[^"]*)"', first)
    earlier = (await service.client.get(html.unescape(link))).text
    assert [re.findall(r"reason (\d)", page[page.index("Timeline") :]) for page in (first, earlier)] == [
        ["2", "1"],
        ["0"],
    ]


async def test_the_gate_is_quoted_before_a_promotion(tmp_path: Path) -> None:
    """Unjudged, under way, held with its reasons and let through are four different texts."""
    async with Service(tmp_path).running() as service:
        without_waiting(service)
        number = published(service)
        store = service.replica.store
        assert "The gate has not judged this version yet." in await considered(service, "promote", number)
        waits = await act(service, action="promote", version=str(number), reason="better", after="0")
        assert waits.headers["location"] == f"{CONSOLE}/policies/act?action=promote&version={number}"
        running = await seen(service, f"/policies/act?action=promote&version={number}")
        assert f'hx-get="{CONSOLE}/policies/verdict?version={number}" hx-trigger="every 2s"' in running
        assert "The gate is judging this version in evaluation 1 : 0 % done." in plain(running).replace(
            "\xa0", " "
        )
        held = {"promote": False, "reasons": ["it gains <i>nothing</i>"]}
        report = {"candidates": [{"name": f"recipe:{number}", "verdict": held}]}
        claimed = evaluations.claim(store, _configuration(service), "worker", service.clock())
        assert claimed is not None
        evaluations.finish(store, claimed, evaluations.StoredResult(report, ""), service.clock())
        shown = await considered(service, "promote", number)
        assert "The gate holds this version back : evaluation 1" in shown
        assert "it gains <i>nothing</i>" in shown
        assert "whatever the gate says" in shown
        assert "will run again" not in shown
        approve(service, number)
        shown = await considered(service, "promote", number)
        assert "The gate lets this version through : evaluation 2" in shown
        assert "whatever the gate says" not in shown
        await act(service, action="canary", version=str(number), reason="first a share", share="0.5")
        assert "The gate has not judged this version yet." in await considered(service, "promote", number)


def _configuration(service: Service) -> str:
    (configured,) = {one.configured for one in evaluations.page(service.replica.store, 9)}
    return configured


async def test_an_old_verdict_is_shown_as_one_that_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion uses the verdicts of the last minute, so an older one is marked."""
    async with Service(tmp_path).running() as service:
        number = published(service)
        approve(service, number)
        monkeypatch.setattr(policies, "FRESH_S", -1.0)
        assert "The gate will run again" in await considered(service, "promote", number)


async def test_an_action_is_refused_if_something_else_was_served_meanwhile(service: Service) -> None:
    """What the page said would not be true any more: nothing is recorded."""
    page = await seen(service, "/policies/act?action=rollback&version=1")
    (after,) = re.findall(r'name="after" value="(\d+)"', page)
    assert after == "0"
    await act(service, action="rollback", version="2", reason="another operator")
    late = await act(service, action="rollback", version="1", reason="late", after=after)
    assert (late.status_code, "changed while you read this page" in plain(late.text)) == (409, True)
    (other,) = promotions.newest(service.replica.store, 9)
    assert other.reason == "another operator"
    done = await act(service, action="rollback", version="1", reason="in time", after=str(other.seq))
    assert done.status_code == 303


async def test_the_gate_is_not_asked_about_the_active_recipe(service: Service) -> None:
    """A promotion of it ends a rollback, and there is nothing to force."""
    await act(service, action="rollback", version="1", reason="calmer")
    assert "Promote 3" in plain(await seen(service, "/policies"))
    shown = await considered(service, "promote", 1)
    assert "Version 3 (vowpal, learned 2 examples) will decide all traffic" in shown
    assert "The rollback to version 1 ends." in shown
    assert "so the gate does not run." in shown
    assert "The gate has not judged it" not in shown
    assert "whatever the gate says" not in shown
    part = plain(await seen(service, "/policies/verdict?version=1"))
    assert "Its recipe is already active" in part


async def test_a_canary_begins_and_ends_by_its_buttons(service: Service) -> None:
    """Its share is chosen from a list; ending it is an action of its own, for the canary alone."""
    number = candidate(service)
    page = await seen(service, f"/policies/act?action=canary&version={number}")
    assert re.findall(r'<option value="([\d.]+)"', page) == ["0.01", "0.05", "0.1", "0.25", "0.5"]
    assert 'value="0.05" selected' in page
    none = await service.client.get(f"{CONSOLE}/policies/act?action=end&version={number}")
    assert (none.status_code, "is no longer a canary" in plain(none.text)) == (409, True)
    await act(service, action="canary", version=str(number), reason="try", share="0.1")
    assert f"The canary of version {number} ends" in await considered(service, "end", number)
    assert (await act(service, action="end", version=str(number), reason="enough")).status_code == 303
    assert service.replica.versions.active.canaries == ()
    assert "canary ended" in plain(await seen(service, "/policies"))


async def test_what_cannot_be_done_is_refused_before_it_is_asked_for(service: Service) -> None:
    """A rollback to a recipe that never decided, an unknown version and an unknown action are named."""
    number = candidate(service)
    for query, status, said in (
        (f"action=rollback&version={number}", 409, "has never decided here"),
        ("action=promote&version=99", 404, "there is no version 99"),
        ("action=explode&version=1", 400, "action"),
        ("action=promote&version=two", 400, "version"),
        ("action=promote", 400, "version"),
    ):
        answer = await service.client.get(f"{CONSOLE}/policies/act?{query}")
        assert (answer.status_code, said in plain(answer.text)) == (status, True), query
    wrong = await act(service, action="rollback", version="1", reason="x", after="-1")
    assert (wrong.status_code, "greater than or equal to 0" in plain(wrong.text)) == (400, True)


@pytest.mark.slow
async def test_a_version_that_another_reward_taught_has_no_buttons(service: Service) -> None:
    """Its row says why it cannot be served, and its confirmation is refused."""
    recipe = Recipe(PolicySpec(kind="linucb"), service.config.reward.model_copy(update={"cost_weight": 0.7}))
    number = publish_candidate(service.replica.store, recipe, list(service.config.actions)).version
    row = rows_of(await seen(service, "/policies"))[0]
    assert "it was learned with another reward" in row
    assert "Canary" not in row
    refused = await service.client.get(f"{CONSOLE}/policies/act?action=canary&version={number}")
    assert (refused.status_code, "another reward" in refused.text) == (409, True)


async def test_a_verdict_is_let_through_by_the_console_as_by_the_api(tmp_path: Path) -> None:
    """A promotion that the gate lets through is recorded with its evaluation, and is not forced."""
    async with Service(tmp_path).running() as service:
        without_waiting(service)
        number = published(service)
        await act(service, action="promote", version=str(number), reason="better")
        evaluation = let_through(service)
        page = await seen(service, f"/policies/act?action=promote&version={number}")
        (after,) = re.findall(r'name="after" value="(\d+)"', page)
        done = await act(service, action="promote", version=str(number), reason="better", after=after)
        assert done.status_code == 303, done.text
        promotion = service.replica.versions.active.promotion
        assert promotion is not None
        assert (promotion.version, promotion.evaluation, promotion.forced) == (number, evaluation, False)
