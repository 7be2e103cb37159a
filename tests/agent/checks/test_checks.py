"""What `armwise doctor` finds: what others can reach, read or change."""

import json
import os
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agent import checks
from agent.checks import Finding, configuration_findings, file_findings, socket_findings
from agent.cli.main import app
from agent.config import AppConfig, parse

ARGS: dict[str, Any] = {
    "arms": {"none": {"kind": "none"}},
    "llm": {"engine": "scripted"},
    "policy": {"kind": "uniform"},
    "reward": {"metrics": {"thumb": {}}},
}

SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PGPASSFILE", "PGSSLMODE", "ARMWISE_HOME", "A_KEY")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)


def configured(**changes: Any) -> AppConfig:
    return parse({**ARGS, **changes})


def found(config: AppConfig, host: str = "127.0.0.1") -> list[str]:
    """Return the findings on a configuration as lines."""
    return [str(finding) for finding in configuration_findings(config, host, is_open=not config.keys)]


@pytest.mark.parametrize(
    ("host", "begins"), [("127.0.0.1", "note"), ("::1", "note"), ("0.0.0.0", "problem"), ("::", "problem")]
)
def test_a_service_without_keys_is_a_problem_where_others_reach_it(host: str, begins: str) -> None:
    (line,) = found(configured(), host)
    assert line.startswith(f"{begins}: there is no key: all who reach {host} can ask")


@pytest.mark.parametrize(("key", "length"), [(None, 0), ("secret", 6), ("x" * 16, None)])
def test_a_key_that_is_missing_or_short_is_a_problem_and_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, key: str | None, length: int | None
) -> None:
    if key is not None:
        monkeypatch.setenv("A_KEY", key)
    lines = found(configured(keys=[{"env": "A_KEY", "scopes": ["decide"]}]))
    expected = [] if length is None else [f"problem: the key in A_KEY has {length} characters"]
    assert [line.partition(";")[0] for line in lines] == expected
    assert not any("secret" in line for line in lines)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ada@db.internal/log", "problem: PostgreSQL on db.internal may be used without TLS"),
        ("postgresql://ada@db.internal/log?sslmode=prefer", "problem: PostgreSQL on db.internal may be"),
        ("postgresql:///log?host=db.internal", "problem: PostgreSQL on db.internal may be used without TLS"),
        ("postgresql://ada@db.internal/log?sslmode=require", "note: sslmode require does not check"),
        ("postgresql://ada@db.internal/log?sslmode=verify-full", ""),
        ("postgresql://ada@localhost/log", ""),
        ("postgresql:///log?host=/run/postgresql", ""),
        ("postgresql://ada:hidden@localhost/log", "note: log_url holds a password"),
        ("sqlite:////tmp/log.db", ""),
    ],
)
def test_a_database_on_another_host_needs_tls(url: str, expected: str) -> None:
    lines = found(configured(log_url=url))[1:]  # after the one on keys
    assert [line[: len(expected)] for line in lines] == ([expected] if expected else [])
    assert "hidden" not in str(lines)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://169.254.169.254/latest", "problem: arm 'far' sends questions to 169.254.169.254"),
        ("https://10.0.0.5/search", "note: arm 'far' sends questions to 10.0.0.5, which is private"),
        ("http://192.0.1.1/search", "note: arm 'far' sends questions to 192.0.1.1 in plain text"),
        ("https://192.0.1.1/search", ""),
    ],
)
def test_where_a_remote_arm_sends_questions_is_looked_at(url: str, expected: str) -> None:
    far = {"kind": "remote", "params": {"url": url, "request": {"q": "{question}"}}}
    lines = found(configured(arms={"none": {"kind": "none"}, "far": far}))[1:]
    assert [line[: len(expected)] for line in lines] == ([expected] if expected else [])


def test_every_arm_that_sends_questions_away_is_looked_at_at_every_point() -> None:
    def arms(**found: str) -> dict[str, Any]:
        return {name: {"kind": "mcp", "params": {"url": url, "tool": "find"}} for name, url in found.items()}

    own = {"arms": arms(here="http://10.0.0.5/mcp"), "policy": {"kind": "uniform"}}
    config = configured(
        arms=arms(there="http://192.0.1.1/mcp", everywhere="http://192.0.1.2/mcp"), points={"own": own}
    )
    assert [line.partition(" sends")[0] for line in found(config)[1:]] == [
        *("note: arm 'everywhere'", "note: arm 'here'", "note: arm 'there'")
    ]


