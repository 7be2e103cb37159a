"""The attacker has a key: what one project does not get of another, and what a disabled key does not get."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.asking import CHAT, events, refused
from tests.agent.fakes import Service

ADMIN = "a-secret"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    """A service with a configured key that may do everything."""
    monkeypatch.setenv("ADMIN_KEY", ADMIN)
    async with Service(tmp_path, keys=[{"env": "ADMIN_KEY", "scopes": ["admin"]}]).running() as service:
        yield service


class Client:
    """A client with a key of its own."""

    def __init__(self, service: Service, token: str) -> None:
        self._http, self._headers = service.client, bearer(token)

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self._http.request(method, path, json=body, headers=self._headers | (headers or {}))

    async def ask(self, key: str, **fields: Any) -> httpx.Response:
        return await self.send("POST", "/v1/chat/completions", CHAT | fields, {"idempotency-key": key})

    async def judge(self, decision_id: str, value: float | None, feedback_id: str) -> httpx.Response:
        body = {"decision_id": decision_id, "metric_name": "thumb", "value": value}
        return await self.send("POST", "/v1/feedback", body | {"feedback_id": feedback_id})

    async def read(self, decision_id: str) -> httpx.Response:
        return await self.send("GET", f"/v1/decisions/{decision_id}")


async def client(service: Service, *scopes: str, project: str = "default", **fields: Any) -> Client:
    body = {"name": "of a test", "scopes": scopes or ("decide", "feedback"), "project": project} | fields
    made = await service.client.post("/v1/keys", json=body, headers=bearer(ADMIN))
    assert made.status_code == 201, made.text
    return Client(service, made.json()["key"])


def values(record: dict[str, Any]) -> list[tuple[str, float | None]]:
    return [(item["feedback_id"], item["value"]) for item in record["feedback"]]


# -- tenancy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("attacker", "victim"), [("default", "b"), ("a", "default"), ("a", "b")])
async def test_a_key_cannot_take_back_a_value_of_another_project(
    closed: Service, attacker: str, victim: str
) -> None:
    theirs = await client(closed, project=victim)
    mine = await client(closed, "feedback", project=attacker)
    await theirs.ask("d-1")
    await theirs.judge("d-1", 1.0, "f-1")
    for name in ("d-1", f"{victim}~d-1"):
        for feedback_id in ("f-1", f"{victim}~f-1"):
            await mine.judge(name, None, feedback_id)
    record = (await theirs.read("d-1")).json()
    assert values(record) == [("f-1", 1.0)]
    assert record["metrics"] == {"thumb": 1.0}


@pytest.mark.parametrize("victim", ["default", "b"])
async def test_a_key_cannot_squat_the_feedback_ids_of_another_project(closed: Service, victim: str) -> None:
    theirs, mine = await client(closed, project=victim), await client(closed, "feedback", project="a")
    for feedback_id in ("f-1", f"{victim}~f-1"):
        assert (await mine.judge("d-1", -1.0, feedback_id)).status_code == 202
    await theirs.ask("d-1")
    kept = await theirs.judge("d-1", 1.0, "f-1")
    assert (kept.status_code, kept.json()["status"]) == (202, "stored"), kept.text


@pytest.mark.parametrize("victim", ["default", "b"])
async def test_a_key_cannot_judge_decisions_of_another_project(closed: Service, victim: str) -> None:
    theirs, mine = await client(closed, project=victim), await client(closed, "feedback", project="a")
    await theirs.ask("d-1", agent={"episode_id": "e-1"})
    for name in ("d-1", f"{victim}~d-1"):
        assert (await mine.judge(name, -1.0, f"f-{name}")).json()["status"] == "stored"
    for name in ("e-1", f"{victim}~e-1"):
        body = {"episode_id": name, "metric_name": "thumb", "value": -1}
        assert (await mine.send("POST", "/v1/feedback", body)).json()["status"] == "stored"
    await mine.send("POST", "/v1/decisions/d-1/activate")
    record = (await theirs.read("d-1")).json()
    assert (record["feedback"], record["activated"]) == ([], False)


async def test_the_default_project_cannot_name_the_ids_of_another(closed: Service) -> None:
    theirs, mine = await client(closed, project="b"), await client(closed)
    await theirs.ask("d-1")
    refused(await mine.judge("b~d-1", -1.0, "f-1"), 400, "invalid_value")
    refused(await mine.judge("d-9", -1.0, "b~f-1"), 400, "invalid_value")
    refused(await mine.ask("b~d-2"), 400, "invalid_value", "Idempotency-Key")
    refused(await mine.send("POST", "/v1/decisions/b~d-1/activate"), 400, "invalid_value")
    items = {"items": [{"decision_id": "b~d-1", "metric_name": "thumb", "value": 1}]}
    refused(await mine.send("POST", "/v1/feedback", items), 400, "invalid_value", "items.0")
    assert (await theirs.read("d-1")).json()["feedback"] == []


@pytest.mark.parametrize("scope", ["decide", "read", "operate"])
@pytest.mark.parametrize("project", ["default", "a"])
async def test_a_decision_of_another_project_does_not_exist(
    closed: Service, project: str, scope: str
) -> None:
    theirs, mine = await client(closed, project="b"), await client(closed, scope, project=project)
    await theirs.ask("d-1")
    for name in ("d-1", "b~d-1", "nowhere"):
        message = refused(await mine.read(name), 404, "decision_not_found", "decision_id")
        assert message == f"there is no decision {name!r}"
        if scope == "operate":
            path = f"/v1/decisions/{name}/verify"
            refused(await mine.send("GET", path), 404, "decision_not_found", "decision_id")


async def test_two_projects_use_one_id_and_each_sees_its_own_without_a_prefix(closed: Service) -> None:
    a, b = await client(closed, project="a"), await client(closed, project="b")
    options = {"agent": {"episode_id": "e-1"}}
    first, second = await a.ask("d-1", **options), await b.ask("d-1", **options, seed=7)
    for response in (first, second):
        assert response.status_code == 200, response.text
        assert response.headers["x-decision-id"] == "d-1"
        assert (response.json()["id"], response.json()["agent"]["episode_id"]) == ("chatcmpl-d-1", "e-1")
    await a.judge("d-1", 1.0, "f-1")
    record = (await a.read("d-1")).json()
    assert (record["decision_id"], record["episode_id"], values(record)) == ("d-1", "e-1", [("f-1", 1.0)])
    assert (await b.read("d-1")).json()["feedback"] == []
    body = {"episode_id": "e-1", "metric_name": "thumb", "value": -1, "feedback_id": "e"}
    assert (await b.send("POST", "/v1/feedback", body)).json() | {"log_seq": 0} == {
        "feedback_id": "e",
        "decision_id": None,
        "episode_id": "e-1",
        "status": "stored",
        "log_seq": 0,
    }
    assert values((await a.read("d-1")).json()) == [("f-1", 1.0)]
    message = refused(await a.ask("d-1", seed=8), 409, "idempotency_conflict", "Idempotency-Key")
    assert "~" not in message
    message = refused(await a.judge("d-1", 0.5, "f-1"), 409, "idempotency_conflict")
    assert message.startswith("feedback id 'f-1'"), message
    assert "~" not in message


async def test_a_stream_shows_the_ids_of_its_caller(closed: Service) -> None:
    a = await client(closed, project="a")
    for response in (await a.ask("d-1", stream=True), await a.ask("d-1", stream=True)):
        assert "~" not in response.text
        assert {event["id"] for event in events(response)} == {"chatcmpl-d-1"}


async def test_an_id_that_the_service_made_is_found_by_its_project_alone(closed: Service) -> None:
    a, b = await client(closed, project="a"), await client(closed, project="b")
    made = (await a.send("POST", "/v1/retrieve", {"query": "which river?"})).json()["agent"]["decision_id"]
    assert len(made) == 32
    assert (await a.read(made)).status_code == 200
    refused(await b.read(made), 404, "decision_not_found", "decision_id")


async def test_an_admin_reads_and_judges_the_decisions_of_every_project(closed: Service) -> None:
    a, admin = await client(closed, project="a"), Client(closed, ADMIN)
    await a.ask("d-1")
    assert (await admin.judge("a~d-1", 1.0, "f-1")).json()["status"] == "stored"
    assert (await admin.read("a~d-1")).json()["decision_id"] == "a~d-1"
    verified = (await admin.send("GET", "/v1/decisions/a~d-1/verify")).json()
    assert (verified["verified"], verified["decision_id"]) == (True, "a~d-1")


async def test_all_projects_teach_one_policy(closed: Service) -> None:
    for project in ("default", "a", "b"):
        one = await client(closed, project=project)
        await one.ask("d-1")
        await one.judge("d-1", 1.0, "f-1")
    await closed.learn()
    assert (await Client(closed, ADMIN).send("GET", "/v1/policy")).json()["examples_seq"] == 3


async def test_the_source_of_feedback_is_that_of_the_key_whatever_the_body_says(closed: Service) -> None:
    user, judge = await client(closed), await client(closed, "feedback", source="judge")
    await user.ask("d-1")
    body = {"decision_id": "d-1", "metric_name": "thumb", "value": 1, "source": "operator"}
    refused(await judge.send("POST", "/v1/feedback", body), 400, "invalid_request", "source")
    await judge.judge("d-1", 1.0, "f-1")
    await user.judge("d-1", -1.0, "f-2")
    found = (await user.read("d-1")).json()["feedback"]
    assert {item["feedback_id"]: item["source"] for item in found} == {"f-1": "judge", "f-2": "user"}
    assert len({item["key"] for item in found}) == 2


# -- keys --------------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_listed_without_its_secret(closed: Service) -> None:
    body = {"name": "app", "rpm_limit": 5, "tags": {"team": "search"}}
    made = await closed.client.post("/v1/keys", json=body, headers=bearer(ADMIN))
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    token = made.json()["key"]
    listed = await closed.client.get("/v1/keys", headers=bearer(ADMIN))
    assert token.rpartition("-")[2] not in listed.text
    configured, row = listed.json()["keys"]
    assert (configured["public_id"], configured["configured"]) == ("ADMIN_KEY", True)
    assert row["public_id"] == token.split("-")[2]
    assert (row["name"], row["scopes"], row["project"]) == ("app", ["decide", "feedback"], "default")
    assert (row["rpm_limit"], row["tags"], row["disabled_at"]) == (5, {"team": "search"}, None)


async def test_a_configured_key_is_listed_with_its_groups_and_what_it_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "shop-secret")
    keys_of = [{"env": "SHOP_KEY", "scopes": ["admin", "decide"], "groups": ["staff", "board"]}]
    async with Service(tmp_path, keys=keys_of).running() as service:
        asked = await service.client.post("/v1/chat/completions", json=CHAT, headers=bearer("shop-secret"))
        assert asked.status_code == 200, asked.text
        (row,) = (await service.client.get("/v1/keys", headers=bearer("shop-secret"))).json()["keys"]
    assert row["groups"] == ["board", "staff"]
    assert row["spend"]["day"]["requests"] >= 1
    assert row["spend"]["day"]["tokens"] == asked.json()["usage"]["total_tokens"] > 0


async def test_a_disabled_key_is_refused_everywhere_soon(closed: Service, tmp_path: Path) -> None:
    one = await client(closed)
    async with Service(tmp_path, keys=[{"env": "ADMIN_KEY", "scopes": ["admin"]}]).running() as other:
        there = Client(other, one._headers["authorization"].removeprefix("Bearer "))  # noqa: SLF001
        assert (await there.ask("d-1")).status_code == 200
        public_id = one._headers["authorization"].split("-")[2]  # noqa: SLF001
        gone = await closed.client.delete(f"/v1/keys/{public_id}", headers=bearer(ADMIN))
        assert gone.json()["disabled_at"] is not None
        assert "is disabled" in refused(await one.ask("d-2"), 401, "invalid_api_key")
        await other.refresh()
        assert "is disabled" in refused(await there.ask("d-3"), 401, "invalid_api_key")
    again = await closed.client.delete(f"/v1/keys/{public_id}", headers=bearer(ADMIN))
    assert again.json()["disabled_at"] == gone.json()["disabled_at"]
    missing = await closed.client.delete("/v1/keys/ffffffffffff", headers=bearer(ADMIN))
    refused(missing, 404, "key_not_found", "public_id")


async def test_the_first_key_of_an_open_service_must_be_able_to_make_the_second(service: Service) -> None:
    lost = await service.client.post("/v1/keys", json={"name": "app"})
    assert "nobody could make another one" in refused(lost, 400, "invalid_value", "scopes")
    made = await service.client.post("/v1/keys", json={"name": "me", "scopes": ["admin"]})
    assert made.status_code == 201
    refused(await service.client.get("/v1/keys"), 401, "invalid_api_key")
    assert (await service.client.get("/v1/keys", headers=bearer(made.json()["key"]))).status_code == 200
