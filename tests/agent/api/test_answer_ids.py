"""Wherever a caller names a decision or an episode, the id of the answer will do: it is what SDKs hand on."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from armwise.feedback.errors import LogUnavailableError
from armwise.feedback.events import Cost, Execution, Status
from armwise.feedback.log import Store
from tests.agent.api.test_tenants import ADMIN, bearer, client
from tests.agent.api.test_tenants import Client as Sender
from tests.agent.asking import CHAT, QUESTION, refused, tell
from tests.agent.fakes import Service
from tests.agent.gateways.test_mcp import call, connected

MESSAGES: dict[str, Any] = {"model": "auto", "max_tokens": 64, "messages": CHAT["messages"]}

DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chatcmpl-": ("/v1/chat/completions", CHAT),
    "msg_": ("/v1/messages", MESSAGES),
    "resp_": ("/v1/responses", {"model": "auto", "input": QUESTION}),
}
"""Path and body of a question by the prefix of the id of its answer."""

PREFIXES = pytest.mark.parametrize("prefix", DOORS)


@pytest.fixture
async def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service with a configured key that may do everything."""
    monkeypatch.setenv("ADMIN_KEY", ADMIN)
    async with Service(tmp_path, keys=[{"env": "ADMIN_KEY", "scopes": ["admin"]}]).running() as service:
        yield service


