"""`armwise wrap`: what the agent gets, what is said when it cannot start, and what its session cost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.cli.wrap import AgentProgram, AgentSession, run
from tests.agent.canned_service import ANY, Canned
from tests.agent.fakes import CONFIG
from tests.live.conftest import free_port

TELLING = f"""#!{sys.executable}
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ), oct(os.umask(0))], open(os.environ["TOLD"], "w"))
sys.exit(7)
"""
"""A program that writes down how it was started, and fails."""

UMASK = 0o013
"""Of the user who starts an agent."""

EMPTY = {"decisions": [], "next": None}


@pytest.fixture
def service() -> Iterator[Canned]:
    server = Canned()
    server.reply("GET /health/decides", {"status": "decides"})
    server.reply("GET /v1/decisions?limit=1", EMPTY)
    server.reply("GET /v1/decisions?limit=200", EMPTY)
    server.reply(ANY, {}, 404)
    yield server
    server.close()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have each agent be a program that writes to this file how it was started."""
    for name in AgentProgram:
        (tmp_path / name).write_text(TELLING)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    monkeypatch.chdir(tmp_path)
    before = os.umask(UMASK)
    for name in ("ARMWISE_URL", "ARMWISE_API_KEY", "OPENCODE_CONFIG_CONTENT", "PYTHONSAFEPATH", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "told.json"
    os.umask(before)


def say(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["wrap", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output


def expected(agent: str, url: str, key: str) -> tuple[list[str], dict[str, Any]]:
    """Return the options and the variables that the documentation of an agent asks for."""
    if agent == "claude":
        settings = json.dumps({"env": {"ANTHROPIC_BASE_URL": url}})
        return ["--settings", settings], {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": key}
    if agent == "opencode":
        return [], {}
    provider = {
        "name": "Armwise",
        "base_url": f"{url}/v1",
        "env_key": "ARMWISE_API_KEY",
        "wire_api": "responses",
    }
    named = [f"model_providers.armwise.{name}={json.dumps(value)}" for name, value in provider.items()]
    named += ['model_provider="armwise"', 'model="auto"']
    return [word for one in named for word in ("-c", one)], {"ARMWISE_API_KEY": key}


@pytest.mark.parametrize("key", ["", "sk-aw-1"])
@pytest.mark.parametrize("agent", AgentProgram)
def test_an_agent_gets_the_address_the_key_and_its_words(
    agent: str, key: str, service: Canned, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of the provider")
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", '{"theme": "dark", "provider": {"own": {}}}')
    given = ["--key", key] if key else []
    words = ["--print", "--config", "its own", "-c", "what is asked"]
    code, output = say("--url", service.url, *given, agent, *words)
    assert code == 7
    assert "asked the service nothing" in output
    arguments, variables, umask = json.loads(told.read_text())
    options, named = expected(agent, service.url, key or "none")
    assert arguments == [*options, *words]
    assert not key or key not in " ".join(arguments), "other users of the machine can read these"
    assert {name: variables[name] for name in named} == named
    assert "ANTHROPIC_API_KEY" not in variables or agent != "claude"
    assert "127.0.0.1" in variables["NO_PROXY"]
    assert "PYTHONSAFEPATH" not in variables, "the agent runs programs of its user"
    assert umask == oct(UMASK), "its files are as its user wants them"
    if agent == "opencode":
        added = json.loads(variables["OPENCODE_CONFIG_CONTENT"])
        assert (added["theme"], added["model"], set(added["provider"])) == (
            "dark",
            "armwise/auto",
            {"own", "armwise"},
        )
        assert added["provider"]["armwise"]["options"] == {
            "baseURL": f"{service.url}/v1",
            "apiKey": key or "none",
        }
    assert service.shown[1:] == [f"Bearer {key}" if key else None] * 2


@pytest.mark.parametrize("agent", AgentProgram)
def test_a_missing_agent_is_said_with_how_to_install_it(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, output = say(agent)
    assert code == 2
    assert f"{agent} is not installed. To install it: npm install -g " in output


def test_an_agent_is_not_started_where_it_would_ask_in_vain(service: Canned, told: Path) -> None:
    refusal = {"error": {"message": "a key is needed", "code": "invalid_api_key", "type": "x", "param": None}}
    other = {"http_options": {"port": 1}, "applications": []}
    Path("other.yaml").write_text(yaml.safe_dump(other))
    nothing = "http://127.0.0.1:9"
    for url, config, expected_words in (
        (nothing, [], "there is no configuration to serve. Write one with `armwise init`"),
        (nothing, ["-c", "other.yaml"], "other.yaml serves http://127.0.0.1:1"),
        ("nonsense", [], "nonsense cannot be asked"),
        (service.url.replace("//", "//ada:secret@"), [], "leave the password out"),
        (service.url, [], "a key is needed"),
        (service.url, [], "no Armwise service, or is not ready"),
    ):
        if expected_words == "a key is needed":
            service.reply("GET /v1/decisions?limit=1", refusal, 401)
        if expected_words.startswith("no Armwise"):
            service.reply("GET /health/decides", {"status": "fine"})
        code, output = say("--url", url, *config, "claude")
        assert code in (1, 2)
        assert expected_words in " ".join(output.split())
        assert "secret" not in output
    assert not told.exists()


# -- the terminal ---------------------------------------------------------------------------------------


def test_the_exit_code_is_that_of_a_shell() -> None:
    assert run([sys.executable, "-c", "import sys; sys.exit(3)"], os.environ) == 3
    assert run(["sh", "-c", "kill -TERM $$"], os.environ) == 128 + signal.SIGTERM


WRAPPING = """
import os, sys
from armwise.agent.cli.wrap import run
sys.exit(run([sys.executable, "-u", "-c", sys.argv[1]], os.environ))
"""

COUNTS_SIGNALS = """
import os, signal, sys, time
def note(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCONT):
    signal.signal(number, note)
print(os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""


def test_signals_and_stops_are_passed_on() -> None:
    """Keys of the terminal reach both processes by themselves: these are not sent twice."""
    command = [sys.executable, "-c", WRAPPING, COUNTS_SIGNALS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        agent = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "SIGHUP\n"
        os.kill(agent, signal.SIGSTOP)
        until = time.monotonic() + 30
        while state(process.pid) != "T":
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "SIGCONT\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "SIGTERM\n"
        assert process.wait(30) == 5


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- what it cost ---------------------------------------------------------------------------------------


def decision(seq: int, usd: float | None) -> dict[str, Any]:
    return {"decision_id": f"d{seq}", "log_seq": seq, "cost": None if usd is None else {"usd": usd}}


class Log:
    """A service whose log has some decisions, on pages of two."""

    def __init__(self, *decisions: dict[str, Any]) -> None:
        self.rows = {one["decision_id"]: one for one in decisions}

    def request(self, _: str, path: str) -> dict[str, Any]:
        if not path.startswith("/v1/decisions?"):
            return self.rows[path.rpartition("/")[2]]
        before = int(path.partition("before=")[2] or 10**9)
        rows = sorted(
            (row for row in self.rows.values() if row["log_seq"] < before), key=lambda row: -row["log_seq"]
        )
        return {"decisions": rows[:2], "next": rows[1]["log_seq"] if len(rows) > 2 else None}


def describe(*decisions: dict[str, Any], alone: bool = True) -> str:
    session = AgentSession(AgentProgram.CLAUDE, alone, 3)
    return "\n".join(session.describe(Log(*decisions)))  # type: ignore[arg-type]


OLD = [decision(seq, 100.0) for seq in (1, 2, 3)]


def test_the_cost_of_a_session_is_that_of_its_decisions() -> None:
    told = describe(*OLD, *(decision(seq, 0.25) for seq in range(4, 9)))
    assert "While claude ran, the service answered 5 requests. They cost $1.25 by its log." in told
    assert "other programs" not in told
    assert "models without a price count as free" in told
    assert "other programs" in describe(*OLD, decision(4, 0.25), alone=False)


def test_a_total_of_the_newest_requests_alone_is_said_to_be_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.cli.wrap.MOST_DECISIONS", 4)
    rows = [decision(seq, 0.25) for seq in range(4, 14)]
    assert "answered 4 requests. They cost $1.00" in describe(*OLD, *rows[:4])
    for count in (5, 10):
        told = describe(*OLD, *rows[:count])
        assert "answered more than 4 requests. The newest 4 cost $1.00 by its log." in told


def test_a_request_without_an_end_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.cli.wrap.END_S", 0.0)
    told = describe(decision(4, 0.5), decision(5, None))
    assert "2 requests. They cost $0.50" in told
    assert "1 of them have no cost in the log yet" in told


ASKING = f"""#!{sys.executable}
import os
from armwise.agent.client import Client
print(Client(os.environ["ANTHROPIC_BASE_URL"]).ask("What merges?").text)
"""
"""A program that asks the service one question."""


@pytest.mark.slow
def test_what_is_not_served_is_served_until_the_agent_ends(told: Path) -> None:
    """The service answers the agent, ends with it, and has its log where it is said."""
    (told.parent / "claude").write_text(ASKING)
    port = free_port()
    models = {"arms": {"none": {"kind": "none"}}}
    application = {
        "name": "a",
        "import_path": "armwise.agent.app:build",
        "args": CONFIG | models | {"home": "home"},
    }
    document = {"http_options": {"port": port}, "applications": [application]}
    Path("armwise.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [sys.executable, "-m", "armwise", "wrap", "claude"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    log = Path("home/wrapped-service.log").absolute()
    assert f"Starting the service at http://127.0.0.1:{port}. Its log: {log}" in done.stderr
    assert "Ready after" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0
    assert "the service answered 1 request. It cost $0 by its log." in done.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    document["applications"][0]["args"]["arms"] = {"none": {"kind": "unknown"}}
    Path("armwise.yaml").write_text(yaml.safe_dump(document))
    code, output = say("claude")
    assert (code, "unknown" in output) == (2, True)
