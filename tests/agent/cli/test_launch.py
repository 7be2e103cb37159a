"""The processes that build for a service, and what its configuration says of where it listens."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from armwise.agent.cli import serve
from armwise.agent.cli.preparation import ProcessLostError, start_builder, wait_for_builder
from armwise.agent.cli.serve_config import LaunchError, find_deployments, read_listening_address
from armwise.agent.run_folder import RUN_FOLDER

PARENT = """
import sys
from pathlib import Path
from armwise.agent.cli.preparation import start_builder
sys.executable = sys.argv[1]
start_builder(Path("serve_config.yaml"), None).wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent has ended")
@pytest.mark.slow
def test_what_prepares_ends_with_the_service_that_started_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    program.chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", PARENT, str(program)], stdout=subprocess.PIPE) as service:
        assert service.stdout is not None
        preparing = psutil.Process(int(service.stdout.readline()))
        service.terminate()
        psutil.wait_procs([preparing], timeout=60)
        left = preparing.is_running() and preparing.status() != psutil.STATUS_ZOMBIE
        if left:
            preparing.kill()
        assert not left


def test_what_prepares_has_the_environment_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[list[str], dict[str, str]]] = []
    popen = subprocess.Popen

    def begin(command: list[str], env: dict[str, str], **_: object) -> "subprocess.Popen[bytes]":
        begun.append((command, env))
        return popen(["sh", "-c", "exit 3"])

    monkeypatch.setattr("subprocess.Popen", begin)
    monkeypatch.setenv("OF_THE_USER", "kept")
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    path = tmp_path / "config.yaml"
    assert wait_for_builder(start_builder(path, tmp_path)) == 3
    assert wait_for_builder(start_builder(path, None)) == 3
    words = ["armwise", "serve", "--prepare-only", "--config", str(path)]
    assert [command[3:] for command, _ in begun] == [words, words]
    assert [env["OF_THE_USER"] for _, env in begun] == ["kept", "kept"]
    assert [env.get(RUN_FOLDER) for _, env in begun] == [str(tmp_path), None]


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of the shell stand in for the Python of children."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def test_what_prepares_and_is_killed_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(
        ProcessLostError, match=r"what is missing has ended \(killed by signal 9\): start the service again"
    ):
        wait_for_builder(start_builder(tmp_path / "config.yaml", None))


def test_what_prepares_is_ended_where_waiting_for_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exec sleep 600")
    builder = start_builder(tmp_path / "config.yaml", None)
    waits = builder.wait

    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(builder, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wait_for_builder(builder)
    assert waits(10) == -signal.SIGTERM


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1 cannot be used .* or add --port"):
        serve.require_free_port("192.0.2.1", 8000, "add --port")


def written(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, ("127.0.0.1", 8000)),
        ([], ("127.0.0.1", 8000)),
        ({"http_options": None}, ("127.0.0.1", 8000)),
        ({"http_options": {"host": "0.0.0.0"}}, ("0.0.0.0", 8000)),
        ({"http_options": {"port": "80"}}, ("127.0.0.1", 80)),
    ],
)
def test_the_address_is_that_of_the_file_or_port_8000_of_this_machine(
    tmp_path: Path, document: object, expected: tuple[str, int]
) -> None:
    assert read_listening_address(written(tmp_path, document)) == expected


@pytest.mark.parametrize("options", ["here", {"port": "eighty"}, {"port": None}])
def test_an_address_of_another_form_is_refused(tmp_path: Path, options: object) -> None:
    with pytest.raises(LaunchError, match=r"is not of the form \{host: 127\.0\.0\.1, port: 8000\}"):
        read_listening_address(written(tmp_path, {"http_options": options}))


@pytest.mark.parametrize(
    ("applications", "names"),
    [
        (None, []),
        ([{}], []),
        ([{"deployments": [{"name": "Ingress"}, {"name": "Arms"}]}], ["Ingress", "Arms"]),
    ],
)
def test_deployments_with_options_are_found(tmp_path: Path, applications: object, names: list[str]) -> None:
    assert find_deployments(written(tmp_path, {"applications": applications})) == names
