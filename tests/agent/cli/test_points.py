"""Verbs at a decision point: what they ask of the service, and which log they read."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from armwise.agent.cli import service
from armwise.agent.client import Client
from armwise.agent.config import load
from tests.agent.cli.test_cli import run, said
from tests.agent.fakes import CONFIG
from tests.agent.judged import judged_log


@pytest.fixture
def config(tmp_path: Path) -> Path:
    points = {"cheap": {"policy": {"kind": "uniform"}}}
    args = {**CONFIG, "home": str(tmp_path), "points": points}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    return path


def test_a_verb_of_a_running_service_names_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def request(_client: Client, _method: str, path: str, *_rest: Any) -> dict[str, Any]:
        asked.append(path)
        return {}

    monkeypatch.setattr(Client, "request", request)
    service.request("GET", "http://x", "/v1/policy", None, point="cheap")
    service.request("GET", "http://x", "/v1/policy", None)
    assert asked == ["/v1/policy?point=cheap", "/v1/policy"]


ARM = {"name": "none", "kind": "none", "params": {}, "enabled": True}
SERVING = {"version": 7, "pinned": False, "chosen": None, "since": None, "reason": None}
REPLY = {
    "kind": "uniform",
    "params": {},
    "floor": 0.1,
    "version": 7,
    "digest": "a",
    "log_seq": 1,
    "examples_seq": 1,
    "applied_seq": 1,
    "serving": SERVING,
    "newest": {"version": 7},
    "promotion": None,
    "canaries": [],
    "arms": [ARM],
    "parts": {},
    "mode": "explore",
    "policy_version": 7,
    "logged": {},
    "recomputed": {},
    "why": [],
    "verified": True,
    "draw": {"arm": "none"},
}
"""What every verb below can read."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Path and time-out of each request that the client makes; none is sent."""
    made = list[tuple[str, float]]()

    def request(_client: Client, _method: str, path: str, _body: object, timeout_s: float) -> dict[str, Any]:
        made.append((path, timeout_s))
        return REPLY

    monkeypatch.setattr(Client, "request", request)
    return made


@pytest.mark.parametrize(
    ("words", "requests"),
    [
        ("status", [("/ready", 30.0), ("/v1/policy", 30.0), ("/v1/arms", 30.0)]),
        ("apply {portfolio}", [("/v1/arms", 3600.0)]),
        ("promote 7 --reason better", [("/v1/policies/7/promote", 3600.0)]),
        ("rollback 7 --reason worse", [("/v1/policies/7/rollback", 3600.0)]),
        ("canary 7 --reason new --share 0.1", [("/v1/policies/7/canary", 3600.0)]),
    ],
)
def test_every_request_of_a_verb_names_the_point_and_waits_as_long_as_the_service_may_take(
    made: list[tuple[str, float]], tmp_path: Path, words: str, requests: list[tuple[str, float]]
) -> None:
    portfolio = tmp_path / "portfolio.yaml"
    portfolio.write_text("arms: {none: {kind: none}}")
    command = words.format(portfolio=portfolio).split()
    said(run(*command, "--point", "cheap", "--url", "http://x"), 0)
    assert made == [(f"{path}?point=cheap", timeout_s) for path, timeout_s in requests]


def test_a_decision_is_recomputed_wherever_its_id_leads_and_with_patience(
    made: list[tuple[str, float]],
) -> None:
    said(run("verify", "a/b", "--url", "http://x"), 0)
    assert made == [("/v1/decisions/a%2Fb/verify", 3600.0)]


@pytest.mark.parametrize(
    ("words", "attempts", "read_s"),
    [
        ("ask why", 3, 600.0),
        ("feedback d-1 thumb=1", 1, 120.0),
        ("promote 7 --reason better", 1, 3600.0),
    ],
)
def test_a_busy_service_is_asked_again_by_ask_alone(
    monkeypatch: pytest.MonkeyPatch, words: str, attempts: int, read_s: float
) -> None:
    sent = list[httpx.Request]()

    def busy(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        error = {"code": "overloaded", "message": "too many"}
        return httpx.Response(503, json={"error": error}, request=request)

    real = httpx.Client
    monkeypatch.setattr("httpx.Client", lambda **_: real(transport=httpx.MockTransport(busy)))
    monkeypatch.setattr("armwise.agent.client.client.sleep", lambda _: None)
    assert "overloaded: too many" in said(run(*words.split(), "--url", "http://x"), 1)
    assert [one.extensions["timeout"]["read"] for one in sent] == [read_s] * attempts


def test_a_question_is_asked_at_the_point_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content)["model"])
        return httpx.Response(400, json={"error": {"code": "unknown_arm", "message": "no"}})

    real = httpx.Client
    monkeypatch.setattr("httpx.Client", lambda **_: real(transport=httpx.MockTransport(answer)))
    for more in ([], ["--point", "cheap"], ["--point", "cheap", "--arm", "none"]):
        said(run("ask", "why", *more, "--url", "http://x"), 1)
    assert asked == ["auto", "point/cheap/auto", "point/cheap/arm/none"]


def test_a_verb_on_the_log_reads_that_of_the_point(config: Path, tmp_path: Path) -> None:
    settings = load(config)
    for point, turns in (("default", 2), ("cheap", 3)):
        judged_log(settings.of(point), turns=turns)
        output = tmp_path / f"{point}.jsonl"
        told = said(run("export", "-c", str(config), "--point", point, "-o", str(output)), 0)
        assert f"{turns} decisions written" in told
    wrong = said(run("export", "-c", str(config), "--point", "chep", "-o", str(tmp_path / "x")), 2)
    assert "there is no decision point 'chep'; there are: default, cheap" in wrong
