"""What the pages show of a small log: figures, decisions, and texts that mean harm."""

import asyncio
import html
import re
import threading
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from urllib.parse import urlencode

import httpx
import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute

from armwise.agent.cli.options import Key
from armwise.agent.console import decisions, operating, system
from armwise.agent.console.page import CONSOLE, STATIC, pages
from armwise.agent.console.routes import ROUTES
from armwise.agent.run_folder import QUESTION, RUN_FOLDER, BuildingProgress
from armwise.arms.base import ArmError, Passage
from armwise.arms.llm import base
from armwise.feedback.events import Mask
from armwise.feedback.log import tables as t
from armwise.feedback.registry import runs
from armwise.feedback.training_log import lag
from tests.agent.asking import ask, look_up, tell
from tests.agent.fakes import Service

ORIGIN = {"origin": "http://service"}

HARM = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202egnp.exe"

HARMLESS = "&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(2)&gt; \\u202egnp.exe"


@pytest.fixture
async def linear(tmp_path: Path) -> AsyncIterator[Service]:
    """A service with a linear policy that has learned a little."""
    policy = {"kind": "linucb", "params": {"ridge": 1.0}}
    async with Service(tmp_path, policy=policy).running() as service:
        for i in range(12):
            found = (await look_up(service, query=f"question {i} of twelve")).json()["agent"]
            await tell(service, found["decision_id"], 1.0 if found["arm_served"] == "bm25" else -1.0)
        await service.settle()
        yield service


async def seen(service: Service, path: str) -> str:
    answer = await service.client.get(CONSOLE + path)
    assert answer.status_code == 200, answer.text
    return answer.text


