"""What the pages show of a small log: figures, decisions, explanations, and texts that mean harm."""

import asyncio
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.api.middleware import CONSOLE
from arms.llm import base
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
        await service.learn()
        yield service


async def seen(service: Service, path: str) -> str:
    answer = await service.client.get(CONSOLE + path)
    assert answer.status_code == 200, answer.text
    return answer.text


def plain(text: str) -> str:
    """The text of a page, without its tags."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", text)))


async def test_the_overview_shows_the_figures_of_the_log(linear: Service) -> None:
    shown = plain(await seen(linear, "?window=1h"))
    store, rule = linear.replica.store, linear.config.reward
    records = [await asyncio.to_thread(store.record, one.id) for one in store.newest(100)]
    rewards = []
    for record in records:
        assert record is not None
        assert record.execution is not None
        rewards.append(rule.reward(record.metrics or {}, record.execution.cost))
    mean = float(np.mean([reward for reward in rewards if reward is not None]))
    assert "requests 12 since" in shown
    assert f"reward a request {mean:.3f} [" in shown
    assert "of 12 with feedback" in shown


async def test_an_empty_log_says_what_to_do_next(service: Service) -> None:
    assert "Nothing was asked in this window." in plain(await seen(service, ""))
    assert "The log holds no decision yet." in plain(await seen(service, "/decisions"))
    assert "No decision matches" in plain(await seen(service, "/decisions?arm=bm25"))


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
        ("since=yesterday", "'yesterday' is no date such as 2026-05-01"),
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


async def test_a_decision_is_found_verified_explained_and_labelled(linear: Service) -> None:
    found = (await look_up(linear, query="where is the source?")).json()["agent"]["decision_id"]
    by_id = await seen(linear, f"/decisions?id={found}")
    assert "where is the source?" in by_id
    assert (await linear.client.get(f"{CONSOLE}/decisions/none")).status_code == 404
    assert "Verified : version" in plain(await seen(linear, f"/decisions/{found}/verify"))
    why = plain(await seen(linear, f"/decisions/{found}/why"))
    assert "Exact: its expected reward is" in why
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
    assert (item.metric, item.value, item.tags) == ("thumb", 1.0, {"from": "console", "comment": "by hand"})


async def test_contributions_add_up_to_the_difference_of_the_scores(linear: Service) -> None:
    found = (await look_up(linear, query="a question of twelve")).json()["agent"]["decision_id"]
    shown = await seen(linear, f"/decisions/{found}/why")
    total = float(re.findall(r"expected reward is ([-+][\d.]+)", shown)[0])
    parts = [float(one) for one in re.findall(r"<td>([-+][\d.]+)</td>", shown)]
    assert abs(sum(parts) - total) < 1e-3 * len(parts)


async def test_an_explanation_of_another_policy_is_said_to_be_approximate(service: Service) -> None:
    for i in range(4):
        found = (await look_up(service, query=f"question {i}")).json()["agent"]
        await tell(service, found["decision_id"], 1.0)
    await service.learn()
    found = (await look_up(service)).json()["agent"]
    assert "An approximation" in plain(await seen(service, f"/decisions/{found['decision_id']}/why"))
    forced = (await look_up(service, model="arm/bm25")).json()["agent"]["decision_id"]
    answer = await service.client.get(f"{CONSOLE}/decisions/{forced}/why")
    assert (answer.status_code, "no policy chose" in answer.text) == (409, True)


async def test_a_key_sees_the_decisions_of_its_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects: dict[str, dict[str, Any]] = {
        "ACME": {"scopes": ["decide"], "project": "acme"},
        "MAIN": {"scopes": ["decide"]},
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
