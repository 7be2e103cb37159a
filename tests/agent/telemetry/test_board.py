"""The board and the alert rules of `deploy/`: they name metrics that exist, and alerts fire."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from armwise.agent.serving import ScrapedState, Telemetry

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/prometheus/alerts.yml"
ALERTS = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
BOARD = json.loads((ROOT / "deploy/grafana/armwise.json").read_text())


def names_of(expression: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\barmwise_\w+", expression)}


def test_every_metric_of_the_board_and_of_the_alerts_is_one_of_the_service() -> None:
    text = Telemetry().exposition(ScrapedState(), 0.0).decode()
    there = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    } | set(re.findall(r"^# HELP (armwise_\w+)", text, re.MULTILINE))
    queries = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    used = set[str]().union(*map(names_of, [*queries, *(alert["expr"] for alert in ALERTS)]))
    assert len(used) > 20
    assert used <= there


@pytest.mark.slow  # after `make prometheus` in continuous integration
@pytest.mark.parametrize(
    "words",
    ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"],
)
def test_promtool_accepts_the_configuration_and_each_alert_fires_on_what_it_is_for(words: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool: make prometheus")
    command = ["promtool", *words.split()]
    done = subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested() -> None:
    tests = yaml.safe_load((RULES.parent / "alerts_test.yml").read_text())["tests"]
    assert [one["name"] for one in tests[:-1]] == [f"{alert['alert']} fires" for alert in ALERTS]
    healthy = {one["alertname"] for one in tests[-1]["alert_rule_test"]}
    assert healthy == {alert["alert"] for alert in ALERTS}
