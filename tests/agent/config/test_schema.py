"""The JSON Schema of a configuration: up to date, true of what is shipped, and strict."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.configuration_text import SCHEMA
from armwise.agent.cli.main import app
from tests.agent.fakes import CONFIG

ROOT = Path(__file__).parents[3]
FILES = [
    ROOT / "serve_config.yaml",
    *sorted((ROOT / "examples").glob("*.yaml")),
    ROOT / "benchmarks/paper_arms.yaml",
]
SHIPPED = [path for path in FILES if "\napplications:" in path.read_text(encoding="utf-8")]

VALID = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_the_verb_prints_the_file() -> None:
    assert CliRunner().invoke(app, ["doctor", "--schema"]).output == SCHEMA.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_configuration_of_the_project_is_valid(path: Path) -> None:
    assert len(SHIPPED) >= 6
    VALID.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_arms_may_come_from_a_portfolio() -> None:
    rest = {name: value for name, value in CONFIG.items() if name != "arms"}
    VALID.validate({"applications": [{"args": {**rest, "portfolio": "chosen.yaml"}}]})
    assert not VALID.is_valid({"applications": [{"args": rest}]})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("polcy", {}),
        ("limits/in_fligth", 3),
        ("reward/metrics/thumb/weigth", 1),
        ("reward/complete", "evry"),
        ("arms/bm25/kind", "bm52"),
        ("arms/bm25/params", {"k": 1}),
        ("arms/mine", {"kind": "dense"}),
        ("arms/dense/params", {"backbone": 3}),
        ("policy", {"kind": "vopal"}),
        ("policy", {"kind": "vowpal", "params": {"arg": ""}}),
        ("policy", {"kind": "fixed"}),
        ("floor", 2),
        ("floor", "x"),
        ("llm", {"engine": "opnai"}),
        ("llm", {"engine": "openai", "model": "m"}),
        ("llm", {"model": "m"}),
        ("corpus/name", ".."),
        ("corpus/name", "__proto__"),
        ("answering/passages", 0),
    ],
)
def test_what_is_wrong_is_refused(place: str, value: Any) -> None:
    document = deepcopy(CONFIG)
    VALID.validate({"applications": [{"args": document}]})
    *parents, last = place.split("/")
    inner: Any = document
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = value
    assert not VALID.is_valid({"applications": [{"args": document}]})


@pytest.mark.parametrize("document", [{}, {"applications": []}, {"applications": [{"args": 3}]}, [1]])
def test_a_file_that_is_no_configuration_is_refused(document: object) -> None:
    assert not VALID.is_valid(document)


def test_a_class_of_the_users_own_may_have_any_parameters() -> None:
    arms = {"mine": {"kind": "my_package.arms:Mine", "params": {"any": [1]}}}
    VALID.validate({"applications": [{"args": {**CONFIG, "arms": arms}}]})
