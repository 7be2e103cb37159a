"""The service chooses its arms, router and policy by itself, however it was started."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.conftest import ROOT, configuration, free_port, single, started, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {
    "arms": {
        "words": {"kind": "bm25", "action": False},
        "near": {"kind": "dense", "params": {"backbone": "tiny"}, "action": False},
        "both": {"kind": "rrf", "params": {"arms": ["words", "near"]}},
        "none": {"kind": "none"},
    },
    "llm": {"engine": "scripted"},
    "answering": {"quote": True},
    "features": {"words": 0},
    "policy": {"kind": "adaptive"},
    "reward": {"metrics": {"thumb": {"range": [-1, 1]}}, "complete": "any"},
    "router": None,
    "points": {},
    "warm_start": {
        "first": "promote",
        "cron": "* * * * *",
        "after_rated": 4,
        "sources": {
            "made": {"kind": "synthetic", "questions": 40, "balanced": False},
            "log": {"kind": "hindsight", "metric": "thumb", "measure": "R@4"},
        },
        "portfolio": {"pool": ["words", "near"], "measure": "R@4", "k": 2, "live": True},
        "router": {"kind": "ridge", "utility": {"measures": {"R@4": 1.0}}},
    },
}
"""A configuration whose live arms are `both` and `none` until the first run has chosen two of four."""


@contextmanager
def by_armwise(folder: Path) -> Iterator[str]:
    with started(folder, {}, **SETTINGS) as live:
        yield live.url


@contextmanager
def in_one_process(folder: Path) -> Iterator[str]:
    with single(folder, **SETTINGS) as live:
        yield live.url


@contextmanager
def by_serve_run(folder: Path) -> Iterator[str]:
    port = free_port()
    config = configuration(folder, port, **SETTINGS)
    with in_background(folder, "serve", "run", str(config)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def by_serve_deploy(folder: Path) -> Iterator[str]:
    port, dashboard = free_port(), free_port()
    config = configuration(folder, port, **SETTINGS)
    head = ("start", "--head", "--block", "--port=0", f"--dashboard-port={dashboard}", "--num-cpus=4")
    with in_background(folder, "ray", *head):
        deploy = [tool("serve"), "deploy", str(config), "-a", f"http://127.0.0.1:{dashboard}"]
        until(lambda: subprocess.run(deploy, check=False, capture_output=True).returncode == 0 or None, 120.0)
        yield f"http://127.0.0.1:{port}"


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@contextmanager
def in_background(folder: Path, name: str, *words: str) -> Iterator[None]:
    """Run a command of Ray in a session of its own, whose processes all end with it."""
    own = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "ARMWISE_HOME")} | own
    with tempfile.TemporaryDirectory(prefix="ray-") as short, (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [tool(name), *words],
            cwd=folder,
            env=environment | {"RAY_TMPDIR": short},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60.0)
            finally:
                os.killpg(process.pid, signal.SIGKILL)


WAYS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "armwise serve": by_armwise,
    "one process": in_one_process,
    "serve run": by_serve_run,
    "serve deploy": by_serve_deploy,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_first_run_is_promoted_a_second_held_and_a_third_finds_nothing_new(
    tmp_path: Path, way: str
) -> None:
    with WAYS[way](tmp_path) as url, httpx.Client(base_url=url, timeout=30.0) as client:

        def runs() -> list[dict[str, Any]]:
            """Return the runs that have ended, oldest first."""
            try:
                reply = client.get("/v1/warm-starts")
            except httpx.HTTPError:
                return []
            told = reply.json()["warm_starts"] if reply.is_success else []
            return [run for run in reversed(told) if run["status"] not in ("running", "asked")]

        until(runs, 240.0)
        first = runs()[0]
        assert (first["status"], first["trigger"]) == ("promoted", "first"), first
        live = until(lambda: chosen_arms(client), 30.0)
        assert len(live) == 2, "the portfolio"
        assert "none" not in live, "it finds nothing"

        for number in range(6):
            question = {"role": "user", "content": f"Which city stands beside the bridge {number}?"}
            answer = client.post("/v1/chat/completions", json={"model": "auto", "messages": [question]})
            assert answer.is_success, answer.text
            decision = answer.json()["agent"]["decision_id"]
            body = {"items": [{"decision_id": decision, "metric_name": "thumb", "value": 1.0}]}
            assert client.post("/v1/feedback", json=body).status_code == 202
        rated = until(lambda: [run for run in runs() if run["trigger"] == "rated"], 120.0)
        assert rated[0]["status"] == "held", rated
        later = until(lambda: [run for run in runs() if run["id"] > rated[0]["id"]], 150.0)
        assert (later[0]["status"], later[0]["trigger"]) == ("nothing_new", "schedule"), later
        assert chosen_arms(client) == live, "what is served stays"


def chosen_arms(client: httpx.Client) -> list[str] | None:
    """Return the live arms once a promotion has brought some."""
    arms = client.get("/v1/arms").json()["arms"]
    live = [arm["name"] for arm in arms if arm.get("action", True)]
    return live if "none" not in live else None
