"""A source that cannot be read at the start: other arms answer, and the service says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import parse
from armwise.arms.corpus import CorpusError, ingest_all
from tests.agent.asking import CHAT
from tests.agent.fakes import CONFIG, Service
from tests.arms.proxy_variables import forget_proxies

ARMS: dict[str, Any] = {
    "docs": {"kind": "bm25", "corpus": "docs"},
    "tickets": {"kind": "bm25", "corpus": "tickets"},
    "both": {"kind": "rrf", "params": {"arms": ["docs", "tickets"]}},
    "none": {"kind": "none"},
}


def write(folder: Path, name: str) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text(json.dumps({"id": "a", "text": f"{name} are here"}) + "\n")
    return path


def changes(folder: Path) -> dict[str, Any]:
    corpora = {name: {"source": str(folder / f"{name}.jsonl")} for name in ("docs", "tickets")}
    return {"corpora": corpora, "arms": ARMS, "home": str(folder / "home")}


def read_sources(folder: Path) -> None:
    """Do what a start does before the service is there."""
    ingest_all(parse({**CONFIG, **changes(folder)}).corpus_sources, leave_out=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "docs")
    return tmp_path


async def failures(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await service.client.get("/ready")).json()["failed"]
    return found


async def test_arms_of_a_source_that_was_never_read_are_not_drawn(folder: Path) -> None:
    read_sources(folder)
    async with Service(folder, **changes(folder)).running() as service:
        for _ in range(5):
            answer = await service.client.post("/v1/chat/completions", json=CHAT)
            record = (
                await service.client.get(f"/v1/decisions/{answer.json()['agent']['decision_id']}")
            ).json()
            assert record["pmf"].keys() == {"docs", "none"}
            assert sum(record["pmf"].values()) == pytest.approx(1.0)
            assert record["masked"] == dict.fromkeys(("both", "tickets"), "source_away")
        verified = (await service.client.get(f"/v1/decisions/{record['decision_id']}/verify")).json()
        assert verified["verified"], verified
        forced = await service.client.post("/v1/chat/completions", json={**CHAT, "model": "arm/tickets"})
        assert (forced.status_code, forced.json()["error"]["code"]) == (503, "not_ready")
        (failure,) = await failures(service)
        assert failure["work"] == "sources"
        assert "corpus 'tickets': no corpus at" in failure["why"]
        assert "restart the service" in failure["remedy"]
        assert (
            "out: corpus &#39;tickets&#39; cannot be read" in (await service.client.get("/console/arms")).text
        )
        assert "no corpus at" in (await service.client.get("/console/system")).text


async def offered(service: Service) -> tuple[dict[str, str | None], set[str]]:
    """Return why each arm is out, and the models that are offered."""
    arms = (await service.client.get("/v1/arms")).json()["arms"]
    models = (await service.client.get("/v1/models")).json()["data"]
    return {arm["name"]: arm["out"] for arm in arms}, {model["id"] for model in models}


async def test_an_arm_that_is_out_is_listed_with_the_reason_and_offered_to_nobody(folder: Path) -> None:
    read_sources(folder)
    aliases = {"gpt-tickets": "arm/tickets", "gpt-docs": "arm/docs"}
    async with Service(folder, **changes(folder), aliases=aliases).running() as service:
        why = "corpus 'tickets' cannot be read"
        arms, models = await offered(service)
        assert arms == {"docs": None, "tickets": why, "both": why, "none": None}
        assert models - {"auto:cheap", "auto:best"} == {"auto", "arm/docs", "arm/none", "gpt-docs"}
        for name in ("arm/tickets", "gpt-tickets"):
            missing = await service.client.get(f"/v1/models/{name}")
            assert (missing.status_code, missing.json()["error"]["message"]) == (
                404,
                f"{name!r} is out for now: {why}",
            )


REMOTE = {"kind": "remote", "params": {"url": "http://service.example", "request": {"q": "{question}"}}}


async def test_an_arm_whose_proxy_cannot_be_used_is_out_and_the_others_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_proxies(monkeypatch)
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@[")
    write(folder, "tickets")
    settings = changes(folder)
    settings["arms"] = {**ARMS, "far": REMOTE}
    prepare(parse({**CONFIG, **settings}), lambda *_: None)
    async with Service(folder, **settings).running() as service:
        answer = await service.client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200
        arms, models = await offered(service)
        why = arms.pop("far")
        assert why is not None
        assert why.startswith("HTTP_PROXY=http://[ is not the address of a proxy")
        assert {*arms.values()} == {None}
        assert "arm/far" not in models
        (failure,) = await failures(service)
        assert failure["why"] == f"arm 'far': {why}"


@pytest.mark.parametrize("named", [True, False])
async def test_without_any_source_an_arm_that_needs_none_answers(tmp_path: Path, named: bool) -> None:
    settings = changes(tmp_path) | {"arms": {**ARMS, "far": REMOTE}}
    if not named:
        settings = {
            "home": str(tmp_path / "home"),
            "corpus": {"name": "mine", "source": str(tmp_path / "mine.jsonl")},
            "arms": {"words": {"kind": "bm25"}, "far": REMOTE},
        }
    prepare(parse({**CONFIG, **settings}), lambda *_: None)
    async with Service(tmp_path, **settings).running() as service:
        arms, _ = await offered(service)
        assert {name for name, why in arms.items() if why is None} == {"far"} | ({"none"} if named else set())


async def test_what_was_read_before_serves_and_its_age_is_shown(folder: Path) -> None:
    tickets = write(folder, "tickets")
    read_sources(folder)
    tickets.write_text("")
    read_sources(folder)
    async with Service(folder, **changes(folder)).running() as service:
        answer = await service.client.post("/v1/chat/completions", json={**CHAT, "model": "arm/tickets"})
        assert answer.status_code == 200
        (failure,) = await failures(service)
        assert "has no passages; its passages of 20" in failure["why"]


async def test_a_restart_takes_a_source_back_and_the_policy_keeps_what_it_learned(folder: Path) -> None:
    tickets = write(folder, "tickets")
    read_sources(folder)

    async def learned() -> dict[str, Any]:
        async with Service(folder, **changes(folder)).running() as service:
            chat = {**CHAT, "model": "arm/tickets"} if not await failures(service) else CHAT
            answer = await service.client.post("/v1/chat/completions", json=chat)
            assert answer.status_code == 200
            policy: dict[str, Any] = (await service.client.get("/v1/policy")).json()
            return policy

    before = await learned()
    text = tickets.read_text()
    tickets.unlink()
    (folder / "home/corpora/tickets/passages.db").unlink()
    read_sources(folder)
    away = await learned()
    tickets.write_text(text)
    read_sources(folder)
    after = await learned()
    assert before["version"] == away["version"] == after["version"]


def test_an_only_source_that_is_empty_stops_the_first_start(tmp_path: Path) -> None:
    config = parse({**CONFIG, "home": str(tmp_path), "corpus": {"name": "mine", "source": str(tmp_path)}})
    with pytest.raises(CorpusError, match=r"corpus .mine.: .* has no passages"):
        prepare(config, lambda *_: None)