def plain(text: str) -> str:
    """The text of a page, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


def test_every_page_is_below_the_path_of_the_console_and_in_no_document() -> None:
    more = pages()
    more.add_api_route("/one-more", lambda: None)
    for route in (*more.routes, *ROUTES):
        assert isinstance(route, APIRoute)
        assert route.path.startswith("/console")
        assert not route.include_in_schema


def test_every_reason_why_an_arm_was_not_drawn_has_words() -> None:
    assert decisions.REASONS.keys() == set(Mask)


async def test_pages_show_the_sums_of_the_log(linear: Service) -> None:
    shown = plain(await seen(linear, "/details"))
    records = [linear.replica.store.record(one.id) for one in linear.replica.store.newest(100)]
    steps = [record.execution.cost.steps for record in records if record and record.execution]
    assert "requests 12 cost per request" in shown
    assert f"cost per request {sum(steps) / 12:.3g}"[:20] in shown
    arms = plain(await seen(linear, "/arms"))
    for arm in linear.config.actions:
        drawn = sum(record is not None and record.decision.drawn == arm for record in records)
        assert re.search(rf"{arm} {arm}\b.* {drawn} not known yet", arms) or drawn, arm


@pytest.mark.slow
async def test_texts_of_others_are_shown_and_never_run(tmp_path: Path) -> None:
    generator = base.ScriptedGenerator({}, default=HARM + " word" * 25_000)
    question = HARM + " ما هو أطول نهر؟"
    async with Service(
        tmp_path, generator, limits={"question_chars": 1000, "completion_tokens": 100_000}
    ).running() as service:
        messages = [{"role": "user", "content": question}]
        found = (await ask(service, messages=messages, max_tokens=50_000)).json()["agent"]["decision_id"]
        await tell(service, found, tags={HARM[:20]: HARM})
        for path in ("/decisions", f"/decisions/{found}"):
            page = await seen(service, path)
            assert HARMLESS in page
            assert not re.search(r"<script(?![^>]*\bsrc=)|<img|onerror=\S*>(?!<)", page.replace(HARMLESS, ""))
        assert 'dir="auto"' in page
        assert len(page) > 100_000


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=yesterday", "'yesterday' is not a date such as 2026-05-01"),
        ("version=two", "version: "),
        ("version=-1", "version: "),
        ("status=<i>", "status: "),
        ("least=nan", "least: "),
        ("before=0", "before: "),
        ("id=%00", "String should match pattern"),
        ("arm=" + "a" * 300, "arm: "),
    ],
)
async def test_a_filter_that_cannot_be_read_is_named(service: Service, query: str, said: str) -> None:
    answer = await service.client.get(f"{CONSOLE}/decisions?{query}")
    assert answer.status_code == 400
    assert said in plain(answer.text)


async def test_a_decision_is_found_verified_and_labelled(linear: Service) -> None:
    found = (await look_up(linear, query="where is the source?")).json()["agent"]["decision_id"]
    by_id = await seen(linear, f"/decisions?id=%20{found}%20")
    assert "where is the source?" in by_id
    assert (await linear.client.get(f"{CONSOLE}/decisions/none")).status_code == 404
    assert "Verified : version" in plain(await seen(linear, f"/decisions/{found}/verify"))
    for value, status in (("1", 200), ("7", 400), ("good", 400)):
        kept = await linear.client.post(
            f"{CONSOLE}/decisions/{found}/feedback",
            data={"metric": "thumb", "value": value, "comment": "by hand"},
            headers=ORIGIN,
        )
        assert kept.status_code == status, kept.text
    record = await asyncio.to_thread(linear.replica.store.record, found)
    assert record is not None
    (item,) = record.feedback
    assert (item.metric, item.value, item.tags) == ("thumb", 1.0, {"from": "console"})
    assert item.content == {"comment": "by hand"}


async def test_passages_have_their_texts_where_the_corpus_has_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (await look_up(service, model="arm/bm25", agent={"return": ["passages"]})).json()
    texts = [(one["id"], one["text"]) for one in found["passages"]]
    path = f"/decisions/{found['agent']['decision_id']}"
    assert f'hx-get="{CONSOLE}{path}/passages"' in await seen(service, path)
    shown = plain(await seen(service, f"{path}/passages"))
    assert len(texts) == 4
    assert all(name in shown and text in shown for name, text in texts)

    async def some(ids: Sequence[str]) -> list[Passage]:
        return [Passage(ids[0], HARM, HARM)]

    monkeypatch.setattr(service.replica, "passages", some)
    shown = await seen(service, f"{path}/passages")
    assert "3 of 4 are no longer in the corpus." in shown
    assert HARMLESS in shown
    assert "<script>" not in shown

    monkeypatch.setattr(service.replica.turns.searcher, "restricted", True)
    shown = plain(await seen(service, f"{path}/passages"))
    assert "Some are not shown: the groups of your key do not permit them" in shown
    assert [name in shown for name, _ in texts] == [True, False, False, False]
    monkeypatch.undo()

    async def gone(ids: Sequence[str]) -> list[Passage]:
        raise ArmError(f"no host for {len(ids)}")

    monkeypatch.setattr(service.replica, "passages", gone)
    shown = plain(await seen(service, f"{path}/passages"))
    assert "The corpus cannot be read: no host for 4." in shown
    assert texts[0][0] in shown


async def test_what_is_built_behind_a_first_start_is_shown_and_no_failure_of_readiness(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "arms OK all built" in plain(await seen(service, "/system"))
    assert (await service.client.get("/ready")).json()["building"] is None
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    BuildingProgress(tmp_path)("embedding passages", 3, 9)
    assert "arms being built embedding passages: 3 of 9" in plain(await seen(service, "/system"))
    assert (await service.client.get("/ready")).json()["building"] == "embedding passages: 3 of 9"


def test_what_the_playground_says_has_the_variable_of_the_command_line_for_the_key() -> None:
    (_, option) = get_args(Key)
    assert option.envvar == "ARMWISE_API_KEY"
    named = re.findall(r"\bARMWISE_\w+", STATIC["console.js"].decode())
    assert len(named) >= 2, "curl and Python"
    assert set(named) == {option.envvar}


async def test_the_first_question_is_of_the_own_documents_and_is_sent_to_the_address_of_the_page(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is one viewer's, and none that another one has sent is shown."""
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    assert "armwise ask 'YOUR QUESTION' --url http" in html.unescape(await seen(service, ""))
    (tmp_path / QUESTION).write_text("What is said about <b>Bob's</b> plan?")
    question = """'What is said about <b>Bob'"'"'s</b> plan?'"""
    for scheme, host in (("http", "localhost:8123"), ("https", "127.0.0.1:8124")):
        sent = {"host": host, "hx-request": "true", "x-forwarded-proto": scheme}
        shown = (await service.client.get(CONSOLE, headers=sent)).text
        assert "<b>Bob" not in shown
        command = re.search(r"<code>(armwise ask .*?)</code>", shown)
        assert command is not None
        assert html.unescape(command[1]) == f"armwise ask {question} --url {scheme}://{host}"


