"""Verbs at a decision point: what they ask of the service, and which log they read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cli import operate
from agent.client import Client
from agent.config import load
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
    operate.request("GET", "http://x", "/v1/policy", None, point="cheap")
    operate.request("GET", "http://x", "/v1/policy", None)
    assert asked == ["/v1/policy?point=cheap", "/v1/policy"]


def test_a_verb_on_the_log_reads_that_of_the_point(config: Path, tmp_path: Path) -> None:
    settings = load(config)
    for point, turns in (("default", 2), ("cheap", 3)):
        judged_log(settings.of(point), turns=turns)
        output = tmp_path / f"{point}.jsonl"
        told = said(run("export", "-c", str(config), "--point", point, "-o", str(output)), 0)
        assert f"{turns} decisions written" in told
    assert "the log of point cheap had schema" in said(run("migrate", "-c", str(config)), 0)
    wrong = said(run("export", "-c", str(config), "--point", "chep", "-o", str(tmp_path / "x")), 2)
    assert "there is no decision point 'chep'; there are: default, cheap" in wrong
