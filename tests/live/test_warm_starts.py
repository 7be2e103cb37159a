"""The service chooses its arms, router and policy by itself, however it was started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.conftest import ROOT, configuration, free_port, single, started, until
from tests.neighbours import write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

RUN_S = 600.0
"""Seconds to wait for a run: its process has the lowest priority, beside other tests that compute."""

SETTINGS: dict[str, Any] = {
    "arms": {
        "town_words": {"kind": "bm25", "corpus": "town"},
        "town_near": {"kind": "dense", "corpus": "town", "params": {"backbone": "tiny"}, "action": False},
        "farm_words": {"kind": "bm25", "corpus": "farm", "action": False},
        "farm_near": {"kind": "dense", "corpus": "farm", "params": {"backbone": "tiny"}, "action": False},
        "none": {"kind": "none"},
    },
    "corpus": {"name": "stdlib", "source": "stdlib"},  # the default, so that `corpora` counts
    "llm": {"engine": "scripted"},
    "answering": {"quote": True},
    "features": {"words": 0, "similarity": {}},
    "policy": {"kind": "adaptive"},
    "reward": {"metrics": {"thumb": {"range": [-1, 1]}}, "complete": "any"},
    "router": None,
    "warm_start": {
        "first": "promote",
        "cron": "* * * * *",
        "after_rated": 4,
        "sources": {
            "made": {"kind": "synthetic", "questions": 40, "balanced": False},
            "log": {"kind": "hindsight", "metric": "thumb", "measure": "R@4"},
        },
        "portfolio": {"pool": ["town_*", "farm_*"], "measure": "R@4", "k": 2, "live": True},
        "router": {
            "kind": "calibrated",
            "params": {"router": {"kind": "source_fit"}},
            "utility": {"measures": {"R@4": 1.0}},
        },
    },
}
"""A configuration that serves the town alone until the first run has chosen an arm for the farm."""

FARM = [
    "barn",
    "meadow",
    "orchard",
    "stable",
    "plough",
    "harvest",
    "well",
    "hen",
    "goat",
    "fence",
    "pond",
    "mill",
]


def settings(folder: Path) -> dict[str, Any]:
    """Write the passages of both corpora, and return the settings that name them."""
    town, farm = write_corpus(folder / "town.jsonl"), folder / "farm.jsonl"
    rows = [
        {"id": f"f{i}", "title": one, "text": f"The {one} stands beside the {FARM[i - 1]}."}
        for i, one in enumerate(FARM)
    ]
    farm.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {**SETTINGS, "corpora": {"town": {"source": str(town)}, "farm": {"source": str(farm)}}}


@contextmanager
def by_armwise(folder: Path) -> Iterator[str]:
    with started(folder, {}, **settings(folder)) as live:
        yield live.url


@contextmanager
def in_one_process(folder: Path) -> Iterator[str]:
    with single(folder, **settings(folder)) as live:
        yield live.url


@contextmanager
def by_serve_run(folder: Path) -> Iterator[str]:
    port = free_port()
    config = configuration(folder, port, **settings(folder))
    with in_background(folder, "serve", "run", str(config)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def by_serve_deploy(folder: Path) -> Iterator[str]:
    port, dashboard = free_port(), free_port()
    config = configuration(folder, port, **settings(folder))
    head = ("start", "--head", "--block", "--port=0", f"--dashboard-port={dashboard}", "--num-cpus=4")
    with in_background(folder, "ray", *head):
        deploy = [tool("serve"), "deploy", str(config), "-a", f"http://127.0.0.1:{dashboard}"]
        env = environment()
        until(lambda: not subprocess.run(deploy, env=env, check=False, capture_output=True).returncode, 120.0)
        yield f"http://127.0.0.1:{port}"


def environment() -> dict[str, str]:
    """Return the environment of Ray's commands, with the token of their cluster."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 64 * "a"}
    own = {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **token}
    return {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "ARMWISE_HOME")} | own


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@contextmanager
def in_background(folder: Path, name: str, *words: str) -> Iterator[None]:
    """Run a command of Ray in a session of its own, whose processes all end with it."""
    with tempfile.TemporaryDirectory(prefix="ray-") as short, (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [tool(name), *words],
            cwd=folder,
            env=environment() | {"RAY_TMPDIR": short},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(60.0)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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

        until(runs, RUN_S)
        first = runs()[0]
        assert (first["status"], first["trigger"]) == ("promoted", "first"), first["error"]
        live = until(lambda: chosen_arms(client), 30.0)
        assert {name.partition("_")[0] for name in live} == {"town", "farm"}, "one for each corpus"

        for number in range(6):
            question = {"role": "user", "content": f"Which city stands beside the bridge {number}?"}
            answer = client.post("/v1/chat/completions", json={"model": "auto", "messages": [question]})
            assert answer.is_success, answer.text
            decision = answer.json()["agent"]["decision_id"]
            body = {"items": [{"decision_id": decision, "metric_name": "thumb", "value": 1.0}]}
            assert client.post("/v1/feedback", json=body).status_code == 202
        until(lambda: runs()[-1]["status"] == "held" or None, RUN_S)
        assert runs()[-1]["trigger"] in ("rated", "schedule"), "whichever came first"
        until(lambda: runs()[-1]["status"] != "held" or None, RUN_S)
        assert (runs()[-1]["status"], runs()[-1]["trigger"]) == ("nothing_new", "schedule"), runs()
        assert {run["status"] for run in runs()} == {"promoted", "held", "nothing_new"}
        assert chosen_arms(client) == live, "what is served stays"


def chosen_arms(client: httpx.Client) -> list[str] | None:
    """Return the live arms once a promotion has brought some."""
    arms = client.get("/v1/arms").json()["arms"]
    live = [arm["name"] for arm in arms if arm.get("action", True)]
    return live if "none" not in live else None