async def test_feedback_on_no_decision_waits_for_one_before_it_is_lost(service: Service) -> None:
    for name in ("abc", "def", "abc"):
        await tell(service, name, 1.0)
    wait = service.replica.config.reward.wait_time
    waits = f"feedback OK 0 items older than {wait} refer to no decision; 3 newer ones wait for theirs"
    assert waits in plain(await seen(service, "/system"))


async def test_the_health_of_every_deployment_is_shown_and_not_waited_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Serve is not well after five seconds without an answer, and not before."""
    shown = await seen(service, "/system")
    assert "without Ray Serve" in shown
    assert re.search(r"requests OK \d+ requests running, at most \d+", plain(shown))
    found = {"Ingress": (True, "2 running"), "Learner": (False, "1 starting no room")}
    service.replica.deployments = lambda: found
    shown = plain(await seen(service, "/system"))
    assert "Ingress OK 2 running" in shown
    assert "Learner failing 1 starting no room" in shown
    answered, now = threading.Event(), [100.0]
    service.replica.deployments = lambda: found if answered.wait(60) else {}
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=lambda: now[0]))
    try:
        for waited_s, well in ((0.0, True), (4.9, True), (5.0, False)):
            now[0] = 100.0 + waited_s
            shown = await seen(service, "/system")
            assert ("Waiting for Ray Serve" in shown) == well
            assert ("failing" in plain(shown).split("Deployments")[1]) == (not well)
            assert "hx-select" in shown, "the page asks again"
    finally:
        answered.set()
    now[0] = 159.0
    shown = await seen(service, "/system")
    assert "Ingress OK 2 running" in plain(shown), "the answer to the question of before"
    assert "hx-select" not in shown
    answered.clear()
    await seen(service, "/system")
    answered.set()
    await service.app.state.deployed[1]
    service.replica.deployments = lambda: {"Ingress": (True, "3 running")}
    now[0] += 61.0
    assert "Ingress OK 3 running" in plain(await seen(service, "/system")), "that answer was too old"


async def test_a_decision_says_why_other_arms_could_not_be_drawn(service: Service) -> None:
    await service.client.patch("/v1/arms/none", json={"enabled": False})
    health = service.replica.decider.health
    for caller in "aab":
        with health.track("bm25", caller=caller) as report:
            report(failed=("bm25",))
    found = (await look_up(service)).json()["agent"]["decision_id"]
    shown = plain(await seen(service, f"/decisions/{found}"))
    assert "none : it was switched off bm25 : its circuit breaker was open" in shown
    record = (await service.client.get(f"/v1/decisions/{found}")).json()
    assert record["masked"] == {"none": "disabled", "bm25": "breaker_open"}
    assert "Not part of this decision" not in shown
    with service.replica.store.writing() as connection:  # as before the log kept masks
        connection.execute(
            sa.update(t.decisions).values(features={"sparse": {}, "embedding": [], "arms": {}})
        )
    shown = plain(await seen(service, f"/decisions/{found}"))
    assert "Not part of this decision: none , bm25 . It was not live then" in shown
    forced = (await look_up(service, model="arm/bm25")).json()["agent"]["decision_id"]
    assert "The request named the arm" in await seen(service, f"/decisions/{forced}")


async def test_a_key_sees_the_decisions_of_its_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects: dict[str, dict[str, Any]] = {
        "ACME": {"scopes": ["decide", "read"], "project": "acme"},
        "MAIN": {"scopes": ["decide", "read"]},
        "ROOT": {"scopes": ["admin"]},
    }
    for name in projects:
        monkeypatch.setenv(name, name)
    keys = [{"env": name, **about} for name, about in projects.items()]
    async with Service(tmp_path, keys=keys).running() as service:
        bearer = {name: {"authorization": f"Bearer {name}"} for name in projects}
        for name in ("ACME", "MAIN"):
            await look_up(service, bearer[name], query=f"asked by {name}")
        for name, others in (("ACME", "MAIN"), ("MAIN", "ACME")):
            page = (await service.client.get(f"{CONSOLE}/decisions", headers=bearer[name])).text
            assert f"asked by {name}" in page
            assert f"asked by {others}" not in page
        page = (await service.client.get(f"{CONSOLE}/decisions", headers=bearer["ROOT"])).text
        assert "asked by ACME" in page
        assert "asked by MAIN" in page
        acme = service.replica.store.newest(2)[1].id
        assert acme.startswith("acme~")
        hidden = await service.client.get(f"{CONSOLE}/decisions/{acme}", headers=bearer["MAIN"])
        assert hidden.status_code in (400, 404)


async def followed(service: Service, path: str, row: str) -> list[list[str]]:
    """Return what a pattern of a row finds on each page, from the first one to the one without a next."""
    found: list[list[str]] = []
    link: str | None = f"{CONSOLE}{path}"
    while link is not None:
        answer = await service.client.get(link)
        assert answer.status_code == 200, answer.text
        found.append(re.findall(row, answer.text))
        links = re.findall('rel="next" href="([^"]+)"', answer.text)
        link = html.unescape(links[0]) if links else None
        assert len(found) < 10
    return found


async def test_each_page_of_decisions_leads_to_the_next_with_its_filters(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "PAGE", 2)
    for i in range(3):
        await look_up(service, model="arm/bm25", query=f"question {i} of three")
        await look_up(service, model="arm/none", query=f"question {i} without")
    row = r"question (\d (?:of three|without))<"
    every = await followed(service, "/decisions", row)
    assert [*chain(*every)] == [f"{i} {which}" for i in range(2, -1, -1) for which in ("without", "of three")]
    assert {len(one) for one in every[:3]} == {2}
    kept = await followed(service, "/decisions?arm=bm25&text=question", row)
    assert [*chain(*kept)] == [f"{i} of three" for i in range(2, -1, -1)]


@pytest.mark.slow
async def test_each_field_of_the_form_finds_what_it_names(linear: Service) -> None:
    await look_up(linear, query="alone in its talk", agent={"episode_id": "talk-1"})
    for i, value in ((12, 1.0), (13, -1.0)):
        asked = (await look_up(linear, query=f"question {i} of twelve")).json()["agent"]
        await tell(linear, asked["decision_id"], value)
    await linear.learn()
    row = r"(question \d+ of twelve|alone in its talk)<"

    async def found(**fields: str) -> list[str]:
        return re.findall(row, await seen(linear, f"/decisions?{urlencode(fields)}"))

    assert await found(text="ALONE") == ["alone in its talk"]
    assert await found(episode="talk-1") == ["alone in its talk"]
    assert len(await found(since="2020-01-01", until="2120-01-01")) == 15
    assert await found(until="2020-01-01") == []
    assert await found(since="2120-01-01") == []
    good, bad = await found(least="0.3"), await found(most="0.3")
    assert "question 12 of twelve" in good
    assert "question 13 of twelve" in bad
    assert sorted([*good, *bad]) == sorted(f"question {i} of twelve" for i in range(14))


async def test_a_key_of_a_project_is_led_to_the_decisions_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME", "ACME")
    keys = [{"env": "ACME", "scopes": ["decide", "read"], "project": "acme"}]
    async with Service(tmp_path, keys=keys).running() as service:
        bearer = {"authorization": "Bearer ACME"}
        found = (await look_up(service, bearer, agent={"episode_id": "talk-1"})).json()["agent"]
        one = await service.client.get(f"{CONSOLE}/decisions/{found['decision_id']}", headers=bearer)
        (link,) = re.findall(rf'href="({CONSOLE}/decisions\?[^"]*talk-1)"', one.text)
        assert found["decision_id"] in (await service.client.get(link, headers=bearer)).text


@pytest.mark.slow
async def test_each_page_of_what_operators_do_leads_to_the_next(
    linear: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = linear.replica.store
    for i in range(3):
        found = (await look_up(linear, query=f"one more {i}")).json()["agent"]
        await tell(linear, found["decision_id"], 1.0)
        await linear.learn()
        await linear.client.post(f"{CONSOLE}/evaluations", data={"candidates": "uniform"}, headers=ORIGIN)
        run = runs.request(store, "recipe", float(i))
        with store.writing() as connection:
            connection.execute(sa.update(t.jobs).values(status="failed"))
    assert run.seq == 6
    monkeypatch.setattr(operating, "PAGE", 2)
    rows = {
        "/evaluations": (rf'"{CONSOLE}/evaluations/(\d+)"', [["5", "3"], ["1"]]),
        "/warm-starts": (rf'"{CONSOLE}/warm-starts/(\d+)"', [["6", "4"], ["2"]]),
    }
    for path, (row, expected) in rows.items():
        assert await followed(linear, path, row) == expected, path


@pytest.mark.slow
async def test_an_operator_acts_with_a_reason_that_the_timeline_shows(linear: Service) -> None:
    client = linear.client

    async def act(**fields: str) -> httpx.Response:
        return await client.post(f"{CONSOLE}/policies", data=fields, headers=ORIGIN)

    done = await act(action="rollback", version="1", reason="it was <i>calmer</i>")
    assert (done.status_code, done.headers["location"]) == (303, f"{CONSOLE}/policies")
    done = await act(action="canary", version="2", reason="try it", share="0.25")
    assert done.status_code == 303
    shown = await seen(linear, "/policies")
    assert "it was &lt;i&gt;calmer&lt;/i&gt;" in shown
    assert "canary of 25 %" in plain(shown).replace("\xa0", " ")
    assert "pinned to version 1" in plain(shown)
    for fields, status, said in (
        ({"action": "rollback", "version": "1"}, 400, "reason"),
        ({"action": "rollback", "version": "99", "reason": "x"}, 404, "there is no version 99"),
        ({"action": "canary", "version": "2", "reason": "x", "share": "0.9"}, 400, "share"),
        ({"action": "explode", "version": "2", "reason": "x"}, 400, "'explode'"),
        ({"action": "promote", "version": "two", "reason": "x"}, 400, "two"),
    ):
        answer = await act(**fields)
        assert answer.status_code == status
        assert said in plain(answer.text)


async def test_an_arm_is_switched_and_an_evaluation_asked_for(linear: Service) -> None:
    client = linear.client
    await client.post(f"{CONSOLE}/arms/none", data={"enabled": "false"}, headers=ORIGIN)
    assert 'aria-label="Switch on none"' in await seen(linear, "/arms")
    wrong = await client.post(f"{CONSOLE}/evaluations", data={"candidates": "nonsense:"}, headers=ORIGIN)
    assert (wrong.status_code, "nonsense" in wrong.text) == (400, True)
    asked = await client.post(
        f"{CONSOLE}/evaluations", data={"candidates": "fixed:bm25\n\nuniform"}, headers=ORIGIN
    )
    assert asked.headers["location"] == f"{CONSOLE}/evaluations/1"
    assert "queued: 0 % done" in plain(await seen(linear, "/evaluations/1")).replace("\xa0", " ")
    assert "fixed:bm25, uniform" in await seen(linear, "/evaluations")
    window = {"since": "2020-01-01", "until": "2120-02-03", "interval": "bootstrap"}
    await client.post(f"{CONSOLE}/evaluations", data={"candidates": "uniform", **window}, headers=ORIGIN)
    request = (await client.get("/v1/evaluations/2")).json()["request"]
    assert request["interval"] == "bootstrap"
    assert (request["since"][:10], request["until"][:10]) == ("2020-01-01", "2120-02-03")
    early = await client.get(f"{CONSOLE}/evaluations/1/report")
    assert early.status_code == 409
    refused = await client.post(f"{CONSOLE}/warm-starts", headers=ORIGIN)
    assert (refused.status_code, "warm_start" in refused.text) == (409, True)


async def test_the_configuration_is_shown_without_the_password_of_the_log(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = service.config.model_copy(update={"log_url": "postgresql+psycopg://armwise:pa55word@db/log"})
    monkeypatch.setattr(type(service.replica), "config", config)
    shown = await seen(service, "/system")
    assert "armwise:***@db/log" in shown
    assert "pa55word" not in shown


async def test_a_key_has_what_its_form_says(service: Service) -> None:
    async def make(headers: dict[str, str], **fields: str) -> dict[str, str]:
        made = await service.client.post(f"{CONSOLE}/system/keys", data=fields, headers=ORIGIN | headers)
        assert made.status_code == 200, made.text
        (secret,) = re.findall(r"<pre[^>]*>(sk-aw-[^<]+)<", made.text)
        return {"authorization": f"Bearer {secret}"}

    root = await make({}, name="root", scopes="admin")
    limits = {"tpm_limit": "500", "max_budget": "2.5", "budget_duration": "1mo"}
    await make(root, name="shop", scopes="decide feedback", project="acme", groups="board staff", **limits)
    (key,) = [
        one for one in (await service.client.get("/v1/keys", headers=root)).json()["keys"] if one["tpm_limit"]
    ]
    assert (key["scopes"], key["project"]) == (["decide", "feedback"], "acme")
    assert key["groups"] == ["board", "staff"]
    found = [key[name] for name in ("rpm_limit", "tpm_limit", "max_budget", "budget_duration")]
    assert found == [None, 500, 2.5, "1mo"]


@pytest.mark.parametrize(("seconds", "well"), [(59.9, "OK"), (60.0, "failing")])
async def test_a_learner_that_is_a_minute_behind_is_not_well(
    service: Service, monkeypatch: pytest.MonkeyPatch, seconds: float, well: str
) -> None:
    behind = SimpleNamespace(log_seq=7, facts=3, seconds=lambda _: seconds)
    monkeypatch.setattr(lag, "measure_lag", lambda *_: behind)
    assert f"learner {well} 3 facts behind" in plain(await seen(service, "/system"))


async def test_a_key_is_shown_once_and_the_configuration_without_passwords(service: Service) -> None:
    fields = {"name": "the first", "scopes": "admin", "expires": "2999-01-01T00:00Z", "rpm_limit": "600"}
    made = await service.client.post(f"{CONSOLE}/system/keys", data=fields, headers=ORIGIN)
    (secret,) = re.findall(r"sk-aw-\w+-\w+", made.text)
    bearer = {"authorization": f"Bearer {secret}"}
    again = (await service.client.get(f"{CONSOLE}/system", headers=bearer)).text
    assert secret not in again
    assert secret.split("-")[2] in again
    assert "log_url: sqlite:///" in again
    public = secret.split("-")[2]
    gone = await service.client.post(f"{CONSOLE}/system/keys/{public}", headers={**ORIGIN, **bearer})
    assert gone.status_code == 303
    wrong = await service.client.get(f"{CONSOLE}/system", headers=bearer)
    assert wrong.status_code == 303


STEPS = [
    {
        "name": "gather",
        "at": 1_700_000_000.0,
        "seconds": 1.25,
        "said": "new labels of <b>people</b>",
        "found": {},
    },
    {
        "name": "evaluate",
        "at": 1_700_000_100.0,
        "seconds": 12.0,
        "said": "",
        "found": {
            "recipe:3": {
                "promote": False,
                "reasons": ["too little"],
                "trail": [{"at": 1.0, "low": 0.0}],
                "figures": {"gain": 0.123456789, "finished_at": 1_700_000_200.0, "delay_s": 2.5, "p": None},
                "parts": [{"digest": "ab" * 32, "latency_ms": 3.0, "n": 12345}],
            }
        },
    },
]


async def test_a_warm_start_shows_its_steps_and_results(service: Service) -> None:
    """Dates are in words, texts are escaped, and the trail is left out."""
    store, now = service.replica.store, 1_700_000_000.0
    mine = runs.claim(store, "ours", runs.Trigger.SCHEDULE, "worker", now)
    runs.save_progress(store, mine, now, inputs={"log": 1700000, "alarm": None}, steps=STEPS, candidate=1)
    runs.finish(store, mine, runs.RunState.HELD, now + 3600.0)
    assert "2023-11-14 23:13 UTC the schedule held" in plain(await seen(service, "/warm-starts"))
    page = await seen(service, "/warm-starts/1")
    assert "labels of &lt;b&gt;people" in page
    shown = plain(page)
    for said in ("gain 0.1235", "delay 2.5 s", "n 12,345", "log 1,700,000"):
        assert said in shown
    assert not re.search(r"trail|[{}]|\b1[0-9]{9}\b", shown)


async def test_costs_have_their_units(tmp_path: Path) -> None:
    """A cost is shown in steps, tokens, dollars and time, with its price beside it."""
    async with Service(tmp_path).running() as service:
        found = (await ask(service)).json()["agent"]["decision_id"]
        store = service.replica.store
        cost = {"steps": 2, "prompt_tokens": 1200, "completion_tokens": 34, "usd": 0.25, "retrieval_s": 1.5}
        with store.writing() as connection:
            connection.execute(sa.update(t.executions).values(**cost, llm_s=0.25))
        spent = "2 steps, 1,234 tokens, $0.25, 1.75 s"
        assert 'cost">$0.25' in await seen(service, "/decisions")
        assert f"cost {spent} priced cost 2.000" in plain(await seen(service, f"/decisions/{found}"))
        assert f"Cost: {spent} , priced cost 2.000" in plain(await seen(service, f"/playground/{found}"))
        await asyncio.to_thread(service.summarise)
        assert f"{spent} priced cost 2.000" in plain(await seen(service, "/arms"))
        with store.writing() as connection:
            connection.execute(sa.update(t.executions).values(steps=1, usd=0.0, retrieval_s=0.004, llm_s=0.0))
        assert "1 step, 1,234 tokens, 4 ms" in plain(await seen(service, f"/decisions/{found}"))
        with store.writing() as connection:
            connection.execute(sa.update(t.executions).values(usd=0.000098))
        for path in ("/decisions", f"/decisions/{found}", f"/playground/{found}"):
            shown = await seen(service, path)
            assert "$0.000098" in shown, "one answer has its own cost"
            assert "e-05" not in shown


async def test_the_model_of_an_arm_and_the_answer_are_beside_it(tmp_path: Path) -> None:
    """Its own model, or the default one; of a decision the model that was asked then."""
    openai = {"engine": "openai", "base_url": "http://localhost:1/v1"}
    llms = {"strong": {**openai, "model": "vendor/large-1"}}
    arms = {
        "none": {"kind": "none"},
        "bm25": {"kind": "bm25", "answering": {"llm": "strong"}},
    }
    async with Service(
        tmp_path, llms=llms, llm={**openai, "model": "mini-2"}, arms=arms
    ).running() as service:
        for arm in arms:
            await ask(service, model=f"arm/{arm}")
        await service.settle()
        shown = {path: plain(await seen(service, path)) for path in ("/arms", "/decisions")}
        for text in shown.values():
            assert "none mini-2" in text
            assert "bm25 vendor/large-1" in text
        assert "The Danube does." in shown["/decisions"]
        found = (await ask(service, model="arm/bm25")).json()["agent"]["decision_id"]
        assert "By bm25 vendor/large-1" in plain(await seen(service, f"/decisions/{found}"))
        with service.replica.store.writing() as connection:
            connection.execute(sa.update(t.executions).values(tokens_by_model={"gone": [1, 1, 0]}))
        assert "bm25 gone" in plain(await seen(service, "/decisions"))


async def test_a_list_has_no_answers_where_groups_restrict_passages(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may quote them; the decision's own page decides it for each key."""
    await ask(service)
    assert "The Danube does." in await seen(service, "/decisions")
    monkeypatch.setattr(service.replica.turns.searcher, "restricted", True)
    assert "The Danube does." not in await seen(service, "/decisions")