async def ask(service: Service, prefix: str, key: str | None = None, **fields: Any) -> str:
    """Ask by one of the doors, and return the id of the answer."""
    path, body = DOORS[prefix]
    headers = {} if key is None else {"idempotency-key": key}
    answer = await service.client.post(path, json=body | fields, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"].startswith(prefix)
    return str(answer.json()["id"])


async def rated(service: Service, decision_id: str) -> list[float | None]:
    """Return the values of feedback on a decision that is named by its own id."""
    found = await asyncio.to_thread(service.replica.store.record, decision_id)
    assert found is not None
    return [item.value for item in found.feedback]


# -- every place that takes the id of a decision ---------------------------------------------------------


@PREFIXES
async def test_feedback_on_an_answer_is_on_its_decision(service: Service, prefix: str) -> None:
    answer = await ask(service, prefix)
    decision = answer.removeprefix(prefix)
    receipt = await tell(service, answer)
    assert receipt.status_code == 202
    assert (receipt.json()["decision_id"], receipt.json()["status"]) == (decision, "stored")
    assert await rated(service, decision) == [1.0]


@PREFIXES
async def test_a_batch_may_name_answers_and_decisions(service: Service, prefix: str) -> None:
    first, second = [await ask(service, prefix) for _ in range(2)]
    about = [first, second.removeprefix(prefix), first.removeprefix(prefix), "nobody"]
    items = [
        {"decision_id": name, "metric_name": "thumb", "value": 0.5, "feedback_id": f"f-{n}"}
        for n, name in enumerate(about)
    ]
    reply = (await service.client.post("/v1/feedback", json={"items": items})).json()["items"]
    decisions = [name.removeprefix(prefix) for name in about]
    assert [row["decision_id"] for row in reply] == decisions
    assert [row["status"] for row in reply] == ["stored"] * 4
    assert await rated(service, decisions[0]) == [0.5, 0.5]


@PREFIXES
async def test_a_decision_is_read_verified_and_activated_by_its_answer(service: Service, prefix: str) -> None:
    answer = await ask(service, prefix)
    decision = answer.removeprefix(prefix)
    shown = await service.client.get(f"/v1/decisions/{answer}")
    assert shown.json()["decision_id"] == decision
    verified = (await service.client.get(f"/v1/decisions/{answer}/verify")).json()
    assert (verified["decision_id"], verified["verified"]) == (decision, True)
    activated = await service.client.post(f"/v1/decisions/{answer}/activate")
    assert (activated.status_code, activated.json()["decision_id"]) == (202, decision)
    again = await service.client.post(f"/v1/decisions/{decision}/activate")
    assert again.json()["status"] == "duplicate", "both ids activate one decision once"


@PREFIXES
async def test_a_button_rates_the_decision_of_the_answer_that_its_page_shows(
    service: Service, prefix: str
) -> None:
    answer = await ask(service, prefix)
    made = await service.client.post(f"/v1/decisions/{answer}/feedback-token")
    pressed = {"token": made.json()["token"], "value": "up"}
    reply = await service.client.post("/v1/feedback/button", json=pressed)
    assert reply.json()["decision_id"] == answer.removeprefix(prefix)
    assert await rated(service, answer.removeprefix(prefix)) == [1.0]


@PREFIXES
async def test_an_answer_is_preferred_over_another_by_their_ids(service: Service, prefix: str) -> None:
    better, worse = [await ask(service, prefix) for _ in range(2)]
    pair = {"decision_id": better, "metric_name": "preference", "value": {"over": worse}}
    assert (await service.client.post("/v1/feedback", json=pair)).status_code == 202
    (item,) = (await service.client.get(f"/v1/decisions/{better}")).json()["feedback"]
    assert item["content"] == {"over": worse.removeprefix(prefix)}


@PREFIXES
async def test_the_texts_of_an_answer_are_erased_by_its_id(service: Service, prefix: str) -> None:
    answer = await ask(service, prefix)
    erased = await service.client.delete(f"/v1/decisions/{answer}")
    assert (erased.json()["scope"], erased.json()["decisions"]) == ("decision", 1)
    assert (await service.client.get(f"/v1/decisions/{answer}")).json()["erased"]


async def test_a_tool_of_an_agent_takes_the_id_of_an_answer(service: Service) -> None:
    answer = await ask(service, "chatcmpl-")
    async with connected(service) as agent:
        kept = await call(agent, "feedback", decision_id=answer, metric_name="thumb", value=1)
    assert kept["status"] == "stored"
    assert await rated(service, answer.removeprefix("chatcmpl-")) == [1.0]


# -- episodes ------------------------------------------------------------------------------------------


@PREFIXES
async def test_feedback_on_the_episode_of_an_answer_is_on_its_conversation(
    service: Service, prefix: str
) -> None:
    first = await ask(service, prefix, agent={"episode_id": "talk"})
    second = await ask(service, prefix, agent={"episode_id": "talk"})
    about = {"episode_id": first, "metric_name": "thumb", "value": 1}
    receipt = (await service.client.post("/v1/feedback", json=about)).json()
    assert (receipt["episode_id"], receipt["status"]) == ("talk", "stored")
    assert await rated(service, second.removeprefix(prefix)) == [1.0], "of all turns"
    listed = (await service.client.get("/v1/decisions", params={"episode": first})).json()["decisions"]
    assert [row["decision_id"] for row in listed] == [each.removeprefix(prefix) for each in (second, first)]
    erased = await service.client.delete(f"/v1/episodes/{second}")
    assert erased.json()["decisions"] == 2


async def test_an_answer_without_an_episode_names_none(service: Service) -> None:
    answer = await ask(service, "chatcmpl-")
    about = {"episode_id": answer, "metric_name": "thumb", "value": 1}
    receipt = (await service.client.post("/v1/feedback", json=about)).json()
    assert (receipt["episode_id"], receipt["status"]) == (answer, "stored")


async def test_an_episode_of_the_form_of_an_answer_id_stays_what_it_is(service: Service) -> None:
    await ask(service, "chatcmpl-", key="1", agent={"episode_id": "other"})
    await ask(service, "chatcmpl-", key="2", agent={"episode_id": "msg_1"})
    about = {"episode_id": "msg_1", "metric_name": "thumb", "value": 1}
    assert (await service.client.post("/v1/feedback", json=about)).json()["episode_id"] == "msg_1"
    assert (await rated(service, "1"), await rated(service, "2")) == ([], [1.0])


# -- idempotency keys of the same form -----------------------------------------------------------------


@PREFIXES
async def test_a_key_of_the_form_of_an_answer_id_names_its_decision(service: Service, prefix: str) -> None:
    key = f"{prefix}1"
    answers = [await ask(service, prefix, key=key) for _ in range(2)]
    assert answers == [f"{prefix}{key}"] * 2, "a repetition is answered as before"
    await ask(service, prefix, key="1")  # another decision, whose answer has the id that is the key
    await tell(service, key, 0.25, feedback_id="f-1")
    await tell(service, f"{prefix}{key}", 0.5, feedback_id="f-2")
    await tell(service, "1", 0.75, feedback_id="f-3")
    assert (await rated(service, key), await rated(service, "1")) == ([0.25, 0.5], [0.75])
    assert (await service.client.get(f"/v1/decisions/{key}")).json()["decision_id"] == key


@PREFIXES
async def test_feedback_may_come_before_the_decision_of_such_a_key(service: Service, prefix: str) -> None:
    key = f"{prefix}1"
    receipt = (await tell(service, key)).json()
    assert (receipt["decision_id"], receipt["status"]) == (key, "stored")
    await ask(service, prefix, key=key)
    assert await rated(service, key) == [1.0]


@PREFIXES
async def test_a_prefix_alone_is_an_id_like_any_other(service: Service, prefix: str) -> None:
    assert (await tell(service, prefix)).json()["decision_id"] == prefix
    refused(await service.client.get(f"/v1/decisions/{prefix}"), 404, "decision_not_found", "decision_id")


# -- other projects ------------------------------------------------------------------------------------


async def test_an_answer_of_a_project_is_named_by_its_own_keys(closed: Service) -> None:
    mine, theirs = [
        await client(closed, "decide", "feedback", "read", project=name) for name in ("acme", "b")
    ]
    answer = (await mine.send("POST", "/v1/chat/completions", CHAT)).json()["id"]
    decision = answer.removeprefix("chatcmpl-")
    for attacker in (theirs, await client(closed, "decide", "feedback", "read")):
        refused(await attacker.read(answer), 404, "decision_not_found", "decision_id")
        assert await status(attacker, answer) == "stored"
    for name in (f"chatcmpl-acme~{decision}", f"acme~{answer}"):
        refused(await theirs.read(name), 404, "decision_not_found", "decision_id")
    assert await status(mine, answer) == "stored"
    (kept,) = (await mine.read(answer)).json()["feedback"]
    assert (kept["value"], kept["counts"]) == (1.0, True)


async def status(sender: Sender, decision_id: str) -> str:
    return str((await sender.judge(decision_id, 1.0, "f-1")).json()["status"])


async def test_the_default_project_reaches_no_other_by_the_id_of_an_answer(closed: Service) -> None:
    mine, theirs = await client(closed), await client(closed, project="acme")
    await theirs.ask("d-1")
    for prefix in DOORS:
        reply = await mine.judge(f"{prefix}acme~d-1", 1.0, "f-1")
        assert reply.status_code in (400, 403), reply.text
        assert (await mine.read(f"{prefix}acme~d-1")).status_code in (400, 404)
    own = (await theirs.read("d-1")).json()
    assert own["feedback"] == []
    admin = await closed.client.get("/v1/decisions/chatcmpl-acme~d-1", headers=bearer(ADMIN))
    assert admin.json()["decision_id"] == "acme~d-1", "a key that sees all projects names them"


# -- a log that is away --------------------------------------------------------------------------------


async def test_feedback_is_not_filed_elsewhere_while_the_log_cannot_say(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await ask(service, "chatcmpl-")

    def away(*_: object) -> None:
        raise LogUnavailableError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "reading", away)
        refused(await tell(service, answer), 503, "log_unavailable")
    assert (await tell(service, answer)).json()["status"] == "stored"


async def test_the_answer_of_a_decision_that_is_not_logged_takes_no_feedback(service: Service) -> None:
    answer = f"chatcmpl-unlogged-{'0' * 32}"
    said = refused(await tell(service, answer), 409, "not_logged")
    assert answer in said
    assert "x-armwise-log: away" in said, "how to tell such an answer"


# -- how the answer ended ------------------------------------------------------------------------------


async def test_a_decision_shows_why_the_model_stopped(service: Service) -> None:
    answer = await ask(service, "chatcmpl-", key="q-1")
    shown = (await service.client.get(f"/v1/decisions/{answer}")).json()
    found = await asyncio.to_thread(service.replica.store.record, "q-1")
    assert found is not None
    ended = Execution(
        "q-2", found.decision.drawn, Status.OK, Cost(), answer="", finish_reason="content_filter"
    )
    service.replica.store.append([replace(found.decision, id="q-2"), ended])
    refusal = (await service.client.get("/v1/decisions/q-2")).json()
    assert refusal["finish_reason"] == "content_filter"
    page = (await service.client.get("/console/decisions/q-2")).text
    assert "the language model ended with content_filter" in page
    assert shown["finish_reason"] in (None, "stop")