@pytest.mark.parametrize(
    ("mode", "begins"),
    [
        *((0o700, None), (0o755, "note"), (0o740, "note"), (0o701, "note")),
        *((0o777, "problem"), (0o720, "problem"), (0o702, "problem")),
    ],
)
def test_a_home_that_others_can_read_or_change_is_found(
    tmp_path: Path, mode: int, begins: str | None
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    lines = [str(finding) for finding in file_findings(configured(home=str(home)))]
    assert [line.partition(":")[0] for line in lines] == ([begins] if begins else [])


@pytest.mark.parametrize("name", ["RAY_AUTH_TOKEN_PATH", "PGPASSFILE"])
def test_a_file_of_a_secret_that_others_can_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    monkeypatch.setenv(name, str(secret))
    for mode, expected in ((0o600, []), (0o640, [f"problem: others can read {secret} (mode 640)"])):
        secret.chmod(mode)
        lines = [str(finding) for finding in file_findings(configured(home=str(tmp_path / "none")))]
        assert [line.partition(";")[0] for line in lines] == expected


def test_a_disk_that_is_nearly_full_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    (finding,) = file_findings(configured(home=str(tmp_path / "none")))
    assert finding.what == f"{tmp_path} has 1 MiB left"
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**30 - 1))
    assert len([*file_findings(configured(home=str(tmp_path / "none")))]) == 1
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**30))
    assert [*file_findings(configured(home=str(tmp_path / "none")))] == []


LISTENS = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["0.0.0.0", "127.0.0.1"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, int]]:
    """Yield host, port and number of a process that calls itself as one of the service's."""
    command = [sys.executable, "-c", f"# agent.cli{LISTENS}", request.param]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        yield request.param, int(process.stdout.readline()), process.pid


def test_a_socket_of_the_service_that_others_can_reach_is_found(listening: tuple[str, int, int]) -> None:
    host, port, pid = listening
    about = f"(process {pid}) listens on {host}:{port}"
    lines = [str(one) for one in socket_findings(("127.0.0.1", 8000)) if about in one.what]
    assert len(lines) == (host == "0.0.0.0")
    assert all(f"{about}, and asks for no token; set RAY_AUTH_MODE=token" in line for line in lines)
    assert not [one for one in socket_findings((host, port)) if about in one.what], "meant to be reached"


def test_a_socket_of_another_program_that_is_given_a_name_of_ours_is_left_alone() -> None:
    command = [sys.executable, "-c", LISTENS, "0.0.0.0", "armwise"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert not [one for one in socket_findings(("127.0.0.1", 8000)) if f":{port}" in one.what]


def test_the_token_of_a_cluster_is_looked_at_only_where_there_is_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    token = tmp_path / ".ray/auth_token"
    assert token not in checks.secret_files({})
    assert token in checks.secret_files({"RAY_ADDRESS": "10.0.0.1:6379"})
    assert tmp_path / "own" in checks.secret_files({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "own")})


def doctored(tmp_path: Path, host: str) -> tuple[int, str]:
    """Return the exit code and the output of the verb for a service that listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "config.yaml"
    options = {"host": host, "port": port}
    args = json.loads(json.dumps({**ARGS, "home": str(tmp_path / "none")}))
    path.write_text(yaml.safe_dump({"http_options": options, "applications": [{"args": args}]}))
    result = CliRunner().invoke(app, ["doctor", "--config", str(path)])
    return result.exit_code, result.output


def test_the_verb_fails_on_a_problem_and_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.checks.socket_findings", lambda _: iter(()))
    monkeypatch.setattr("agent.checks.resource_findings", lambda _: iter(()))
    code, output = doctored(tmp_path, "127.0.0.1")
    assert code == 0, output
    assert output.splitlines()[-1] == "no problem found"
    code, output = doctored(tmp_path, "0.0.0.0")
    assert code == 1
    assert output.startswith("problem: there is no key")
    monkeypatch.setattr("agent.checks.socket_findings", lambda _: iter([Finding("open", "close it")]))
    code, output = doctored(tmp_path, "127.0.0.1")
    assert (code, output.splitlines()[0]) == (1, "problem: open; close it")
