"""Services for clients that others wrote: the clients have an environment of their own, `make test-clients`.

Nothing of Armwise can be imported here; it is started as its users start it.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
BIN = ROOT / os.environ.get("SERVICE_VENV", ".venv") / "bin"
START_S = 240.0

PASSAGES = {
    "bridge": "The bridge of Avignon crosses the Rhone and was built in 1177.",
    "tower": "The tower of Pisa leans, and has eight storeys and 294 steps.",
    "canal": "The canal of Corinth is six kilometres long and joins two gulfs.",
}
"""The corpus: text by title."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]", output: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()[-5000:]
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} is not ready within {START_S:g} s: {output.read_text()[-5000:]}")


@contextmanager
def started(
    command: list[str], url: str, folder: Path, cwd: Path = ROOT, **environment: str
) -> Iterator[None]:
    """Run a service while the context is open; `url` answers 200 once it is ready."""
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=file,
            stderr=file,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            start_new_session=True,
        )
    try:
        wait_until_ready(url, process, output)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def armwise(
    folder: Path,
    llm: dict[str, Any],
    *options: str,
    args: dict[str, Any] | None = None,
    **environment: str,
) -> Iterator[str]:
    """Serve the small corpus with a language model and options of `armwise serve`; yield the URL.

    `args` are settings that replace those of the configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus.jsonl"
    corpus.write_text(
        "".join(
            json.dumps({"id": name, "title": name, "text": text}) + "\n" for name, text in PASSAGES.items()
        )
    )
    port = free_port()
    args = {
        "home": str(folder / "home"),
        "corpus": {"name": "small", "source": str(corpus)},
        "arms": {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}},
        "llm": llm,
        "policy": {"kind": "linucb"},
        "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        **(args or {}),
    }
    application = {
        "name": "armwise",
        "route_prefix": "/",
        "import_path": "armwise.agent.app:build",
        "args": args,
    }
    document = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    path = folder / "config.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    command = [str(BIN / "armwise"), "serve", "--cold", *options, "-c", str(path)]
    with started(command, f"http://127.0.0.1:{port}/ready", folder, **environment):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with the small language model of the package."""
    with armwise(tmp_path_factory.mktemp("embedded"), {"engine": "embedded"}) as url:
        yield url
