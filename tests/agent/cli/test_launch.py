"""The processes of a service: one that prepares, and one that serves until it is stopped."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console

from agent.cli import serve
from agent.proxy import RUN_FOLDER

PARENT = """
import sys
from pathlib import Path
from agent.cli import serve
sys.executable = sys.argv[1]
serve.prepare_in_process(Path("serve_config.yaml"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a process that its parent has ended")
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


@pytest.mark.parametrize("cold", [False, True])
def test_what_prepares_has_the_environment_of_the_service_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    begun: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        begun.append((command, env))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setenv("OF_THE_USER", "kept")
    monkeypatch.delenv(RUN_FOLDER, raising=False)
    path = tmp_path / "config.yaml"
    assert serve.prepare_in_process(path, tmp_path, cold=cold) == 3
    assert serve.prepare_in_process(path, cold=cold) == 3
    words = ["agent.cli", "serve", "--prepare-only", "--config", str(path), *(["--cold"] if cold else [])]
    assert [command[2:] for command, _ in begun] == [words, words]
    assert [env["OF_THE_USER"] for _, env in begun] == ["kept", "kept"]
    assert [env.get(RUN_FOLDER) for _, env in begun] == [str(tmp_path), None]


class Starting(BaseHTTPRequestHandler):
    """A service that is ready at the third request."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200 if self.path == "/ready" and self.asked > 2 else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a service that becomes ready; signals are handled as before afterwards."""
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    monkeypatch.setattr(Starting, "asked", 0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with ThreadingHTTPServer(("127.0.0.1", 0), Starting) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_service_is_asked_once_it_is_ready_and_stopped_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starting: int
) -> None:
    popen, begun, asked = subprocess.Popen, list[Any](), list[str]()

    def begin(command: list[str], **options: Any) -> Any:
        assert command[1:] == ["-m", "agent.cli.start_ray", str(config)]
        begun.append(popen(["sleep", "600"], **options))
        return begun[-1]

    def once(base: str) -> None:
        assert begun[0].poll() is None
        for number in (signal.SIGINT, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        asked.append(base)

    monkeypatch.setattr("subprocess.Popen", begin)
    config = tmp_path / "config.yaml"
    document = {"http_options": {"port": starting}, "applications": [{"args": {}}]}
    config.write_text(yaml.safe_dump(document))
    console = Console(file=StringIO())
    assert serve.run_service(config, None, serve.address_of(config), console, once) == 0
    assert asked == [f"http://127.0.0.1:{starting}"]
    assert Starting.asked == 3
    assert begun[0].poll() == -signal.SIGINT
