"""What follows when a process of the service is killed: each in turn, in each phase.

    python benchmarks/kills.py [--only raylet,ingress] [--phases start,ready,traffic] [--port 8102]

Starts `armwise serve` over a corpus with vectors, and kills one of its processes with SIGKILL: at the first
start, as soon as the process is there; once the service is ready; and while two clients ask without a
pause. Prints what followed: that a successor runs and `/ready` is 200 again, or that the service has ended by
itself, each after how many seconds; what `/ready` said meanwhile; how many requests failed; and the last line
that the service wrote, which is what an operator sees first.

With the defaults it takes about an hour on two cores: a service that has ended is started again each time.
Exits with 1 where something stayed down in silence: no successor, no end, and nothing in `/ready`.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import orjson
import psutil
import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.http_target import armwise, family, free_port, started, title_of
from benchmarks.service import serve_config

PARTS = {
    "builder before the start": "--prepare-only",
    "builder behind the service": "armwise.agent.cli.first_start",
    "process that runs Ray Serve": "armwise.agent.cli.start_ray",
    "gcs_server": "/gcs_server",
    "raylet": "/raylet/raylet",
    "dashboard agent": "ray::DashboardAgent",
    "runtime-environment agent": "ray::RuntimeEnvAgent",
    "log monitor": "log_monitor.py",
    "controller": "ray::ServeController",
    "HAProxy": "haproxy -db",
    "ingress": "ray::ServeReplica:armwise:Ingress",
    "learner": "ray::ServeReplica:armwise:Learner",
    "jobs": "ray::ServeReplica:armwise:Jobs",
    "generator": "ray::ServeReplica:armwise:Generator",
    "armwise serve": "-m armwise serve --config",
}
"""What is killed, and part of what it calls itself."""

PHASES = ("start", "ready", "traffic")
AT_A_START = ("builder before the start", "builder behind the service")
"""What is there at the first start alone."""

START_S, FOLLOWS_S, CALM_S, LOOK_S = 600.0, 180.0, 5.0, 0.1
"""Longest start and longest wait for what follows, calm before a kill, and pause between two looks."""

LEFT_S = 15.0
"""How long the others of a service may run on after its first process has ended."""

CLIENTS, PASSAGES = 2, 4000


@dataclass
class Outcome:
    """What followed a kill.

    Attributes:
        phase: When it was.
        part: What was killed.
        followed: What came of it.
        said: What `/ready` said meanwhile, each once.
        line: The last line of the service, where it has ended.
        failed: Requests of the clients that failed.
        asked: All of them.
    """

    phase: str
    part: str
    followed: str = ""
    said: list[str] = field(default_factory=list)
    line: str = ""
    failed: int = 0
    asked: int = 0

    @property
    def silent(self) -> bool:
        """Whether it stayed down, and nothing says so."""
        return not self.followed and not any("failed" in words for words in self.said)

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        requests = f"{self.failed:,} of {self.asked:,}" if self.asked else ""
        followed = self.followed or f"nothing within {FOLLOWS_S:g} s"
        return [self.phase, self.part, followed, "; ".join(self.said), requests, self.line]


class Clients:
    """Clients that ask for passages without a pause.

    Attributes:
        asked: Requests.
        failed: Those without a 200.
    """

    def __init__(self, base: str) -> None:
        self.asked = self.failed = 0
        self._base, self._end = base, threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._base, timeout=30.0, trust_env=False) as client:
            while not self._end.wait(0.02):
                status = 0
                with suppress(httpx.HTTPError):
                    status = client.post(
                        "/v1/retrieve", json={"query": "Where does the river flow?"}
                    ).status_code
                self.asked += 1
                self.failed += status != 200

    def end(self) -> None:
        """Let them end."""
        self._end.set()
        for thread in self._threads:
            thread.join()


class Victim:
    """A service of which processes are killed.

    Args:
        pid: Its first process.
        base: Where it listens.
        output: What it writes.
    """

    def __init__(self, pid: int, base: str, output: Path) -> None:
        self.base = base
        self._first, self._output = psutil.Process(pid), output
        self._client = httpx.Client(base_url=base, timeout=5.0, trust_env=False)

    def find(self, part: str) -> psutil.Process | None:
        """Return a process of a part that runs; None where there is none."""
        for process in family(self._first.pid):
            with suppress(psutil.Error):
                if PARTS[part] in title_of(process) and process.status() != psutil.STATUS_ZOMBIE:
                    if part == "armwise serve" and process.pid != self._first.pid:
                        continue
                    return process
        return None

    def family(self) -> list[psutil.Process]:
        """Return all its processes."""
        return family(self._first.pid)

    def says(self) -> str:
        """Return what `/ready` says."""
        try:
            answer = self._client.get("/ready")
        except httpx.HTTPError:
            return "no answer"
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.json()['error']['code']}"
        document = answer.json()
        failed = ", ".join(one["work"] for one in document["failed"])
        return (
            "200" + (f", failed: {failed}" if failed else "") + (", building" if document["building"] else "")
        )

    def code(self) -> int | None:
        """Return the exit code; None while it runs."""
        with suppress(psutil.TimeoutExpired):
            return int(self._first.wait(0) or 0)
        return None

    def last_line(self) -> str:
        """Return the last line that it wrote itself."""
        lines = self._output.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip() and "pid=" not in line), "")


def until(look: Callable[[], object], limit_s: float) -> bool:
    """Return whether something came true in time."""
    deadline = time.monotonic() + limit_s
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def follow(victim: Victim, outcome: Outcome) -> bool:
    """Kill the part, and take down what follows; return whether the service goes on."""
    killed = victim.find(outcome.part)
    assert killed is not None
    members = victim.family()
    killed.kill()
    began, back = time.monotonic(), 0.0
    while (now := time.monotonic() - began) < FOLLOWS_S:
        if (code := victim.code()) is not None:
            outcome.followed = f"ended with code {code} after {now:.0f} s"
            outcome.line = victim.last_line() if code > 0 else ""  # else it was killed itself
            _, left = psutil.wait_procs(members, LEFT_S)
            if left := [process for process in left if process.status() != psutil.STATUS_ZOMBIE]:
                outcome.followed += f", {len(left)} processes left after {LEFT_S:g} s"
            return False
        said = victim.says()
        if said not in outcome.said:
            outcome.said.append(said)
        successor = victim.find(outcome.part)
        if not back and successor is not None and successor.pid != killed.pid:
            back = now
        if back and said.startswith("200") and "failed" not in said:
            outcome.followed = f"started again after {back:.0f} s, `/ready` as before after {now:.0f} s"
            return True
        time.sleep(LOOK_S)
    return True


def case(victim: Victim, phase: str, part: str) -> tuple[Outcome, bool]:
    """Wait for the phase, kill, and return what followed, and whether the service goes on."""
    outcome = Outcome(phase, part)
    if phase == "start":
        if not until(lambda: victim.find(part) is not None, START_S):
            raise TimeoutError(f"no {part} within {START_S:g} s")
        return outcome, follow(victim, outcome)
    if not until(lambda: victim.says() == "200", START_S):
        raise TimeoutError(f"not ready within {START_S:g} s: {victim.says()}")
    clients = Clients(victim.base) if phase == "traffic" else None
    time.sleep(CALM_S)
    try:
        return outcome, follow(victim, outcome)
    finally:
        if clients is not None:
            clients.end()
            outcome.asked, outcome.failed = clients.asked, clients.failed


def settings(folder: Path) -> dict[str, Any]:
    """Return `args` of a service whose first start builds vectors behind it."""
    lines = [
        {"id": f"p{i}", "text": f"the rivers number {i} are near the town {i % 40}"} for i in range(PASSAGES)
    ]
    corpus = folder / "rivers.jsonl"
    corpus.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    near = {"kind": "dense", "params": {"backbone": "hashed"}, "action": False}
    return {
        "home": str(folder / "home"),
        "corpus": {"name": "rivers", "source": str(corpus)},
        "backbones": {"hashed": {"model": "hashing:256"}},
        "arms": {
            "none": {"kind": "none"},
            "words": {"kind": "bm25", "action": False},
            "near": near,
            "both": {"kind": "rrf", "params": {"arms": ["words", "near"]}},
        },
        "llm": {"engine": "scripted", "default": ""},
        "policy": {"kind": "adaptive"},
        "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    }


@contextmanager
def service(port: int) -> Iterator[Victim]:
    """Start a service over an empty home; yield it at once."""
    with TemporaryDirectory(prefix="k", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        quiet = {"enable_access_log": False}
        config = serve_config(folder, port, "armwise.agent.app:build", settings(folder), logging_config=quiet)
        config.write_text(config.read_text().replace("name: app", "name: armwise"))
        with suppress(subprocess.SubprocessError), started(armwise(config), folder, {}) as pid:
            yield Victim(pid, f"http://127.0.0.1:{port}", folder / "output.txt")


def outcomes(phase: str, parts: list[str], port: int) -> Iterator[Outcome]:
    """Kill each part in a phase; yield what followed."""
    waiting = [part for part in parts if phase == "start" or part not in AT_A_START]
    while waiting:
        with service(port) as victim:
            goes_on = True
            while waiting and goes_on:
                outcome, goes_on = case(victim, phase, waiting.pop(0))
                yield outcome
                goes_on = goes_on and phase != "start" and bool(outcome.followed)


def main(
    only: Annotated[str, typer.Option(help="Parts to kill, with commas between.")] = ",".join(PARTS),
    phases: Annotated[str, typer.Option(help="When, with commas between.")] = ",".join(PHASES),
    port: Annotated[int | None, typer.Option(help="Where the service listens.")] = None,
) -> None:
    """Kill and print."""
    parts, when = only.split(","), phases.split(",")
    if unknown := {*parts} - set(PARTS) | {*when} - set(PHASES):
        raise typer.BadParameter(f"unknown: {', '.join(sorted(unknown))}")
    table = Table(box=MARKDOWN)
    for header in ("when", "killed", "what followed", "`/ready` meanwhile", "failed requests", "last line"):
        table.add_column(header, overflow="fold")
    silent = False
    for phase in when:
        for outcome in outcomes(phase, parts, port or free_port()):
            table.add_row(*outcome.cells())
            silent |= outcome.silent
            sys.stderr.write(" | ".join(outcome.cells()) + "\n")
    Console(width=400).print(table)
    raise typer.Exit(1 if silent else 0)


if __name__ == "__main__":
    typer.run(main)
