"""The processes that build for a service, and what its configuration says of where it listens."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from armwise.agent.background import PAUSES_S, Work, WorkFailure, read_failures
from armwise.agent.cli import serve
from armwise.agent.cli.behind import BehindBuilder, BuildProcess, ProcessLostError
from armwise.agent.cli.serve_config import LaunchError, find_deployments, logs_json, read_listening_address
from armwise.agent.run_folder import BEHIND, PROGRESS, RUN_FOLDER, Building, BuildingProgress

PARENT = """
import sys
from pathlib import Path
from armwise.agent.cli.behind import BuildProcess
sys.executable = sys.argv[1]
BuildProcess(Path("serve_config.yaml")).wait()
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
    assert BuildProcess(path, tmp_path).wait() == 3
    assert BuildProcess(path).wait() == 3
    words = ["armwise", "serve", "--prepare-only", "--config", str(path)]
    assert [command[3:] for command, _ in begun] == [words, words]
    assert [env["OF_THE_USER"] for _, env in begun] == ["kept", "kept"]
    assert [env.get(RUN_FOLDER) for _, env in begun] == [str(tmp_path), None]


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script of the shell stand in for what prepares."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))


def test_what_prepares_and_is_killed_ends_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "kill -9 $$")
    with pytest.raises(
        ProcessLostError, match=r"what is missing has ended \(killed by SIGKILL\): start the service again"
    ):
        BuildProcess(tmp_path / "config.yaml").wait()


def test_what_prepares_is_ended_where_waiting_for_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, "exec sleep 600")
    preparing = BuildProcess(tmp_path / "config.yaml")
    process = preparing._process  # noqa: SLF001
    waits = process.wait

    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        preparing.wait()
    assert waits(10) == -signal.SIGTERM


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(LaunchError, match=r"192\.0\.2\.1 cannot be used .* or add --port"):
        serve.require_free_port("192.0.2.1", 8000, "add --port")


class Builder:
    """Builders that end with a code each, and the last one when it is told to."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ends: str) -> None:
        self.folder, self.now, self.begun = tmp_path, 0.0, list["subprocess.Popen[bytes]"]()
        popen, scripts = subprocess.Popen, iter(ends)

        def begin(_: list[str], **options: Any) -> Any:
            self.begun.append(popen(["sh", "-c", next(scripts)], **options))
            return self.begun[-1]

        monkeypatch.setattr("subprocess.Popen", begin)
        monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        (tmp_path / BEHIND).touch()
        BuildingProgress(tmp_path)("waiting for the service")
        self.builder = BehindBuilder(tmp_path / "config.yaml", tmp_path, clock=lambda: self.now)
        self.builder.watch()

    def ended(self) -> list[WorkFailure]:
        """Wait until the newest one has ended, look, and return what is on record."""
        self.begun[-1].wait()
        self.builder.watch()
        return read_failures()


@pytest.mark.parametrize(("end", "said"), [("kill -9 $$", "killed by SIGKILL"), ("exit 1", "exit code 1")])
@pytest.mark.slow
def test_a_builder_that_ends_in_the_middle_is_started_again_after_a_pause_twice_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str
) -> None:
    builders = Builder(tmp_path, monkeypatch, *[end] * 3)
    why = f"the process that builds them has ended ({said})"
    for attempt, pause_s in enumerate(PAUSES_S, 1):
        failure = WorkFailure(Work.FIRST_START, why, attempt, 1000.0 + pause_s)
        assert builders.ended() == [failure]
        builders.now += pause_s - 0.1
        builders.builder.watch()
        assert len(builders.begun) == attempt, "not yet"
        assert Building.read() is not None
        builders.now += 0.1
        builders.builder.watch()
        assert len(builders.begun) == attempt + 1
    assert builders.ended() == [WorkFailure(Work.FIRST_START, why, len(PAUSES_S) + 1, None)]
    assert Building.read() is None, "nobody waits for it any more"
    builders.now = 1e9
    builders.builder.watch()
    assert len(builders.begun) == len(PAUSES_S) + 1


@pytest.mark.parametrize("code", [0, 1])
def test_a_builder_that_ends_by_itself_is_done_or_has_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    builders = Builder(tmp_path, monkeypatch, f"rm {tmp_path / PROGRESS}; exit {code}")
    assert builders.ended() == []
    builders.now = 1e9
    builders.builder.watch()
    assert len(builders.begun) == 1
    builders.builder.stop()


def test_a_builder_that_waits_is_stopped_like_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builder(tmp_path, monkeypatch, "kill -9 $$", "exec sleep 600")
    assert len(builders.ended()) == 1
    builders.builder.stop()
    builders.now = PAUSES_S[0]
    for _ in range(3):
        builders.builder.watch()
    builders.builder.stop()
    assert [process.returncode for process in builders.begun] == [-signal.SIGKILL, -signal.SIGTERM]


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


@pytest.mark.parametrize("args", [None, {}, {"telemetry": None}])
def test_a_log_is_plain_where_the_file_says_nothing_of_it(tmp_path: Path, args: object) -> None:
    assert not logs_json(written(tmp_path, {"applications": [{"args": args}]}))
