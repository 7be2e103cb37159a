"""Processes of ours import nothing of the folder that they run in, and ask no proxy for this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from armwise.agent.low_priority import command_of_a_child
from armwise.arms.local_ray import job_config
from armwise.arms.own_processes import keep_apart, python

NAMES = ("agent/__init__", "feedback/__init__", "arms", "armwise", "ray", "sitecustomize", "numpy", "json")
"""Modules that a folder of users may have."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every module that is imported says so, and ends the process."""
    for name in NAMES:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit(f'{__file__} was imported')")
    return tmp_path


class Silent(BaseHTTPRequestHandler):
    """Answers 404 to everything."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening() -> Iterator[int]:
    """Run a server on this machine, and yield its port."""
    with HTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def ended(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_a_command_of_ours_imports_nothing_of_its_folder(folder: Path) -> None:
    code = "import sys, armwise, numpy, json; print(sys.path)"
    status, output = ended(python("-c", code), folder)
    assert status == 0, output
    assert str(folder) not in output
    assert ended(python("-m", "armwise", "--version"), folder)[0] == 0
    status, output = ended([sys.executable, "-c", code], folder)
    assert "was imported" in output, "which Python does otherwise"
    assert status == 1


def test_the_command_line_imports_nothing_of_its_folder(
    folder: Path,
) -> None:
    (folder / "armwise.py").unlink()  # whom Python finds before anything of ours runs
    status, output = ended([sys.executable, "-m", "armwise", "doctor", "--schema"], folder)
    assert status == 0, output


def test_a_child_of_low_priority_imports_nothing_of_its_folder(folder: Path) -> None:
    status, output = ended(command_of_a_child("platform", "node"), folder)
    assert status == 0, output


def test_children_import_nothing_of_the_folder(folder: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error"}
    keep_apart(environment)
    environment |= {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"}
    code = "import json, warnings; warnings.warn('old', DeprecationWarning); open('\u00e4', 'w')"
    assert ended([sys.executable, "-c", code], folder, environment)[0] == 0


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize("known", ["", "intranet.example", "127.0.0.1, intranet.example"])
@pytest.mark.slow
def test_no_proxy_is_asked_for_this_machine(known: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is dead, and what listens here is reached; another host is still asked by way of it."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for either in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(either, raising=False)
    monkeypatch.setenv(name, known)
    keep_apart()
    keep_apart()
    assert os.environ["NO_PROXY"].count("127.0.0.1") == 1
    with listening() as port, httpx.Client(timeout=5) as client:
        for host in ("127.0.0.1", "localhost"):
            assert client.get(f"http://{host}:{port}/").status_code == 404
        with pytest.raises(httpx.ConnectError):
            client.get("http://elsewhere.example/")


def test_the_workers_of_a_driver_do_not_get_its_folder() -> None:
    config = job_config()
    config._py_driver_sys_path.extend(["/folder/of/the/driver"])  # noqa: SLF001 - what Ray does as it connects
    assert list(config._get_proto_job_config().py_driver_sys_path) == []  # noqa: SLF001
