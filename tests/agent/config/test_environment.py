"""Settings from the environment: typed, nearest names for wrong ones, and resolved once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.config import AppConfig, ConfigError, load, parse, parse_with_environment
from armwise.agent.config.loading import EnvironmentSettingError, overridden, select_variables
from tests.agent.fakes import CONFIG

HOST = "10.96.0.7"


def with_these(environment: Mapping[str, str], args: Any = CONFIG) -> AppConfig:
    return parse(overridden(args, AppConfig, environment))


def complaint(environment: Mapping[str, str], args: Any = CONFIG) -> str:
    with pytest.raises(EnvironmentSettingError) as raised:
        overridden(args, AppConfig, environment)
    return str(raised.value)


@pytest.mark.parametrize(
    ("variable", "text", "place", "value"),
    [
        ("LIMITS__IN_FLIGHT", "32", "limits.in_flight", 32),
        ("FLOOR", "2e-2", "floor", 0.02),
        ("OPEN", "true", "open", True),
        ("LOG_URL", "postgresql://a@b/c", "log_url", "postgresql://a@b/c"),
        ("LOG_URL", "", "log_url", None),
        ("FALLBACK", "bm25", "fallback", "bm25"),
        ("FALLBACK", "null", "fallback", None),
        ("HOSTS", "[a.example, b.example]", "hosts", ("a.example", "b.example")),
        ("LIMITS__CHATS", "null", "limits.chats", None),
        ("REWARD__COMPLETE", "any", "reward.complete", "any"),
        ("REWARD__METRICS__THUMB__WEIGHT", "0.5", "reward.metrics.thumb.weight", 0.5),
        ("ARMS__BM25__PARAMS__K1", "1.5", "arms.bm25.params.k1", 1.5),
        ("BACKBONES__TINY__MODEL", "hashing:8", "backbones.tiny.model", "hashing:8"),
        ("BUDGET", "{usd_per_request: 2.0}", "budget.usd_per_request", 2.0),
        ("LLM", "{engine: scripted, default: hello}", "llm.default", "hello"),
        ("LLM__DEFAULT", "12", "llm.default", "12"),
    ],
)
def test_a_variable_sets_what_its_name_says_with_the_type_of_the_setting(
    variable: str, text: str, place: str, value: Any
) -> None:
    found: Any = with_these({f"ARMWISE_{variable}": text})
    for key in place.split("."):
        found = found[key] if isinstance(found, dict) else getattr(found, key)
    assert found == value


@given(
    number=st.integers(1, 10_000), text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
)
def test_numbers_and_texts_arrive_as_they_were_written(number: int, text: str) -> None:
    found = with_these({"ARMWISE_LIMITS__QUESTION_CHARS": str(number), "ARMWISE_LLM__DEFAULT": text})
    assert (found.limits.question_chars, found.llm.default) == (number, text)


def test_a_deeper_variable_wins_over_one_that_sets_the_whole() -> None:
    both = {"ARMWISE_LIMITS__IN_FLIGHT": "5", "ARMWISE_LIMITS": "{in_flight: 3, chats: 2}"}
    limits = with_these(both).limits
    assert (limits.in_flight, limits.chats) == (5, 2)


def test_names_of_the_file_are_found_however_they_are_written() -> None:
    arms = {**CONFIG["arms"], "My-arm.v2": {"kind": "bm25"}}
    found = with_these({"ARMWISE_ARMS__MY_ARM_V2__PARAMS__B": "0.5"}, {**CONFIG, "arms": arms})
    assert found.arms["My-arm.v2"].params == {"b": 0.5}


def test_the_settings_of_the_file_are_left_as_they_were() -> None:
    before = {"limits": {"in_flight": 1}}
    overridden(before, AppConfig, {"ARMWISE_LIMITS__IN_FLIGHT": "2"})
    assert before == {"limits": {"in_flight": 1}}


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("ARMWISE_FLOR", "ARMWISE_FLOOR"),
        ("ARMWISE_LIMITS__IN_FLIGT", "ARMWISE_LIMITS__IN_FLIGHT"),
        ("ARMWISE_REWARD__METRICS__THUMB__WEIGTH", "ARMWISE_REWARD__METRICS__THUMB__WEIGHT"),
        ("ARMWISE_LOG_ULR_FILE", "ARMWISE_LOG_URL"),
        ("ARMWISE_LLM__BASE_ULR", "ARMWISE_LLM__BASE_URL"),
    ],
)
def test_an_unknown_variable_is_an_error_with_the_nearest_name(variable: str, nearest: str) -> None:
    said = complaint({variable: "1"})
    assert said == f"unknown variable {variable!r} of the environment; did you mean {nearest!r}?"


def test_all_unknown_variables_are_named_at_once() -> None:
    said = complaint({"ARMWISE_FLOR": "1", "ARMWISE_FLOOR__DEEPER": "1", "ARMWISE_HTTP_OPTIONS__PORT": "1"})
    assert [line.split("'")[1] for line in said.splitlines()] == [
        "ARMWISE_FLOR",
        "ARMWISE_FLOOR__DEEPER",
        "ARMWISE_HTTP_OPTIONS__PORT",
    ]


def test_variables_of_others_are_no_settings() -> None:
    links = {
        "ARMWISE_PORT": f"tcp://{HOST}:8000",
        "ARMWISE_SERVE_SVC_PORT": f"tcp://{HOST}:8000",
        "ARMWISE_SERVE_SVC_SERVICE_HOST": HOST,
        "ARMWISE_SERVE_SVC_SERVICE_PORT_SERVE": "8000",
        "ARMWISE_PORT_8000_TCP_ADDR": HOST,
    }
    own = {"ARMWISE_URL": "http://x", "ARMWISE_API_KEY": "k", "ARMWISE_RUN": "/run"}
    assert select_variables({**links, **own, "PATH": "/bin"}) == []
    keys = [{"env": "ARMWISE_TEAM_KEY", "scopes": ["decide"]}]
    assert (
        with_these({"ARMWISE_TEAM_KEY": "x" * 20}, {**CONFIG, "keys": keys}).keys[0].env == "ARMWISE_TEAM_KEY"
    )


def test_a_file_holds_a_secret_value(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://ada:hidden@db/log\n")
    assert with_these({"ARMWISE_LOG_URL_FILE": str(secret)}).log_url == "postgresql://ada:hidden@db/log"
    both = {"ARMWISE_LOG_URL_FILE": str(secret), "ARMWISE_LOG_URL": "sqlite:////tmp/x.db"}
    assert complaint(both) == "ARMWISE_LOG_URL_FILE and ARMWISE_LOG_URL set the same: unset one of them"
    gone = {"ARMWISE_LOG_URL_FILE": str(tmp_path / "gone")}
    assert (
        complaint(gone)
        == f"ARMWISE_LOG_URL_FILE: '{tmp_path / 'gone'}' cannot be read (No such file or directory)"
    )
    secret.write_bytes(b"\xff")
    assert "(not a text)" in complaint({"ARMWISE_LOG_URL_FILE": str(secret)})


@pytest.mark.parametrize(
    ("environment", "args"),
    [
        ({"ARMWISE_LIMITS": "{in_flight: [hidden"}, CONFIG),
        ({"ARMWISE_OPEN__X": "hidden"}, CONFIG),
        ({"ARMWISE_LIMITS__IN_FLIGHT": "hidden"}, {**CONFIG, "limits": [1]}),
    ],
)
def test_a_value_that_cannot_be_read_is_named_and_not_shown(
    environment: dict[str, str], args: dict[str, Any]
) -> None:
    said = complaint(environment, args)
    assert next(iter(environment)) in said
    assert "hidden" not in said


def test_the_environment_is_read_once_and_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": CONFIG}]}))
    monkeypatch.setenv("ARMWISE_LIMITS__IN_FLIGHT", "7")
    started = parse_with_environment(CONFIG)
    assert load(path).limits.in_flight == started.limits.in_flight == 7
    monkeypatch.setenv("ARMWISE_LIMITS__IN_FLIGHT", "8")
    handed_on = parse(started.resolve_places().model_dump(mode="json"))
    assert handed_on.limits.in_flight == handed_on.with_arms(["none"]).limits.in_flight == 7


def test_the_application_is_built_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from armwise.agent import app  # here: it loads Ray

    monkeypatch.setattr(app, "assemble", lambda config: config)
    monkeypatch.setenv("ARMWISE_LIMITS__IN_FLIGHT", "7")
    built: Any = app.build(CONFIG)
    assert built.limits.in_flight == 7


def test_an_error_says_which_variables_are_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": CONFIG}]}))
    monkeypatch.setenv("ARMWISE_FLOOR", "7")
    with pytest.raises(ConfigError, match=r"config\.yaml with ARMWISE_FLOOR: floor: .* less than 1, got 7"):
        load(path)
